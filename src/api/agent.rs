//! The agents' API: what operator and agents, and agents among themselves, say to each other.
//!
//! Both sides interoperate across one minor version, so fields are only added, with a default.

use serde::{Deserialize, Serialize};

use super::archive::StoreReport;

/// `GET /v1/report`: what an agent says of its instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Name of the instance.
    pub instance: String,
    /// Uid of its Pod.
    pub pod_uid: String,
    /// Version of the agent.
    pub agent_version: String,
    /// What it does.
    pub phase: Phase,
    /// What is wrong or what it waits for, in a sentence.
    #[serde(default)]
    pub message: Option<String>,
    /// The member: id of the data directory. None without data.
    #[serde(default)]
    pub member: Option<String>,
    /// System identifier of the data. None without data.
    #[serde(default)]
    pub system_id: Option<String>,
    /// Whether the volume was looked at and holds no data. That nothing is told of data does not say so.
    #[serde(default)]
    pub empty: bool,
    /// Term of the Lease that it follows or holds.
    #[serde(default)]
    pub term: i64,
    /// The register as this agent last read it (the text of the Lease's annotation), from which the operator can restore a
    /// deleted Lease when every member has answered.
    #[serde(default)]
    pub register: Option<String>,
    /// Timeline of its WAL.
    #[serde(default)]
    pub timeline: Option<u32>,
    /// The history of a primary's data: each timeline with the position at which it was left, its own last, without one.
    #[serde(default)]
    pub history: Vec<(u32, Option<Lsn>)>,
    /// Last position on its disk.
    #[serde(default)]
    pub lsn: Option<Lsn>,
    /// Last position replayed (a replica).
    #[serde(default)]
    pub replayed: Option<Lsn>,
    /// Whether a replica streams from the holder of the Lease.
    #[serde(default)]
    pub streaming: bool,
    /// Whether it serves its role; the same as `/readyz`.
    #[serde(default)]
    pub ready: bool,
    /// Generation of the configuration that PostgreSQL has loaded.
    #[serde(default)]
    pub config_generation: i64,
    /// Settings whose new value waits for a restart.
    #[serde(default)]
    pub pending_restart: Vec<String>,
    /// Whether only a restart in place helps (a primary): a smaller value waits that its replicas could not have taken over yet.
    #[serde(default)]
    pub restart_in_place: bool,
    /// Value of the last restart command that was carried out.
    #[serde(default)]
    pub restarted_for: Option<String>,
    /// Bytes free and in all on the data volume.
    #[serde(default)]
    pub disk: Option<Disk>,
    /// Bytes free and in all on the volume of the WAL, where it has one.
    #[serde(default)]
    pub wal_disk: Option<Disk>,
    /// Which of its volumes is full: a primary takes no writes then.
    #[serde(default)]
    pub full: Option<FullVolume>,
    /// Whether its volumes have enough room that the primary of a full one may come here.
    #[serde(default)]
    pub roomy: bool,
    /// The primary's view of the replicas that stream from it.
    #[serde(default)]
    pub replicas: Vec<ReplicaReport>,
    /// Whether the sync rule in force is confirmed (a primary).
    #[serde(default)]
    pub rules_confirmed: bool,
    /// Whether its copy may answer elections.
    #[serde(default)]
    pub marker: bool,
    /// Whether its Pod ends.
    #[serde(default)]
    pub draining: bool,
    /// What it does in an election, while there is one.
    #[serde(default)]
    pub election: Option<ElectionReport>,
    /// Whether it is valid only by the promises of the members, because the API server is away (the holder).
    #[serde(default)]
    pub held: bool,
    /// Seconds since its last successful renewal was sent (the holder).
    #[serde(default)]
    pub lease_age_seconds: Option<f64>,
    /// How its copy was last made fit to follow, after it could not. The first clone of an instance is none.
    #[serde(default)]
    pub rejoined: Option<Rejoined>,
    /// Seconds in which this instance was to take writes and did not, since its agent began.
    #[serde(default)]
    pub unavailable_seconds: f64,
    /// Copies of the primary's data that this instance began, since its agent began.
    #[serde(default)]
    pub clones: u64,
    /// Archive and backups, where there is a destination.
    #[serde(default)]
    pub store: Option<StoreReport>,
}

impl Report {
    /// Of an instance of which nothing is known yet.
    pub fn new(instance: &str, pod_uid: &str) -> Self {
        Self {
            instance: instance.to_owned(),
            pod_uid: pod_uid.to_owned(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            phase: Phase::Waiting,
            message: None,
            member: None,
            system_id: None,
            empty: false,
            term: 0,
            register: None,
            timeline: None,
            history: Vec::new(),
            lsn: None,
            replayed: None,
            streaming: false,
            ready: false,
            config_generation: 0,
            pending_restart: Vec::new(),
            restart_in_place: false,
            restarted_for: None,
            store: None,
            disk: None,
            wal_disk: None,
            full: None,
            roomy: false,
            replicas: Vec::new(),
            rules_confirmed: false,
            marker: false,
            draining: false,
            election: None,
            held: false,
            lease_age_seconds: None,
            rejoined: None,
            unavailable_seconds: 0.0,
            clones: 0,
        }
    }
}

/// A volume that is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FullVolume {
    /// The data volume.
    Data,
    /// The volume of the WAL.
    Wal,
}

impl FullVolume {
    /// The field of the object that makes it larger.
    pub fn field(self) -> &'static str {
        match self {
            Self::Data => "spec.storage.size",
            Self::Wal => "spec.storage.walSize",
        }
    }

    /// Name of the volume, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Data => "volume",
            Self::Wal => "WAL volume",
        }
    }
}

/// A copy that could not follow, and can again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rejoined {
    /// How.
    pub how: Rejoin,
    /// When it was done (RFC 3339).
    pub at: String,
    /// Why it could not follow, in a sentence.
    pub reason: String,
}

/// How a copy is made fit to follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Rejoin {
    /// It was taken back to where the primary's history left its own.
    Rewound,
    /// It was copied anew.
    Recloned,
}

/// An election as one agent sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ElectionReport {
    /// Where it stands.
    pub phase: ElectionPhase,
    /// Version of the Lease on which it is held.
    pub version: String,
    /// Members that are needed and did not answer.
    #[serde(default)]
    pub missing: Vec<String>,
    /// For people.
    pub sentence: String,
}

/// Where an election stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ElectionPhase {
    /// This member promised a candidate to follow nobody until the Lease has changed.
    Frozen,
    /// This agent asks all members.
    Campaigning,
    /// Another member should rather take the Lease.
    StandingBack,
    /// Nobody who answered may take it.
    Blocked,
}

/// The last hand-over of the Lease, told by who took it: annotation [`crate::api::names::ANNOTATION_HAND_OVER`] of the Lease. Nothing
/// is decided by it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HandOver {
    /// The term that it began (until it is taken: that which it ends).
    pub term: i64,
    /// Instance that was primary.
    #[serde(default)]
    pub from: Option<String>,
    /// Instance that took over; empty until then.
    #[serde(default)]
    pub to: String,
    /// Why.
    pub reason: HandOverReason,
    /// When the former primary stopped, or was last heard of (RFC 3339).
    pub started_at: String,
    /// When the new one took writes, and clients were led to it.
    #[serde(default)]
    pub completed_at: Option<String>,
}

/// Why the Lease changed hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HandOverReason {
    /// Somebody asked for another primary.
    Switchover,
    /// The primary's Pod was told to end: a drain, an eviction, a roll, a deletion.
    Shutdown,
    /// PostgreSQL ended by itself.
    PostgresDied,
    /// PostgreSQL or its disk did not answer any more.
    PostgresHung,
    /// The primary's container ended.
    AgentDied,
    /// Nobody renewed the Lease.
    LeaseRanOut,
    /// The primary's volume was full, and another instance has room.
    DiskFull,
    /// A human accepted a loss.
    Forced,
    /// The same instance came back.
    Restart,
}

impl HandOverReason {
    /// All of them, for metrics that show a zero before the first one.
    pub const ALL: [Self; 9] = [
        Self::Switchover,
        Self::Shutdown,
        Self::PostgresDied,
        Self::PostgresHung,
        Self::AgentDied,
        Self::LeaseRanOut,
        Self::DiskFull,
        Self::Forced,
        Self::Restart,
    ];

    /// As metrics and events name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Switchover => "switchover",
            Self::Shutdown => "shutdown",
            Self::PostgresDied => "postgresDied",
            Self::PostgresHung => "postgresHung",
            Self::AgentDied => "agentDied",
            Self::LeaseRanOut => "leaseRanOut",
            Self::DiskFull => "diskFull",
            Self::Forced => "forced",
            Self::Restart => "restart",
        }
    }

    /// For people.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Switchover => "another primary was asked for",
            Self::Shutdown => "its Pod was told to end",
            Self::PostgresDied => "PostgreSQL ended by itself",
            Self::PostgresHung => "PostgreSQL or its disk did not answer any more",
            Self::AgentDied => "its container ended",
            Self::LeaseRanOut => "it did not renew its Lease any more",
            Self::DiskFull => "its volume was full, and another instance has room",
            Self::Forced => "a human accepted that acknowledged writes may be lost",
            Self::Restart => "it came back by itself",
        }
    }
}

/// What an instance does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// Waits: for the Lease, the configuration, or a primary to clone from.
    Waiting,
    /// Makes the first data directory.
    Bootstrapping,
    /// Copies the primary's data directory.
    Cloning,
    /// PostgreSQL starts.
    Starting,
    /// Takes writes.
    Primary,
    /// Follows the primary.
    Replica,
    /// PostgreSQL is stopped, on purpose.
    Stopped,
    /// PostgreSQL cannot run; `message` says why.
    Failed,
}

/// A volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// Bytes that can still be written.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
}

/// One replica as its primary sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaReport {
    /// Member id, which is its application name.
    pub member: String,
    /// Name of the instance, where it is known.
    #[serde(default)]
    pub instance: Option<String>,
    /// Last position that it flushed.
    #[serde(default)]
    pub flushed: Option<Lsn>,
    /// Last position that it replayed.
    #[serde(default)]
    pub replayed: Option<Lsn>,
    /// Whether its walsender streams (and is not still catching up).
    pub streaming: bool,
}

/// `POST /v1/restart`: restart PostgreSQL in place. An agent refuses a term older than the one it knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestartCommand {
    /// Term of the Lease that the operator saw.
    pub term: i64,
    /// Names this command; the same one is carried out once.
    pub id: String,
    /// Why, in a sentence.
    pub reason: String,
}

/// `POST /v1/leave`: the instance is removed. The holder takes its member out of the sync rules first (`member` set, sent
/// to the primary); answered with 200 once no rule in the Lease names it, 202 while that is under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaveCommand {
    /// Term of the Lease that the operator saw.
    pub term: i64,
    /// Name of the instance that leaves.
    pub instance: String,
}

/// `POST /v1/switchover`: the holder hands over to a replica that is ready. 200 once it does not hold the Lease any more, 202 while
/// that is under way, 409 with a sentence when nobody is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SwitchoverCommand {
    /// Term of the Lease that the operator saw.
    pub term: i64,
    /// Names this command.
    pub id: String,
    /// To whom; None: whoever is ready.
    #[serde(default)]
    pub to: Option<String>,
    /// Why, in a sentence.
    pub reason: String,
}

/// `POST /v1/freeze`, from agent to agent: follow nobody until the Lease shows another version than this.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreezeRequest {
    /// resourceVersion of the Lease on which the candidate judged it to be free.
    pub version: String,
}

/// `POST /v1/hold`, from the holder to a member: answer no freeze and take no Lease for a while.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldRequest {
    /// Holder string of who asks.
    pub holder: String,
    /// Its term.
    pub term: i64,
}

/// A hold that was promised.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldAnswer {
    /// Name of the instance.
    pub instance: String,
    /// Id of the member that promised it.
    pub member: String,
}

/// The answer to a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandAnswer {
    /// Whether it is carried out completely.
    pub done: bool,
    /// What is still missing, or why it was refused, in a sentence.
    pub message: String,
}

/// A position in the WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

impl std::fmt::Display for Lsn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

/// A text that is no position in the WAL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no WAL position such as 0/3000148")]
pub struct InvalidLsn(pub String);

impl std::str::FromStr for Lsn {
    type Err = InvalidLsn;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidLsn(text.to_owned());
        let (high, low) = text.split_once('/').ok_or_else(invalid)?;
        let high = u32::from_str_radix(high, 16).map_err(|_| invalid())?;
        let low = u32::from_str_radix(low, 16).map_err(|_| invalid())?;
        Ok(Self((u64::from(high) << 32) | u64::from(low)))
    }
}

impl Serialize for Lsn {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Lsn {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
