//! Whether writes are taken, and if not, why and what helps.

use super::Verdict;
use super::primary::instance_of;
use crate::api::agent::{self, Report};
use crate::api::names::ANNOTATION_ACCEPT_LOSS;
use crate::api::spec::State;
use crate::api::status::{ElectionPhase, ElectionStatus};
use crate::core::election::Register;
use crate::core::plan::{DATA_MISSING, Plan};
use crate::core::world::{Known, World};

/// Reason of the condition while nobody may take over.
pub const ELECTION_BLOCKED: &str = "ElectionBlocked";

/// Reason of a condition while a volume is full.
pub(super) const DISK_FULL: &str = "DiskFull";

/// The condition WriteAvailable.
pub(super) fn write_available(world: &World, plan: &Plan, election: Option<&ElectionStatus>) -> Verdict {
    let verdict = |holds, reason: &str, sentence: String| Verdict {
        kind: "WriteAvailable",
        holds,
        reason: reason.into(),
        sentence,
    };
    let register = world.lease.present().and_then(|lease| lease.register.present());
    if let Some(notice) = plan.notices.iter().find(|notice| notice.reason == DATA_MISSING) {
        return verdict(false, DATA_MISSING, notice.sentence.clone());
    }
    let hibernated = plan.accepted.as_ref().is_some_and(|accepted| accepted.cluster.state == State::Hibernated);
    if hibernated && !plan.members.settled {
        return verdict(false, "Hibernated", "state is Hibernated: the Pods are stopped, the volumes stay".into());
    }
    let Some(primary) = plan.members.primary else {
        return verdict(false, "NoPrimary", "no instance has taken the Lease of the primary yet".into());
    };
    let name = world.object.names.instance(primary);
    let report = world.reports.get(&primary);
    if plan.members.settled {
        return match report.and_then(Known::present).zip(register).and_then(|(r, register)| lacking(world, r, register))
        {
            Some(sentence) => verdict(false, "SyncReplicasMissing", sentence),
            None => verdict(true, "Primary", format!("{name} takes writes")),
        };
    }
    if let Some(sentence) = report.and_then(Known::present).and_then(full) {
        return verdict(false, DISK_FULL, sentence);
    }
    match election.map(|election| election.phase) {
        Some(ElectionPhase::Blocked) => return verdict(false, ELECTION_BLOCKED, blocked(world, &name, register)),
        Some(ElectionPhase::HandOver) => {
            return verdict(false, "HandOver", election.map_or_else(String::new, hand_over));
        }
        Some(ElectionPhase::Electing) => {
            let sentence = format!("{name} is not heard of: the other instances look who may take over from it");
            return verdict(false, "Electing", sentence);
        }
        Some(ElectionPhase::Held | ElectionPhase::Released) | None => {}
    }
    let failover = plan.accepted.as_ref().is_none_or(|accepted| accepted.cluster.failover.enabled);
    let waits = if failover { "" } else { "; failover.enabled is false, so no other instance takes over" };
    match report {
        Some(Known::Present(report)) => {
            let why = report.message.clone().unwrap_or_else(|| "it is not ready".into());
            verdict(false, "PrimaryNotReady", format!("{name} does not take writes: {why}{waits}"))
        }
        // An agent that does not answer us may well serve: what the kubelet sees counts then.
        Some(Known::Unknown(why)) => {
            let ready = world.pods.present().and_then(|pods| pods.get(&primary)).is_some_and(|pod| pod.ready);
            let reason = if ready { "Primary" } else { "PrimaryUnknown" };
            verdict(ready, reason, format!("{name} holds the Lease; its agent does not answer the operator: {why}"))
        }
        Some(Known::Absent) | None => {
            verdict(false, "PrimaryNotRunning", format!("the primary {name} does not run{waits}"))
        }
    }
}

/// A primary that runs and takes no writes, because a volume is full.
fn full(report: &Report) -> Option<String> {
    let full = report.full.filter(|_| report.phase == agent::Phase::Primary)?;
    Some(format!(
        "{} takes no writes, because its {} is full, and no replica that could take over has room: raise {}; writes go on by themselves once there is room",
        report.instance,
        full.name(),
        full.field()
    ))
}

/// What commits wait for, when fewer replicas stream than must have each of them.
fn lacking(world: &World, primary: &Report, register: &Register) -> Option<String> {
    let rule = register.rule().filter(|rule| rule.k > 0)?;
    let streams = |member: &&String| primary.replicas.iter().any(|r| r.member == **member && r.streaming);
    let (there, away): (Vec<&String>, Vec<&String>) = rule.members.iter().partition(streams);
    let needed = usize::try_from(rule.k).unwrap_or(usize::MAX);
    (there.len() < needed).then(|| {
        let mut names: Vec<String> = away.iter().map(|member| instance_of(world, register, member)).collect();
        names.sort();
        names.dedup();
        format!(
            "commits on {} wait: {needed} of its replicas must have each one, and {} of those that count stream; they go on as soon as enough of {} stream again",
            primary.instance,
            there.len(),
            names.join(", ")
        )
    })
}

fn hand_over(election: &ElectionStatus) -> String {
    let why = hand_over_reason(election.reason.as_deref());
    let from = election.from.as_deref().unwrap_or("nobody");
    match &election.to {
        Some(to) if Some(to) == election.from.as_ref() => format!("{to} comes back: {why}"),
        Some(to) => format!("{to} takes over from {from}: {why}"),
        None => format!("{from} has given up the Lease, and another instance takes over: {why}"),
    }
}

/// Why a hand-over happened, in words.
pub fn hand_over_reason(reason: Option<&str>) -> &'static str {
    let known = agent::HandOverReason::ALL.into_iter().find(|known| Some(known.as_str()) == reason);
    known.map_or("the reason is not known", agent::HandOverReason::sentence)
}

/// Who is missing for an election, and what a human can do.
fn blocked(world: &World, holder: &str, register: Option<&Register>) -> String {
    let elections = || world.reports.values().filter_map(Known::present).filter_map(|report| report.election.as_ref());
    let found = elections().find(|election| election.phase == agent::ElectionPhase::Blocked);
    let Some(found) = found else {
        // Between two rounds, nobody says it; it was said a moment ago.
        let before = world
            .object
            .status
            .as_ref()
            .and_then(|status| status.conditions.iter().find(|condition| condition.reason == ELECTION_BLOCKED));
        return before.map_or_else(|| "no instance may take over".into(), |condition| condition.message.clone());
    };
    let term = register.map_or(0, |register| register.term);
    let mut missing: Vec<String> = found
        .missing
        .iter()
        .map(|member| register.map_or_else(|| member.clone(), |register| instance_of(world, register, member)))
        .collect();
    missing.sort();
    missing.dedup();
    let why = if missing.is_empty() {
        format!("{}; it goes on by itself once {holder} is back", found.sentence)
    } else {
        format!(
            "acknowledged writes may be only on {}, which did not answer; it goes on by itself once enough of them, or {holder}, are back",
            missing.join(", ")
        )
    };
    format!(
        "nobody may take over from {holder} (term {term}): {why}. If they are lost for good, and {holder} certainly does not run any more, the writes that only they have are given up by: kubectl annotate helloop {} -n {} {ANNOTATION_ACCEPT_LOSS}={term} --overwrite",
        world.object.names.cluster(),
        world.object.namespace,
    )
}
