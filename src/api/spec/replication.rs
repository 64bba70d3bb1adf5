//! How safe a commit is.

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// How safe a commit is.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ReplicationSpec {
    /// Quorum: a commit returns only when syncReplicas replicas have it. Async: a failover may lose the last moments.
    /// Default: decided at creation and kept, Quorum with 3 or more instances, else Async.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Durability")]
    pub durability: Option<Durability>,
    /// How many replicas must have a commit before it returns.
    #[serde(default = "default_sync_replicas")]
    #[schemars(schema_with = "sync_replicas_schema")]
    pub sync_replicas: i32,
}

impl Default for ReplicationSpec {
    fn default() -> Self {
        Self { durability: None, sync_replicas: default_sync_replicas() }
    }
}

/// How safe a commit is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// A commit returns when enough replicas have it; no election loses it.
    Quorum,
    /// A commit returns at once; a failover may lose the last moments.
    Async,
}

fn default_sync_replicas() -> i32 {
    1
}

fn sync_replicas_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "integer",
        "format": "int32",
        "x-kubernetes-validations": [{"rule": "self >= 1 && self <= 8", "message": "use 1 to 8 syncReplicas"}],
    })
}
