//! One backup: the kind HelloBackup.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::spec::Destination;
use super::status::{UNSEEN, conditions_schema};

/// One base backup of a HelloOperator.
#[allow(clippy::duplicated_attributes, reason = "several printed columns have the same type")]
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[kube(
    group = "terry.com",
    version = "v1",
    kind = "HelloBackup",
    plural = "hellobackups",
    singular = "hellobackup",
    shortname = "hellobk",
    category = "terry",
    namespaced,
    derive = "PartialEq",
    status = "HelloBackupStatus",
    printcolumn(
        name = "CLUSTER",
        type_ = "string",
        json_path = ".spec.cluster",
        description = "What it is a backup of"
    ),
    printcolumn(name = "STATUS", type_ = "string", json_path = ".status.phase", description = "How far it is"),
    printcolumn(
        name = "PROGRESS",
        type_ = "string",
        json_path = ".status.progress",
        description = "Done of all, rate, expected end"
    ),
    printcolumn(name = "INSTANCE", type_ = "string", json_path = ".status.instance", description = "Who takes it"),
    printcolumn(
        name = "AGE",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Since when it exists"
    ),
    doc = "HelloBackup is one base backup of a HelloOperator. Deleting it while it runs cancels it; a complete one leaves the store by the retention of its cluster."
)]
#[serde(rename_all = "camelCase")]
pub struct HelloBackupSpec {
    /// Name of the HelloOperator, in the same namespace.
    #[schemars(length(min = 1, max = 45))]
    pub cluster: String,
    /// PreferReplica: a replica takes it, or the primary where there is none. Primary: the primary does.
    #[serde(default)]
    pub target: BackupTarget,
}

/// Who takes it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackupTarget {
    /// A replica that streams, or the primary where there is none.
    #[default]
    PreferReplica,
    /// The primary.
    Primary,
}

/// How far a backup is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackupPhase {
    /// It waits for its turn, or for an instance that can take it.
    #[default]
    Pending,
    /// It is being taken.
    Running,
    /// It can be restored.
    Completed,
    /// It cannot; nothing of it counts as a backup.
    Failed,
}

/// What is known of a backup.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HelloBackupStatus {
    /// Generation of the spec that this status speaks of; -1: no operator has looked at the object yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready: it can be restored. For tools that know kstatus, Reconciling while it waits or runs, and Stalled where it failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,
    /// How far it is.
    #[serde(default)]
    pub phase: BackupPhase,
    /// Done of all, rate and expected end, in one line for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// What it waits for, or why it failed, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Instance that takes or took it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// primary or replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Its id in the destination.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup_id: Option<String>,
    /// Where it is, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Where it is, for a restore by the name of this object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<Destination>,
    /// When it began (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// When it ended, in one way or the other (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<String>,
    /// Timeline of its WAL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<i64>,
    /// Position at which its WAL begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_lsn: Option<String>,
    /// Position from which it is consistent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_lsn: Option<String>,
    /// Bytes of the data directory read so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done_bytes: Option<i64>,
    /// Bytes of the data directory in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<i64>,
    /// Bytes that it takes in the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<i64>,
    /// Bytes of the data directory per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<i64>,
    /// Since when nobody tells of it although it should run (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unseen_since: Option<String>,
}

impl HelloBackupStatus {
    /// Whether an operator wrote it.
    pub fn written(&self) -> bool {
        self.observed_generation != Some(UNSEEN)
    }
}
