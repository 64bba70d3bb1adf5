//! Where the election stands, and the last hand-over: mirrors of the Lease and of what the agents say.
//!
//! The status is also the memory by which each hand-over is told once: [`started`] and [`completed`] compare the one that
//! stands with the next, so that an operator which was away tells the last one that nobody told.

use jiff::Timestamp;

use crate::api::agent;
use crate::api::spec::State;
use crate::api::status::{ElectionPhase, ElectionStatus, HelloOperatorStatus, LastFailover};
use crate::core::plan::Plan;
use crate::core::world::{Known, World};

/// Where the election stands.
pub(super) fn election(world: &World, plan: &Plan) -> Option<ElectionStatus> {
    let before = world.object.status.as_ref().and_then(|status| status.election.as_ref());
    let lease = match &world.lease {
        Known::Present(lease) => lease,
        Known::Absent => return None,
        Known::Unknown(_) => return before.cloned(),
    };
    let Some(register) = lease.register.present() else { return before.cloned() };
    let told = lease.hand_over.as_ref().filter(|told| told.term == register.term);
    let released = |before: &ElectionStatus| before.phase == ElectionPhase::Released;
    let idle = plan.accepted.as_ref().is_some_and(|accepted| accepted.cluster.state == State::Hibernated)
        || before.is_none_or(released);
    let under_way = told.is_some_and(|told| told.from.is_some() && told.completed_at.is_none());
    let phase = if register.released() && (register.term == 0 || idle) || under_way && before.is_some_and(released) {
        // Nobody is to hold it; and whoever wakes a cluster takes over from nobody.
        ElectionPhase::Released
    } else if under_way && !register.released() {
        ElectionPhase::HandOver
    } else if plan.members.settled {
        ElectionPhase::Held
    } else if let Some(phase) = ballot(world, before, register.term) {
        phase
    } else if register.released() {
        ElectionPhase::HandOver
    } else {
        ElectionPhase::Held
    };
    let holder = register.holder_instance().map(ToOwned::to_owned);
    let (from, to, reason) = match (phase, told) {
        (ElectionPhase::Released, _) => (None, None, None),
        (ElectionPhase::Electing | ElectionPhase::Blocked, _) | (_, None) => (holder, None, None),
        (_, Some(told)) => {
            let to = Some(told.to.clone()).filter(|to| !to.is_empty());
            (told.from.clone(), to, Some(told.reason.as_str().to_owned()))
        }
    };
    let (from, to) = if phase == ElectionPhase::Held && told.is_none() { (None, from) } else { (from, to) };
    Some(ElectionStatus { term: register.term, phase, from, to, reason })
}

/// What the agents say of an election. One that is blocked is tried again and again: it stays blocked in between.
fn ballot(world: &World, before: Option<&ElectionStatus>, term: i64) -> Option<ElectionPhase> {
    let mut phases = world
        .reports
        .values()
        .filter_map(Known::present)
        .filter_map(|r| r.election.as_ref())
        .map(|e| e.phase)
        .peekable();
    phases.peek()?;
    let stays = before.is_some_and(|before| before.phase == ElectionPhase::Blocked && before.term == term);
    let blocked = phases.any(|phase| phase == agent::ElectionPhase::Blocked) || stays;
    Some(if blocked { ElectionPhase::Blocked } else { ElectionPhase::Electing })
}

/// The last hand-over that is complete.
pub(super) fn last_failover(world: &World, now: Option<&ElectionStatus>) -> Option<LastFailover> {
    let status = world.object.status.as_ref();
    let last = status.and_then(|status| status.last_failover.clone());
    let fresh = || {
        let (before, now) = (status?.election.as_ref()?, now?);
        let told = world.lease.present()?.hand_over.as_ref().filter(|told| told.term == now.term)?;
        let news = now.phase == ElectionPhase::Held
            && before.phase != ElectionPhase::Released
            && (before.term < now.term || before.phase != ElectionPhase::Held)
            && last.as_ref().is_none_or(|last| last.term < now.term);
        let from = told.from.clone().filter(|_| news)?;
        Some(LastFailover {
            term: told.term,
            from,
            to: told.to.clone(),
            reason: told.reason.as_str().to_owned(),
            started_at: told.started_at.clone(),
            duration_seconds: seconds(&told.started_at, told.completed_at.as_deref()?)?,
        })
    };
    fresh().or(last)
}

/// Seconds between two times, to the millisecond. Their clocks may be of two machines, so it is never negative.
fn seconds(from: &str, to: &str) -> Option<f64> {
    let millis = |text: &str| text.parse::<Timestamp>().ok().map(Timestamp::as_millisecond);
    let took = millis(to)?.saturating_sub(millis(from)?).max(0);
    Some(f64::from(i32::try_from(took).unwrap_or(i32::MAX)) / 1000.0)
}

/// The hand-over that is complete now and was not before.
pub fn completed<'a>(before: Option<&HelloOperatorStatus>, after: &'a HelloOperatorStatus) -> Option<&'a LastFailover> {
    let last = after.last_failover.as_ref()?;
    let told = before?.last_failover.as_ref();
    told.is_none_or(|told| told.term < last.term).then_some(last)
}

/// The hand-over that began, or that nobody saw begin.
pub fn started(before: Option<&HelloOperatorStatus>, after: &HelloOperatorStatus) -> Option<ElectionStatus> {
    let was = before?.election.as_ref()?;
    if matches!(was.phase, ElectionPhase::HandOver | ElectionPhase::Released) {
        return None;
    }
    let now = after.election.as_ref().filter(|now| now.phase == ElectionPhase::HandOver).cloned();
    now.or_else(|| {
        let last = completed(before, after)?;
        Some(ElectionStatus {
            term: last.term,
            phase: ElectionPhase::HandOver,
            from: Some(last.from.clone()),
            to: Some(last.to.clone()),
            reason: Some(last.reason.clone()),
        })
    })
}
