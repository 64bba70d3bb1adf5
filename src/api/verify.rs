//! What the operator asks of the program `hello-operator verify`, and what that answers.

use serde::{Deserialize, Serialize};

use super::spec::Destination;

/// In the environment variable `HELLO_VERIFY` of the scratch Pod, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VerifyOrder {
    /// Store of the archive.
    pub source: Destination,
    /// Folder of the archive in it.
    pub root: String,
    /// The application's database, for the query.
    pub database: String,
    /// Its owner.
    pub owner: String,
    /// A statement that must succeed.
    #[serde(default)]
    pub query: Option<String>,
}

/// Its termination message, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VerifyResult {
    /// Whether the newest backup, and the WAL after it, could be restored and read.
    pub ok: bool,
    /// The backup, by id; None when it did not come so far.
    #[serde(default)]
    pub backup_id: Option<String>,
    /// What was read, or what is wrong, in a sentence.
    pub message: String,
    /// Seconds that it took.
    pub seconds: u64,
}
