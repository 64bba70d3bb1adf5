//! What a user writes: the `spec` of a HelloOperator.
//!
//! Descriptions are what `kubectl explain` shows. Every rule here that the API server checks in CEL is checked again,
//! in the same words, by [`crate::core::cluster`]; a test keeps the two equal.

mod backup;
mod bootstrap;
mod failover;
mod pod;
mod postgresql;
mod replication;
mod schema;
mod services;
mod storage;

pub use backup::{
    Azure, BackupSpec, BackupVolume, CRON, Destination, ENDPOINT, Gcs, KEEP_FOR, PATH, RATE, RetentionSpec, S3,
    S3Credentials, SecretKey, VerifySpec,
};
pub use bootstrap::{BootstrapSpec, LSN, RestoreSpec, TIME, TIMELINE};
pub use failover::{FailoverSpec, STOP_SECONDS};
pub use pod::{ImagePullPolicy, PodSpec};
pub use postgresql::PostgresqlSpec;
pub use replication::{Durability, ReplicationSpec};
pub use services::{CertificatesSpec, SecretsSpec, ServiceSpec, ServiceType, ServicesSpec};
pub use storage::{OnDelete, StorageSpec};

use k8s_openapi::api::core::v1::{LocalObjectReference, ResourceRequirements};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::status::HelloOperatorStatus;

/// A highly available PostgreSQL.
#[allow(clippy::duplicated_attributes, reason = "several printed columns have the same type")]
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
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
        name = "LAST BACKUP",
        type_ = "date",
        json_path = ".status.backup.lastSuccessful.completedAt",
        description = "Age of the last good backup"
    ),
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
    #[schemars(schema_with = "id_schema")]
    pub uid: i64,

    /// Group id that runs PostgreSQL in the image.
    #[serde(default = "default_id")]
    #[schemars(schema_with = "id_schema")]
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

    /// Name of the instance that should be primary, such as my-helloworld-2: changing it is a planned switchover, done as
    /// soon as that instance is ready. Default: whichever is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub primary: Option<String>,

    /// When another instance takes over.
    #[serde(default)]
    pub failover: FailoverSpec,

    /// PostgreSQL itself.
    #[serde(default)]
    pub postgresql: PostgresqlSpec,

    /// Continuous archive, base backups, and their proof.
    #[serde(default)]
    pub backup: BackupSpec,

    /// What a new cluster begins with. Cannot be changed after creation.
    #[serde(default)]
    pub bootstrap: BootstrapSpec,

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

/// What an object without a spec means; the same as the defaults of the fields.
impl Default for HelloOperatorSpec {
    fn default() -> Self {
        Self {
            engine: Engine::default(),
            version: default_version(),
            image: None,
            image_pull_policy: None,
            image_pull_secrets: Vec::new(),
            uid: default_id(),
            gid: default_id(),
            instances: default_instances(),
            resources: None,
            pod: PodSpec::default(),
            storage: StorageSpec::default(),
            replication: ReplicationSpec::default(),
            primary: None,
            failover: FailoverSpec::default(),
            postgresql: PostgresqlSpec::default(),
            backup: BackupSpec::default(),
            bootstrap: BootstrapSpec::default(),
            services: ServicesSpec::default(),
            secrets: SecretsSpec::default(),
            certificates: CertificatesSpec::default(),
            state: State::default(),
        }
    }
}

/// Database engine.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// PostgreSQL.
    #[default]
    Postgresql,
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
        "x-kubernetes-validations": [
            {"rule": "self != 0", "message": "instances cannot be 0: to stop the Pods and keep the data, say state: Hibernated"},
            {"rule": "self >= 0 && self <= 9", "message": "use 1 to 9 instances"},
        ],
    })
}

fn id_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "integer",
        "format": "int64",
        "x-kubernetes-validations": [{
            "rule": "self >= 1 && self <= 2147483647",
            "message": "use an id from 1 to 2147483647; root is not allowed",
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_spec_is_the_empty_one() {
        let empty: HelloOperatorSpec = serde_json::from_str("{}").unwrap();
        assert_eq!(empty, HelloOperatorSpec::default());
        assert_eq!((empty.instances, empty.uid), (3, 999));
    }

    #[test]
    fn sizes_may_be_numbers() {
        let spec: HelloOperatorSpec = serde_json::from_str(r#"{"storage": {"size": 34359738368}}"#).unwrap();
        assert_eq!(spec.storage.size.0, "34359738368");
    }
}
