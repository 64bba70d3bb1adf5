//! What must hold, looked at in every step.

use std::collections::BTreeMap;

use hello_operator::core::election::{Register, STOP_BUDGET};

use super::postgres::Dir;
use super::world::{Ms, World};

/// A broken promise of the product.
#[derive(Debug, Clone)]
pub struct Violation {
    pub invariant: &'static str,
    pub text: String,
}

#[derive(Default)]
pub struct Check {
    commits: u32,
    /// Acknowledged under `Quorum`, by id.
    acknowledged: Vec<u32>,
    pub acknowledgements: u64,
    pub last_acknowledged: Ms,
    pub highest_term: i64,
    pub violation: Option<Violation>,
    /// A disk was lost: an election may be blocked for ever.
    pub disk_lost: bool,
    pub elections: u64,
    /// Whether commits of a term waited for replicas, by the last register of that term.
    waited_for: BTreeMap<i64, bool>,
}

impl Check {
    pub fn next_commit(&mut self) -> u32 {
        self.commits += 1;
        self.commits
    }
}

/// A container that stood still may return what was under way in the moment it wakes.
const WAKES: Ms = 2_200;

impl World {
    pub fn violate(&mut self, invariant: &'static str, text: String) {
        self.note(|_| format!("!!!!   {invariant}: {text}"));
        self.check.violation.get_or_insert(Violation { invariant, text });
    }

    fn woke(&self, node: usize) -> bool {
        let until = self.nodes[node].frozen_until;
        until > 0 && self.now < until + WAKES
    }

    pub fn check_acknowledged(&mut self, node: usize, term: i64, id: u32) {
        self.check.acknowledgements += 1;
        // By the last rules of its own term: it may have read of a later one, and its PostgreSQL is still being killed.
        let quorum = self.check.waited_for.get(&term).copied().unwrap_or(true);
        // Stricter than it must be: not even once another has taken the Lease, whether it serves already or not.
        let higher = self.check.highest_term.max(self.api.register.term);
        if term < higher && !self.woke(node) && !self.nodes[node].zombie {
            let name = self.nodes[node].instance.clone();
            self.violate("S1", format!("{name} acknowledged {id} in term {term}, after term {higher} had begun"));
        }
        self.check.highest_term = self.check.highest_term.max(term);
        self.check.last_acknowledged = self.now;
        if quorum {
            self.check.acknowledged.push(id);
            // A later primary is there already: it must have it.
            let holder = self.api.register.holder_instance().and_then(|instance| self.node_of(instance));
            let later = holder.filter(|holder| *holder != node && self.api.register.term > term);
            // One that has lost its disk since is primary of nothing: whoever comes next is looked at when it takes the Lease.
            if later.is_some_and(|later| self.nodes[later].volume.dir.is_some() && !self.has(later, id)) {
                self.violate(
                    "S2",
                    format!("{id} was acknowledged in term {term}, and the primary of a later one has not got it"),
                );
            }
        }
    }

    fn has(&self, node: usize, id: u32) -> bool {
        self.nodes[node].volume.dir.as_ref().is_some_and(|dir| dir.wal.iter().any(|rec| rec.id == id))
    }

    fn missing(&self, dir: &Dir) -> Vec<u32> {
        let mut present = vec![false; self.check.commits as usize + 1];
        for rec in &dir.wal {
            present[rec.id as usize] = true;
        }
        self.check.acknowledged.iter().copied().filter(|id| !present[*id as usize]).collect()
    }

    /// An instance has become writable.
    pub fn check_opened(&mut self, node: usize, term: i64) {
        self.check.elections += 1;
        let holder = self.nodes[node].agent.as_ref().map(|agent| agent.me.holder()).unwrap_or_default();
        if !self.api.held_by(&holder, term) {
            return;
        }
        let Some(dir) = self.nodes[node].volume.dir.as_ref() else { return };
        let missing = self.missing(dir);
        if !missing.is_empty() {
            let name = self.nodes[node].instance.clone();
            self.violate("S2", format!("{name} is primary of term {term} without the acknowledged {missing:?}"));
        }
    }

    /// The Lease was written.
    pub fn check_register(&mut self, before: &Register) {
        let after = self.api.register.clone();
        if after.term < before.term || after.established < before.established || after.reserved < before.reserved {
            self.violate("register", format!("it went back: {before:?} to {after:?}"));
        }
        self.check.waited_for.insert(after.term, after.rules.iter().all(|rule| rule.k > 0));
        if after.asynchronous() && !before.asynchronous() {
            // From here on the user wants no more than Async gives, for what is old as well.
            self.check.acknowledged.clear();
        }
        if after.term > before.term {
            self.check_taken(before);
        }
        if self.story.was_whole() && self.story.quiet() && after.term > before.term && before.term > 0 {
            self.violate("S5", format!("a healthy primary was deposed: term {} after {}", after.term, before.term));
        }
    }

    /// Another start took the Lease: it has everything, and with `Async` it is one that may be elected.
    fn check_taken(&mut self, before: &Register) {
        let Some(node) = self.api.register.holder_instance().and_then(|instance| self.node_of(instance)) else {
            return;
        };
        let volume = &self.nodes[node].volume;
        let Some(dir) = &volume.dir else { return };
        let missing = self.missing(dir);
        let whole = self.nodes.iter().any(|other| {
            before.whole(&other.volume.state.member, other.volume.state.proof.as_deref())
                && other.volume.dir.as_ref().is_some_and(|theirs| theirs.common(dir) == theirs.wal.len())
        });
        let proven = whole || before.member.as_deref() == Some(volume.state.member.as_str());
        let released = before.release.as_ref().is_some_and(|release| release.lsn.is_some());
        let outside = !before.rules.is_empty()
            && before.asynchronous()
            && !proven
            && !released
            && before.rules.iter().any(|rule| !rule.members.contains(&volume.state.member));
        let strayed = before.established > 0 && dir.forks().iter().all(|(timeline, _)| *timeline != before.established);
        let name = self.nodes[node].instance.clone();
        self.check_deposed(node, before);
        if !missing.is_empty() {
            self.violate("S2", format!("{name} took the Lease without the acknowledged {missing:?}"));
        } else if outside {
            self.violate("S2", format!("{name} was elected with Async, and no rule names it"));
        } else if strayed {
            self.violate("S2", format!("{name} was elected off the established timeline {}", before.established));
        }
    }

    /// Who held the Lease until now does not count itself valid any more, and has had the time to stop.
    fn check_deposed(&mut self, taker: usize, before: &Register) {
        let Some(old) = before.holder_instance().and_then(|instance| self.node_of(instance)) else { return };
        if old == taker
            || before.released()
            || self.nodes[old].agent.as_ref().is_none_or(|agent| agent.me.holder() != before.holder)
        {
            return;
        }
        let now = self.clock(old);
        let valid = self.view(old, |view| {
            // Who froze has nothing left to stop: a primary, or one that starts or stops, answers no freeze.
            let deadline = view.deadline().filter(|_| {
                view.tenure.is_some_and(|tenure| tenure.term == before.term)
                    && (view.promise.is_none() || view.engine.maybe_writable())
            });
            deadline.is_some_and(|deadline| now < deadline.saturating_add(STOP_BUDGET))
                || view.tenure.is_some() && view.valid()
        });
        if valid == Some(true) {
            let name = self.nodes[old].instance.clone();
            self.violate(
                "S1",
                format!("{name} counts itself valid in term {} while term {} begins", before.term, before.term + 1),
            );
        }
    }

    pub fn check_route(&mut self, term: i64) {
        if term < self.api.routed {
            self.violate("routing", format!("clients are sent to term {term} after term {}", self.api.routed));
        }
    }

    pub fn check_kill(&mut self, node: usize) {
        if self.story.was_whole() && self.story.quiet() {
            let name = self.nodes[node].instance.clone();
            self.violate("S5", format!("the healthy primary {name} stopped itself"));
        }
    }

    /// Data goes (all but the first `kept` records): nothing acknowledged may go with its last copy.
    pub fn check_discard(&mut self, node: usize, old: Option<&Dir>, kept: usize) {
        let Some(old) = old else { return };
        let lost: Vec<u32> = old.wal[kept.min(old.wal.len())..].iter().map(|rec| rec.id).filter(|id| *id > 0).collect();
        let gone: Vec<u32> = self
            .check
            .acknowledged
            .iter()
            .copied()
            .filter(|id| lost.contains(id) && !(0..self.nodes.len()).any(|other| self.has(other, *id)))
            .collect();
        if !gone.is_empty() {
            let name = self.nodes[node].instance.clone();
            self.violate("S4", format!("{name} discarded the last copy of the acknowledged {gone:?}"));
        }
        if kept == 0 && self.nodes[node].volume.dir.is_none() {
            let name = self.nodes[node].instance.clone();
            self.violate("S4", format!("{name} gave its copy away before it had another"));
        }
        if kept == 0 && !(0..self.nodes.len()).any(|other| self.nodes[other].volume.dir.is_some()) {
            let name = self.nodes[node].instance.clone();
            self.violate("S4", format!("{name} discarded the last copy of the data"));
        }
    }

    pub fn check_discard_staged(&mut self, node: usize) {
        let system = self.nodes[node].volume.staged.as_ref().map(|(_, dir)| dir.system.clone());
        if system.is_some() && system == self.api.register.system_id {
            let name = self.nodes[node].instance.clone();
            self.violate("S4", format!("{name} discarded the published bootstrap"));
        }
    }

    /// Why the cluster is not whole; None when it is.
    pub fn unsettled(&self) -> Option<String> {
        let register = &self.api.register;
        let Some(holder) = register.holder_instance().and_then(|instance| self.node_of(instance)) else {
            return Some("nobody holds the Lease".into());
        };
        let Some(agent) = &self.nodes[holder].agent else { return Some("the holder's agent is gone".into()) };
        if !self.api.held_by(&agent.me.holder(), register.term) {
            return Some("the Lease is released, or held by an earlier start".into());
        }
        let Some(pg) = self.nodes[holder].pg.as_ref().filter(|pg| pg.writable && !pg.killing && !pg.stopping) else {
            return Some("the holder is not writable".into());
        };
        if pg.term != register.term {
            return Some("the holder serves another term".into());
        }
        let Some(dir) = &self.nodes[holder].volume.dir else { return Some("the holder has no data".into()) };
        let mut members = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            if index == holder || !node.wanted {
                continue;
            }
            let Some(theirs) = &node.volume.dir else { return Some(format!("{} has no data", node.instance)) };
            let streams = node.pg.as_ref().and_then(|pg| pg.receiver).is_some_and(|conn| {
                self.conns[conn].primary == holder && self.conns[conn].primary_run == pg.run && self.conns[conn].sending
            });
            if !streams || dir.common(theirs) < theirs.wal.len() {
                return Some(format!("{} does not stream the holder's history", node.instance));
            }
            if theirs.timeline() != dir.timeline() || !node.volume.state.marker {
                return Some(format!("{} is not there yet, or may not answer elections", node.instance));
            }
            members.push(node.volume.state.member.clone());
        }
        let k = if self.terms.durability == hello_operator::api::spec::Durability::Async { 0 } else { self.terms.k };
        let [rule] = register.rules.as_slice() else { return Some("several sync rules".into()) };
        members.sort();
        if rule.k != k || !rule.members.iter().eq(members.iter()) {
            return Some(format!("the sync rule is {rule}, wanted ANY {k} of {members:?}"));
        }
        if register.established != register.timeline || agent.confirmed.as_ref() != Some(rule) {
            return Some("the sync rule is not confirmed".into());
        }
        if self.check.last_acknowledged + 3_000 < self.now {
            return Some("no commit returns".into());
        }
        let missing = self.missing(dir);
        if !missing.is_empty() {
            return Some(format!("the primary has lost the acknowledged {missing:?}"));
        }
        None
    }
}
