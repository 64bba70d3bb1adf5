//! What is wrong, in the order in which people should hear of it.

use super::writes::DISK_FULL;
use crate::api::agent::{FullVolume, Phase, Report};
use crate::api::spec::State;
use crate::api::status::InstanceStatus;
use crate::core::accept::Refused;
use crate::core::plan::{Doing, Plan};
use crate::core::world::{Failure, Kind, Known, Trouble, World};

/// The trouble that people should hear of first.
pub(super) fn worst(world: &World, plan: &Plan, failures: &[Failure], instances: &[InstanceStatus]) -> Option<Trouble> {
    if let Some(Refused::Invalid(sentence)) = &plan.refused {
        return Some(Trouble { reason: "Invalid".into(), sentence: sentence.clone() });
    }
    let pods = world.pods.present().into_iter().flat_map(|pods| pods.values()).filter_map(|pod| pod.trouble.as_ref());
    let failed = world
        .reports
        .values()
        .filter_map(Known::present)
        .filter(|report| report.phase == Phase::Failed && !young(world, report))
        .map(|report| Trouble {
            reason: "InstanceFailed".into(),
            sentence: format!("{}: {}", report.instance, report.message.as_deref().unwrap_or("PostgreSQL cannot run")),
        })
        .next();
    let crd = world.crd_degraded.then(|| Trouble {
        reason: "CrdReplaced".into(),
        sentence: "another CRD of the same name stands over ours, without schema and status: existing clusters stay on their last accepted spec; apply our CRD again, or run the operator with --manage-crds".into(),
    });
    // What goes wrong with a backup stands in its HelloBackup and in BackupHealthy: the database is not worse for it.
    let failures: Vec<Failure> = failures.iter().filter(|failure| !of_backup(failure)).cloned().collect();
    let mut all: Vec<Trouble> = full(world).into_iter().chain(plan.troubles(&failures).chain(pods).cloned()).collect();
    all.extend(failed);
    all.extend(missing(world, plan, instances));
    all.extend(crd);
    let first = all.first()?.clone();
    let mut sentences: Vec<String> = Vec::new();
    for trouble in all {
        if !sentences.contains(&trouble.sentence) {
            sentences.push(trouble.sentence);
        }
    }
    sentences.truncate(5);
    Some(Trouble { reason: first.reason, sentence: sentences.join("; ") })
}

fn of_backup(failure: &Failure) -> bool {
    failure.child.as_ref().is_some_and(|child| child.kind == Kind::HelloBackup)
}

/// Volumes that are full.
fn full(world: &World) -> Vec<Trouble> {
    let reports = || world.reports.values().filter_map(Known::present);
    let of = |which: FullVolume| {
        let names: Vec<&str> =
            reports().filter(|report| report.full == Some(which)).map(|report| report.instance.as_str()).collect();
        (!names.is_empty()).then(|| Trouble {
            reason: DISK_FULL.into(),
            sentence: format!("the {} of {} is full: raise {}", which.name(), names.join(", "), which.field()),
        })
    };
    [FullVolume::Data, FullVolume::Wal].into_iter().filter_map(of).collect()
}

/// Seconds for which an instance may be away before that is a trouble: restarts and rolls take less.
const AWAY: i64 = 30;

/// Instances that served and do not, for longer than a restart takes and without another trouble that says why.
fn missing(world: &World, plan: &Plan, instances: &[InstanceStatus]) -> Option<Trouble> {
    let cluster = &plan.accepted.as_ref()?.cluster;
    let calm = !matches!(plan.doing, Doing::Scaling | Doing::Rolling | Doing::Hibernating);
    let mut before = world.object.status.iter().flat_map(|status| &status.conditions);
    let ready = before.find(|condition| condition.type_ == "Ready")?;
    let since = world.now.as_second() - ready.last_transition_time.0.as_second();
    if cluster.state != State::Running || !calm || ready.status == "True" || since < AWAY {
        return None;
    }
    let names = &world.object.names;
    let told = |ordinal: u8| {
        let pod = world.pods.present().and_then(|pods| pods.get(&ordinal));
        let report = world.reports.get(&ordinal).and_then(Known::present);
        pod.is_some_and(|pod| pod.trouble.is_some()) || report.is_some_and(|report| report.phase == Phase::Failed)
    };
    let away: Vec<&str> = instances
        .iter()
        .filter(|instance| instance.joined && !instance.ready)
        .filter(|instance| names.ordinal(&instance.name).is_some_and(|ordinal| !told(ordinal)))
        .map(|instance| instance.name.as_str())
        .collect();
    (!away.is_empty()).then(|| Trouble {
        reason: "InstanceMissing".into(),
        sentence: format!("{} out of service: status.instances says what is known", are(&away)),
    })
}

fn are(names: &[&str]) -> String {
    let verb = if names.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", names.join(", "))
}

/// Seconds in which a new instance may fail: it tries again while its primary starts.
const YOUNG: i64 = 30;

fn young(world: &World, report: &Report) -> bool {
    let created = world
        .object
        .names
        .ordinal(&report.instance)
        .and_then(|ordinal| world.pods.present()?.get(&ordinal)?.meta.created);
    created.is_some_and(|created| world.now.as_second() - created.as_second() < YOUNG)
}
