//! The ConfigMap that the operator writes and the agents of a cluster read.
//!
//! Both sides interoperate across one minor version, so fields are only added, with a default.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::agent::Lsn;
use super::spec::{Destination, Durability, HelloOperatorSpec};

/// What the operator hands to the agents: ConfigMap `<name>-config`, key `cluster.json`. It holds the last accepted
/// spec, because the object itself can lose its spec when a bare CRD is applied over ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterConfig {
    /// Generation of the object that was accepted.
    pub generation: i64,
    /// Uid of the object that was accepted.
    pub uid: String,
    /// The accepted spec, as it was written.
    pub spec: HelloOperatorSpec,
    /// Durability as decided at creation.
    pub durability: Durability,
    /// k of ANY k.
    pub sync_replicas: i32,
    /// Names of all wanted instances.
    pub instances: Vec<String>,
    /// Settings for postgresql.conf, complete but for what only the agent knows (paths, names, the member's own).
    pub parameters: BTreeMap<String, String>,
    /// The user's lines of pg_hba.conf.
    #[serde(default)]
    pub hba: Vec<String>,
    /// Bounds of the primary Lease.
    pub lease: LeaseBounds,
    /// Term of the register for which a human accepted that acknowledged writes may be lost. It counts once, because the take
    /// moves the term on.
    #[serde(default)]
    pub accept_loss: Option<i64>,
    /// What a new cluster is restored from, with names of objects resolved. None: an empty database, or names that are not known
    /// (yet): then `spec.bootstrap.restore` still says that nothing may begin empty.
    #[serde(default)]
    pub restore: Option<RestoreOrder>,
    /// Where agents send traces; None: nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traces: Option<Collector>,
}

/// A collector of traces, with nothing that is secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Collector {
    /// Its address: of the whole resource for HTTP, of the server for gRPC.
    pub endpoint: String,
    /// How it is spoken to.
    pub protocol: TraceProtocol,
    /// Whether what is sent is compressed.
    #[serde(default)]
    pub gzip: bool,
    /// How long one batch may take, in milliseconds.
    pub timeout_millis: u64,
    /// Certificates (PEM) that it is verified by. None: those that the world trusts.
    #[serde(default)]
    pub authority: Option<String>,
}

/// How a collector of traces is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TraceProtocol {
    /// OTLP over gRPC.
    #[serde(rename = "grpc")]
    Grpc,
    /// OTLP over HTTP, binary.
    #[serde(rename = "http/protobuf")]
    Http,
}

/// What a new cluster is restored from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestoreOrder {
    /// Store of the archive.
    pub source: Destination,
    /// Folder of the archive in it.
    pub root: String,
    /// The base backup to begin with. None: the last one before the target.
    #[serde(default)]
    pub backup_id: Option<String>,
    /// The last moment. At most one of the three targets is given; none: everything.
    #[serde(default)]
    pub target_time: Option<String>,
    /// The last position.
    #[serde(default)]
    pub target_lsn: Option<Lsn>,
    /// The named point.
    #[serde(default)]
    pub target_name: Option<String>,
    /// The timeline to follow. None: the latest.
    #[serde(default)]
    pub target_timeline: Option<u32>,
}

/// Bounds of the primary Lease, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseBounds {
    /// After this long without a change anybody may take it.
    pub duration: u32,
    /// After this long without a renewal the holder stops PostgreSQL.
    pub renew_deadline: u32,
    /// Between two renewals.
    pub retry_period: u32,
}

impl Default for LeaseBounds {
    fn default() -> Self {
        Self { duration: 15, renew_deadline: 10, retry_period: 2 }
    }
}
