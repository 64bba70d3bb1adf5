//! What is reported: the status of the object, from what was seen and what was done.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::accept::Refused;
use super::plan::{Doing, Plan};
use super::world::{Failure, Known, Trouble, World};
use crate::api::agent::{Phase, Report};
use crate::api::names::LABEL_CLUSTER;
use crate::api::spec::State;
use crate::api::status::{HelloOperatorStatus, InstanceStatus, PrimaryStatus, ReplicationStatus};

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
        status.instances = instances(world);
        status.instance_count = count(status.instances.len());
        status.ready_instances = count(status.instances.iter().filter(|instance| instance.ready).count());
        status.primary = primary(world, plan);
        status.replication = replication(world);
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
        status
    };
    still(a) == still(b)
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn instances(world: &World) -> Vec<InstanceStatus> {
    let Some(pods) = world.pods.present() else {
        return world.object.status.as_ref().map(|status| status.instances.clone()).unwrap_or_default();
    };
    let end = world.reports.values().filter_map(Known::present).find(|r| r.phase == Phase::Primary).and_then(|r| r.lsn);
    pods.iter()
        .map(|(ordinal, pod)| {
            let report = world.reports.get(ordinal).and_then(Known::present);
            let message = match (&pod.trouble, report) {
                (Some(trouble), _) => Some(trouble.sentence.clone()),
                (None, Some(report)) if !pod.ready => report.message.clone(),
                _ => None,
            };
            InstanceStatus {
                name: world.object.names.instance(*ordinal),
                role: role(report, pod.meta.deleting).to_owned(),
                ready: pod.ready && !pod.meta.deleting,
                timeline: report.and_then(|r| r.timeline).map(i64::from),
                lsn: report.and_then(|r| r.lsn).map(|lsn| lsn.to_string()),
                lag_bytes: lag(report, end),
                node: pod.node.clone(),
                message,
            }
        })
        .collect()
}

fn lag(report: Option<&Report>, end: Option<crate::api::agent::Lsn>) -> Option<i64> {
    let (report, end) = (report?, end?);
    if report.phase != Phase::Replica {
        return None;
    }
    i64::try_from(end.0.saturating_sub(report.replayed.or(report.lsn)?.0)).ok()
}

fn role(report: Option<&Report>, deleting: bool) -> &'static str {
    if deleting {
        return "stopping";
    }
    match report.map(|report| report.phase) {
        None => "unknown",
        Some(Phase::Primary) => "primary",
        Some(Phase::Replica) => "replica",
        Some(Phase::Waiting) => "waiting",
        Some(Phase::Bootstrapping) => "bootstrapping",
        Some(Phase::Cloning) => "cloning",
        Some(Phase::Starting) => "starting",
        Some(Phase::Stopped) => "stopped",
        Some(Phase::Failed) => "failed",
    }
}

fn primary(world: &World, plan: &Plan) -> Option<PrimaryStatus> {
    let register = match &world.lease {
        Known::Present(lease) => lease.register.present()?,
        Known::Absent => return None,
        Known::Unknown(_) => return world.object.status.as_ref().and_then(|status| status.primary.clone()),
    };
    let instance = register.holder_instance()?;
    if register.released() {
        return None;
    }
    let before = world.object.status.as_ref().and_then(|status| status.primary.as_ref());
    let since = match before {
        Some(before) if before.term == register.term && before.since.is_some() => before.since.clone(),
        _ => Some(Time(world.lease.present().and_then(|lease| lease.since).unwrap_or(world.now))),
    };
    let timeline = plan
        .members
        .primary
        .and_then(|ordinal| world.reports.get(&ordinal))
        .and_then(Known::present)
        .and_then(|report| report.timeline)
        .map(i64::from)
        .or_else(|| before.filter(|before| before.term == register.term).and_then(|before| before.timeline));
    Some(PrimaryStatus { instance: instance.to_owned(), term: register.term, timeline, since })
}

fn replication(world: &World) -> Option<ReplicationStatus> {
    let register = match &world.lease {
        Known::Present(lease) => lease.register.present()?,
        Known::Absent => return None,
        Known::Unknown(_) => return world.object.status.as_ref().and_then(|status| status.replication.clone()),
    };
    // Rules name members; people know instances.
    let mut known: Vec<(String, String)> = register.planned.iter().map(|(i, m)| (m.clone(), i.clone())).collect();
    for report in world.reports.values().filter_map(Known::present) {
        known.extend(report.member.iter().map(|member| (member.clone(), report.instance.clone())));
        known.extend(report.replicas.iter().filter_map(|r| Some((r.member.clone(), r.instance.clone()?))));
    }
    let name = |member: &str| {
        known.iter().find(|(id, _)| id == member).map_or_else(|| member.to_owned(), |(_, instance)| instance.clone())
    };
    let rules = register
        .rules
        .iter()
        .filter(|rule| rule.k > 0)
        .map(|rule| {
            let mut names: Vec<String> = rule.members.iter().map(|member| name(member)).collect();
            names.sort();
            format!("ANY {} ({})", rule.k, names.join(", "))
        })
        .collect();
    Some(ReplicationStatus { durability: format!("{:?}", register.durability), rules })
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
        return ["Ready", "Progressing", "Degraded", "WriteAvailable"]
            .into_iter()
            .map(|kind| Verdict { kind, holds: false, reason: "Paused".into(), sentence: sentence.into() })
            .collect();
    }
    let trouble = worst(world, plan, failures);
    let writes = write_available(world, plan);
    vec![ready(plan, status, trouble.as_ref(), writes.holds), progressing(plan), degraded(trouble), writes]
}

/// The trouble that people should hear of first.
fn worst(world: &World, plan: &Plan, failures: &[Failure]) -> Option<Trouble> {
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

fn ready(plan: &Plan, status: &HelloOperatorStatus, trouble: Option<&Trouble>, writes: bool) -> Verdict {
    let verdict =
        |holds, reason: &str, sentence: String| Verdict { kind: "Ready", holds, reason: reason.into(), sentence };
    let Some(accepted) = &plan.accepted else {
        let trouble =
            trouble.cloned().unwrap_or_else(|| Trouble { reason: "Unknown".into(), sentence: plan.progress.clone() });
        return verdict(false, &trouble.reason, trouble.sentence);
    };
    let (have, want) = (status.ready_instances, i32::from(accepted.cluster.instances));
    if accepted.cluster.state == State::Hibernated {
        let stopped = if status.instance_count == 0 { "Hibernated" } else { "Hibernating" };
        return verdict(false, stopped, "state is Hibernated: the Pods are stopped, the volumes stay".into());
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

fn progressing(plan: &Plan) -> Verdict {
    let (holds, reason, sentence) = match plan.doing {
        Doing::Nothing if plan.steps.is_empty() => (false, "Settled", "nothing is to be done".to_owned()),
        Doing::Nothing => (
            true,
            "Updating",
            plan.steps
                .iter()
                .map(|step| format!("{}: {}", step.id, step.reason))
                .take(3)
                .collect::<Vec<_>>()
                .join("; "),
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

fn write_available(world: &World, plan: &Plan) -> Verdict {
    let verdict = |holds, reason: &str, sentence: String| Verdict {
        kind: "WriteAvailable",
        holds,
        reason: reason.into(),
        sentence,
    };
    let Some(primary) = plan.members.primary else {
        return verdict(false, "NoPrimary", "no instance has taken the Lease of the primary yet".into());
    };
    let name = world.object.names.instance(primary);
    if plan.members.settled {
        return verdict(true, "Primary", format!("{name} takes writes"));
    }
    match world.reports.get(&primary) {
        Some(Known::Present(report)) => {
            let why = report.message.clone().unwrap_or_else(|| "it is not ready".into());
            verdict(false, "PrimaryNotReady", format!("{name} does not take writes: {why}"))
        }
        // An agent that does not answer us may well serve: what the kubelet sees counts then.
        Some(Known::Unknown(why)) => {
            let ready = world.pods.present().and_then(|pods| pods.get(&primary)).is_some_and(|pod| pod.ready);
            let reason = if ready { "Primary" } else { "PrimaryUnknown" };
            verdict(ready, reason, format!("{name} holds the Lease; its agent does not answer the operator: {why}"))
        }
        Some(Known::Absent) | None => verdict(false, "PrimaryNotRunning", format!("the primary {name} does not run")),
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
