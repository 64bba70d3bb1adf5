//! What kind of trouble an error is. Bounded, because it labels metrics.

use serde::{Deserialize, Serialize};

/// The category of an error; every error type of the crate maps to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, PartialOrd, Ord)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// The API server refused or failed a request.
    Api,
    /// Somebody else wrote first; the next look decides anew.
    Conflict,
    /// The API server forbids it: RBAC, admission or a quota.
    Forbidden,
    /// No answer in time.
    Timeout,
    /// An agent could not be reached or refused.
    Agent,
    /// The database engine failed.
    Engine,
    /// The user wrote something that cannot be.
    Invalid,
    /// Not, or no longer, the leader.
    NotLeader,
    /// A key or certificate is missing, broken or expired.
    Tls,
    /// A destination of backups refused or failed a request, or holds something else than it should.
    Store,
    /// A file or a disk.
    Io,
    /// Our own fault.
    Internal,
}

impl Category {
    /// All of them, for metrics that show a zero before the first error.
    pub const ALL: [Self; 12] = [
        Self::Api,
        Self::Conflict,
        Self::Forbidden,
        Self::Timeout,
        Self::Agent,
        Self::Engine,
        Self::Invalid,
        Self::NotLeader,
        Self::Tls,
        Self::Store,
        Self::Io,
        Self::Internal,
    ];

    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Conflict => "conflict",
            Self::Forbidden => "forbidden",
            Self::Timeout => "timeout",
            Self::Agent => "agent",
            Self::Engine => "engine",
            Self::Invalid => "invalid",
            Self::NotLeader => "not_leader",
            Self::Tls => "tls",
            Self::Store => "store",
            Self::Io => "io",
            Self::Internal => "internal",
        }
    }
}
