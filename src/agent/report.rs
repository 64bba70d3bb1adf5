//! What this agent says of its instance: the report, readiness and metrics. All three are one snapshot.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::{Counter, IntCounter, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};

use super::process::boottime;
use crate::api::agent::{ElectionPhase, Report};
use crate::api::archive::StoreReport;
use crate::telemetry;
use crate::telemetry::health::Health;
use crate::telemetry::traces::agent::AgentTraces;

/// After this long without a turn of the loop, the agent counts as stuck.
const STUCK: Duration = Duration::from_secs(15);

/// The latest snapshot, shared with the servers.
#[derive(Clone)]
pub struct Shared(Arc<Mutex<Snapshot>>);

/// Everything that is told to others.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// When the loop last turned.
    pub turned: Duration,
    /// The report.
    pub report: Report,
    /// Numbers for the metrics alone; None while PostgreSQL does not answer.
    pub numbers: Option<Numbers>,
}

/// Numbers for the metrics alone.
#[derive(Debug, Clone, Default)]
pub struct Numbers {
    /// Client sessions.
    pub connections: i64,
    /// max_connections
    pub max_connections: i64,
    /// Committed transactions.
    pub commits: i64,
    /// Rolled back ones.
    pub rollbacks: i64,
    /// Blocks that were found in the buffer cache.
    pub blocks_hit: i64,
    /// Blocks that were not.
    pub blocks_read: i64,
    /// Bytes of each database.
    pub databases: Vec<(String, i64)>,
    /// WAL kept by each slot: name, bytes.
    pub slots: Vec<(String, i64)>,
}

impl Shared {
    /// Before the first turn.
    pub fn new(report: Report) -> Self {
        Self(Arc::new(Mutex::new(Snapshot { turned: boottime(), report, numbers: None })))
    }

    fn get(&self) -> MutexGuard<'_, Snapshot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop turned, and this is what it knows.
    pub fn publish(&self, report: Report, numbers: Option<Numbers>) {
        *self.get() = Snapshot { turned: boottime(), report, numbers };
    }

    /// The report.
    pub fn report(&self) -> Report {
        self.get().report.clone()
    }

    /// Liveness is the agent's own health and nothing else; readiness is "this instance serves its role".
    pub fn health(&self) -> Health {
        let health = Health::new();
        let shared = self.clone();
        health.live("loop", move || {
            let age = boottime().saturating_sub(shared.get().turned);
            if age < STUCK { Ok(()) } else { Err(format!("the agent's loop has not turned for {} s", age.as_secs())) }
        });
        let shared = self.clone();
        health.ready("role", move || {
            let snapshot = shared.get();
            if snapshot.report.ready {
                return Ok(());
            }
            Err(snapshot.report.message.clone().unwrap_or_else(|| format!("{:?}", snapshot.report.phase)))
        });
        health
    }

    /// The text of `/metrics`.
    pub fn metrics(&self, traces: &AgentTraces) -> Result<String, telemetry::Error> {
        let snapshot = self.get().clone();
        Ok(render(&snapshot, traces)?)
    }
}

/// The metrics are made from the snapshot at each request: nothing can be stale, and nothing stays that is gone.
fn render(snapshot: &Snapshot, traces: &AgentTraces) -> Result<String, prometheus::Error> {
    let registry = Registry::new();
    traces.register(&registry)?;
    let gauge = |name: &str, help: &str, value: i64| -> Result<(), prometheus::Error> {
        let gauge = IntGauge::new(name, help)?;
        gauge.set(value);
        registry.register(Box::new(gauge))
    };
    let family = |name: &str, help: &str, label: &str, values: &[(String, i64)]| -> Result<(), prometheus::Error> {
        if values.is_empty() {
            return Ok(());
        }
        let family = IntGaugeVec::new(Opts::new(name, help), &[label])?;
        for (key, value) in values {
            family.with_label_values(&[key]).set(*value);
        }
        registry.register(Box::new(family))
    };
    let report = &snapshot.report;
    gauge("hello_pg_up", "Whether PostgreSQL answers.", i64::from(snapshot.numbers.is_some()))?;
    gauge("hello_pg_ready", "Whether this instance serves its role.", i64::from(report.ready))?;
    let role = |phase| i64::from(report.phase == phase);
    family(
        "hello_pg_role",
        "The role of this instance.",
        "role",
        &[
            ("primary".to_owned(), role(crate::api::agent::Phase::Primary)),
            ("replica".to_owned(), role(crate::api::agent::Phase::Replica)),
        ],
    )?;
    gauge("hello_pg_term", "Term of the Lease that it holds or follows.", report.term)?;
    if let Some(timeline) = report.timeline {
        gauge("hello_pg_timeline", "Timeline of its WAL.", i64::from(timeline))?;
    }
    let bytes = |lsn: crate::api::agent::Lsn| i64::try_from(lsn.0).unwrap_or(i64::MAX);
    if let Some(lsn) = report.lsn {
        gauge("hello_pg_wal_position_bytes", "Last position on its disk.", bytes(lsn))?;
    }
    if let Some(replayed) = report.replayed {
        gauge("hello_pg_replayed_position_bytes", "Last position replayed by a replica.", bytes(replayed))?;
    }
    gauge("hello_pg_streaming", "Whether a replica streams from the primary.", i64::from(report.streaming))?;
    gauge(
        "hello_pg_sync_rule_confirmed",
        "Whether a primary has proven that its sync rule is in force.",
        i64::from(report.rules_confirmed),
    )?;
    let blocked = report.election.as_ref().is_some_and(|election| election.phase == ElectionPhase::Blocked);
    gauge("hello_pg_election_blocked", "Whether nobody who answers may take over.", i64::from(blocked))?;
    gauge(
        "hello_pg_lease_held_by_promises",
        "Whether a primary goes on by the promises of the members, because the API server is away.",
        i64::from(report.held),
    )?;
    let unavailable = Counter::new(
        "hello_pg_write_unavailable_seconds_total",
        "Seconds in which this instance was to take writes and did not.",
    )?;
    unavailable.inc_by(report.unavailable_seconds.max(0.0));
    registry.register(Box::new(unavailable))?;
    let clones = IntCounter::new("hello_pg_clones_total", "Copies of the primary's data that this instance began.")?;
    clones.inc_by(report.clones);
    registry.register(Box::new(clones))?;
    gauge(
        "hello_pg_pending_restart_settings",
        "Settings whose new value waits for a restart.",
        i64::try_from(report.pending_restart.len()).unwrap_or(i64::MAX),
    )?;
    let size = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    if let Some(disk) = report.disk {
        gauge("hello_pg_disk_free_bytes", "Bytes that can still be written to the data volume.", size(disk.free))?;
        gauge("hello_pg_disk_total_bytes", "Bytes of the data volume.", size(disk.total))?;
    }
    if let Some(disk) = report.wal_disk {
        gauge(
            "hello_pg_wal_disk_free_bytes",
            "Bytes that can still be written to the volume of the WAL.",
            size(disk.free),
        )?;
        gauge("hello_pg_wal_disk_total_bytes", "Bytes of the volume of the WAL.", size(disk.total))?;
    }
    gauge(
        "hello_pg_disk_full",
        "Whether a volume is full, so that this instance would take no writes.",
        i64::from(report.full.is_some()),
    )?;
    let named =
        |replica: &crate::api::agent::ReplicaReport| replica.instance.clone().unwrap_or_else(|| replica.member.clone());
    let mut lag: Vec<(String, i64)> = report
        .replicas
        .iter()
        .filter_map(|replica| {
            Some((named(replica), bytes(report.lsn?).saturating_sub(bytes(replica.replayed?)).max(0)))
        })
        .collect();
    lag.dedup_by(|a, b| a.0 == b.0);
    family("hello_pg_replication_lag_bytes", "WAL that a replica has not replayed yet.", "instance", &lag)?;
    if let Some(numbers) = &snapshot.numbers {
        gauge("hello_pg_connections", "Client sessions.", numbers.connections)?;
        gauge("hello_pg_max_connections", "Most sessions.", numbers.max_connections)?;
        gauge(
            "hello_pg_transactions_committed",
            "Committed transactions since PostgreSQL began to count.",
            numbers.commits,
        )?;
        gauge("hello_pg_transactions_rolled_back", "Rolled back transactions likewise.", numbers.rollbacks)?;
        gauge("hello_pg_blocks_hit", "Blocks found in the buffer cache likewise.", numbers.blocks_hit)?;
        gauge("hello_pg_blocks_read", "Blocks that were not found there likewise.", numbers.blocks_read)?;
        family("hello_pg_database_size_bytes", "Bytes of a database.", "database", &numbers.databases)?;
        family("hello_pg_slot_retained_bytes", "WAL that a replication slot keeps.", "slot", &numbers.slots)?;
    }
    if let Some(store) = &report.store {
        archive(&registry, store)?;
    }
    TextEncoder::new().encode_to_string(&registry.gather())
}

/// Archive and backups, where there is a destination.
fn archive(registry: &Registry, store: &StoreReport) -> Result<(), prometheus::Error> {
    let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let gauge = |name: &str, help: &str, value: i64| -> Result<(), prometheus::Error> {
        let gauge = IntGauge::new(name, help)?;
        gauge.set(value);
        registry.register(Box::new(gauge))
    };
    let counter = |name: &str, help: &str, count: u64| -> Result<(), prometheus::Error> {
        let counter = IntCounter::new(name, help)?;
        counter.inc_by(count);
        registry.register(Box::new(counter))
    };
    let archive = &store.archive;
    counter("hello_pg_archived_total", "WAL files that the store has of this instance.", archive.archived)?;
    counter("hello_pg_archive_failures_total", "Attempts to archive that failed.", archive.failures)?;
    let help = "WAL segments that are not of the cluster's history, and hold up nothing.";
    counter("hello_pg_archive_aside_total", help, archive.aside)?;
    gauge("hello_pg_archive_waiting", "WAL files that wait for the store.", whole(archive.waiting))?;
    gauge("hello_pg_archive_failing", "Whether nothing can be archived.", i64::from(archive.failing_since.is_some()))?;
    if let Some(at) = archive.last_at.as_ref().and_then(|at| at.parse::<jiff::Timestamp>().ok()) {
        gauge("hello_pg_archive_last_timestamp_seconds", "When something was archived last.", at.as_second())?;
    }
    if let Some(backup) = store.backup.as_ref().filter(|backup| backup.end.is_none()) {
        gauge(
            "hello_pg_backup_read_bytes",
            "Bytes that the base backup under way has read.",
            whole(backup.done_bytes),
        )?;
        gauge("hello_pg_backup_total_bytes", "Bytes that it will read.", whole(backup.total_bytes))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::agent::{Lsn, Phase, ReplicaReport};

    fn off() -> AgentTraces {
        AgentTraces::new("shop", "db", "db-1")
    }

    #[test]
    fn metrics_are_made_of_the_snapshot_and_nothing_unknown_is_a_zero() {
        let mut report = Report {
            phase: Phase::Primary,
            term: 3,
            timeline: Some(1),
            lsn: Some(Lsn(1000)),
            ready: true,
            rules_confirmed: true,
            clones: 2,
            full: Some(crate::api::agent::FullVolume::Data),
            ..Report::new("db-1", "u")
        };
        report.replicas.push(ReplicaReport {
            member: "m2".into(),
            instance: Some("db-2".into()),
            flushed: None,
            replayed: Some(Lsn(900)),
            streaming: true,
        });
        let text = render(&Snapshot { turned: Duration::ZERO, report, numbers: None }, &off()).unwrap();
        for line in [
            "hello_pg_up 0",
            "hello_pg_disk_full 1",
            "hello_pg_role{role=\"primary\"} 1",
            "hello_pg_term 3",
            "hello_pg_clones_total 2",
            "hello_pg_replication_lag_bytes{instance=\"db-2\"} 100",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        assert!(!text.contains("hello_pg_disk_free") && !text.contains("hello_pg_connections"), "{text}");
        assert!(!text.contains("hello_pg_archive"), "{text}");
    }

    #[test]
    fn every_metric_stands_in_the_documentation() {
        let mut store = StoreReport::default();
        store.archive.last_at = Some("1970-01-01T00:01:00Z".into());
        let backup = serde_json::json!({"id": "u", "backupId": "b", "startedAt": "", "doneBytes": 1, "totalBytes": 2, "storedBytes": 1});
        store.backup = Some(serde_json::from_value(backup).unwrap());
        let disk = Some(crate::api::agent::Disk { free: 1, total: 2 });
        let mut report = Report {
            timeline: Some(1),
            lsn: Some(Lsn(1)),
            replayed: Some(Lsn(1)),
            store: Some(store),
            disk,
            wal_disk: disk,
            ..Report::new("db-1", "u")
        };
        report.replicas.push(ReplicaReport {
            member: "m2".into(),
            instance: None,
            flushed: None,
            replayed: Some(Lsn(1)),
            streaming: true,
        });
        let some = vec![("some".to_owned(), 1)];
        let on = off();
        let collector = serde_json::json!({"endpoint": "http://127.0.0.1:1", "protocol": "grpc", "timeoutMillis": 1});
        on.follow(Some(&serde_json::from_value(collector).unwrap()));
        let numbers = Numbers { databases: some.clone(), slots: some, ..Numbers::default() };
        let text = render(&Snapshot { turned: Duration::ZERO, report, numbers: Some(numbers) }, &on).unwrap();
        let documented = include_str!("../../docs/observability.md");
        for family in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let name = family.split(' ').next().unwrap();
            assert!(documented.contains(&format!("`{name}`")), "{name} is not in docs/observability.md");
        }
    }

    #[test]
    fn an_archive_is_told_where_there_is_one() {
        let mut store = StoreReport::default();
        (store.archive.archived, store.archive.failures, store.archive.waiting) = (7, 2, 3);
        store.archive.aside = 1;
        store.archive.failing_since = Some("2026-11-30T10:00:00Z".into());
        store.archive.last_at = Some("1970-01-01T00:01:00Z".into());
        let report = Report { store: Some(store), ..Report::new("db-1", "u") };
        let text = render(&Snapshot { turned: Duration::ZERO, report, numbers: None }, &off()).unwrap();
        for line in [
            "hello_pg_archived_total 7",
            "hello_pg_archive_failures_total 2",
            "hello_pg_archive_aside_total 1",
            "hello_pg_archive_waiting 3",
            "hello_pg_archive_failing 1",
            "hello_pg_archive_last_timestamp_seconds 60",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        assert!(!text.contains("hello_pg_backup"), "{text}");
    }
}
