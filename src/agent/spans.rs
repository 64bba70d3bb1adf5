//! The steps of a hand-over that this agent makes, told as spans of the one trace that all who take part find.

use std::time::SystemTime;

use jiff::Timestamp;
use opentelemetry::Context;
use opentelemetry::trace::SpanContext;

use super::process::boottime;
use super::run::Agent;
use crate::core::election::Boot;
use crate::telemetry::traces::Step;
use crate::telemetry::traces::agent::AgentTraces;

/// What is kept for them.
pub(super) struct Spans {
    pub(super) traces: AgentTraces,
    /// The request that asked for the hand-over that is under way.
    pub(super) asked_by: SpanContext,
    /// When the present attempts to lead clients here, and to prove the sync rule, were begun.
    pub(super) publishing: Boot,
    pub(super) proving: Boot,
    /// The term whose first commit was told.
    pub(super) committed: i64,
}

impl Spans {
    pub(super) fn new(traces: AgentTraces) -> Self {
        let asked_by = SpanContext::empty_context();
        Self { traces, asked_by, publishing: Boot::ZERO, proving: Boot::ZERO, committed: 0 }
    }
}

impl Agent {
    /// The term that begins when the present one ends.
    pub(super) fn next_term(&self) -> i64 {
        let held = self.tenure.as_ref().map(|tenure| tenure.term);
        held.or_else(|| self.register().map(|register| register.term)).unwrap_or(0).saturating_add(1)
    }

    /// The term of this holder's tenure, if a hand-over began it.
    pub(super) fn handed_over(&self) -> Option<i64> {
        let term = self.tenure.as_ref()?.term;
        self.hand_over.as_ref().filter(|hand_over| hand_over.term == term).map(|_| term)
    }

    /// Tells of a step of the hand-over that begins `term`. It began then, and ends now.
    pub(super) fn tell_step(&self, name: &'static str, term: i64, began: Boot, outcome: Result<String, String>) {
        self.tell_asked_step(name, term, began, outcome, SpanContext::empty_context());
    }

    /// The same, where a request asked for it.
    pub(super) fn tell_asked_step(
        &self,
        name: &'static str,
        term: i64,
        began: Boot,
        outcome: Result<String, String>,
        asked_by: SpanContext,
    ) {
        let Some(config) = &self.config else { return };
        let took = boottime().saturating_sub(began);
        let step = Step { name, uid: config.uid.clone(), term, took, outcome, asked_by };
        self.spans.traces.step(step, SystemTime::from(Timestamp::now()));
    }

    /// The trace of the hand-over that is under way here, for the log lines.
    pub(super) fn trace(&self) -> Context {
        let under_way = match &self.tenure {
            Some(tenure) if self.ends.is_some() || tenure.ending.is_some() => Some(self.next_term()),
            Some(_) => {
                let open = self.hand_over.as_ref().is_some_and(|hand_over| hand_over.completed_at.is_none());
                self.handed_over().filter(|_| open)
            }
            None => {
                let free = self.register().is_some_and(|register| register.released() && !register.holder.is_empty());
                (free || self.campaigning() || self.state.promise.is_some()).then(|| self.next_term())
            }
        };
        let traced = under_way.zip(self.config.as_ref());
        traced.and_then(|(term, config)| self.spans.traces.hand_over(&config.uid, term)).unwrap_or_default()
    }
}
