//! Metrics of a cluster's backups. What is unknown is absent, never zero.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// What the backup gauges of one cluster show. Times are seconds since 1970.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BackupState {
    /// When the last good backup was complete.
    pub last_success: Option<i64>,
    /// The first moment that can be restored.
    pub first_recoverable: Option<i64>,
    /// When WAL was archived last.
    pub last_archived: Option<i64>,
    /// When a backup was proven last.
    pub last_verified: Option<i64>,
    /// Whether the last proof failed.
    pub verification_failed: bool,
    /// Whether WAL cannot be archived.
    pub archive_failing: Option<bool>,
    /// Segments of WAL that wait on the primary's disk.
    pub waiting: Option<u64>,
    /// Seconds that the last good backup took.
    pub duration: Option<i64>,
    /// Bytes of the data directory in the last good backup.
    pub bytes: Option<u64>,
    /// Bytes that it takes in the destination.
    pub stored_bytes: Option<u64>,
    /// Backups in the destination.
    pub entries: Option<u64>,
    /// Attempts to archive that failed, by instance, since its agent began.
    pub archive_failures: BTreeMap<String, u64>,
}

/// How a backup ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BackupOutcome {
    /// It is in the destination.
    Completed,
    /// Nothing of it counts.
    Failed,
}

impl BackupOutcome {
    const ALL: [Self; 2] = [Self::Completed, Self::Failed];

    fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }
}

/// Backups that ended, by namespace and name of the cluster.
pub(super) type Ended = BTreeMap<(String, String), BTreeMap<BackupOutcome, u64>>;

/// Name, help, and value.
type Gauge = (&'static str, &'static str, fn(&BackupState) -> Option<i64>);

const GAUGES: [Gauge; 11] = [
    ("hello_cluster_backup_last_success_timestamp_seconds", "When the last good backup was complete.", |state| {
        state.last_success
    }),
    ("hello_cluster_backup_first_recoverable_timestamp_seconds", "The first moment that can be restored.", |state| {
        state.first_recoverable
    }),
    ("hello_cluster_backup_last_archived_timestamp_seconds", "When WAL was archived last.", |state| {
        state.last_archived
    }),
    ("hello_cluster_backup_last_verified_timestamp_seconds", "When a backup was proven last.", |state| {
        state.last_verified
    }),
    ("hello_cluster_backup_verification_failed", "1 while the last proof of a backup failed, else 0.", |state| {
        Some(i64::from(state.verification_failed))
    }),
    ("hello_cluster_backup_archive_failing", "1 while WAL cannot be archived, else 0.", |state| {
        state.archive_failing.map(i64::from)
    }),
    ("hello_cluster_backup_wal_waiting_segments", "Segments of WAL that wait on the primary's disk.", |state| {
        state.waiting.and_then(signed)
    }),
    ("hello_cluster_backup_duration_seconds", "How long the last good backup took.", |state| state.duration),
    ("hello_cluster_backup_size_bytes", "Bytes of the data directory in the last good backup.", |state| {
        state.bytes.and_then(signed)
    }),
    ("hello_cluster_backup_stored_bytes", "Bytes that the last good backup takes in the destination.", |state| {
        state.stored_bytes.and_then(signed)
    }),
    ("hello_cluster_backup_entries", "Complete backups in the destination.", |state| state.entries.and_then(signed)),
];

fn signed(value: u64) -> Option<i64> {
    i64::try_from(value).ok()
}

/// Every gauge and counter of every cluster that has it.
pub(super) fn encode(
    clusters: &BTreeMap<(&str, &str), &BackupState>,
    ended: &Ended,
    text: &mut String,
) -> std::fmt::Result {
    encode_counters(clusters, ended, text)?;
    for (name, help, value) in GAUGES {
        let mut lines = clusters.iter().filter_map(|(key, state)| Some((key, value(state)?))).peekable();
        if lines.peek().is_none() {
            continue;
        }
        writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge")?;
        for ((namespace, cluster), value) in lines {
            writeln!(text, "{name}{{namespace=\"{namespace}\",cluster=\"{cluster}\"}} {value}")?;
        }
    }
    Ok(())
}

/// Every outcome of every cluster, so that the first failure is an increase from zero.
fn encode_counters(
    clusters: &BTreeMap<(&str, &str), &BackupState>,
    ended: &Ended,
    text: &mut String,
) -> std::fmt::Result {
    if clusters.is_empty() {
        return Ok(());
    }
    let name = "hello_cluster_backups_total";
    writeln!(text, "# HELP {name} Backups that ended, by how.\n# TYPE {name} counter")?;
    for (namespace, cluster) in clusters.keys() {
        let counts = ended.get(&((*namespace).to_owned(), (*cluster).to_owned()));
        for outcome in BackupOutcome::ALL {
            let count = counts.and_then(|counts| counts.get(&outcome)).copied().unwrap_or(0);
            let outcome = outcome.as_str();
            writeln!(text, "{name}{{namespace=\"{namespace}\",cluster=\"{cluster}\",outcome=\"{outcome}\"}} {count}")?;
        }
    }
    let name = "hello_cluster_backup_archive_failures_total";
    if clusters.values().all(|state| state.archive_failures.is_empty()) {
        return Ok(());
    }
    writeln!(text, "# HELP {name} Attempts to archive that failed, as its agent counts.\n# TYPE {name} counter")?;
    for ((namespace, cluster), state) in clusters {
        for (instance, count) in &state.archive_failures {
            writeln!(
                text,
                "{name}{{namespace=\"{namespace}\",cluster=\"{cluster}\",instance=\"{instance}\"}} {count}"
            )?;
        }
    }
    Ok(())
}
