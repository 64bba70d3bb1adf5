//! The operator's metrics. Labels are bounded: by enums, by the watches, or by the objects that exist.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

use super::Error;
use super::backups::{self, BackupOutcome};
use super::clusters::{ClusterState, Failovers, encode_clusters, encode_failing, encode_failovers};
use crate::api::Category;
use crate::api::agent::HandOverReason;
use crate::api::build;

/// How a reconcile ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was to be done.
    Settled,
    /// Something was written.
    Changed,
    /// It failed and is tried again.
    Failed,
}

impl Outcome {
    const ALL: [Self; 3] = [Self::Settled, Self::Changed, Self::Failed];

    fn as_str(self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::Changed => "changed",
            Self::Failed => "failed",
        }
    }
}

/// Every metric of the operator. Cheap to share behind an `Arc`.
pub struct OperatorMetrics {
    registry: Registry,
    reconciles: IntCounterVec,
    duration: Histogram,
    errors: IntCounterVec,
    queue: IntGauge,
    leader: IntGauge,
    dropped_writes: IntCounter,
    requests: IntCounterVec,
    watch_age: IntGaugeVec,
    watches: Mutex<BTreeMap<String, Instant>>,
    failover_duration: HistogramVec,
    clusters: Mutex<BTreeMap<(String, String), ClusterState>>,
    failovers: Mutex<Failovers>,
    failing: Mutex<BTreeMap<(String, String), u32>>,
    backups: Mutex<backups::Ended>,
}

impl OperatorMetrics {
    /// All of them, at zero.
    pub fn new() -> Result<Self, Error> {
        let registry = Registry::new();
        let metrics = Self {
            reconciles: IntCounterVec::new(
                Opts::new("hello_operator_reconciles_total", "Reconciles, by how they ended."),
                &["result"],
            )?,
            duration: Histogram::with_opts(
                HistogramOpts::new("hello_operator_reconcile_duration_seconds", "How long a reconcile took.")
                    .buckets(vec![0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0]),
            )?,
            errors: IntCounterVec::new(
                Opts::new("hello_operator_errors_total", "Errors, by what kind of trouble they are."),
                &["category"],
            )?,
            queue: IntGauge::new("hello_operator_queue_depth", "Objects that wait for a reconcile.")?,
            leader: IntGauge::new("hello_operator_leader", "1 while this process may act, else 0.")?,
            dropped_writes: IntCounter::new(
                "hello_operator_dropped_writes_total",
                "Writes that were not sent because this process was not, or no longer, the leader.",
            )?,
            requests: IntCounterVec::new(
                Opts::new(
                    "hello_operator_api_requests_total",
                    "Requests to the API server, by what they do and by its answer.",
                ),
                &["verb", "code"],
            )?,
            watch_age: IntGaugeVec::new(
                Opts::new("hello_operator_watch_age_seconds", "Time since a watch last made progress."),
                &["resource"],
            )?,
            watches: Mutex::default(),
            failover_duration: HistogramVec::new(
                HistogramOpts::new(
                    "hello_cluster_failover_duration_seconds",
                    "From the end of a primary, or its last sign, to the moment at which the next one took writes.",
                )
                .buckets(vec![0.25, 0.5, 1.0, 1.5, 2.0, 4.0, 10.0, 20.0, 60.0, 300.0]),
                &["reason"],
            )?,
            clusters: Mutex::default(),
            failovers: Mutex::default(),
            failing: Mutex::default(),
            backups: Mutex::default(),
            registry,
        };
        for outcome in Outcome::ALL {
            metrics.reconciles.with_label_values(&[outcome.as_str()]);
        }
        for category in Category::ALL {
            metrics.errors.with_label_values(&[category.as_str()]);
        }
        for reason in HandOverReason::ALL {
            metrics.failover_duration.with_label_values(&[reason.as_str()]);
        }
        let info = IntGaugeVec::new(
            Opts::new("hello_operator_build_info", "Version and commit of this program."),
            &["version", "commit"],
        )?;
        info.with_label_values(&[build::VERSION, build::COMMIT]).set(1);
        metrics.registry.register(Box::new(metrics.reconciles.clone()))?;
        metrics.registry.register(Box::new(metrics.duration.clone()))?;
        metrics.registry.register(Box::new(metrics.errors.clone()))?;
        metrics.registry.register(Box::new(metrics.queue.clone()))?;
        metrics.registry.register(Box::new(metrics.leader.clone()))?;
        metrics.registry.register(Box::new(metrics.dropped_writes.clone()))?;
        metrics.registry.register(Box::new(metrics.requests.clone()))?;
        metrics.registry.register(Box::new(metrics.watch_age.clone()))?;
        metrics.registry.register(Box::new(metrics.failover_duration.clone()))?;
        metrics.registry.register(Box::new(info))?;
        Ok(metrics)
    }

    /// For metrics of others, such as [`super::Telemetry::register`].
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// A reconcile ended.
    pub fn reconciled(&self, outcome: Outcome, took: Duration) {
        self.reconciles.with_label_values(&[outcome.as_str()]).inc();
        self.duration.observe(took.as_secs_f64());
    }

    /// Something failed.
    pub fn failed(&self, category: Category) {
        self.errors.with_label_values(&[category.as_str()]).inc();
    }

    /// So many objects wait for a reconcile.
    pub fn set_queue_depth(&self, depth: usize) {
        self.queue.set(i64::try_from(depth).unwrap_or(i64::MAX));
    }

    /// Whether this process may act. Who does not, does not look: what it saw once is no news of a cluster.
    pub fn set_leader(&self, leads: bool) {
        self.leader.set(i64::from(leads));
        if !leads {
            lock(&self.clusters).clear();
            lock(&self.failing).clear();
        }
    }

    /// A write was not sent, because this process does not lead.
    pub fn dropped_write(&self) {
        self.dropped_writes.inc();
    }

    /// The API server was asked; it answered with this status code, or not.
    pub fn asked(&self, verb: &'static str, code: Option<u16>) {
        let code = code.map_or_else(|| "none".to_owned(), |code| code.to_string());
        self.requests.with_label_values(&[verb, &code]).inc();
    }

    /// The watch of `resource` began, received an event or a bookmark, or was renewed without an error.
    pub fn watch_progressed(&self, resource: &str) {
        let mut watches = lock(&self.watches);
        match watches.get_mut(resource) {
            Some(since) => *since = Instant::now(),
            None => drop(watches.insert(resource.to_owned(), Instant::now())),
        }
    }

    /// The watch that made no progress for the longest time, and for how long: what liveness looks at.
    pub fn stalest_watch(&self) -> Option<(String, Duration)> {
        let watches = lock(&self.watches);
        watches.iter().map(|(resource, since)| (resource.clone(), since.elapsed())).max_by_key(|(_, age)| *age)
    }

    /// The primary's role changed hands.
    pub fn failed_over(&self, namespace: &str, cluster: &str, reason: HandOverReason, seconds: f64) {
        self.failover_duration.with_label_values(&[reason.as_str()]).observe(seconds);
        let mut failovers = lock(&self.failovers);
        let reasons = failovers.entry((namespace.to_owned(), cluster.to_owned())).or_default();
        *reasons.entry(reason.as_str()).or_default() += 1;
    }

    /// So many reconciles of a cluster failed in a row.
    pub fn set_failing(&self, namespace: &str, cluster: &str, times: u32) {
        lock(&self.failing).insert((namespace.to_owned(), cluster.to_owned()), times);
    }

    /// A backup of a cluster ended.
    pub fn backed_up(&self, namespace: &str, cluster: &str, outcome: BackupOutcome) {
        let mut backups = lock(&self.backups);
        let outcomes = backups.entry((namespace.to_owned(), cluster.to_owned())).or_default();
        *outcomes.entry(outcome).or_default() += 1;
    }

    /// What the gauges of one cluster show from now on.
    pub fn set_cluster(&self, namespace: &str, cluster: &str, state: ClusterState) {
        lock(&self.clusters).insert((namespace.to_owned(), cluster.to_owned()), state);
    }

    /// The object is gone, and so are its gauges.
    pub fn forget_cluster(&self, namespace: &str, cluster: &str) {
        let key = (namespace.to_owned(), cluster.to_owned());
        lock(&self.clusters).remove(&key);
        lock(&self.failovers).remove(&key);
        lock(&self.failing).remove(&key);
        lock(&self.backups).remove(&key);
    }

    /// Every metric in Prometheus' text format.
    pub fn encode(&self) -> Result<String, Error> {
        for (resource, since) in lock(&self.watches).iter() {
            let age = i64::try_from(since.elapsed().as_secs()).unwrap_or(i64::MAX);
            self.watch_age.with_label_values(&[resource]).set(age);
        }
        let mut text = TextEncoder::new().encode_to_string(&self.registry.gather())?;
        let (clusters, failovers) = (lock(&self.clusters), lock(&self.failovers));
        let backed_up = clusters.iter().filter_map(|((namespace, cluster), state)| {
            Some(((namespace.as_str(), cluster.as_str()), state.backup.as_ref()?))
        });
        encode_clusters(&clusters, &mut text)
            .and_then(|()| backups::encode(&backed_up.collect(), &lock(&self.backups), &mut text))
            .and_then(|()| encode_failovers(&clusters, &failovers, &mut text))
            .and_then(|()| encode_failing(&lock(&self.failing), &mut text))
            .and_then(|()| encode_memory(&mut text))
            .map_err(|error| prometheus::Error::Msg(error.to_string()))?;
        Ok(text)
    }
}

/// Under the name that every dashboard knows. Absent where /proc does not tell.
fn encode_memory(text: &mut String) -> std::fmt::Result {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB"));
    let Some(kilobytes) = resident.and_then(|number| number.trim().parse::<u64>().ok()) else { return Ok(()) };
    let name = "process_resident_memory_bytes";
    let bytes = kilobytes.saturating_mul(1024);
    writeln!(text, "# HELP {name} Memory of this process.\n# TYPE {name} gauge\n{name} {bytes}")
}

/// A panic while holding one of these locks leaves the map whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::backups::BackupState;
    use super::*;

    fn has(text: &str, line: &str) -> bool {
        text.lines().any(|found| found == line)
    }

    #[test]
    fn counters_show_a_zero_before_the_first_event() {
        let text = OperatorMetrics::new().unwrap().encode().unwrap();
        assert!(text.contains("\nprocess_resident_memory_bytes "), "{text}");
        for category in Category::ALL {
            assert!(
                has(&text, &format!("hello_operator_errors_total{{category=\"{}\"}} 0", category.as_str())),
                "{text}"
            );
        }
        assert!(has(&text, "hello_operator_reconciles_total{result=\"failed\"} 0"));
        assert!(has(&text, "hello_operator_leader 0"));
        assert!(has(&text, "hello_operator_dropped_writes_total 0"));
        assert!(has(&text, "hello_cluster_failover_duration_seconds_count{reason=\"leaseRanOut\"} 0"));
        assert!(!text.contains("namespace="));
    }

    #[test]
    fn every_event_is_seen() {
        let metrics = OperatorMetrics::new().unwrap();
        metrics.reconciled(Outcome::Changed, Duration::from_millis(3));
        metrics.failed(Category::Conflict);
        metrics.set_queue_depth(7);
        metrics.set_leader(true);
        metrics.dropped_write();
        let text = metrics.encode().unwrap();
        for line in [
            "hello_operator_reconciles_total{result=\"changed\"} 1",
            "hello_operator_reconcile_duration_seconds_bucket{le=\"0.005\"} 1",
            "hello_operator_errors_total{category=\"conflict\"} 1",
            "hello_operator_queue_depth 7",
            "hello_operator_leader 1",
            "hello_operator_dropped_writes_total 1",
        ] {
            assert!(has(&text, line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn watches_age_until_they_progress() {
        let metrics = OperatorMetrics::new().unwrap();
        assert_eq!(metrics.stalest_watch(), None);
        metrics.watch_progressed("pods");
        metrics.watch_progressed("leases");
        assert_eq!(metrics.stalest_watch().unwrap().0, "pods");
        metrics.watch_progressed("pods");
        assert_eq!(metrics.stalest_watch().unwrap().0, "leases");
        assert!(has(&metrics.encode().unwrap(), "hello_operator_watch_age_seconds{resource=\"leases\"} 0"));
    }

    #[test]
    fn gauges_of_a_cluster_vanish_with_it() {
        let metrics = OperatorMetrics::new().unwrap();
        let state = ClusterState {
            instances: 3,
            ready_instances: 2,
            write_available: Some(true),
            lease_age: Some(1.5),
            sync_confirmed: Some(true),
            sync_replicas: 1,
            primary_since: Some(1_799_999_999),
            certificate_expiry: Some(1_900_000_000),
            conditions: BTreeMap::from([("Ready", Some(false)), ("Degraded", None)]),
            backup: Some(BackupState { last_success: Some(1_800_000_000), ..BackupState::default() }),
        };
        metrics.set_cluster("shop", "orders", state.clone());
        let failures = BTreeMap::from([("users-2".to_owned(), 3)]);
        let backup = BackupState { archive_failures: failures, ..BackupState::default() };
        metrics.set_cluster("shop", "users", ClusterState { backup: Some(backup), ..state });
        metrics.failed_over("shop", "orders", HandOverReason::Shutdown, 1.3);
        metrics.set_failing("shop", "orders", 4);
        metrics.set_failing("shop", "users", 0);
        metrics.backed_up("shop", "orders", BackupOutcome::Failed);
        let text = metrics.encode().unwrap();
        for line in [
            "# TYPE hello_cluster_instances gauge",
            "hello_cluster_instances{namespace=\"shop\",cluster=\"orders\"} 3",
            "hello_cluster_ready_instances{namespace=\"shop\",cluster=\"orders\"} 2",
            "hello_cluster_write_available{namespace=\"shop\",cluster=\"orders\"} 1",
            "hello_cluster_sync_confirmed{namespace=\"shop\",cluster=\"orders\"} 1",
            "hello_cluster_lease_age_seconds{namespace=\"shop\",cluster=\"orders\"} 1.5",
            "hello_cluster_sync_replicas{namespace=\"shop\",cluster=\"orders\"} 1",
            "hello_cluster_primary_since_timestamp_seconds{namespace=\"shop\",cluster=\"orders\"} 1799999999",
            "hello_cluster_certificate_expiry_timestamp_seconds{namespace=\"shop\",cluster=\"users\"} 1900000000",
            "hello_cluster_failed_reconciles{namespace=\"shop\",cluster=\"orders\"} 4",
            "hello_cluster_failed_reconciles{namespace=\"shop\",cluster=\"users\"} 0",
            "hello_cluster_failovers_total{namespace=\"shop\",cluster=\"orders\",reason=\"shutdown\"} 1",
            "hello_cluster_failovers_total{namespace=\"shop\",cluster=\"users\",reason=\"shutdown\"} 0",
            "hello_cluster_failover_duration_seconds_bucket{reason=\"shutdown\",le=\"1.5\"} 1",
            "hello_cluster_condition{namespace=\"shop\",cluster=\"orders\",condition=\"Ready\"} 0",
            "hello_cluster_backup_last_success_timestamp_seconds{namespace=\"shop\",cluster=\"orders\"} 1800000000",
            "hello_cluster_backups_total{namespace=\"shop\",cluster=\"orders\",outcome=\"failed\"} 1",
            "hello_cluster_backups_total{namespace=\"shop\",cluster=\"users\",outcome=\"failed\"} 0",
            "hello_cluster_backups_total{namespace=\"shop\",cluster=\"orders\",outcome=\"completed\"} 0",
            "hello_cluster_backup_archive_failures_total{namespace=\"shop\",cluster=\"users\",instance=\"users-2\"} 3",
            "hello_cluster_condition{namespace=\"shop\",cluster=\"orders\",condition=\"Degraded\"} -1",
        ] {
            assert!(has(&text, line), "{line} is not in\n{text}");
        }
        metrics.forget_cluster("shop", "orders");
        let text = metrics.encode().unwrap();
        assert!(!text.contains("hello_cluster_backup_entries"), "what is unknown is absent");
        assert!(!text.contains("orders") && text.contains("users"));
        metrics.set_leader(true);
        assert!(metrics.encode().unwrap().contains("users"));
        metrics.set_leader(false);
        assert!(!metrics.encode().unwrap().contains("users"), "another process looks now");
    }
    #[test]
    fn every_metric_stands_in_the_documentation() {
        let metrics = OperatorMetrics::new().unwrap();
        let backup = BackupState {
            last_success: Some(1),
            first_recoverable: Some(1),
            last_archived: Some(1),
            last_verified: Some(1),
            verification_failed: false,
            archive_failing: Some(false),
            waiting: Some(0),
            duration: Some(1),
            bytes: Some(1),
            stored_bytes: Some(1),
            entries: Some(1),
            archive_failures: BTreeMap::from([("db-1".to_owned(), 0)]),
        };
        let state = ClusterState {
            lease_age: Some(1.0),
            primary_since: Some(1),
            certificate_expiry: Some(1),
            backup: Some(backup),
            ..ClusterState::default()
        };
        metrics.set_cluster("shop", "orders", state);
        metrics.set_failing("shop", "orders", 0);
        metrics.asked("get", Some(200));
        metrics.watch_progressed("pods");
        let documented = include_str!("../../docs/observability.md");
        for family in metrics.encode().unwrap().lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let name = family.split(' ').next().unwrap();
            assert!(documented.contains(&format!("`{name}`")), "{name} is not in docs/observability.md");
        }
    }
}
