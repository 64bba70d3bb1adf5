//! What a user writes: the `spec` of a HelloOperator.
//!
//! Descriptions are what `kubectl explain` shows. Every rule here that the API server checks in CEL is checked again,
//! in the same words, by [`crate::core::cluster`]; a test keeps the two equal.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, LocalObjectReference, ResourceRequirements, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::status::HelloOperatorStatus;

/// A highly available PostgreSQL.
#[allow(clippy::duplicated_attributes, reason = "several printed columns have the same type")]
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "terry.com",
    version = "v1",
    kind = "HelloOperator",
    plural = "helloopperators",
    singular = "hellooperator",
    shortname = "helloop",
    category = "terry",
    namespaced,
    derive = "PartialEq",
    status = "HelloOperatorStatus",
    scale(
        spec_replicas_path = ".spec.instances",
        status_replicas_path = ".status.instanceCount",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "READY",
        type_ = "string",
        json_path = ".status.ready",
        description = "Ready of wanted instances"
    ),
    printcolumn(
        name = "PRIMARY",
        type_ = "string",
        json_path = ".status.primary.instance",
        description = "Instance that takes writes"
    ),
    printcolumn(name = "STATUS", type_ = "string", json_path = ".status.phase", description = "What it does now"),
    printcolumn(
        name = "AGE",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Since when it exists"
    ),
    doc = "HelloOperator is a highly available PostgreSQL: Pods, volumes, Services, Secrets, election. Every field has a default."
)]
#[serde(rename_all = "camelCase")]
pub struct HelloOperatorSpec {
    /// Database engine behind the cluster. Cannot be changed after creation.
    #[serde(default)]
    pub engine: Engine,

    /// Major version of the engine, as an integer or a string: 15, 16, 17 or 18. Never goes down.
    #[serde(default = "default_version")]
    #[schemars(schema_with = "version_schema")]
    pub version: IntOrText,

    /// Image of the database; any image with the layout of the official one. Default: postgres:<version>.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,

    /// When the kubelet pulls the image. Default: the kubelet's own rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ImagePullPolicy")]
    pub image_pull_policy: Option<ImagePullPolicy>,

    /// Secrets in this namespace for pulling the image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub image_pull_secrets: Vec<LocalObjectReference>,

    /// User id that runs PostgreSQL in the image.
    #[serde(default = "default_id")]
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub uid: i64,

    /// Group id that runs PostgreSQL in the image.
    #[serde(default = "default_id")]
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub gid: i64,

    /// Number of PostgreSQL instances: one primary, the rest replicas. 1 to 9; `kubectl scale` works.
    #[serde(default = "default_instances")]
    #[schemars(schema_with = "instances_schema")]
    pub instances: i32,

    /// CPU and memory of the database container. PostgreSQL's memory settings follow the memory limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,

    /// Where and how the instance Pods run.
    #[serde(default)]
    pub pod: PodSpec,

    /// Volumes of each instance.
    #[serde(default)]
    pub storage: StorageSpec,

    /// How safe a commit is.
    #[serde(default)]
    pub replication: ReplicationSpec,

    /// PostgreSQL itself.
    #[serde(default)]
    pub postgresql: PostgresqlSpec,

    /// How applications outside of the cluster reach the database.
    #[serde(default)]
    pub services: ServicesSpec,

    /// Names of your own Secrets in place of generated ones.
    #[serde(default)]
    pub secrets: SecretsSpec,

    /// Names of your own certificates in place of generated ones.
    #[serde(default)]
    pub certificates: CertificatesSpec,

    /// Running; Hibernated stops the Pods and keeps the volumes; Paused leaves everything as it is.
    #[serde(default)]
    pub state: State,
}

/// Database engine.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// PostgreSQL.
    #[default]
    Postgresql,
}

/// When the kubelet pulls an image.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImagePullPolicy {
    /// At each start.
    Always,
    /// When the node lacks it.
    IfNotPresent,
    /// Never.
    Never,
}

impl ImagePullPolicy {
    /// As Kubernetes spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// A number that people may write with or without quotes.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(untagged)]
pub enum IntOrText {
    /// Without quotes.
    Int(i64),
    /// With quotes, or any other text.
    Text(String),
}

impl std::fmt::Display for IntOrText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Int(value) => write!(f, "{value}"),
            Self::Text(value) => f.write_str(value),
        }
    }
}

impl Default for IntOrText {
    fn default() -> Self {
        default_version()
    }
}

/// Where and how the instance Pods run.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    /// Labels added to the Pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels_schema")]
    pub labels: BTreeMap<String, String>,
    /// Annotations added to the Pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "annotations_schema")]
    pub annotations: BTreeMap<String, String>,
    /// Annotations of the Pods' ServiceAccount, for workload identity.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "annotations_schema")]
    pub service_account_annotations: BTreeMap<String, String>,
    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels_schema")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the Pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<Toleration>,
    /// Affinity in place of the default, which prefers one instance per host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// How the Pods spread over zones and hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// Priority class of the Pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
}

/// Volumes of each instance.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StorageSpec {
    /// Size of the data volume. May grow, never shrink.
    #[serde(default = "default_size")]
    #[schemars(schema_with = "quantity_schema")]
    pub size: Quantity,
    /// Storage class of the volumes. Default: the cluster's default class. Cannot be changed after creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
    /// Size of a volume of its own for WAL. May grow, never shrink; cannot be added or removed after creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity_schema")]
    pub wal_size: Option<Quantity>,
    /// What happens to the volumes when the object is deleted: Retain keeps them, and a new object of the same name
    /// adopts them; Delete removes them.
    #[serde(default)]
    pub on_delete: OnDelete,
}

impl Default for StorageSpec {
    fn default() -> Self {
        Self { size: default_size(), storage_class_name: None, wal_size: None, on_delete: OnDelete::default() }
    }
}

/// What happens to the volumes when the object is deleted.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDelete {
    /// They stay.
    #[default]
    Retain,
    /// They go.
    Delete,
}

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
    #[schemars(range(min = 1, max = 8))]
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

/// Whether the cluster runs.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// It runs.
    #[default]
    Running,
    /// The Pods are gone, the volumes stay.
    Hibernated,
    /// Nothing is touched.
    Paused,
}

fn default_version() -> IntOrText {
    IntOrText::Int(17)
}
fn default_id() -> i64 {
    999
}
fn default_instances() -> i32 {
    3
}
fn default_sync_replicas() -> i32 {
    1
}
fn default_size() -> Quantity {
    Quantity("1Gi".into())
}
fn default_database() -> String {
    "app".into()
}

fn version_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "x-kubernetes-validations": [{
            "rule": "type(self) == int ? self in [15, 16, 17, 18] : self in ['15', '16', '17', '18']",
            "message": "use a version that is supported: 15, 16, 17 or 18",
        }],
    })
}
fn instances_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "integer",
        "format": "int32",
        "maximum": 9,
        "x-kubernetes-validations": [
            {"rule": "self != 0", "message": "instances cannot be 0: to stop the Pods and keep the data, say state: Hibernated"},
            {"rule": "self >= 0", "message": "use 1 to 9 instances"},
        ],
    })
}
fn quantity_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "maxLength": 32,
        "x-kubernetes-validations": [{
            "rule": "type(self) == int ? self >= 33554432 : isQuantity(self) && quantity(self).compareTo(quantity('32Mi')) >= 0",
            "message": "use a size of at least 32Mi, such as 10Gi",
        }],
    })
}
fn labels_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "maxProperties": 64, "additionalProperties": {"type": "string", "maxLength": 63}})
}
fn annotations_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "maxProperties": 64, "additionalProperties": {"type": "string", "maxLength": 8192}})
}
fn parameters_schema(_: &mut SchemaGenerator) -> Schema {
    let mut rules = vec![serde_json::json!({
        "rule": "self.all(key, key.matches('^[a-z][a-z0-9_]*([.][a-z][a-z0-9_]*)?$'))",
        "message": "use names of settings as PostgreSQL writes them, in lower case, such as work_mem or auto_explain.log_min_duration",
    })];
    rules.extend(super::owned::OWNED.iter().map(|owned| {
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
