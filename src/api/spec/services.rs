//! How applications reach the database, and with which Secrets and certificates.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::schema::annotations_schema;

/// How applications outside of the cluster reach the database.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ServicesSpec {
    /// Service to the primary.
    #[serde(default)]
    pub rw: ServiceSpec,
    /// Service to the replicas.
    #[serde(default)]
    pub ro: ServiceSpec,
}

/// One Service.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ServiceSpec {
    /// Type of the Service.
    #[serde(default, rename = "type")]
    pub type_: ServiceType,
    /// Annotations of the Service.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "annotations_schema")]
    pub annotations: BTreeMap<String, String>,
    /// Class of the load balancer; only with type LoadBalancer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub load_balancer_class: Option<String>,
    /// Address ranges that may connect through the load balancer; only with type LoadBalancer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "ranges_schema")]
    pub load_balancer_source_ranges: Vec<String>,
}

/// Type of a Service.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceType {
    /// Reachable in the cluster.
    #[default]
    ClusterIP,
    /// Reachable at a port of every node.
    NodePort,
    /// Reachable at a load balancer of the cloud.
    LoadBalancer,
}

impl ServiceType {
    /// As Kubernetes spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIP => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
        }
    }
}

/// Names of the user's own Secrets.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SecretsSpec {
    /// Secret (username, password) of the application's role, in place of a generated one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "secret_name_schema")]
    pub app: Option<String>,
    /// Secret (username, password) of the superuser, in place of a generated one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "secret_name_schema")]
    pub superuser: Option<String>,
}

/// Names of the user's own certificates.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CertificatesSpec {
    /// Secret (tls.crt, tls.key, ca.crt) with PostgreSQL's server certificate, in place of a generated one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "secret_name_schema")]
    pub server: Option<String>,
}

fn ranges_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 64,
        "items": {
            "type": "string",
            "maxLength": 64,
            "x-kubernetes-validations": [{"rule": "isCIDR(self)", "message": "use an address range, such as 192.0.2.0/24"}],
        },
    })
}
fn secret_name_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "minLength": 1, "maxLength": 253})
}
