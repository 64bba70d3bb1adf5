//! Metrics of each cluster, as text. Not by the library, which keeps about a kilobyte for each gauge: with thousands of
//! clusters that would be most of the operator's memory. Names are DNS labels, so nothing needs an escape.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::backups::BackupState;
use crate::api::agent::HandOverReason;

/// What the gauges of one cluster show.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClusterState {
    /// Instances that its spec asks for; none while it is hibernated.
    pub instances: i32,
    /// Instances that serve their role.
    pub ready_instances: i32,
    /// The condition WriteAvailable; None is Unknown.
    pub write_available: Option<bool>,
    /// Seconds since the primary last renewed its Lease, as it said when it was asked last; None is unknown.
    pub lease_age: Option<f64>,
    /// Whether the primary has proven that its sync rule is in force; None is unknown.
    pub sync_confirmed: Option<bool>,
    /// Replicas that must have each commit.
    pub sync_replicas: i32,
    /// When the primary took its Lease, in seconds since 1970; None is unknown.
    pub primary_since: Option<i64>,
    /// When the first of its certificates ends, in seconds since 1970; None is unknown.
    pub certificate_expiry: Option<i64>,
    /// The other conditions by type; None is Unknown.
    pub conditions: BTreeMap<&'static str, Option<bool>>,
    /// Backups, where they go somewhere.
    pub backup: Option<BackupState>,
}

/// Hand-overs by namespace and name of the cluster, counted by reason.
pub(super) type Failovers = BTreeMap<(String, String), BTreeMap<&'static str, u64>>;

/// The gauges of every cluster.
pub(super) fn encode_clusters(
    clusters: &BTreeMap<(String, String), ClusterState>,
    text: &mut String,
) -> std::fmt::Result {
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
    simple("hello_cluster_sync_replicas", "Replicas that must have each commit.", &|state| state.sync_replicas)?;
    let mut moment = |name: &str, help: &str, value: &dyn Fn(&ClusterState) -> Option<i64>| {
        family(name, help, &mut |text| {
            clusters.iter().try_for_each(|((namespace, cluster), state)| match value(state) {
                Some(value) => writeln!(text, "{name}{{namespace=\"{namespace}\",cluster=\"{cluster}\"}} {value}"),
                None => Ok(()),
            })
        })
    };
    moment("hello_cluster_primary_since_timestamp_seconds", "When the primary took its Lease.", &|state| {
        state.primary_since
    })?;
    moment(
        "hello_cluster_certificate_expiry_timestamp_seconds",
        "When the first of its certificates ends.",
        &|state| state.certificate_expiry,
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
pub(super) fn encode_failovers(
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

/// Every cluster that was looked at, or whose look failed before anything was seen.
pub(super) fn encode_failing(failing: &BTreeMap<(String, String), u32>, text: &mut String) -> std::fmt::Result {
    if failing.is_empty() {
        return Ok(());
    }
    let name = "hello_cluster_failed_reconciles";
    writeln!(text, "# HELP {name} Reconciles that failed in a row; 0 after one that did not.\n# TYPE {name} gauge")?;
    failing.iter().try_for_each(|((namespace, cluster), times)| {
        writeln!(text, "{name}{{namespace=\"{namespace}\",cluster=\"{cluster}\"}} {times}")
    })
}

fn number(condition: Option<bool>) -> i32 {
    condition.map_or(-1, i32::from)
}
