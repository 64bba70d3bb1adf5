//! Where backups go, when they are made, and how long they are kept.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::schema::{Rule, checked_text, integer};

/// Continuous archive of the WAL, and base backups.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BackupSpec {
    /// Where backups and the WAL archive go. Default: nowhere, there is no backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<Destination>,
    /// When a base backup is made: five fields of cron (minute, hour, day, month, weekday), such as `0 3 * * *`. A run that
    /// was missed is made up once. Default: only when somebody creates a HelloBackup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cron_schema")]
    pub schedule: Option<String>,
    /// Time zone of the schedules, such as Europe/Zurich. A time that a change of clocks leaves out runs at the next valid
    /// moment; one that happens twice runs once.
    #[serde(default = "default_time_zone")]
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: String,
    /// No scheduled backup or verification begins; the WAL archive goes on.
    #[serde(default)]
    pub suspend: bool,
    /// Which backups are kept. What both rules allow to go is removed, with the WAL that no kept backup needs; the last good
    /// backup always stays.
    #[serde(default)]
    pub retention: RetentionSpec,
    /// Whether the WAL is archived continuously, so that any moment can be restored. Without it nothing but the moment of each
    /// base backup can be.
    #[serde(default = "default_wal_archive")]
    pub wal_archive: bool,
    /// Seconds after which a segment of WAL is closed and archived although it is not full, when anything was written: the most
    /// that is lost with all volumes. 10 to 3600.
    #[serde(default = "default_archive_timeout")]
    #[schemars(schema_with = "archive_timeout_schema")]
    pub archive_timeout_seconds: i32,
    /// Bytes per second that a base backup reads at most, such as 50M. Default: as fast as it goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "rate_schema")]
    pub max_bytes_per_second: Option<Quantity>,
    /// Regular proof that the newest backup can be restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<VerifySpec>,
}

impl Default for BackupSpec {
    fn default() -> Self {
        Self {
            destination: None,
            schedule: None,
            time_zone: default_time_zone(),
            suspend: false,
            retention: RetentionSpec::default(),
            wal_archive: default_wal_archive(),
            archive_timeout_seconds: default_archive_timeout(),
            max_bytes_per_second: None,
            verify: None,
        }
    }
}

/// Which backups are kept.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RetentionSpec {
    /// As many of the newest good backups are kept: 1 to 1000. Default: without keepFor, all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "keep_last_schema")]
    pub keep_last: Option<i32>,
    /// Any moment of this long can be restored: a number and s, m, h, d or w, such as 30d. Default: without keepLast, for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "keep_for_schema")]
    pub keep_for: Option<String>,
}

/// Regular proof that the newest backup can be restored.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct VerifySpec {
    /// When: five fields of cron. The newest backup is restored into a scratch Pod with a volume of its own, PostgreSQL is
    /// started, and every page and the catalogue are read.
    #[schemars(schema_with = "cron_schema")]
    pub schedule: String,
    /// A statement that must succeed in the restored database, such as `SELECT 1/(count(*)) FROM orders`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub query: Option<String>,
}

/// An object store, or a volume.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Destination {
    /// S3, or what speaks its protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3>,
    /// Google Cloud Storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gcs: Option<Gcs>,
    /// Azure Blob Storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub azure: Option<Azure>,
    /// A volume that all instances can mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<BackupVolume>,
}

/// S3, or what speaks its protocol.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct S3 {
    /// Bucket. It must exist.
    #[schemars(length(min = 1, max = 255))]
    pub bucket: String,
    /// Folder in the bucket that belongs to this cluster alone. Default: <namespace>/<name>.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "path_schema")]
    pub path: Option<String>,
    /// Address of the server, such as https://minio.example:9000. Default: Amazon's of the region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "endpoint_schema")]
    pub endpoint: Option<String>,
    /// Region.
    #[serde(default = "default_region")]
    #[schemars(length(min = 1, max = 64))]
    pub region: String,
    /// Keys. Default: the workload identity of the Pods' service account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<S3Credentials>,
    /// Authority of the server's certificate (PEM). Default: the public ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<SecretKey>,
    /// Whether the bucket is named in the path and not in the host, as most servers other than Amazon's want it. Default: when an
    /// endpoint is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force_path_style: Option<bool>,
}

/// Keys in a Secret.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct S3Credentials {
    /// Name of the Secret, in the namespace of the cluster.
    #[schemars(length(min = 1, max = 253))]
    pub secret: String,
    /// Its key with the access key's id.
    #[serde(default = "default_access_key_id")]
    #[schemars(length(min = 1, max = 253))]
    pub access_key_id: String,
    /// Its key with the secret access key.
    #[serde(default = "default_secret_access_key")]
    #[schemars(length(min = 1, max = 253))]
    pub secret_access_key: String,
    /// Its key with a session token, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub session_token: Option<String>,
}

/// Google Cloud Storage.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Gcs {
    /// Bucket. It must exist.
    #[schemars(length(min = 1, max = 255))]
    pub bucket: String,
    /// Folder in the bucket that belongs to this cluster alone. Default: <namespace>/<name>.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "path_schema")]
    pub path: Option<String>,
    /// Key of a service account (JSON). Default: the workload identity of the Pods' service account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<SecretKey>,
}

/// Azure Blob Storage.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Azure {
    /// Storage account.
    #[schemars(length(min = 1, max = 64))]
    pub account: String,
    /// Container. It must exist.
    #[schemars(length(min = 1, max = 255))]
    pub container: String,
    /// Folder in the container that belongs to this cluster alone. Default: <namespace>/<name>.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "path_schema")]
    pub path: Option<String>,
    /// Access key of the account. Default: the workload identity of the Pods' service account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account_key: Option<SecretKey>,
}

/// A volume that all instances can mount: ReadWriteMany, unless there is one instance.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct BackupVolume {
    /// Name of the PersistentVolumeClaim, in the namespace of the cluster.
    #[schemars(length(min = 1, max = 253))]
    pub claim: String,
    /// Folder on it that belongs to this cluster alone. Default: <namespace>/<name>.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "path_schema")]
    pub path: Option<String>,
}

/// A key of a Secret in the namespace of the cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
pub struct SecretKey {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its key.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

impl Destination {
    /// The folder that was chosen, if any.
    pub fn path(&self) -> Option<&str> {
        let s3 = self.s3.as_ref().and_then(|s3| s3.path.as_deref());
        let gcs = self.gcs.as_ref().and_then(|gcs| gcs.path.as_deref());
        let azure = self.azure.as_ref().and_then(|azure| azure.path.as_deref());
        s3.or(gcs).or(azure).or(self.volume.as_ref().and_then(|volume| volume.path.as_deref()))
    }

    /// The folder that belongs to a cluster, without slashes around it.
    pub fn root(&self, namespace: &str, name: &str) -> String {
        let chosen = self.path().unwrap_or_default().trim_matches('/');
        if chosen.is_empty() { format!("{namespace}/{name}") } else { chosen.to_owned() }
    }

    /// A folder in it, for people and equal for equal places: such as `s3://bucket/root`.
    pub fn place(&self, root: &str) -> String {
        match self {
            Self { s3: Some(s3), .. } => match &s3.endpoint {
                Some(endpoint) => format!("s3://{}/{root} at {endpoint}", s3.bucket),
                None => format!("s3://{}/{root}", s3.bucket),
            },
            Self { gcs: Some(gcs), .. } => format!("gs://{}/{root}", gcs.bucket),
            Self { azure: Some(azure), .. } => format!("azure://{}/{}/{root}", azure.account, azure.container),
            Self { volume: Some(volume), .. } => format!("volume {}/{root}", volume.claim),
            _ => root.to_owned(),
        }
    }

    /// The place of a cluster's own folder, for people.
    pub fn url(&self, namespace: &str, name: &str) -> String {
        self.place(&self.root(namespace, name))
    }

    /// Names of the Secrets that hold its credentials and authority.
    pub fn secrets(&self) -> Vec<&str> {
        let s3 = self.s3.iter().flat_map(|s3| {
            let keys = s3.credentials.as_ref().map(|credentials| credentials.secret.as_str());
            keys.into_iter().chain(s3.ca.as_ref().map(|ca| ca.name.as_str()))
        });
        let gcs = self.gcs.iter().filter_map(|gcs| gcs.credentials.as_ref()).map(|key| key.name.as_str());
        let azure = self.azure.iter().filter_map(|azure| azure.account_key.as_ref()).map(|key| key.name.as_str());
        let mut names: Vec<&str> = s3.chain(gcs).chain(azure).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

fn default_time_zone() -> String {
    "UTC".into()
}

fn default_wal_archive() -> bool {
    true
}

fn default_archive_timeout() -> i32 {
    60
}

fn default_region() -> String {
    "us-east-1".into()
}

fn default_access_key_id() -> String {
    "accessKeyId".into()
}

fn default_secret_access_key() -> String {
    "secretAccessKey".into()
}

/// A schedule. Whether such a moment ever comes (30 February) is more than a pattern can say: a condition tells.
pub const CRON: Rule = (
    "self.matches('^[0-9*,/A-Za-z-]+( +[0-9*,/A-Za-z-]+){4}$')",
    "use five fields of cron: minute, hour, day of the month, month, day of the week, such as 0 3 * * *",
);
/// How long.
pub const KEEP_FOR: Rule =
    ("self.matches('^[1-9][0-9]{0,8}[smhdw]$')", "use a number and one of s, m, h, d or w, such as 30d");
/// A folder.
pub const PATH: Rule = (
    "self.matches('^[A-Za-z0-9._=/-]+$') && !self.matches('(^|/)[.][.]?(/|$)') && !self.contains('//')",
    "use a path of letters, digits, . _ = - and single slashes, such as backups/my-helloworld",
);
/// A server.
pub const ENDPOINT: Rule = (
    "self.matches('^https?://[^/?#@]+$')",
    "use an address such as https://minio.example:9000, without a path or credentials",
);
/// A pace.
pub const RATE: Rule = (
    "type(self) == int ? self >= 65536 : isQuantity(self) && quantity(self).compareTo(quantity('64Ki')) >= 0",
    "use at least 64Ki bytes per second, such as 50M",
);

fn cron_schema(_: &mut SchemaGenerator) -> Schema {
    checked_text(128, CRON)
}

fn keep_for_schema(_: &mut SchemaGenerator) -> Schema {
    checked_text(16, KEEP_FOR)
}

fn path_schema(_: &mut SchemaGenerator) -> Schema {
    checked_text(512, PATH)
}

fn endpoint_schema(_: &mut SchemaGenerator) -> Schema {
    checked_text(512, ENDPOINT)
}

fn rate_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "maxLength": 32,
        "x-kubernetes-validations": [{"rule": RATE.0, "message": RATE.1}],
    })
}

fn archive_timeout_schema(_: &mut SchemaGenerator) -> Schema {
    integer(10, 3600, "archiveTimeoutSeconds")
}

fn keep_last_schema(_: &mut SchemaGenerator) -> Schema {
    integer(1, 1000, "keepLast")
}
