//! Holds: how a holder goes on while the API server is away, and what a member promises it.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::oneshot;

use super::process::boottime;
use super::run::{Agent, Event};
use super::volume::Hold;
use crate::api::agent::{HoldAnswer, HoldRequest};
use crate::core::election::vote::{bound_after_start, may_hold};
use crate::core::election::{Boot, NoAnswer, hold};

/// A holder that could not renew for this long asks for holds.
const AWAY: Duration = Duration::from_secs(3);
/// How often it asks.
const EVERY: Duration = Duration::from_millis(1500);

/// What an answer to a hold is.
pub type HoldReply = Result<HoldAnswer, NoAnswer>;

/// What this agent promised and was promised.
#[derive(Debug)]
pub(super) struct Holds {
    /// Names the boot of this machine, which is what a promise is on the clock of.
    boot: String,
    /// Until when this member is bound.
    pub(super) bound_until: Boot,
    /// Until when each member promised.
    grants: BTreeMap<String, Boot>,
    /// Moves on with each write of the rules, which voids what was promised before.
    generation: u64,
    asked: Boot,
}

impl Holds {
    /// After a start: what was promised before stands.
    pub(super) fn new(persisted: Option<&Hold>) -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        let same = persisted.is_some_and(|hold| hold.boot == boot && !boot.is_empty());
        let until = persisted.map(|hold| Duration::from_millis(hold.until));
        let bound_until = bound_after_start(until, same, boottime(), hold::HOLD);
        Self { boot, bound_until, grants: BTreeMap::new(), generation: 0, asked: Duration::ZERO }
    }

    /// The rules are about to change: what the members promised for the former ones counts no more.
    pub(super) fn void(&mut self) {
        self.grants.clear();
        self.generation += 1;
    }
}

impl Agent {
    /// The holder asks this member for a hold.
    pub(super) fn asked_to_hold(&mut self, question: &HoldRequest, answer: oneshot::Sender<HoldReply>) {
        let _ = answer.send(self.promise_hold(question));
    }

    fn promise_hold(&mut self, question: &HoldRequest) -> HoldReply {
        self.decide(|view| may_hold(view, &question.holder, question.term))?;
        let member = self.state.member.clone().ok_or(NoAnswer::NoMarker)?;
        let until = boottime() + hold::HOLD;
        let millis = u64::try_from(until.as_millis()).unwrap_or(u64::MAX);
        let persisted = Hold { boot: self.holds.boot.clone(), until: millis };
        if let Err(error) = self.remember(|state| state.hold = Some(persisted)) {
            tracing::warn!(%error, "a hold could not be kept, so it is not given");
            return Err(NoAnswer::Busy);
        }
        self.holds.bound_until = self.holds.bound_until.max(until);
        Ok(HoldAnswer { instance: self.me.instance.clone(), member })
    }

    /// A holder that cannot renew asks the members to hold; it goes on doing so after its deadline, so that it comes back by
    /// itself.
    pub(super) fn ask_holds(&mut self) {
        let now = boottime();
        let Some(tenure) = self.tenure.as_ref().filter(|tenure| tenure.ending.is_none()) else { return };
        // It answered a candidate: only a renewal can bring it back, and a hold would bind who may take over.
        if self.state.promise.is_some() {
            return;
        }
        if now <= tenure.renewed + AWAY || now <= self.holds.asked + EVERY {
            return;
        }
        let Some(terms) = &self.terms else { return };
        self.holds.asked = now;
        let question = HoldRequest { holder: self.me.holder(), term: tenure.term };
        let generation = self.holds.generation;
        for instance in terms.instances.iter().filter(|name| **name != self.me.instance) {
            let (peers, events, question) = (self.peers.clone(), self.events.clone(), question.clone());
            let instance = instance.clone();
            tokio::spawn(async move {
                if let Some(answer) = peers.hold(&instance, &question).await {
                    let _ = events.send(Event::Held(generation, now, answer)).await;
                }
            });
        }
        self.count_holds();
    }

    /// A member promised: what was asked, when, and by whom it was answered.
    pub(super) fn held(&mut self, generation: u64, sent: Boot, answer: HoldAnswer) {
        if self.tenure.is_some() && generation == self.holds.generation {
            self.holds.grants.insert(answer.member, hold::counts_until(sent));
            self.count_holds();
        }
    }

    fn count_holds(&mut self) {
        let Some((_, seen)) = &self.lease else { return };
        let possible = std::iter::once(&seen.register).chain(&self.unknown);
        let until = hold::extended_for(possible, &self.holds.grants);
        if let Some(tenure) = &mut self.tenure {
            if until.is_some() && tenure.held_until.is_none() {
                tracing::warn!("the API server does not answer: goes on, because the members promised to elect nobody");
            }
            tenure.held_until = until;
        }
        self.arm_fence();
    }
}
