//! The operator's metrics. Labels are bounded: by enums, by the fixed set of watches, or by the objects that exist.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

use super::Error;
use super::backups::{self, BackupOutcome, BackupState};
use crate::api::Category;
use crate::api::agent::HandOverReason;

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

/// What the gauges of one cluster show.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClusterState {
    /// Instances that its spec asks for.
    pub instances: i32,
    /// Instances that serve their role.
    pub ready_instances: i32,
    /// The condition WriteAvailable; None is Unknown.
    pub write_available: Option<bool>,
    /// Seconds since the primary last renewed its Lease, as it said when it was asked last; None is unknown.
    pub lease_age: Option<f64>,
    /// Whether the primary has proven that its sync rule is in force; None is unknown.
    pub sync_confirmed: Option<bool>,
    /// The other conditions by type; None is Unknown.
    pub conditions: BTreeMap<&'static str, Option<bool>>,
    /// Backups, where they go somewhere.
    pub backup: Option<BackupState>,
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
    watch_age: IntGaugeVec,
    watches: Mutex<BTreeMap<&'static str, Instant>>,
    failover_duration: HistogramVec,
    clusters: Mutex<BTreeMap<(String, String), ClusterState>>,
    failovers: Mutex<Failovers>,
    backups: Mutex<backups::Ended>,
}

/// Hand-overs by namespace and name of the cluster, counted by reason.
type Failovers = BTreeMap<(String, String), BTreeMap<&'static str, u64>>;

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
        let build = IntGaugeVec::new(Opts::new("hello_operator_build_info", "Version of this program."), &["version"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        metrics.registry.register(Box::new(metrics.reconciles.clone()))?;
        metrics.registry.register(Box::new(metrics.duration.clone()))?;
        metrics.registry.register(Box::new(metrics.errors.clone()))?;
        metrics.registry.register(Box::new(metrics.queue.clone()))?;
        metrics.registry.register(Box::new(metrics.leader.clone()))?;
        metrics.registry.register(Box::new(metrics.dropped_writes.clone()))?;
        metrics.registry.register(Box::new(metrics.watch_age.clone()))?;
        metrics.registry.register(Box::new(metrics.failover_duration.clone()))?;
        metrics.registry.register(Box::new(build))?;
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

    /// Whether this process may act.
    pub fn set_leader(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// A write was not sent, because this process does not lead.
    pub fn dropped_write(&self) {
        self.dropped_writes.inc();
    }

    /// The watch of `resource` began, received an event or a bookmark, or was renewed without an error.
    pub fn watch_progressed(&self, resource: &'static str) {
        lock(&self.watches).insert(resource, Instant::now());
    }

    /// The watch that made no progress for the longest time, and for how long: what liveness looks at.
    pub fn stalest_watch(&self) -> Option<(&'static str, Duration)> {
        lock(&self.watches).iter().map(|(resource, since)| (*resource, since.elapsed())).max_by_key(|(_, age)| *age)
    }

    /// The primary's role changed hands.
    pub fn failed_over(&self, namespace: &str, cluster: &str, reason: HandOverReason, seconds: f64) {
        self.failover_duration.with_label_values(&[reason.as_str()]).observe(seconds);
        let mut failovers = lock(&self.failovers);
        let reasons = failovers.entry((namespace.to_owned(), cluster.to_owned())).or_default();
        *reasons.entry(reason.as_str()).or_default() += 1;
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
        lock(&self.backups).remove(&key);
    }

    /// Every metric in Prometheus' text format.
    pub fn encode(&self) -> Result<String, Error> {
        for (resource, since) in lock(&self.watches).iter() {
            let age = i64::try_from(since.elapsed().as_secs()).unwrap_or(i64::MAX);
            self.watch_age.with_label_values(&[resource]).set(age);
        }
        let mut text = TextEncoder::new().encode_to_string(&self.registry.gather())?;
        // Written here and not by the library, which keeps about a kilobyte for each gauge: with thousands of clusters
        // that would be most of the operator's memory. Names are DNS labels, so nothing needs an escape.
        let (clusters, failovers) = (lock(&self.clusters), lock(&self.failovers));
        let backed_up = clusters.iter().filter_map(|((namespace, cluster), state)| {
            Some(((namespace.as_str(), cluster.as_str()), state.backup.as_ref()?))
        });
        encode_clusters(&clusters, &mut text)
            .and_then(|()| backups::encode(&backed_up.collect(), &lock(&self.backups), &mut text))
            .and_then(|()| encode_failovers(&clusters, &failovers, &mut text))
            .map_err(|error| prometheus::Error::Msg(error.to_string()))?;
        Ok(text)
    }
}

fn encode_clusters(clusters: &BTreeMap<(String, String), ClusterState>, text: &mut String) -> std::fmt::Result {
    if clusters.is_empty() {
        return Ok(());
    }
    let mut family = |name: &str, help: &str, lines: &mut dyn FnMut(&mut String) -> std::fmt::Result| {
        writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge")?;
        lines(text)
    };
    let mut simple = |name: &str, help: &str, value: &dyn Fn(&ClusterState) -> i32| {
        family(name, help, &mut |text| {
            clusters.iter().try_for_each(|((namespace, cluster), state)| {
                writeln!(text, "{name}{{namespace=\"{namespace}\",cluster=\"{cluster}\"}} {}", value(state))
            })
        })
    };
    simple("hello_cluster_instances", "Instances that the spec asks for.", &|state| state.instances)?;
    simple("hello_cluster_ready_instances", "Instances that serve their role.", &|state| state.ready_instances)?;
    simple("hello_cluster_write_available", "1 when writes are taken, 0 when not, -1 when unknown.", &|state| {
        number(state.write_available)
    })?;
    simple(
        "hello_cluster_sync_confirmed",
        "1 when the sync rule is proven to be in force, 0 when not, -1 when unknown.",
        &|state| number(state.sync_confirmed),
    )?;
    let name = "hello_cluster_lease_age_seconds";
    family(name, "Time since the primary renewed its Lease, when it was asked last.", &mut |text| {
        clusters.iter().try_for_each(|((namespace, cluster), state)| match state.lease_age {
            Some(age) => writeln!(text, "{name}{{namespace=\"{namespace}\",cluster=\"{cluster}\"}} {age}"),
            None => Ok(()),
        })
    })?;
    let name = "hello_cluster_condition";
    family(name, "The other conditions: 1 True, 0 False, -1 Unknown.", &mut |text| {
        clusters.iter().try_for_each(|((namespace, cluster), state)| {
            state.conditions.iter().try_for_each(|(condition, value)| {
                let value = number(*value);
                writeln!(
                    text,
                    "{name}{{namespace=\"{namespace}\",cluster=\"{cluster}\",condition=\"{condition}\"}} {value}"
                )
            })
        })
    })
}

/// Every reason of every cluster, so that the first hand-over is an increase from zero.
fn encode_failovers(
    clusters: &BTreeMap<(String, String), ClusterState>,
    failovers: &Failovers,
    text: &mut String,
) -> std::fmt::Result {
    if clusters.is_empty() {
        return Ok(());
    }
    let name = "hello_cluster_failovers_total";
    writeln!(text, "# HELP {name} Times that the primary's role changed hands or came back.\n# TYPE {name} counter")?;
    for key in clusters.keys() {
        let (namespace, cluster) = key;
        for reason in HandOverReason::ALL.map(HandOverReason::as_str) {
            let count = failovers.get(key).and_then(|reasons| reasons.get(reason)).copied().unwrap_or(0);
            writeln!(text, "{name}{{namespace=\"{namespace}\",cluster=\"{cluster}\",reason=\"{reason}\"}} {count}")?;
        }
    }
    Ok(())
}

fn number(condition: Option<bool>) -> i32 {
    condition.map_or(-1, i32::from)
}

/// A panic while holding one of these locks leaves the map whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(text: &str, line: &str) -> bool {
        text.lines().any(|found| found == line)
    }

    #[test]
    fn counters_show_a_zero_before_the_first_event() {
        let text = OperatorMetrics::new().unwrap().encode().unwrap();
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
            conditions: BTreeMap::from([("Ready", Some(false)), ("Degraded", None)]),
            backup: Some(BackupState { last_success: Some(1_800_000_000), ..BackupState::default() }),
        };
        metrics.set_cluster("shop", "orders", state.clone());
        let failures = BTreeMap::from([("users-2".to_owned(), 3)]);
        let backup = BackupState { archive_failures: failures, ..BackupState::default() };
        metrics.set_cluster("shop", "users", ClusterState { backup: Some(backup), ..state });
        metrics.failed_over("shop", "orders", HandOverReason::Shutdown, 1.3);
        metrics.backed_up("shop", "orders", BackupOutcome::Failed);
        let text = metrics.encode().unwrap();
        for line in [
            "# TYPE hello_cluster_instances gauge",
            "hello_cluster_instances{namespace=\"shop\",cluster=\"orders\"} 3",
            "hello_cluster_ready_instances{namespace=\"shop\",cluster=\"orders\"} 2",
            "hello_cluster_write_available{namespace=\"shop\",cluster=\"orders\"} 1",
            "hello_cluster_sync_confirmed{namespace=\"shop\",cluster=\"orders\"} 1",
            "hello_cluster_lease_age_seconds{namespace=\"shop\",cluster=\"orders\"} 1.5",
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
        let state = ClusterState { lease_age: Some(1.0), backup: Some(backup), ..ClusterState::default() };
        metrics.set_cluster("shop", "orders", state);
        metrics.watch_progressed("pods");
        let documented = include_str!("../../docs/observability.md");
        for family in metrics.encode().unwrap().lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let name = family.split(' ').next().unwrap();
            assert!(documented.contains(&format!("`{name}`")), "{name} is not in docs/observability.md");
        }
    }
}
