//! What is reported: the status of the object, from what was seen and what was done.

mod backup;
mod election;
mod instances;
mod primary;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_tools;
mod tools;
mod trouble;
mod writes;

pub use backup::{ARCHIVE_FAILING, BACKUP_HEALTHY};
pub use election::{completed, started};

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::accept::Refused;
use super::plan::{Doing, Plan};
use super::world::{Failure, Trouble, World};
use crate::api::names::LABEL_CLUSTER;
use crate::api::spec::State;
use crate::api::status::HelloOperatorStatus;
use instances::instances;
use tools::for_tools;
use trouble::worst;
use writes::write_available;
pub use writes::{ELECTION_BLOCKED, hand_over_reason};

/// A condition before it is compared with the one that stands.
struct Verdict {
    kind: &'static str,
    holds: bool,
    reason: String,
    sentence: String,
}

/// The status as it should read.
pub fn status(world: &World, plan: &Plan, failures: &[Failure]) -> HelloOperatorStatus {
    let before = world.object.status.as_ref();
    let mut status = HelloOperatorStatus {
        observed_generation: Some(world.object.generation),
        selector: Some(format!("{LABEL_CLUSTER}={}", world.object.names.cluster())),
        ..HelloOperatorStatus::default()
    };
    let paused = plan.accepted.as_ref().is_some_and(|accepted| accepted.cluster.state == State::Paused);
    if paused && let Some(before) = before {
        // Nothing was looked at.
        status = HelloOperatorStatus { observed_generation: status.observed_generation, ..before.clone() };
    }
    if !paused {
        status.instances = instances(world, plan);
        let pods = world.pods.present().map(BTreeMap::len);
        status.instance_count = pods.map_or_else(|| before.map_or(0, |before| before.instance_count), count);
        status.ready_instances = count(status.instances.iter().filter(|instance| instance.ready).count());
        status.primary = primary::primary(world, plan);
        status.replication = primary::replication(world, plan);
        status.election = election::election(world, plan);
        status.last_failover = election::last_failover(world, status.election.as_ref());
        status.backup = backup::backup(world, plan);
    }
    status.ready =
        plan.accepted.as_ref().map(|accepted| format!("{}/{}", status.ready_instances, accepted.cluster.instances));
    let verdicts = verdicts(world, plan, failures, &status, paused);
    status.phase = Some(phase(plan, paused, &verdicts).to_owned());
    status.conditions = verdicts.into_iter().map(|verdict| condition(world, verdict)).collect();
    if let Some(before) = before.filter(|before| same(before, &status)) {
        return before.clone();
    }
    status
}

/// Whether two statuses say the same, live values aside: those are written only together with something else.
fn same(a: &HelloOperatorStatus, b: &HelloOperatorStatus) -> bool {
    let still = |status: &HelloOperatorStatus| {
        let mut status = status.clone();
        for instance in &mut status.instances {
            instance.lsn = None;
            instance.lag_bytes = None;
        }
        if let Some(backup) = &mut status.backup {
            backup.last_archived_wal = None;
            backup.last_archived_at = None;
        }
        status
    };
    still(a) == still(b)
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn verdicts(
    world: &World,
    plan: &Plan,
    failures: &[Failure],
    status: &HelloOperatorStatus,
    paused: bool,
) -> Vec<Verdict> {
    if paused {
        let sentence = "state is Paused: nothing is looked at or touched";
        // Without Ready, as where it is hibernated: nothing is to become ready, and nobody should wait for it.
        return ["Progressing", "Degraded", "WriteAvailable"]
            .into_iter()
            .map(|kind| Verdict { kind, holds: false, reason: "Paused".into(), sentence: sentence.into() })
            .collect();
    }
    let trouble = worst(world, plan, failures, &status.instances);
    let writes = write_available(world, plan, status.election.as_ref());
    let backup = backup::healthy(world, plan, status.backup.as_ref());
    let ready = ready(plan, status, trouble.as_ref(), writes.holds);
    let progressing = progressing(world, plan);
    let tools = for_tools(world, trouble.as_ref(), &progressing, &writes);
    ready.into_iter().chain([progressing, degraded(trouble), writes]).chain(backup).chain(tools).collect()
}

/// The condition Ready; None where nothing is to run and nothing does.
fn ready(plan: &Plan, status: &HelloOperatorStatus, trouble: Option<&Trouble>, writes: bool) -> Option<Verdict> {
    let verdict =
        |holds, reason: &str, sentence: String| Some(Verdict { kind: "Ready", holds, reason: reason.into(), sentence });
    let Some(accepted) = &plan.accepted else {
        let trouble =
            trouble.cloned().unwrap_or_else(|| Trouble { reason: "Unknown".into(), sentence: plan.progress.clone() });
        return verdict(false, &trouble.reason, trouble.sentence);
    };
    let (have, want) = (status.ready_instances, i32::from(accepted.cluster.instances));
    if accepted.cluster.state == State::Hibernated {
        let sentence = "state is Hibernated: the Pods are stopped, the volumes stay";
        return if status.instance_count == 0 { None } else { verdict(false, "Hibernating", sentence.into()) };
    }
    if have >= want && writes {
        return verdict(true, "Ready", format!("{have} of {want} instances are ready"));
    }
    if have >= want {
        return verdict(false, "NoPrimary", "all instances are ready, but none takes writes yet".into());
    }
    match trouble {
        Some(trouble) => {
            verdict(false, &trouble.reason, format!("{have} of {want} instances are ready: {}", trouble.sentence))
        }
        None => verdict(false, "NotReady", format!("{have} of {want} instances are ready: {}", plan.progress)),
    }
}

fn progressing(world: &World, plan: &Plan) -> Verdict {
    let steps: Vec<_> = plan.steps.iter().filter(|step| !step.of_backups(&world.object.names)).collect();
    let (holds, reason, sentence) = match plan.doing {
        Doing::Nothing if steps.is_empty() => (false, "Settled", "nothing is to be done".to_owned()),
        Doing::Nothing => (
            true,
            "Updating",
            steps.iter().map(|step| format!("{}: {}", step.id, step.reason)).take(3).collect::<Vec<_>>().join("; "),
        ),
        Doing::Updating => (true, "Updating", plan.progress.clone()),
        Doing::Starting => (true, "Starting", plan.progress.clone()),
        Doing::Creating => (true, "Creating", plan.progress.clone()),
        Doing::Scaling => (true, "Scaling", plan.progress.clone()),
        Doing::Rolling => (true, "Rolling", plan.progress.clone()),
        Doing::Hibernating => (true, "Hibernating", plan.progress.clone()),
    };
    Verdict { kind: "Progressing", holds, reason: reason.into(), sentence }
}

fn degraded(trouble: Option<Trouble>) -> Verdict {
    match trouble {
        Some(trouble) => Verdict { kind: "Degraded", holds: true, reason: trouble.reason, sentence: trouble.sentence },
        None => {
            Verdict { kind: "Degraded", holds: false, reason: "Healthy".into(), sentence: "nothing is wrong".into() }
        }
    }
}

fn phase(plan: &Plan, paused: bool, verdicts: &[Verdict]) -> &'static str {
    let holds = |kind: &str| verdicts.iter().any(|verdict| verdict.kind == kind && verdict.holds);
    let hibernated = plan.accepted.as_ref().is_some_and(|accepted| accepted.cluster.state == State::Hibernated);
    match (&plan.refused, plan.doing) {
        _ if paused => "Paused",
        (Some(Refused::Invalid(_)), _) => "Invalid",
        (Some(Refused::Unknown(_)), _) => "Unknown",
        (None, Doing::Hibernating) => "Hibernating",
        _ if hibernated => "Hibernated",
        (None, Doing::Scaling) => "Scaling",
        (None, Doing::Rolling) => "Rolling",
        _ if holds("Degraded") => "Degraded",
        (None, Doing::Creating) => "Creating",
        (None, Doing::Starting) => "Starting",
        (None, Doing::Nothing | Doing::Updating) if holds("Ready") => "Ready",
        (None, Doing::Nothing | Doing::Updating) => "NotReady",
    }
}

/// The condition, with the time of its last transition: it moves only when the verdict changes.
fn condition(world: &World, verdict: Verdict) -> Condition {
    let value = if verdict.holds { "True" } else { "False" };
    let before = world
        .object
        .status
        .as_ref()
        .and_then(|status| status.conditions.iter().find(|condition| condition.type_ == verdict.kind));
    let since = before
        .filter(|before| before.status == value)
        .map_or(Time(world.now), |before| before.last_transition_time.clone());
    let mut message = verdict.sentence;
    if message.len() > MOST_SENTENCE {
        let end = (0..=MOST_SENTENCE).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
        message.truncate(end);
    }
    Condition {
        type_: verdict.kind.to_owned(),
        status: value.to_owned(),
        reason: verdict.reason,
        message,
        observed_generation: Some(world.object.generation),
        last_transition_time: since,
    }
}

/// A condition's message holds 32 KiB; people read less.
const MOST_SENTENCE: usize = 2000;
