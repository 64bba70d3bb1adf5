//! What the gauges of one cluster show.

use jiff::Timestamp;

use crate::api::spec::State;
use crate::api::status::HelloOperatorStatus;
use crate::core::backup::follow::catalog;
use crate::core::plan::Plan;
use crate::core::status::BACKUP_HEALTHY;
use crate::core::world::{Known, World};
use crate::telemetry::backups::BackupState;
use crate::telemetry::clusters::ClusterState;

/// From what was seen and reported.
pub fn cluster(world: &World, plan: &Plan, status: &HelloOperatorStatus) -> ClusterState {
    let find = |kind: &str| status.conditions.iter().find(|condition| condition.type_ == kind);
    let condition = |kind: &str| match find(kind)?.status.as_str() {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    };
    let primary = plan.members.primary.and_then(|primary| world.reports.get(&primary)).and_then(Known::present);
    // The one about backups is there only where backups go somewhere.
    let optional = find(BACKUP_HEALTHY).map(|_| BACKUP_HEALTHY);
    let running = plan.accepted.as_ref().map(|accepted| &accepted.cluster).filter(|c| c.state == State::Running);
    let durability = status.replication.as_ref().map(|replication| replication.durability.as_str());
    ClusterState {
        // A cluster that is to sleep lacks none.
        instances: running.map_or(0, |cluster| i32::from(cluster.instances)),
        sync_replicas: running.map_or(0, |cluster| match durability {
            Some("Async") | None => 0,
            Some(_) => i32::from(cluster.sync_replicas),
        }),
        primary_since: status.primary.as_ref().and_then(|primary| Some(primary.since.as_ref()?.0.as_second())),
        certificate_expiry: certificate_expiry(world),
        lease_age: primary.and_then(|report| report.lease_age_seconds),
        sync_confirmed: primary.map(|report| report.rules_confirmed),
        ready_instances: status.ready_instances,
        write_available: condition("WriteAvailable"),
        conditions: ["Ready", "Progressing", "Degraded"]
            .into_iter()
            .chain(optional)
            .map(|kind| (kind, condition(kind)))
            .collect(),
        backup: backup(world, plan, status),
    }
}

/// When the first of a cluster's certificates ends, the authority's included.
fn certificate_expiry(world: &World) -> Option<i64> {
    let secrets = world.secrets.values().filter_map(Known::present);
    secrets.filter_map(|secret| Some(secret.certificate.as_ref()?.until.as_second())).min()
}

fn backup(world: &World, plan: &Plan, status: &HelloOperatorStatus) -> Option<BackupState> {
    let told = status.backup.as_ref()?;
    let second = |text: Option<&String>| text?.parse::<Timestamp>().ok().map(Timestamp::as_second);
    let primary = plan.members.primary.and_then(|primary| world.reports.get(&primary)).and_then(Known::present);
    let archive = primary.and_then(|report| report.store.as_ref()).map(|store| &store.archive);
    let reports = world.reports.values().filter_map(Known::present);
    let archive_failures =
        reports.filter_map(|report| Some((report.instance.clone(), report.store.as_ref()?.archive.failures))).collect();
    let catalog = catalog(world, plan.members.primary);
    let last = told.last_successful.as_ref();
    let entry = catalog
        .and_then(|catalog| catalog.backups.iter().find(|entry| last.is_some_and(|l| l.backup_id == entry.backup_id)));
    let duration = entry.and_then(|e| Some(second(Some(&e.stopped_at))?.saturating_sub(second(Some(&e.started_at))?)));
    Some(BackupState {
        last_success: second(last.map(|last| &last.completed_at)),
        first_recoverable: second(told.first_recoverable.as_ref()),
        // The status has it of when it was written last.
        last_archived: second(archive.and_then(|archive| archive.last_at.as_ref()).or(told.last_archived_at.as_ref())),
        last_verified: second(told.last_verified.as_ref().map(|verified| &verified.at)),
        verification_failed: told.verification_error.is_some(),
        archive_failing: archive.map(|archive| archive.failing_since.is_some()),
        waiting: archive.map(|archive| archive.waiting),
        duration,
        bytes: entry.map(|entry| entry.bytes),
        stored_bytes: entry.map(|entry| entry.stored_bytes),
        entries: catalog.and_then(|catalog| u64::try_from(catalog.backups.len()).ok()),
        archive_failures,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::core::plan::plan;
    use crate::core::plan::testing::{change, empty, present, settle};
    use crate::core::world::SecretKind;

    fn shown(world: &World) -> ClusterState {
        cluster(world, &plan(world), world.object.status.as_ref().unwrap())
    }

    #[test]
    fn a_settled_cluster_shows_whole_numbers_and_one_that_sleeps_lacks_nothing() {
        let mut world = empty(json!({"instances": 3}));
        settle(&mut world);
        let state = shown(&world);
        assert_eq!((state.instances, state.ready_instances, state.sync_replicas), (3, 3, 1));
        assert_eq!((state.write_available, state.sync_confirmed), (Some(true), Some(true)));
        change(&mut world, json!({"instances": 3, "state": "Hibernated"}));
        let state = shown(&world);
        assert_eq!((state.instances, state.sync_replicas), (0, 0));

        let mut one = empty(json!({"instances": 1}));
        settle(&mut one);
        assert_eq!(shown(&one).sync_replicas, 0, "nobody is waited for");
    }

    #[test]
    fn the_first_certificate_that_ends_counts() {
        let mut world = empty(json!({"instances": 1}));
        assert_eq!(certificate_expiry(&world), None, "unknown is absent");
        settle(&mut world);
        let soon = Timestamp::from_second(world.now.as_second() + 60).unwrap();
        let secret = present(world.secrets.get_mut(&SecretKind::Server).unwrap());
        secret.certificate.as_mut().unwrap().until = soon;
        assert_eq!(shown(&world).certificate_expiry, Some(soon.as_second()));
    }
}
