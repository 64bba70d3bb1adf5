//! What the operator reports: the `status` of a HelloOperator.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the operator last saw. Live values (positions, lag) are metrics; here they change only with something else.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HelloOperatorStatus {
    /// Generation of the spec that this status speaks of; -1: no operator has looked at the object yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What it does now, in one word for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Ready, Progressing, Degraded, WriteAvailable and, where backups go somewhere, BackupHealthy; each with a reason and a
    /// sentence. Without Ready where nothing is to run. For tools that know kstatus, Reconciling or Stalled while it is so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,
    /// Ready of wanted instances, such as 2/3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// How many instance Pods there are, for the scale subresource.
    #[serde(default)]
    pub instance_count: i32,
    /// How many of them are ready.
    #[serde(default)]
    pub ready_instances: i32,
    /// Label selector of the instance Pods, for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The instance that takes writes, as its Lease says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<PrimaryStatus>,
    /// Where the election stands, as its Lease and the agents say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub election: Option<ElectionStatus>,
    /// The last time that the primary's role changed hands, or came back to the same instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failover: Option<LastFailover>,
    /// Every instance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<InstanceStatus>,
    /// The sync rules, as the Lease says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replication: Option<ReplicationStatus>,
    /// Backups and the archive, where they go somewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<BackupStatus>,
}

/// Backups and the archive.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct BackupStatus {
    /// The newest good backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_successful: Option<LastBackup>,
    /// The first moment that can be restored (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_recoverable: Option<String>,
    /// The last segment of WAL that was archived when this status was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_archived_wal: Option<String>,
    /// When that was (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_archived_at: Option<String>,
    /// When the schedule makes the next backup (RFC 3339). One that has passed is made as soon as it can be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_run: Option<String>,
    /// When the newest backup is proven next (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_verification: Option<String>,
    /// The last proof that a backup can be restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_verified: Option<VerifiedStatus>,
    /// Why the last proof failed; missing when it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification_error: Option<String>,
    /// Uid of the scratch Pod whose result this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification_pod: Option<String>,
    /// Backups that the retention removes when it runs next.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expiring: Vec<ExpiringStatus>,
}

/// A good backup.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct LastBackup {
    /// Name of its HelloBackup, while there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its id in the destination.
    pub backup_id: String,
    /// When it was complete (RFC 3339).
    pub completed_at: String,
}

/// A proof.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct VerifiedStatus {
    /// The backup that was restored, by id.
    pub backup_id: String,
    /// When (RFC 3339).
    pub at: String,
    /// What was read.
    #[serde(default)]
    pub message: String,
}

/// A backup on its way out.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ExpiringStatus {
    /// Its id in the destination.
    pub backup_id: String,
    /// Why it goes.
    pub reason: String,
}

/// The instance that takes writes.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PrimaryStatus {
    /// Its name.
    pub instance: String,
    /// Term of its Lease: one higher at each change of hands.
    pub term: i64,
    /// Timeline of PostgreSQL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<i64>,
    /// When it took the Lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// Where the election stands.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ElectionStatus {
    /// Term of the Lease: one higher at each change of hands.
    pub term: i64,
    /// Held: an instance holds the Lease. HandOver: it changes hands. Electing: the holder is not heard of, and the others
    /// look who may take over. Blocked: nobody may, see the condition WriteAvailable. Released: nobody is to hold it.
    pub phase: ElectionPhase,
    /// Instance that was primary before this term.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Instance that took over, or is taking over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Why it changed hands: switchover, shutdown, postgresDied, postgresHung, agentDied, leaseRanOut, forced or restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Where an election stands, as people are told.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ElectionPhase {
    /// An instance holds the Lease.
    Held,
    /// It changes hands.
    HandOver,
    /// The holder is not heard of, and the others look who may take over.
    Electing,
    /// Nobody may take over.
    Blocked,
    /// Nobody is to hold it: it was never held, or the cluster is hibernated.
    #[default]
    Released,
}

/// A hand-over that is complete.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LastFailover {
    /// Term that it began.
    pub term: i64,
    /// Instance that was primary.
    pub from: String,
    /// Instance that took over.
    pub to: String,
    /// Why: switchover, shutdown, postgresDied, postgresHung, agentDied, leaseRanOut, forced or restart.
    pub reason: String,
    /// When the former primary stopped, or was last heard of (RFC 3339).
    pub started_at: String,
    /// Seconds until the new one took writes and clients were led to it.
    pub duration_seconds: f64,
}

/// One instance.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct InstanceStatus {
    /// Its name, which is its Pod's and its volume's.
    pub name: String,
    /// primary, replica, or what it is on the way to become; missing without a Pod.
    pub role: String,
    /// Whether it serves its role.
    pub ready: bool,
    /// Whether it has served before; one that has not is new.
    #[serde(default)]
    pub joined: bool,
    /// Timeline of PostgreSQL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<i64>,
    /// Position in the WAL when this status was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lsn: Option<String>,
    /// Bytes behind the primary when this status was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_bytes: Option<i64>,
    /// Node that it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// How its copy was last made fit to follow, after it could not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejoined: Option<RejoinedStatus>,
    /// What is wrong, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A copy that could not follow, and can again.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RejoinedStatus {
    /// Rewound or Recloned.
    pub how: String,
    /// When (RFC 3339).
    pub at: String,
    /// Why it could not follow.
    pub reason: String,
}

/// The sync rules.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ReplicationStatus {
    /// Quorum or Async, as decided at creation.
    pub durability: String,
    /// The rules in force, such as `ANY 1 (my-helloworld-2, my-helloworld-3)`; a commit must satisfy the last one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// Whether the primary has proven that the last rule is in force and no older one is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<bool>,
}

/// The observedGeneration of a status that nobody wrote: the CRDs fill it in, so that tools do not take a new object for a
/// finished one.
pub const UNSEEN: i64 = -1;

impl HelloOperatorStatus {
    /// Whether an operator wrote it.
    pub fn written(&self) -> bool {
        self.observed_generation != Some(UNSEEN)
    }
}

pub(super) fn conditions_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let item = generator.subschema_for::<Condition>();
    schemars::json_schema!({
        "type": "array",
        "items": item,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    })
}
