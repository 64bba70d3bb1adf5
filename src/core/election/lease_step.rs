//! What to do with the register.

use std::time::Duration;

use super::register::{Register, Release};
use super::rules::{self, Rule};
use super::view::{Boot, Data, EngineState, Seen, Terms, View};
use crate::api::spec::Durability;

/// How much longer each further instance waits before it begins a new cluster, so that the first one normally does.
const STAND_BACK: Duration = Duration::from_secs(5);

/// What to do with the register. Every write is a replace conditional on the version in [`View::lease`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseStep {
    /// Nothing now; look again at this moment at the latest, or when something changes.
    Wait {
        /// Why, for people.
        why: &'static str,
        /// When to look again, if the time alone can change the answer.
        until: Option<Boot>,
    },
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
        Some(tenure) if mine(view, seen) && seen.register.term == tenure.term => held(view, seen, terms),
        Some(_) => LeaseStep::Lost,
        // The answer to the take was lost, but it happened: a renewal that succeeds makes it a tenure.
        None if mine(view, seen) && !view.stopping => LeaseStep::Renew(Box::new(improved(view, &seen.register, terms))),
        None => not_held(view, seen, terms),
    }
}

fn wait(why: &'static str) -> LeaseStep {
    LeaseStep::Wait { why, until: None }
}

fn mine(view: &View<'_>, seen: &Seen) -> bool {
    !seen.register.released() && seen.register.holder == view.me.holder()
}

fn held(view: &View<'_>, seen: &Seen, terms: &Terms) -> LeaseStep {
    if view.stopping && *view.engine == EngineState::Stopped {
        let mut register = seen.register.clone();
        register.release = Some(final_position(view, &register));
        return LeaseStep::Release(Box::new(register));
    }
    let register = improved(view, &seen.register, terms);
    let attempted = view.tenure.map_or(Duration::ZERO, |tenure| tenure.attempted);
    let due = attempted + Duration::from_secs(u64::from(terms.bounds.retry_period));
    if register != seen.register || view.now >= due {
        return LeaseStep::Renew(Box::new(register));
    }
    LeaseStep::Wait { why: "held", until: Some(due) }
}

/// What the holder changes in the register beside renewing it.
fn improved(view: &View<'_>, register: &Register, terms: &Terms) -> Register {
    let mut next = register.clone();
    next.instances.clone_from(&terms.instances);
    next.durability = terms.durability;
    next.address.clone_from(&view.me.address);
    // Publish: from here on this is the cluster's data, and nobody bootstraps again.
    if let (None, Some(system_id)) = (&register.system_id, view.data.system_id()) {
        next.system_id = Some(system_id.to_owned());
        next.established = register.reserved;
    }
    next.planned.retain(|_, id| !view.joined.iter().any(|m| m.member == *id && m.streaming && m.confirmed));
    if let Some(present) = register.rule() {
        let wanted = rules::wanted(terms.durability, terms.k, present, view.joined);
        if let Some(list) = rules::next(&register.rules, &wanted, view.confirmed) {
            next.rules = list;
        }
    }
    next
}

fn final_position(view: &View<'_>, register: &Register) -> Release {
    match view.data {
        Data::Present(member) => Release { timeline: member.timeline, lsn: member.end },
        // Nothing was published: the cluster is as new as before.
        Data::Staged { .. } | Data::Empty | Data::Unknown => {
            Release { timeline: register.established, lsn: crate::api::agent::Lsn(0) }
        }
    }
}

fn not_held(view: &View<'_>, seen: &Seen, terms: &Terms) -> LeaseStep {
    let register = &seen.register;
    if view.stopping {
        return wait("this agent ends");
    }
    if *view.engine != EngineState::Stopped {
        return wait("PostgreSQL runs here as a replica");
    }
    let deposable_at = deposable_at(view, seen, terms);
    if view.now < deposable_at {
        return LeaseStep::Wait { why: "another holds the Lease", until: Some(deposable_at) };
    }
    if register.system_id.is_none() {
        return begin(view, seen, terms, deposable_at);
    }
    if !continues(view, register) {
        return wait("this instance's data is not the last holder's");
    }
    LeaseStep::Take(Box::new(taken(view, register, terms)))
}

/// From when on the register may be taken from whoever holds it: at once when it is released or held by an earlier start
/// in this Pod; else when this very version has stood for the holder's full lease by this process's own clock.
fn deposable_at(view: &View<'_>, seen: &Seen, terms: &Terms) -> Boot {
    if seen.register.released() || view.me.is_earlier_start(&seen.register.holder) {
        return Duration::ZERO;
    }
    seen.since + Duration::from_secs(u64::from(terms.bounds.duration))
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
    let stand_back = STAND_BACK * u32::try_from(place).unwrap_or(u32::MAX);
    let from = deposable_at.max(seen.since) + stand_back;
    if place > 0 && view.now < from {
        return LeaseStep::Wait { why: "the first instance begins", until: Some(from) };
    }
    let mut register = taken(view, &seen.register, terms);
    register.reserved = seen.register.reserved.max(1);
    let others = terms.instances.iter().filter(|name| **name != view.me.instance);
    register.planned = others.map(|name| (name.clone(), view.me.member_for(name))).collect();
    // The first rule stands from the first moment: its members are named before they exist.
    register.rules = vec![match terms.durability {
        Durability::Quorum => Rule { members: register.planned.values().cloned().collect(), k: terms.k },
        Durability::Async => Rule::none(),
    }];
    LeaseStep::Take(Box::new(register))
}

/// Whether this data is exactly what the last holder wrote on, so that it may continue in place: its holder proof says so,
/// or it is the published bootstrap that was not adopted yet.
fn continues(view: &View<'_>, register: &Register) -> bool {
    match view.data {
        Data::Present(member) => {
            member.proof.as_deref().is_some_and(|proof| register.proven_by(proof))
                && Some(&member.system_id) == register.system_id.as_ref()
        }
        Data::Staged { system_id, .. } => Some(system_id) == register.system_id.as_ref(),
        Data::Empty | Data::Unknown => false,
    }
}

/// The register after a take. The rules stay: who continues in place holds everything that was acknowledged, and commits go
/// on under the present rule.
fn taken(view: &View<'_>, register: &Register, terms: &Terms) -> Register {
    Register {
        holder: view.me.holder(),
        inherits: match view.data {
            Data::Present(member) => member.proof.clone(),
            Data::Staged { .. } | Data::Empty | Data::Unknown => None,
        },
        release: None,
        address: view.me.address.clone(),
        term: register.term + 1,
        instances: terms.instances.clone(),
        durability: terms.durability,
        ..register.clone()
    }
}
