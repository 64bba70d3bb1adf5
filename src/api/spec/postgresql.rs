//! PostgreSQL itself: settings, access rules, and what is made at creation.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::IntOrText;
use crate::api::owned;

/// PostgreSQL itself.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PostgresqlSpec {
    /// Settings of postgresql.conf, values as integers or strings. Reloaded where possible; else a rolling restart.
    /// Settings that the operator owns are refused by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "parameters_schema")]
    pub parameters: BTreeMap<String, IntOrText>,
    /// Lines of pg_hba.conf, before the last one (`hostssl all all all scram-sha-256`) and after our own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "hba_schema")]
    pub hba: Vec<String>,
    /// Database made at creation. Cannot be changed after creation.
    #[serde(default = "default_database")]
    #[schemars(schema_with = "identifier_schema")]
    pub database: String,
    /// Role that owns the database and that applications log in as. Cannot be changed after creation.
    #[serde(default = "default_database")]
    #[schemars(schema_with = "identifier_schema")]
    pub owner: String,
    /// SQL run once, by the superuser in the new database, at creation.
    #[serde(default, rename = "initSQL", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "init_sql_schema")]
    pub init_sql: Vec<String>,
}

impl Default for PostgresqlSpec {
    fn default() -> Self {
        Self {
            parameters: BTreeMap::new(),
            hba: Vec::new(),
            database: default_database(),
            owner: default_database(),
            init_sql: Vec::new(),
        }
    }
}

fn default_database() -> String {
    "app".into()
}

fn parameters_schema(_: &mut SchemaGenerator) -> Schema {
    let mut rules = vec![serde_json::json!({
        "rule": "self.all(key, key.matches('^[a-z][a-z0-9_]*([.][a-z][a-z0-9_]*)?$'))",
        "message": "use names of settings as PostgreSQL writes them, in lower case, such as work_mem or auto_explain.log_min_duration",
    })];
    rules.extend(owned::OWNED.iter().map(|owned| {
        serde_json::json!({
            "rule": format!("!('{}' in self)", owned.name),
            "message": owned.sentence(),
        })
    }));
    json_schema!({
        "type": "object",
        "maxProperties": 128,
        "additionalProperties": {"x-kubernetes-int-or-string": true, "maxLength": 1024},
        "x-kubernetes-validations": rules,
    })
}

fn hba_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 64,
        "items": {
            "type": "string",
            "minLength": 1,
            "maxLength": 512,
            "x-kubernetes-validations": [{
                "rule": "self.matches('^(local|host|hostssl|hostnossl|hostgssenc|hostnogssenc)[ \\t][^\\n\\r]*$')",
                "message": "write one line of pg_hba.conf, such as: hostssl all all 10.0.0.0/8 scram-sha-256",
            }],
        },
    })
}
fn identifier_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 63,
        "x-kubernetes-validations": [
            {
                "rule": "self.matches('^[a-z_][a-z0-9_]*$')",
                "message": "use lower case letters, digits and underscores, beginning with a letter",
            },
            {
                "rule": "!self.startsWith('pg_') && !(self in ['postgres', 'template0', 'template1', 'streaming_replica', 'public'])",
                "message": "that name belongs to PostgreSQL or to the operator: choose another, such as app",
            },
        ],
    })
}
fn init_sql_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "maxItems": 64, "items": {"type": "string", "minLength": 1, "maxLength": 16384}})
}
