//! What operator and agents say to each other of archive, backups and restores.

use serde::{Deserialize, Serialize};

use super::agent::Lsn;
use super::category::Category;

/// `POST /v1/backup`: take a base backup. 202 while it runs, 200 once it is complete, 409 with a sentence when it cannot be.
/// The same id again asks how far it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupCommand {
    /// Term that the operator saw; an older one than the agent's is refused.
    pub term: i64,
    /// Uid of the HelloBackup.
    pub id: String,
}

/// `POST /v1/backup/cancel`: end it, and remove what it wrote. 200 once nothing of it is left, 202 until then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CancelBackupCommand {
    /// Uid of the HelloBackup.
    pub id: String,
}

/// What an agent says of its archive and its backups. None of it is there without a destination.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreReport {
    /// The WAL archive, as this instance's archiver found it.
    #[serde(default)]
    pub archive: ArchiveReport,
    /// The backup that this agent takes, or took last since it began.
    #[serde(default)]
    pub backup: Option<BackupReport>,
    /// What the store holds (the primary's agent looks).
    #[serde(default)]
    pub catalog: Option<CatalogReport>,
}

/// The WAL archive.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ArchiveReport {
    /// The last segment that the store has of this instance, by name.
    #[serde(default)]
    pub last: Option<String>,
    /// When that was (RFC 3339).
    #[serde(default)]
    pub last_at: Option<String>,
    /// Segments that wait on the disk.
    #[serde(default)]
    pub waiting: u64,
    /// Since when nothing could be archived (RFC 3339). None: all is well.
    #[serde(default)]
    pub failing_since: Option<String>,
    /// Why.
    #[serde(default)]
    pub error: Option<StoreError>,
    /// Segments and files handed to the store since the agent began.
    #[serde(default)]
    pub archived: u64,
    /// Attempts that failed since the agent began.
    #[serde(default)]
    pub failures: u64,
    /// Segments since the agent began that are not of the cluster's history, as one that a promotion cut short: they hold up
    /// nothing, and are stored beside the whole ones where nobody stored them.
    #[serde(default)]
    pub aside: u64,
}

/// What is wrong with a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreError {
    /// Its category.
    pub category: Category,
    /// A sentence that says what to do.
    pub message: String,
}

/// A base backup that an agent takes or took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupReport {
    /// Uid of the HelloBackup.
    pub id: String,
    /// Its id in the store.
    pub backup_id: String,
    /// When it began (RFC 3339).
    pub started_at: String,
    /// Bytes of the data directory that were read.
    pub done_bytes: u64,
    /// Bytes of the data directory in all; 0: not known yet.
    pub total_bytes: u64,
    /// Bytes that were sent.
    pub stored_bytes: u64,
    /// Position at which its WAL begins; not known while PostgreSQL makes its checkpoint.
    #[serde(default)]
    pub start_lsn: Option<Lsn>,
    /// How it ended. None: it runs.
    #[serde(default)]
    pub end: Option<BackupEnd>,
}

/// How a base backup ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BackupEnd {
    /// It is in the catalogue.
    Completed(CatalogEntry),
    /// Nothing of it counts.
    Failed(StoreError),
    /// It was cancelled, and nothing of it is left.
    Cancelled,
}

/// What the store holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CatalogReport {
    /// When the store was read (RFC 3339). None: not yet.
    #[serde(default)]
    pub read_at: Option<String>,
    /// Complete backups, oldest first.
    #[serde(default)]
    pub backups: Vec<CatalogEntry>,
    /// Backups that will be removed by the retention when it runs next, by id, with the reason.
    #[serde(default)]
    pub expiring: Vec<Expiring>,
    /// The oldest segment of WAL from which on everything is there.
    #[serde(default)]
    pub oldest_wal: Option<String>,
    /// The first moment that can be restored (RFC 3339): [`crate::core::backup::recoverable_from`].
    #[serde(default)]
    pub recoverable_from: Option<String>,
    /// Why it could not be read, or the retention not be done.
    #[serde(default)]
    pub error: Option<StoreError>,
}

/// A complete backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CatalogEntry {
    /// Its id in the store.
    pub backup_id: String,
    /// Uid of the HelloBackup that asked for it.
    pub requested_by: String,
    /// Instance that took it.
    pub instance: String,
    /// primary or replica.
    pub role: String,
    /// When it began (RFC 3339).
    pub started_at: String,
    /// When it was consistent: the first moment that it can be restored to (RFC 3339).
    pub stopped_at: String,
    /// Timeline.
    pub timeline: u32,
    /// Position at which its WAL begins.
    pub start_lsn: Lsn,
    /// Position from which it is consistent.
    pub stop_lsn: Lsn,
    /// Bytes of the data directory.
    pub bytes: u64,
    /// Bytes in the store.
    pub stored_bytes: u64,
}

/// A backup on its way out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Expiring {
    /// Its id in the store.
    pub backup_id: String,
    /// Why, in a sentence.
    pub reason: String,
}
