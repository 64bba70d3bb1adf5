//! What the agent does with PostgreSQL: one job at a time, beside the loop.

use std::time::Duration;

use super::Error;
use super::bootstrap::{Wish, bootstrap, control};
use super::clone::clone;
use super::conf::Aim;
use super::fence::Fence;
use super::history::{history_of, reserve};
use super::postmaster::{Files, Postmaster, first_session, kill};
use super::process::boottime;
use super::run::{Agent, Event, Task, random_word};
use super::sql::Socket;
use super::volume::{Staged, State};
use crate::api::agent::Lsn;
use crate::core::election::{
    Data, Ending, EngineState, EngineStep, Job, Member, Source, SyncSetting, engine_step, rules,
};
use crate::engine::postgres::control::{ClusterState, ControlData};
use crate::engine::postgres::sync_names;

/// How long a shutdown in order may take before everything is killed.
const SHUTDOWN: Duration = Duration::from_secs(40);
/// How long the checkpoint before a shutdown may take; without it the shutdown itself takes longer.
const CHECKPOINT: Duration = Duration::from_secs(10);
/// How long a promotion may take: it replays what is left.
const PROMOTION: Duration = Duration::from_mins(1);
/// A replica that could not follow is cloned again at most this often.
const DISCARD_EVERY: Duration = Duration::from_mins(5);
/// After a failed job the next one waits, twice as long each time, up to this.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// The job under way.
pub(super) struct JobTask {
    pub(super) job: Job,
    pub(super) source: Option<Source>,
    serial: u64,
    _task: Task,
}

/// How a job ended.
#[derive(Debug)]
pub enum JobEnd {
    /// A bootstrap.
    Bootstrap(Result<Staged, Error>),
    /// A clone: member id and system identifier.
    Clone(Result<(String, String), Error>),
    /// A start.
    Started(Result<(), Error>),
    /// A promotion: the timeline.
    Promoted(Result<u32, Error>),
    /// A stop; whether it was in order, and what the control file says.
    Stopped(bool, Result<ControlData, Error>),
}

impl Agent {
    /// Looks at the volume before anything is decided.
    pub(super) async fn look_at_volume(&mut self) -> Result<(), Error> {
        let layout = &self.place.layout;
        self.data = if layout.has_data() {
            let control = control(&self.processes, &layout.pgdata()).await?;
            self.critical = Some(control.critical);
            if self.state.member.is_none() {
                // A volume from elsewhere: its data gets an id, and no proof or marker.
                self.state.member = Some(format!("{}-{}", self.me.instance, random_word()));
                layout.store(&self.state)?;
            }
            self.present(&control)
        } else if let Some(staged) = &self.state.staged {
            Data::Staged { system_id: staged.system_id.clone(), member: staged.member.clone() }
        } else {
            Data::Empty
        };
        Ok(())
    }

    fn present(&self, control: &ControlData) -> Data {
        let (timeline, end) = control.reached();
        let pgdata = self.place.layout.pgdata();
        let parents = history_of(&pgdata, timeline);
        Data::Present(Member {
            id: self.state.member.clone().unwrap_or_default(),
            system_id: control.system_id.clone(),
            proof: self.state.proof.clone(),
            marker: self.state.marker,
            standby: pgdata.join("standby.signal").exists(),
            // A standby may have flushed more than its control file tells, also after a stop in order.
            end_known: control.state == ClusterState::ShutDown,
            history: parents.iter().map(|(timeline, _)| *timeline).chain([timeline]).collect(),
            hopeless: self.cannot_follow,
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
        let (proof, marker) = (self.state.proof.clone(), self.state.marker);
        if let Data::Present(member) = &mut self.data {
            (member.proof, member.marker) = (proof, marker);
        }
        Ok(())
    }

    /// PostgreSQL may have ended by itself, or by the fence.
    pub(super) async fn notice_end_of_postgres(&mut self) {
        if self.fence.fired() {
            tracing::error!("the Lease of the primary ran out: PostgreSQL was killed");
        }
        let Some(status) = self.postmaster.as_ref().and_then(Postmaster::ended) else { return };
        // A stop ends by its own event; a start sees the end of what it started.
        if matches!(self.engine, EngineState::Busy(_)) {
            return;
        }
        tracing::error!(%status, "PostgreSQL ended by itself");
        self.fail(&Error::Program { program: "PostgreSQL".into(), outcome: format!("ended with {status}") });
        self.cleared_away().await;
    }

    /// No process of PostgreSQL shall be left; then it is stopped.
    async fn cleared_away(&mut self) {
        self.job = None;
        if !kill(&self.processes).await {
            // It is tried again at the next turn; nothing is started meanwhile.
            self.engine = EngineState::Busy(Job::StopPrimary);
            tracing::error!("processes of PostgreSQL are left that cannot be killed");
            return;
        }
        self.postmaster = None;
        self.observation = None;
        self.engine = EngineState::Stopped;
        match control(&self.processes, &self.place.layout.pgdata()).await {
            Ok(control) => self.data = self.present(&control),
            Err(error) => tracing::warn!(%error, "the control file cannot be read"),
        }
    }

    fn fail(&mut self, error: &Error) {
        tracing::warn!(%error, category = error.category().as_str(), "PostgreSQL");
        self.trouble = Some(error.to_string());
        let pause = Duration::from_millis(500) * 2_u32.saturating_pow(self.failures.min(10));
        self.failures = self.failures.saturating_add(1);
        self.not_before = boottime() + pause.min(LONGEST_PAUSE);
    }

    pub(super) fn succeeded(&mut self) {
        (self.failures, self.trouble, self.not_before) = (0, None, Duration::ZERO);
    }

    /// Does what the facts ask for, until they ask for nothing that can be done at once.
    pub(super) async fn step_engine(&mut self) {
        self.notice_lost_wal();
        for _ in 0..6 {
            let step = self.decide(engine_step);
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
                if self.trouble.as_deref() != Some(why.as_str()) {
                    tracing::error!("{why}");
                    self.trouble = Some(why);
                }
                Ok(false)
            }
            EngineStep::Kill(why) => {
                tracing::error!(why, "PostgreSQL is killed");
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
            EngineStep::Clone { source, member } => {
                self.clone_data(source, member);
                Ok(false)
            }
            EngineStep::StartPrimary => self.start_primary().map(|()| false),
            EngineStep::StartStandby(source) => {
                self.remember(|state| state.proof = None)?;
                self.start_standby(source)?;
                Ok(false)
            }
            EngineStep::Follow(source) => {
                match &source {
                    Some(Source { instance, address, term }) => tracing::info!(instance, address, term, "follows"),
                    None => tracing::info!("follows nobody"),
                }
                if let Data::Present(member) = &mut self.data {
                    member.end_known = false;
                }
                self.engine = EngineState::Standby { source, replaying: false };
                Ok(false)
            }
            EngineStep::Rewind(source) => {
                tracing::warn!(from = %source.instance, "this data went another way than the primary's: it is cloned anew");
                self.cannot_follow_any_more()?;
                Ok(true)
            }
            EngineStep::Promote(timeline) => self.promote(timeline).map(|()| false),
            EngineStep::HandOver(wish) => {
                if let Some(tenure) = &mut self.tenure {
                    tracing::info!(to = %wish, "hands over");
                    tenure.ending = Some(Ending { wish: Some(wish) });
                    self.stop();
                }
                Ok(false)
            }
        }
    }

    /// Only a fresh copy helps. The marker goes before anything else: this data answers no election any more.
    fn cannot_follow_any_more(&mut self) -> Result<(), Error> {
        self.remember(|state| state.marker = false)?;
        (self.cannot_follow, self.elections.marker_gone) = (true, boottime());
        if let Data::Present(member) = &mut self.data {
            member.hopeless = true;
        }
        Ok(())
    }

    /// Makes the standby take writes, on exactly this timeline.
    fn promote(&mut self, target: u32) -> Result<(), Error> {
        let (Some(config), Some(sync), Some(postmaster)) = (&self.config, self.sync_setting(), &self.postmaster) else {
            return Ok(());
        };
        let Data::Present(member) = &self.data else { return Ok(()) };
        if !member.end_known {
            return Ok(());
        }
        tracing::info!(timeline = target, "is promoted");
        let pgdata = self.place.layout.pgdata();
        reserve(&pgdata, member.timeline, member.end, target)?;
        // It stands in the configuration before the first write: not even the first commit is alone.
        let names = sync_names::any(sync.k, &sync.members);
        let files = self.place.files(config, &Aim::Promotion(sync.clone()))?;
        files.write(&pgdata)?;
        self.duties.wrote(config.generation, &Aim::Primary(sync), Files { standby: false, ..files });
        postmaster.reload();
        let (socket, fence) = (self.place.socket.clone(), self.fence.clone());
        self.begin(
            Job::Promote,
            None,
            async move { JobEnd::Promoted(promotion(&socket, &fence, &names, target).await) },
        );
        Ok(())
    }

    fn begin(&mut self, job: Job, source: Option<Source>, work: impl Future<Output = JobEnd> + Send + 'static) {
        let events = self.events.clone();
        self.jobs_begun += 1;
        let serial = self.jobs_begun;
        let task = tokio::spawn(async move {
            let end = work.await;
            let _ = events.send(Event::Job(serial, Box::new(end))).await;
        });
        self.job = Some(JobTask { job, source, serial, _task: Task(task) });
        self.engine = EngineState::Busy(job);
    }

    fn bootstrap(&mut self) -> Result<(), Error> {
        let Some(config) = &self.config else { return Ok(()) };
        let mut owner = self.place.secrets.credentials("app")?;
        owner.username.clone_from(&config.spec.postgresql.owner);
        let wish = Wish {
            member: self.me.member_for(&self.me.instance),
            superuser: self.place.secrets.credentials("superuser")?,
            owner,
            database: config.spec.postgresql.database.clone(),
            init_sql: config.spec.postgresql.init_sql.clone(),
            private: std::env::temp_dir().join("hello-bootstrap"),
        };
        tracing::info!("makes the first data directory");
        let (processes, layout) = (self.processes.clone(), self.place.layout.clone());
        self.begin(Job::Bootstrap, None, async move { JobEnd::Bootstrap(bootstrap(&processes, &layout, &wish).await) });
        Ok(())
    }

    fn clone_data(&mut self, source: Source, planned: Option<String>) {
        let Some(config) = self.config.clone() else { return };
        let member = planned.unwrap_or_else(|| format!("{}-{}", self.me.instance, random_word()));
        tracing::info!(from = %source.instance, member, "copies the primary's data");
        let (processes, place, from) = (self.processes.clone(), self.place.clone(), source.clone());
        let lease = self.lease_api.clone();
        self.begin(Job::Clone, Some(source), async move {
            let work = async {
                still_holds(&lease, &from).await?;
                let upstream = place.upstream(&config, &from)?;
                let system_id = clone(&processes, &place.layout, &upstream, &member).await?;
                Ok((member, system_id))
            };
            JobEnd::Clone(work.await)
        });
    }

    /// What commits wait for, by the present rule and who has joined.
    pub(super) fn sync_setting(&self) -> Option<SyncSetting> {
        let (register, terms) = (self.register()?, self.terms.as_ref()?);
        let joined = self.members.joined(register, &terms.instances, boottime());
        register.rule().map(|rule| rules::setting(rule, &joined))
    }

    fn start_primary(&mut self) -> Result<(), Error> {
        let (Some(config), Some(sync)) = (&self.config, self.sync_setting()) else { return Ok(()) };
        // It stands in the configuration before the first connection: not even the first commit is alone.
        let aim = Aim::Primary(sync);
        let files = self.place.files(config, &aim)?;
        files.write(&self.place.layout.pgdata())?;
        self.duties.wrote(config.generation, &aim, files);
        tracing::info!("starts PostgreSQL as the primary");
        let fence = self.fence.clone();
        self.launch(Job::StartPrimary, None, move || fence.open())
    }

    fn start_standby(&mut self, source: Option<Source>) -> Result<(), Error> {
        let Some(config) = &self.config else { return Ok(()) };
        let aim = self.standby_aim(source.clone());
        let files = self.place.files(config, &aim)?;
        files.write(&self.place.layout.pgdata())?;
        self.duties.wrote(config.generation, &aim, files);
        tracing::info!(
            follows = source.as_ref().map(|source| source.instance.as_str()),
            "starts PostgreSQL as a replica"
        );
        self.launch(Job::StartStandby, source, || true)
    }

    pub(super) fn standby_aim(&self, source: Option<Source>) -> Aim {
        Aim::Standby { member: self.state.member.clone().unwrap_or_default(), source, critical: self.critical }
    }

    fn launch(&mut self, job: Job, source: Option<Source>, allowed: impl Fn() -> bool) -> Result<(), Error> {
        let pgdata = self.place.layout.pgdata();
        let postmaster = Postmaster::start(&self.processes, &pgdata, &self.place.socket, allowed)?;
        self.postmaster = Some(postmaster.clone());
        let socket = self.place.socket.clone();
        self.begin(job, source, async move {
            // Recovery may take as long as it takes, so only its end or PostgreSQL's ends this. A replica counts as started
            // as soon as it has read its configuration: it may need a primary before it answers.
            let ready = async {
                loop {
                    if let Ok(session) = first_session(&socket, Duration::from_secs(3)).await {
                        drop(session);
                        return Ok(());
                    }
                    if job == Job::StartStandby && pgdata.join("postmaster.pid").exists() {
                        return Ok(());
                    }
                }
            };
            let outcome = tokio::select! {
                biased;
                status = postmaster.wait() => Err(Error::Program {
                    program: "PostgreSQL".into(),
                    outcome: status.map_or_else(|| "ended".into(), |status| format!("ended with {status} while it started")),
                }),
                outcome = ready => outcome,
            };
            JobEnd::Started(outcome)
        });
        Ok(())
    }

    fn stop(&mut self) {
        let Some(postmaster) = self.postmaster.clone() else {
            self.engine = EngineState::Stopped;
            return;
        };
        let primary = matches!(self.engine, EngineState::Primary);
        let (processes, socket) = (self.processes.clone(), self.place.socket.clone());
        let pgdata = self.place.layout.pgdata();
        // A start that is given up may have come far enough to be writable.
        let writable = self.engine.maybe_writable();
        let job = if writable { Job::StopPrimary } else { Job::StopStandby };
        self.begin(job, None, async move {
            if primary && let Ok(session) = socket.open("postgres").await {
                // The bulk is written while clients go on; the shutdown's own checkpoint is short then.
                let _ = session.run_within("a checkpoint", "CHECKPOINT", CHECKPOINT).await;
            }
            let clean = postmaster.stop(&processes, SHUTDOWN).await;
            JobEnd::Stopped(clean, control(&processes, &pgdata).await)
        });
    }

    fn restart_postgres(&mut self, id: String) -> Result<bool, Error> {
        match self.engine {
            EngineState::Primary | EngineState::Standby { .. } => {
                self.remember(|state| state.restarted_for = Some(id))?;
                self.restart = None;
                self.stop();
                Ok(false)
            }
            EngineState::Stopped if boottime() >= self.not_before => {
                // It will start, or wait for what it needs, with everything new.
                self.remember(|state| state.restarted_for = Some(id))?;
                self.restart = None;
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    /// The agent ends: a copy in the making is of no use, and a start is undone.
    async fn give_up_what_is_begun(&mut self) {
        match self.job.as_ref().map(|task| task.job) {
            Some(Job::Bootstrap | Job::Clone) => {
                self.job = None;
                kill(&self.processes).await;
                self.engine = EngineState::Stopped;
            }
            Some(Job::StartPrimary | Job::StartStandby | Job::Promote | Job::Rewind) => {
                self.job = None;
                self.stop();
            }
            Some(Job::StopPrimary | Job::StopStandby) | None => {
                if self.job.is_none() && self.engine == EngineState::Busy(Job::StopPrimary) {
                    self.cleared_away().await;
                }
            }
        }
    }

    pub(super) async fn job_ended(&mut self, serial: u64, end: JobEnd) {
        // The last word of a job that was given up is not about what runs now.
        let Some(task) = self.job.take_if(|task| task.serial == serial) else { return };
        let (job, source) = (task.job, task.source.clone());
        match end {
            JobEnd::Bootstrap(Ok(staged)) => {
                self.engine = EngineState::Stopped;
                self.data = Data::Staged { system_id: staged.system_id.clone(), member: staged.member.clone() };
                let stored = self.remember(|state| state.staged = Some(staged));
                self.done_or_failed(stored);
            }
            JobEnd::Clone(Ok((member, system_id))) => {
                self.engine = EngineState::Stopped;
                let adopted = self.adopt_clone(member, &system_id).await;
                self.done_or_failed(adopted);
            }
            JobEnd::Bootstrap(Err(error)) | JobEnd::Clone(Err(error)) => {
                self.engine = EngineState::Stopped;
                self.fail(&error);
            }
            JobEnd::Started(Ok(())) => {
                if job == Job::StartPrimary {
                    self.takes_writes();
                } else {
                    if let Data::Present(member) = &mut self.data {
                        (member.standby, member.end_known) = (true, false);
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
                self.fail(&error);
                self.cleared_away().await;
            }
            JobEnd::Started(Err(error)) => {
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
                match control {
                    Ok(control) => self.data = self.present(&control),
                    Err(error) => self.fail(&error),
                }
            }
        }
    }

    fn takes_writes(&mut self) {
        tracing::info!("PostgreSQL takes writes");
        self.engine = EngineState::Primary;
        self.succeeded();
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
        self.remember(|state| {
            (state.member, state.marker, state.proof) = (Some(member), false, None);
        })?;
        self.place.layout.go_live(&self.lock)?;
        (self.cannot_follow, self.elections.marker_gone) = (false, boottime());
        self.look_at_volume().await
    }

    /// A replica that said that the WAL which it needs is gone, and that does not stream, can never catch up.
    fn notice_lost_wal(&mut self) {
        let streams = self.observation.as_ref().is_some_and(|seen| seen.status.streaming_from.is_some());
        let said = self.postmaster.as_ref().is_some_and(Postmaster::wal_is_gone);
        if !said || streams || self.cannot_follow || !matches!(self.engine, EngineState::Standby { .. }) {
            return;
        }
        if self.discarded.is_some_and(|at| boottime().saturating_sub(at) < DISCARD_EVERY) {
            self.waits =
                Some("the WAL that this replica needs is gone; it was cloned anew only just now and waits".into());
            return;
        }
        tracing::warn!("the WAL that this replica needs is gone from the primary");
        self.discarded = Some(boottime());
        if let Err(error) = self.cannot_follow_any_more() {
            self.fail(&error);
        }
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

/// Promotes the running standby, and has seen it take writes on this timeline.
async fn promotion(socket: &Socket, fence: &Fence, names: &str, timeline: u32) -> Result<u32, Error> {
    let end = tokio::time::Instant::now() + PROMOTION;
    let late = || Error::Timeout("the promotion".into());
    while socket.open("postgres").await?.setting("synchronous_standby_names").await? != names {
        if tokio::time::Instant::now() >= end {
            return Err(late());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let session = socket.open("postgres").await?;
    // A query in conflict with the replay would hold it up.
    session.terminate_clients().await?;
    if !fence.open() {
        return Err(Error::Program { program: "the promotion".into(), outcome: "there is no valid Lease".into() });
    }
    session.run("a promotion", "SELECT pg_promote(false)").await?;
    loop {
        let status = session.status().await?;
        if !status.in_recovery {
            return if status.timeline == Some(timeline) {
                Ok(timeline)
            } else {
                Err(Error::Invalid {
                    what: "the timeline after the promotion",
                    message: format!("{:?} in place of {timeline}", status.timeline),
                })
            };
        }
        if tokio::time::Instant::now() >= end {
            return Err(late());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Who is about to be followed is the holder by a consistent read, not only by a watch that may be late.
async fn still_holds(lease: &super::lease::LeaseApi, source: &Source) -> Result<(), Error> {
    let gone = |message: &str| Error::Invalid { what: "the Lease", message: message.into() };
    let lease = lease.get().await?.ok_or_else(|| gone("it is gone"))?;
    let register = crate::core::election::Register::from_lease(&lease).map_err(|error| gone(&error.to_string()))?;
    let same = register.term == source.term && register.holder_instance() == Some(source.instance.as_str());
    if same && !register.released() { Ok(()) } else { Err(gone("another instance holds it now")) }
}
