//! What the agent does with PostgreSQL: one job at a time, beside the loop.

use std::time::Duration;

use opentelemetry::trace::SpanContext;

use super::Error;
use super::bootstrap::control;
use super::history::timelines;
use super::postmaster::{Postmaster, kill};
use super::probe::Health;
use super::process::boottime;
use super::run::{Agent, Event, random_word};
use super::volume::{Chosen, State};
use crate::api::agent::{HandOverReason, Lsn};
use crate::api::config::ClusterConfig;
use crate::core::election::{Data, Ending, EngineState, EngineStep, Job, Member, Source, engine_step};
use crate::engine::postgres::control::{ClusterState, ControlData};

/// A replica that could not follow is cloned again at most this often.
const CLONE_EVERY: Duration = Duration::from_mins(5);
/// After a failed job the next one waits, twice as long each time, up to this.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// So often in a row the volume is looked at, over about six seconds; then people hear of it, and the loop tries again.
const LOOKS: u32 = 7;

/// What is on the volume.
#[derive(Debug)]
pub enum Look {
    /// A data directory, and what its control file says.
    Data(Box<ControlData>),
    /// None.
    Nothing,
    /// It could not be told.
    Unknown(Error),
}

impl Agent {
    /// Looks at the volume before anything is decided.
    pub(super) async fn look_at_volume(&mut self) -> Result<(), Error> {
        let layout = &self.place.layout;
        self.data = if layout.has_data()? {
            let control = control(&self.processes, &layout.pgdata()).await?;
            if self.state.member.is_none() {
                // A volume from elsewhere: its data gets an id, and no proof or marker.
                self.state.member = Some(format!("{}-{}", self.me.instance, random_word()));
                layout.store(&self.state)?;
            }
            self.present(&control)
        } else if let Some(staged) = &self.state.staged {
            staged.data()
        } else {
            Data::Empty
        };
        Ok(())
    }

    /// What the control file and the state say of the data.
    pub(super) fn present(&mut self, control: &ControlData) -> Data {
        self.critical = Some(control.critical);
        let fresh = self.state.fresh.is_some();
        // What was rewound is consistent only where its source was; it is in that one's history until then.
        let (timeline, end) =
            if fresh { (control.min_recovery_timeline, control.min_recovery) } else { control.reached() };
        let pgdata = self.place.layout.pgdata();
        Data::Present(Member {
            id: self.state.member.clone().unwrap_or_default(),
            system_id: control.system_id.clone(),
            proof: self.state.proof.clone(),
            marker: self.state.marker,
            // Where it cannot be told, it is not started as a primary.
            standby: pgdata.join("standby.signal").try_exists().unwrap_or(true),
            // A standby may have flushed more than its control file tells, also after a stop in order.
            end_known: fresh || control.state == ClusterState::ShutDown,
            history: timelines(&pgdata, timeline),
            hopeless: self.state.hopeless,
            timeline,
            end,
        })
    }

    pub(super) fn remember(&mut self, change: impl FnOnce(&mut State)) -> Result<(), Error> {
        let mut state = self.state.clone();
        change(&mut state);
        if state != self.state {
            self.place.layout.store(&state)?;
            self.state = state;
        }
        if let Data::Present(member) = &mut self.data {
            member.proof.clone_from(&self.state.proof);
            (member.marker, member.hopeless) = (self.state.marker, self.state.hopeless);
        }
        Ok(())
    }

    /// PostgreSQL may have ended by itself, or by the fence.
    pub(super) async fn notice_end_of_postgres(&mut self) {
        if self.fence.fired() {
            tracing::error!("the Lease of the primary ran out: PostgreSQL was killed");
            self.tenure_ends(HandOverReason::LeaseRanOut);
        }
        let Some(status) = self.postmaster.as_ref().and_then(Postmaster::ended) else { return };
        // A stop ends by its own event; a start sees the end of what it started.
        if matches!(self.engine, EngineState::Busy(_)) {
            return;
        }
        tracing::error!(%status, "PostgreSQL ended by itself");
        self.fail(&Error::Program { program: "PostgreSQL".into(), outcome: format!("ended with {status}") });
        if self.engine == EngineState::Primary && self.nobody_has_room() {
            tracing::error!("its volume is full, as are the others': it starts again in place, and takes no writes");
            self.restarting = true;
        } else {
            self.tenure_ends(HandOverReason::PostgresDied);
        }
        self.cleared_away().await;
    }

    /// The probes say that PostgreSQL stands still, or that its disk or data are gone: it is killed, and given back.
    pub(super) async fn notice_illness(&mut self) {
        let verdict = *self.health.borrow();
        let idle =
            matches!(self.engine, EngineState::Stopped | EngineState::Busy(Job::Clone | Job::Rewind | Job::Bootstrap));
        let what = match verdict.health {
            Health::Well => return,
            _ if idle || self.postmaster.is_none() => return,
            Health::Frozen => "PostgreSQL answers no connection any more",
            Health::DiskHangs => "the disk does not complete a write any more",
            Health::DataGone => "the data directory is gone",
        };
        tracing::error!(since = ?verdict.since, "{what}: it is killed");
        self.tenure_ends(HandOverReason::PostgresHung);
        self.fail(&Error::Program { program: "PostgreSQL".into(), outcome: format!("was killed: {what}") });
        self.cleared_away().await;
    }

    /// No process of PostgreSQL shall be left; then it is stopped, and what it left is looked at beside the loop.
    pub(super) async fn cleared_away(&mut self) {
        self.job = None;
        let complete = kill(&self.processes).await;
        if !complete && !self.processes.doomed() {
            // It is tried again at the next turn; nothing is started meanwhile.
            self.engine = EngineState::Busy(Job::StopPrimary);
            tracing::error!("processes of PostgreSQL are left that cannot be killed");
            return;
        }
        self.postmaster = None;
        self.observation = None;
        self.engine = EngineState::Stopped;
        self.data = Data::Unknown;
        self.doomed = !complete;
        if self.doomed {
            // They wait for the disk, and acknowledge nothing any more: the Lease can go. Nothing starts here before they ended.
            tracing::error!("processes of PostgreSQL wait for the disk and end only with it");
            self.clear_again();
        } else {
            self.look_again();
        }
    }

    fn clear_again(&self) {
        let (processes, events) = (self.processes.clone(), self.events.clone());
        tokio::spawn(async move {
            let complete = kill(&processes).await;
            let _ = events.send(Event::Cleared(complete)).await;
        });
    }

    /// What was killed has ended, or has not.
    pub(super) fn cleared(&mut self, complete: bool) {
        if !self.doomed {
            return;
        }
        self.doomed = !complete;
        if complete {
            self.look_again();
        } else {
            self.clear_again();
        }
    }

    /// Looks at what PostgreSQL left, beside the loop: the disk may hang.
    pub(super) fn look_again(&mut self) {
        if std::mem::replace(&mut self.looking, true) {
            return;
        }
        let (processes, events, pgdata) = (self.processes.clone(), self.events.clone(), self.place.layout.pgdata());
        tokio::spawn(async move {
            let mut pause = Duration::from_millis(100);
            let mut left = LOOKS;
            loop {
                let there = tokio::fs::try_exists(pgdata.join("PG_VERSION")).await;
                let error = match there {
                    Ok(false) => break drop(events.send(Event::Looked(Look::Nothing)).await),
                    Ok(true) => match control(&processes, &pgdata).await {
                        Ok(control) => break drop(events.send(Event::Looked(Look::Data(Box::new(control)))).await),
                        Err(error) => error,
                    },
                    Err(error) => Error::io("look at", &pgdata)(error),
                };
                left -= 1;
                if left == 0 {
                    break drop(events.send(Event::Looked(Look::Unknown(error))).await);
                }
                tracing::warn!(%error, "the control file cannot be read");
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
        });
    }

    /// What could not be told of the volume is looked at again when the failure has had its pause.
    pub(super) fn look_if_unknown(&mut self) {
        let stopped = self.engine == EngineState::Stopped && !self.doomed;
        if stopped && self.data == Data::Unknown && boottime() >= self.not_before {
            self.look_again();
        }
    }

    /// What is on the volume now.
    pub(super) fn looked(&mut self, look: Look) {
        self.looking = false;
        if self.engine != EngineState::Stopped {
            return;
        }
        match look {
            Look::Data(control) => self.data = self.present(&control),
            Look::Unknown(error) => self.fail(&error),
            Look::Nothing => {
                tracing::error!("the data directory is gone: this instance begins anew");
                self.given_up = Some("its data directory was gone".into());
                let forgotten = self.remember(|state| {
                    (state.member, state.marker, state.proof) = (None, false, None);
                    (state.hopeless, state.fresh) = (false, None);
                });
                match forgotten {
                    Ok(()) => self.data = Data::Empty,
                    Err(error) => self.fail(&error),
                }
            }
        }
    }

    /// The settings to use: the user's, or the last good ones while those are not accepted.
    pub(super) fn chosen(&self, config: &ClusterConfig) -> Chosen {
        if self.rejected.as_ref().is_some_and(|(generation, _)| *generation == config.generation) {
            return self.state.accepted.clone().unwrap_or_default();
        }
        Chosen { generation: config.generation, parameters: config.parameters.clone(), hba: config.hba.clone() }
    }

    /// PostgreSQL has started with these settings, or read them without a complaint.
    pub(super) fn accept(&mut self, chosen: Chosen) -> Result<(), Error> {
        if self.state.accepted.as_ref().is_some_and(|accepted| accepted.says_the_same(&chosen)) {
            return Ok(());
        }
        self.remember(|state| state.accepted = Some(chosen))
    }

    /// PostgreSQL does not accept these settings.
    pub(super) fn reject(&mut self, chosen: &Chosen, why: &str) {
        let good = self.state.accepted.clone().unwrap_or_default();
        let present = self.config.as_ref().is_some_and(|config| config.generation == chosen.generation);
        if !present || good.says_the_same(chosen) || self.rejected.is_some() {
            return;
        }
        let why = format!(
            "PostgreSQL does not accept spec.postgresql of generation {}, and goes on with its last good settings: {why}",
            chosen.generation
        );
        tracing::error!("{why}");
        self.rejected = Some((chosen.generation, why));
    }

    pub(super) fn fail(&mut self, error: &Error) {
        tracing::warn!(%error, category = error.category().as_str(), "PostgreSQL");
        // Whoever waits for a restart in place waits no longer: another instance may take over.
        self.restarting = false;
        self.trouble = Some(error.to_string());
        let pause = Duration::from_millis(250) * 2_u32.saturating_pow(self.failures.min(10));
        self.failures = self.failures.saturating_add(1);
        self.not_before = boottime() + pause.min(LONGEST_PAUSE);
    }

    pub(super) fn succeeded(&mut self) {
        (self.failures, self.trouble, self.not_before) = (0, None, Duration::ZERO);
    }

    /// Does what the facts ask for, until they ask for nothing that can be done at once.
    pub(super) async fn step_engine(&mut self) {
        self.notice_lost_wal();
        self.judge_fresh_copy();
        for _ in 0..6 {
            let step = self.decide(engine_step);
            if !matches!(step, EngineStep::Refuse(_)) {
                self.refusal = None;
            }
            let again = match self.carry_out(step).await {
                Ok(again) => again,
                Err(error) => {
                    self.fail(&error);
                    false
                }
            };
            if !again {
                return;
            }
        }
    }

    /// True if something was done that may ask for more at once.
    async fn carry_out(&mut self, step: EngineStep) -> Result<bool, Error> {
        let waits = boottime() < self.not_before && self.stopping.is_none();
        match step {
            EngineStep::Keep => {
                if self.stopping.is_some() {
                    self.give_up_what_is_begun().await;
                } else if let Some(id) = self.restart.clone() {
                    return self.restart_postgres(id);
                }
                Ok(false)
            }
            EngineStep::Refuse(why) => {
                if self.refusal.as_deref() != Some(why.as_str()) {
                    tracing::error!("{why}");
                    self.refusal = Some(why);
                }
                Ok(false)
            }
            EngineStep::Kill(why) => {
                tracing::error!(why, "PostgreSQL is killed");
                self.tenure_ends(HandOverReason::LeaseRanOut);
                self.cleared_away().await;
                Ok(false)
            }
            EngineStep::Stop(why) => {
                tracing::info!(why, "PostgreSQL stops");
                self.stop();
                Ok(false)
            }
            _ if waits => Ok(false),
            EngineStep::AdoptStaged(holder) => {
                let Some(staged) = self.state.staged.clone() else { return Ok(false) };
                self.remember(|state| {
                    state.member = Some(staged.member);
                    state.marker = true;
                    state.proof = Some(holder);
                })?;
                self.place.layout.go_live(&self.lock)?;
                self.remember(|state| state.staged = None)?;
                self.look_at_volume().await?;
                Ok(true)
            }
            EngineStep::DiscardStaged => {
                self.remember(|state| state.staged = None)?;
                super::volume::remove(&self.place.layout.staging())?;
                self.data = Data::Empty;
                Ok(true)
            }
            EngineStep::WriteProof(holder) => {
                self.remember(|state| {
                    state.marker = true;
                    state.proof = Some(holder);
                })?;
                Ok(true)
            }
            EngineStep::Bootstrap => self.bootstrap().map(|()| false),
            EngineStep::Clone { source, member } => self.clone_data(source, member).map(|()| false),
            EngineStep::Rewind(source) => self.rewind(source).map(|()| false),
            EngineStep::StartPrimary => self.start_primary().map(|()| false),
            EngineStep::StartStandby(source) => {
                self.forget_proof(source.as_ref())?;
                self.start_standby(source)?;
                Ok(false)
            }
            EngineStep::Follow(source) => {
                self.forget_proof(source.as_ref())?;
                match &source {
                    Some(Source { instance, address, term }) => tracing::info!(instance, address, term, "follows"),
                    None => tracing::info!("follows nobody"),
                }
                self.end_is_unknown();
                self.engine = EngineState::Standby { source, replaying: false };
                // The files say it at once.
                self.configure();
                Ok(false)
            }
            EngineStep::Promote(timeline) => self.promote(timeline).map(|()| false),
            EngineStep::HandOver(wish) => {
                tracing::info!(to = %wish, "hands over");
                let asked = self.switchover.take();
                let asked_by = asked.as_ref().map(|asked| asked.asked_by.clone());
                self.spans.asked_by = asked_by.unwrap_or(SpanContext::empty_context());
                self.tenure_ends(asked.as_ref().map_or(HandOverReason::Switchover, |asked| asked.reason));
                if let Some(id) = asked.and_then(|asked| asked.id) {
                    // It starts anew as a replica, which is the restart that the command may be for.
                    self.remember(|state| state.restarted_for = Some(id))?;
                }
                if let Some(tenure) = &mut self.tenure {
                    tenure.ending = Some(Ending { wish: Some(wish) });
                    self.stop();
                }
                Ok(false)
            }
        }
    }

    /// From here on it may receive more.
    pub(super) fn end_is_unknown(&mut self) {
        self.elections.still += 1;
        if let Data::Present(member) = &mut self.data {
            member.end_known = false;
        }
    }

    /// Whoever follows somebody is not the last primary's own data any more.
    fn forget_proof(&mut self, source: Option<&Source>) -> Result<(), Error> {
        if source.is_some() { self.remember(|state| state.proof = None) } else { Ok(()) }
    }

    /// Only a fresh copy helps. The marker goes before anything else: this data answers no election any more.
    pub(super) fn give_up_data(&mut self, why: &str) -> Result<(), Error> {
        self.elections.marker_gone = boottime();
        self.given_up = Some(why.to_owned());
        self.remember(|state| (state.marker, state.hopeless) = (false, true))
    }

    /// What was rewound needs the WAL of its source to become consistent; when that one is not the holder any more, it may be
    /// gone for good.
    fn judge_fresh_copy(&mut self) {
        let Some(term) = self.state.fresh.filter(|_| !self.state.hopeless) else { return };
        if self.register().is_some_and(|register| register.term > term && !register.released())
            && let Err(error) = self.give_up_data("the primary changed before what was rewound was consistent")
        {
            self.fail(&error);
        }
    }

    /// A replica that said that the WAL which it needs is gone, and that does not stream, can never catch up.
    fn notice_lost_wal(&mut self) {
        let streams = self.observation.as_ref().is_some_and(|seen| seen.status.streaming_from.is_some());
        let said = self.postmaster.as_ref().is_some_and(Postmaster::wal_is_gone);
        if !said || streams || self.cannot_follow || !matches!(self.engine, EngineState::Standby { .. }) {
            return;
        }
        if self.cloned_again.is_some_and(|at| boottime().saturating_sub(at) < CLONE_EVERY) {
            self.waits =
                Some("the WAL that this replica needs is gone; it was cloned anew only just now and waits".into());
            return;
        }
        tracing::warn!("the WAL that this replica needs is gone from the primary");
        (self.cannot_follow, self.cloned_again) = (true, Some(boottime()));
        self.given_up = Some("the WAL that it needs is gone from the primary".into());
    }

    /// The end of the own WAL as far as it is known.
    pub(super) fn position(&self) -> (Option<u32>, Option<Lsn>) {
        let of_data = match &self.data {
            Data::Present(member) => (Some(member.timeline), Some(member.end)),
            Data::Unknown | Data::Empty | Data::Staged { .. } => (None, None),
        };
        let Some(seen) = &self.observation else { return of_data };
        let status = &seen.status;
        let lsn = if status.in_recovery { status.received.max(status.replayed) } else { status.flushed };
        (status.timeline.or(of_data.0), lsn.or(of_data.1))
    }
}
