//! What is wrong, in the order in which people should hear of it.

use crate::api::agent::{Phase, Report};
use crate::api::spec::State;
use crate::core::accept::Refused;
use crate::core::plan::{Doing, Plan, serves};
use crate::core::world::{Failure, Known, Trouble, World};

/// The trouble that people should hear of first.
pub(super) fn worst(world: &World, plan: &Plan, failures: &[Failure]) -> Option<Trouble> {
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
    let mut all: Vec<Trouble> = plan.troubles(failures).chain(pods).cloned().collect();
    all.extend(failed);
    all.extend(missing(world, plan));
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

/// Seconds for which an instance may be away before that is a trouble: restarts and rolls take less.
const AWAY: i64 = 30;

/// Instances that do not serve, for longer than a restart takes and without another trouble that says why. New ones that
/// still copy are not missing.
fn missing(world: &World, plan: &Plan) -> Option<Trouble> {
    const REASON: &str = "InstanceMissing";
    let cluster = &plan.accepted.as_ref()?.cluster;
    let calm = !matches!(plan.doing, Doing::Scaling | Doing::Rolling | Doing::Hibernating);
    if cluster.state != State::Running || !calm || plan.members.term == 0 {
        return None;
    }
    let before = |kind: &str| world.object.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == kind);
    let ready = before("Ready")?;
    if ready.status == "True" || world.now.as_second() - ready.last_transition_time.0.as_second() < AWAY {
        return None;
    }
    let known = before("Degraded").is_some_and(|degraded| degraded.status == "True" && degraded.reason == REASON);
    let pod = |ordinal: u8| world.pods.present().and_then(|pods| pods.get(&ordinal));
    let names: Vec<String> = plan
        .members
        .wanted
        .iter()
        .filter(|ordinal| !serves(world, **ordinal) && pod(**ordinal).is_none_or(|pod| pod.trouble.is_none()))
        .filter(|ordinal| match world.reports.get(ordinal) {
            Some(Known::Present(report)) => match report.phase {
                Phase::Failed => false,
                Phase::Bootstrapping | Phase::Cloning => known,
                _ => true,
            },
            _ => true,
        })
        .map(|ordinal| world.object.names.instance(*ordinal))
        .collect();
    (!names.is_empty()).then(|| Trouble {
        reason: REASON.into(),
        sentence: format!("{} out of service: status.instances says what is known", are(&names)),
    })
}

fn are(names: &[String]) -> String {
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
