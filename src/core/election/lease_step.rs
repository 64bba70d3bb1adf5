//! What to do with the register.

use std::time::Duration;

use super::choose::{Verdict, best_of_the_rest, judge};
use super::mutation::{Mutation, active};
use super::register::{Register, Release};
use super::rules::{self, Rule};
use super::view::{Boot, Data, EngineState, Seen, Tenure, Terms, View};
use crate::api::spec::Durability;

/// How much longer each further instance waits before it begins a new cluster, so that the first one normally does.
const BEGIN_BACK: Duration = Duration::from_secs(5);

/// How long a candidate stands back for each better one.
pub const STAND_BACK: Duration = Duration::from_millis(700);

/// How long who handed over leaves the Lease to the others.
const STEP_BACK: Duration = Duration::from_secs(4);

/// So often a candidate stands back for better ones that do nothing.
const ROUNDS: u32 = 2;

/// How long after a ballot that decided nothing the next one is held.
pub const NEXT_BALLOT: Duration = Duration::from_secs(1);

/// What to do with the register. Every write is a replace conditional on the version in [`View::lease`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseStep {
    /// Nothing now; look again at this moment at the latest, or when something changes.
    Wait {
        /// Why, for people.
        why: String,
        /// When to look again, if the time alone can change the answer.
        until: Option<Boot>,
    },
    /// Freeze this member and every reachable one on this version, and collect the answers.
    Campaign(String),
    /// Take it.
    Take(Box<Register>),
    /// Renew it, with whatever else is to change in it.
    Renew(Box<Register>),
    /// Give it back: PostgreSQL is stopped.
    Release(Box<Register>),
    /// The Lease names somebody else or another term: this agent does not hold it any more.
    Lost,
}

/// Decides what to do with the register. Total: every view has an answer.
pub fn lease_step(view: &View<'_>) -> LeaseStep {
    let Some(seen) = view.lease else { return wait("the Lease has not been read") };
    let Some(terms) = view.terms else { return wait("the configuration has not been read") };
    match view.tenure {
        Some(tenure) if mine(view, seen) && seen.register.term == tenure.term => held(view, tenure, seen, terms),
        Some(_) => LeaseStep::Lost,
        // The answer to the take was lost, but it happened: a renewal that succeeds makes it a tenure.
        None if mine(view, seen) && !view.stopping => LeaseStep::Renew(Box::new(improved(view, &seen.register, terms))),
        None => not_held(view, seen, terms),
    }
}

fn wait(why: &str) -> LeaseStep {
    LeaseStep::Wait { why: why.to_owned(), until: None }
}

fn mine(view: &View<'_>, seen: &Seen) -> bool {
    !seen.register.released() && seen.register.holder == view.me.holder()
}

fn held(view: &View<'_>, tenure: &Tenure, seen: &Seen, terms: &Terms) -> LeaseStep {
    if *view.engine == EngineState::Stopped {
        let wish = tenure.ending.as_ref().and_then(|ending| ending.wish.clone());
        if view.stopping || tenure.ending.is_some() {
            return LeaseStep::Release(Box::new(released(view, seen, wish, true)));
        }
        // A lone instance restarts in place.
        if view.gives_up() {
            return LeaseStep::Release(Box::new(released(view, seen, None, false)));
        }
    }
    let register = improved(view, &seen.register, terms);
    let due = tenure.attempted + Duration::from_secs(u64::from(terms.bounds.retry_period));
    if decides(&register, &seen.register) || view.now >= due {
        return LeaseStep::Renew(Box::new(register));
    }
    LeaseStep::Wait { why: "this agent holds the Lease".into(), until: Some(due) }
}

/// Whether the change is more than a position, which goes along with the next renewal.
fn decides(next: &Register, present: &Register) -> bool {
    let mut same = next.clone();
    same.end = present.end;
    same != *present
}

/// What the holder changes in the register beside renewing it.
fn improved(view: &View<'_>, register: &Register, terms: &Terms) -> Register {
    let mut next = register.clone();
    next.instances.clone_from(&terms.instances);
    next.durability = terms.durability;
    next.bounds = terms.bounds;
    next.address.clone_from(&view.me.address);
    next.container_id = view.container_id.map(str::to_owned).or(next.container_id);
    // Publish: from here on this is the cluster's data, and nobody bootstraps again.
    if let (None, Some(system_id)) = (&register.system_id, view.data.system_id()) {
        next.system_id = Some(system_id.to_owned());
        if let Data::Staged { member, timeline, .. } = view.data {
            next.member = Some(member.clone());
            // What was restored goes on where its recovery ended; the ids below belong to the history of its source.
            next.timeline = register.timeline.max(*timeline);
            next.reserved = register.reserved.max(*timeline);
        }
        next.established = next.timeline;
    }
    if let Data::Present(member) = view.data
        && *view.engine == EngineState::Primary
    {
        next.end = member.end;
    }
    next.planned.retain(|_, id| !view.joined.iter().any(|m| m.member == *id && m.streaming && m.confirmed));
    // The rules change only while the register can be reached: every such write voids the holds, and these are what keeps
    // this holder valid when it cannot.
    let reached =
        view.tenure.is_some_and(|tenure| tenure.attempted <= tenure.renewed) || active(Mutation::RulesChangedWhileAway);
    if let Some(present) = register.rule().filter(|_| reached) {
        let wanted = rules::wanted(terms.durability, terms.k, present, view.joined);
        if let Some(list) = rules::next(&register.rules, &wanted, view.confirmed, view.joined) {
            next.rules = list;
        }
        // Confirmed: what is acknowledged from here on is on this timeline, and the older rules are gone with this write.
        if view.confirmed == Some(present) && register.system_id.is_some() && next.rules.first() == Some(present) {
            next.established = register.timeline;
        }
    }
    next
}

fn released(view: &View<'_>, seen: &Seen, wish: Option<String>, planned: bool) -> Register {
    let mut register = seen.register.clone();
    let (timeline, lsn) = match view.data {
        Data::Present(member) => (member.timeline, (planned && member.end_known).then_some(member.end)),
        // Nothing was published: the cluster is as new as before.
        Data::Staged { .. } | Data::Empty | Data::Unknown => (register.timeline, None),
    };
    register.release = Some(Release { timeline, lsn, wish });
    register
}

fn not_held(view: &View<'_>, seen: &Seen, terms: &Terms) -> LeaseStep {
    let register = &seen.register;
    if view.stopping {
        return wait("this agent ends");
    }
    if matches!(view.engine, EngineState::Busy(_) | EngineState::Primary) {
        return wait("PostgreSQL here is busy");
    }
    let deposable_at = deposable_at(view, seen, terms);
    if view.now < deposable_at {
        return LeaseStep::Wait { why: "another holds the Lease".into(), until: Some(deposable_at) };
    }
    if register.system_id.is_none() {
        return begin(view, seen, terms, deposable_at);
    }
    if view.bound_until.is_none_or(|until| view.now < until) {
        return LeaseStep::Wait { why: "bound by a promise to the holder".into(), until: view.bound_until };
    }
    // Who handed over lets the others go first: in its own ballot their answers may be missing.
    if let Some(Release { wish: Some(wish), .. }) = &register.release
        && *wish != view.me.instance
        && register.holder == view.me.holder()
        && view.now < seen.since + STEP_BACK
    {
        return LeaseStep::Wait { why: format!("handed over to {wish}"), until: Some(seen.since + STEP_BACK) };
    }
    // A published bootstrap that was not adopted is the only copy there is.
    if let Data::Staged { system_id, .. } = view.data {
        return if Some(system_id) == register.system_id.as_ref() {
            LeaseStep::Take(Box::new(continued(view, register, terms)))
        } else {
            wait("the staged bootstrap is not this cluster's")
        };
    }
    let Data::Present(member) = view.data else { return wait("no data here") };
    // This start's predecessor was the holder and is dead. It is given back in its name, so that all know at once; a replica
    // is ready sooner than crash recovery.
    if view.me.is_earlier_start(&register.holder)
        && !register.released()
        && !member.end_known
        && terms.failover
        && terms.instances.len() > 1
    {
        let release = Some(Release { timeline: member.timeline, lsn: None, wish: None });
        return LeaseStep::Release(Box::new(Register { release, ..register.clone() }));
    }
    let proven = register.whole(&member.id, member.proof.as_deref());
    let marked = member.marker || active(Mutation::MarkerIgnored);
    if !marked || Some(&member.system_id) != register.system_id.as_ref() {
        return wait("the data here may not be elected");
    }
    if !proven && !terms.failover && !register.released() {
        return wait("failover is disabled: the last primary has to come back");
    }
    elect(view, seen, terms, &member.id, proven)
}

/// Holds a ballot, and does what it says.
fn elect(view: &View<'_>, seen: &Seen, terms: &Terms, me: &str, proven: bool) -> LeaseStep {
    let Some(ballot) = view.ballot.filter(|ballot| ballot.version == seen.version) else {
        return LeaseStep::Campaign(seen.version.clone());
    };
    let again = |at: Boot, why: String| {
        if view.now >= at {
            LeaseStep::Campaign(seen.version.clone())
        } else {
            LeaseStep::Wait { why, until: Some(at) }
        }
    };
    match judge(&seen.register, &seen.version, me, &ballot.answers, terms.max_lag) {
        Verdict::StandBack { better, may } if !may || ballot.before < ROUNDS => {
            again(ballot.at + STAND_BACK * better.min(4), "a better candidate answered".into())
        }
        // Whoever stood back in vain takes it as well: the better one may hear fewer than this one does.
        Verdict::Take | Verdict::StandBack { .. } => LeaseStep::Take(Box::new(if proven {
            continued(view, &seen.register, terms)
        } else {
            promoted(view, &seen.register, terms, &ballot.answers, me)
        })),
        Verdict::Blocked(_)
            if terms.accept_loss == Some(seen.register.term)
                && best_of_the_rest(&seen.register, &seen.version, me, &ballot.answers) =>
        {
            // The older rules cannot be satisfied any more: that is what was accepted.
            let mut register = promoted(view, &seen.register, terms, &ballot.answers, me);
            register.rules = register.rules.pop().into_iter().collect();
            LeaseStep::Take(Box::new(register))
        }
        Verdict::Blocked(blocked) => again(ballot.at + NEXT_BALLOT, blocked.sentence),
    }
}

/// After so long without a holder a member that may not be elected says so.
const SILENCE: Duration = Duration::from_secs(5);

/// Why this member does nothing about a Lease that nobody holds: its copy was made anew, or rewound, and the primary was
/// lost before it had caught up. In a sentence, with what a human can do.
pub fn unelectable(view: &View<'_>) -> Option<String> {
    let (seen, terms) = (view.lease?, view.terms?);
    let register = &seen.register;
    let Data::Present(member) = view.data else { return None };
    let mine = view.tenure.is_some() || register.whole(&member.id, member.proof.as_deref());
    let idle = register.holder.is_empty() || !terms.failover || mine || member.marker;
    if idle || view.now < deposable_at(view, seen, terms).max(seen.since) + SILENCE {
        return None;
    }
    Some(format!(
        "the copy of {} had not caught up when the primary was lost, so it may not be elected: bring {} back",
        view.me.instance,
        register.holder_instance().unwrap_or("the last primary"),
    ))
}

/// From when on the register may be taken from whoever holds it: at once when it is released, held by an earlier start in
/// this Pod, or its holder's container is proven to have ended; else when this very version has stood for the holder's
/// full lease by this process's own clock.
fn deposable_at(view: &View<'_>, seen: &Seen, terms: &Terms) -> Boot {
    let register = &seen.register;
    let dead = view.terminated.is_some() && view.terminated == register.container_id.as_deref();
    if register.released() || view.me.is_earlier_start(&register.holder) || dead {
        return Duration::ZERO;
    }
    let bounds = if active(Mutation::ObserversBounds) { &terms.bounds } else { &register.bounds };
    let duration = Duration::from_secs(u64::from(bounds.duration));
    seen.since + if active(Mutation::TakenEarly) { duration / 2 } else { duration }
}

/// The first take of a new cluster. The instances stand back in their order.
fn begin(view: &View<'_>, seen: &Seen, terms: &Terms, deposable_at: Boot) -> LeaseStep {
    if matches!(view.data, Data::Unknown) {
        return wait("the volume has not been looked at");
    }
    if let Data::Present(_) = view.data {
        return wait("there is data on the volume, but the Lease says that the cluster is new");
    }
    let Some(place) = terms.instances.iter().position(|name| *name == view.me.instance) else {
        return wait("this instance is not wanted");
    };
    let stand_back = BEGIN_BACK * u32::try_from(place).unwrap_or(u32::MAX);
    let from = deposable_at.max(seen.since) + stand_back;
    if place > 0 && view.now < from {
        return LeaseStep::Wait { why: "the first instance begins".into(), until: Some(from) };
    }
    let mut register = continued(view, &seen.register, terms);
    register.inherits = None;
    register.reserved = seen.register.reserved.max(1);
    register.timeline = register.reserved;
    let others = terms.instances.iter().filter(|name| **name != view.me.instance);
    register.planned = others.map(|name| (name.clone(), view.me.member_for(name))).collect();
    // The first rule stands from the first moment: its members are named before they exist.
    register.rules = vec![match terms.durability {
        Durability::Quorum => Rule { members: register.planned.values().cloned().collect(), k: terms.k },
        Durability::Async => Rule::none(),
    }];
    LeaseStep::Take(Box::new(register))
}

/// The register after a take in place. The rules stay: who continues holds everything that was acknowledged, and commits go
/// on under the present rule.
fn continued(view: &View<'_>, register: &Register, terms: &Terms) -> Register {
    Register {
        holder: view.me.holder(),
        inherits: match view.data {
            Data::Present(member) => member.proof.clone(),
            Data::Staged { .. } | Data::Empty | Data::Unknown => None,
        },
        member: match view.data {
            Data::Present(member) => Some(member.id.clone()),
            Data::Staged { member, .. } => Some(member.clone()),
            Data::Empty | Data::Unknown => None,
        },
        release: None,
        address: view.me.address.clone(),
        container_id: view.container_id.map(str::to_owned),
        term: register.term + 1,
        instances: terms.instances.clone(),
        durability: terms.durability,
        bounds: terms.bounds,
        ..register.clone()
    }
}

/// The register after a take by a replica: a timeline never reserved before, and a new rule added to the list.
fn promoted(
    view: &View<'_>,
    register: &Register,
    terms: &Terms,
    answers: &[super::vote::Answer],
    me: &str,
) -> Register {
    let mut next = continued(view, register, terms);
    next.inherits = None;
    next.reserved = register.reserved + u32::from(!active(Mutation::TimelineReused) || register.reserved < 2);
    next.timeline = next.reserved;
    // Members that will follow: all that answered, and those of the present rule, but not this one itself.
    let answered = answers.iter().filter(|answer| answer.proof.is_none()).map(|answer| answer.member.clone());
    let present = register.rule().map(|rule| rule.members.clone()).unwrap_or_default();
    let k = if terms.durability == Durability::Async { 0 } else { terms.k };
    let mut rule = Rule { members: answered.chain(present).collect(), k };
    rule.members.remove(me);
    next.rules = if active(Mutation::RulesDroppedAtTake) { vec![rule] } else { rules::with(&next.rules, rule) };
    next
}
