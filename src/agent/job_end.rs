//! What the end of a long act on PostgreSQL means.

use std::time::Duration;

use opentelemetry::trace::SpanContext;

use super::Error;
use super::process::boottime;
use super::rewind::Outcome;
use super::run::Agent;
use super::tenure::now;
use super::volume::Staged;
use crate::api::agent::{HandOverReason, Rejoin, Rejoined};
use crate::core::election::{Boot, Data, EngineState, Job};
use crate::engine::postgres::control::ControlData;

/// A restore that failed is tried again after this, up to eight times as long.
const RESTORE_AGAIN: Duration = Duration::from_secs(30);

/// How a job ended.
#[derive(Debug)]
pub enum JobEnd {
    /// A bootstrap.
    Bootstrap(Result<Staged, Error>),
    /// A clone: member id and system identifier.
    Clone(Result<(String, String), Error>),
    /// A rewind.
    Rewound(Outcome),
    /// A start.
    Started(Result<(), Error>),
    /// A promotion: the timeline.
    Promoted(Result<u32, Error>),
    /// A stop; whether it was in order, and what the control file says.
    Stopped(bool, Result<ControlData, Error>),
}

impl Agent {
    fn rewound(&mut self, term: i64, outcome: Outcome) -> Result<(), Error> {
        self.engine = EngineState::Stopped;
        match outcome {
            Outcome::Rewound(control) => {
                self.remember(|state| {
                    let reason = state.gives_up.take().unwrap_or_else(|| "its history was not the primary's".into());
                    let rejoined = Rejoined { how: Rejoin::Rewound, at: now(), reason };
                    (state.unfinished, state.fresh, state.rejoined) = (false, Some(term), Some(rejoined));
                })?;
                self.data = self.present(&control);
                Ok(())
            }
            Outcome::NotNeeded(control) => {
                self.remember(|state| state.unfinished = false)?;
                self.data = self.present(&control);
                let Data::Present(member) = &self.data else { return Ok(()) };
                // The holder's agent knows better than its control file.
                let inside =
                    self.elections.fork.as_ref().is_some_and(|fork| fork.contains(member.timeline, member.end));
                if inside {
                    self.remember(|state| state.gives_up = None)
                } else {
                    self.give_up_data("its history is not the primary's")
                }
            }
            Outcome::Untouched(error) => {
                self.remember(|state| state.unfinished = false)?;
                Err(error)
            }
            Outcome::Hopeless(error) => {
                self.give_up_data(&format!("it could not be rewound: {error}"))?;
                self.remember(|state| state.unfinished = false)
            }
        }
    }

    pub(super) async fn job_ended(&mut self, serial: u64, end: JobEnd) {
        // The last word of a job that was given up is not about what runs now.
        let Some(task) = self.job.take_if(|task| task.serial == serial) else { return };
        let (job, source, began) = (task.job, task.source.clone(), task.began);
        self.tell_job(job, began, &end);
        match end {
            JobEnd::Bootstrap(Ok(staged)) => {
                self.engine = EngineState::Stopped;
                self.data = staged.data();
                let stored = self.remember(|state| state.staged = Some(staged));
                self.done_or_failed(stored);
            }
            JobEnd::Clone(Ok((member, system_id))) => {
                self.engine = EngineState::Stopped;
                let adopted = self.adopt_clone(member, &system_id).await;
                self.done_or_failed(adopted);
            }
            JobEnd::Rewound(outcome) => {
                let term = source.map_or(0, |source| source.term);
                let done = self.rewound(term, outcome);
                self.done_or_failed(done);
            }
            JobEnd::Bootstrap(Err(error)) | JobEnd::Clone(Err(error)) => {
                self.engine = EngineState::Stopped;
                self.fail(&error);
                if job == Job::Bootstrap && self.config.as_ref().is_some_and(|c| c.spec.bootstrap.restore.is_some()) {
                    // Each try may read the whole backup.
                    let pause = RESTORE_AGAIN * 2_u32.saturating_pow(self.failures.saturating_sub(1).min(3));
                    self.not_before = boottime() + pause;
                }
            }
            JobEnd::Started(Ok(())) => {
                if let Some(chosen) = self.duties.started_with() {
                    let stored = self.accept(chosen);
                    self.done_or_failed(stored);
                }
                if job == Job::StartPrimary {
                    self.takes_writes();
                } else {
                    self.restarting = false;
                    self.end_is_unknown();
                    if let Data::Present(member) = &mut self.data {
                        member.standby = true;
                    }
                    self.engine = EngineState::Standby { source, replaying: true };
                }
            }
            JobEnd::Promoted(Ok(timeline)) => {
                if let Data::Present(member) = &mut self.data {
                    (member.standby, member.timeline) = (false, timeline);
                    member.history.push(timeline);
                }
                self.takes_writes();
            }
            JobEnd::Promoted(Err(error)) => {
                // It may be writable by now, or be so in a moment.
                self.tenure_ends(HandOverReason::PostgresDied);
                self.fail(&error);
                self.cleared_away().await;
            }
            JobEnd::Started(Err(error)) => {
                self.restarting = false;
                self.tenure_ends(HandOverReason::PostgresDied);
                // A configuration that it never started with may be why; then the last good one serves meanwhile.
                if let Some(chosen) = self.duties.started_with() {
                    self.reject(&chosen, &error.to_string());
                }
                self.fail(&error);
                self.cleared_away().await;
            }
            JobEnd::Stopped(clean, control) => {
                if !clean {
                    tracing::warn!("PostgreSQL did not stop in order and was killed");
                }
                self.postmaster = None;
                self.observation = None;
                self.engine = EngineState::Stopped;
                let before = self.data.clone();
                match control {
                    Ok(control) => self.data = self.present(&control),
                    Err(error) => {
                        // What was known before it ran is not how it ended: no release may tell that for its end.
                        self.fail(&error);
                        self.data = Data::Unknown;
                        self.look_again();
                    }
                }
                // A standby that stood still when it was stopped ends where it stood.
                if let (Data::Present(before), Data::Present(member)) = (before, &mut self.data)
                    && clean
                    && job == Job::StopStandby
                    && before.end_known
                {
                    (member.timeline, member.end, member.end_known) = (before.timeline, before.end, true);
                    member.history = before.history;
                }
            }
        }
    }

    /// What a job of the primary is in a hand-over.
    fn tell_job(&mut self, job: Job, began: Boot, end: &JobEnd) {
        match end {
            JobEnd::Stopped(clean, _) if job == Job::StopPrimary && self.tenure.is_some() => {
                let asked_by = std::mem::replace(&mut self.spans.asked_by, SpanContext::empty_context());
                let outcome = if *clean { Ok("in order".to_owned()) } else { Err("it was killed".to_owned()) };
                self.tell_asked_step("stop", self.next_term(), began, outcome, asked_by);
            }
            JobEnd::Promoted(outcome) => {
                let outcome =
                    outcome.as_ref().map(|timeline| format!("timeline {timeline}")).map_err(ToString::to_string);
                if let Some(term) = self.handed_over() {
                    self.tell_step("promotion", term, began, outcome);
                }
            }
            JobEnd::Started(outcome) if job == Job::StartPrimary => {
                if let Some(term) = self.handed_over() {
                    let outcome = outcome.as_ref().map(|()| String::new()).map_err(ToString::to_string);
                    self.tell_step("start", term, began, outcome);
                }
            }
            _ => {}
        }
    }

    fn takes_writes(&mut self) {
        tracing::info!("PostgreSQL takes writes");
        self.engine = EngineState::Primary;
        self.restarting = false;
        self.succeeded();
        // It moves on from here.
        self.end_is_unknown();
        if let Some(tenure) = &mut self.tenure {
            tenure.served = true;
        }
    }

    fn done_or_failed(&mut self, outcome: Result<(), Error>) {
        match outcome {
            Ok(()) => self.succeeded(),
            Err(error) => self.fail(&error),
        }
    }

    /// The copy is complete and synced: it becomes this instance's data, in one step. It holds nothing yet that it could have
    /// acknowledged, so it has no marker and no proof.
    async fn adopt_clone(&mut self, member: String, system_id: &str) -> Result<(), Error> {
        let expected = self.register().and_then(|register| register.system_id.clone());
        if expected.as_deref() != Some(system_id) {
            return Err(Error::Invalid {
                what: "the copy",
                message: format!("its system identifier {system_id} is not this cluster's"),
            });
        }
        // Until the copy stands there, what stands there is given up.
        self.remember(|state| {
            (state.member, state.marker, state.proof, state.hopeless) = (Some(member), false, None, true);
        })?;
        self.place.layout.go_live(&self.lock)?;
        let why = self.given_up.take();
        self.remember(|state| {
            (state.hopeless, state.fresh) = (false, None);
            let reason = [why, state.gives_up.take()].into_iter().flatten().collect::<Vec<_>>().join("; ");
            if !reason.is_empty() {
                state.rejoined = Some(Rejoined { how: Rejoin::Recloned, at: now(), reason });
            }
        })?;
        (self.cannot_follow, self.elections.marker_gone) = (false, boottime());
        self.look_at_volume().await
    }
}
