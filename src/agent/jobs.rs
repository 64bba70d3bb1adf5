//! Long acts on PostgreSQL: one job at a time, beside the loop.

use std::time::Duration;

use super::Error;
use super::bootstrap::{Wish, bootstrap, control};
use super::clone::clone;
use super::conf::Aim;
use super::fence::Fence;
use super::history::{forget_reserved, history_of, reserve};
use super::job_end::JobEnd;
use super::peers::Peers;
use super::postmaster::{Files, Postmaster, accepts_sessions, kill};
use super::process::boottime;
use super::restore::restore;
use super::rewind::{Outcome, rewind};
use super::run::{Agent, Event, Task, random_word};
use super::sql::Socket;
use crate::api::agent::Phase;
use crate::core::election::{Boot, Data, EngineState, Job, Source, SyncSetting, rules};
use crate::engine::postgres::{slots, sync_names};

/// How long a shutdown in order may take before everything is killed.
const SHUTDOWN: Duration = Duration::from_secs(40);
/// How long the checkpoint before a shutdown may take; without it the shutdown itself takes longer.
const CHECKPOINT: Duration = Duration::from_secs(10);
/// How long a promotion may take: it replays what is left.
const PROMOTION: Duration = Duration::from_mins(1);
/// How long a clone waits for the word of the primary's agent.
const FIRST_WORD: Duration = Duration::from_secs(20);

/// The job under way.
pub(super) struct JobTask {
    pub(super) job: Job,
    pub(super) source: Option<Source>,
    pub(super) serial: u64,
    pub(super) began: Boot,
    _task: Task,
}

impl Agent {
    pub(super) fn begin(
        &mut self,
        job: Job,
        source: Option<Source>,
        work: impl Future<Output = JobEnd> + Send + 'static,
    ) {
        let events = self.events.clone();
        self.jobs_begun += 1;
        let serial = self.jobs_begun;
        let task = tokio::spawn(async move {
            let end = work.await;
            let _ = events.send(Event::Job(serial, Box::new(end))).await;
        });
        self.job = Some(JobTask { job, source, serial, began: boottime(), _task: Task(task) });
        self.engine = EngineState::Busy(job);
    }

    pub(super) fn bootstrap(&mut self) -> Result<(), Error> {
        let Some(config) = &self.config else { return Ok(()) };
        if config.spec.bootstrap.restore.is_some() {
            return self.restore();
        }
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

    fn restore(&mut self) -> Result<(), Error> {
        let wish = self.restore_wish()?;
        let (processes, layout) = (self.processes.clone(), self.place.layout.clone());
        let archive = self.backups.archive.clone();
        let progress = self.backups.restores();
        self.begin(Job::Bootstrap, None, async move {
            JobEnd::Bootstrap(restore(&processes, &archive, &layout, &wish, &progress, &mut |_| {}).await)
        });
        Ok(())
    }

    pub(super) fn clone_data(&mut self, source: Source, planned: Option<String>) -> Result<(), Error> {
        let Some(config) = self.config.clone() else { return Ok(()) };
        if self.state.marker {
            // What stands here answers no election any more: its place will be taken.
            self.give_up_data(&self.given_up.clone().unwrap_or_default())?;
        }
        self.note_what_is_given_up(&source)?;
        let member = planned.unwrap_or_else(|| format!("{}-{}", self.me.instance, random_word()));
        tracing::info!(from = %source.instance, member, "copies the primary's data");
        self.duties.clones = self.duties.clones.saturating_add(1);
        let (processes, place, from) = (self.processes.clone(), self.place.clone(), source.clone());
        let (lease, peers) = (self.lease_api.clone(), self.peers.clone());
        self.begin(Job::Clone, Some(source), async move {
            let work = async {
                // The Lease names its address before it takes connections.
                wait_for_primary(&peers, &from).await;
                still_holds(&lease, &from).await?;
                let upstream = place.upstream(&config, &from)?;
                let system_id = clone(&processes, &place.layout, &upstream, &member).await?;
                Ok((member, system_id))
            };
            JobEnd::Clone(work.await)
        });
        Ok(())
    }

    /// Brings data that went another way back into the holder's history.
    pub(super) fn rewind(&mut self, source: Source) -> Result<(), Error> {
        let Some(config) = self.config.clone() else { return Ok(()) };
        self.give_way();
        self.note_what_is_given_up(&source)?;
        let member = format!("{}-{}", self.me.instance, random_word());
        tracing::warn!(to = %source.instance, member, "this data went another way than the primary's: it is rewound");
        self.elections.marker_gone = boottime();
        // What is found in the middle is neither the one nor the other.
        self.remember(|state| {
            (state.member, state.marker, state.proof) = (Some(member), false, None);
            state.unfinished = true;
        })?;
        let (processes, place, from) = (self.processes.clone(), self.place.clone(), source.clone());
        let (lease, peers) = (self.lease_api.clone(), self.peers.clone());
        self.begin(Job::Rewind, Some(source), async move {
            let ready = async {
                wait_for_primary(&peers, &from).await;
                still_holds(&lease, &from).await?;
                place.upstream(&config, &from)
            };
            JobEnd::Rewound(match ready.await {
                Ok(upstream) => rewind(&processes, &place.layout, &upstream).await,
                Err(error) => Outcome::Untouched(error),
            })
        });
        Ok(())
    }

    /// Notes and logs how much of the data is not in the holder's history, before it goes: nothing of it is kept aside.
    fn note_what_is_given_up(&mut self, source: &Source) -> Result<(), Error> {
        let fork = self.elections.fork.as_ref().filter(|fork| fork.term == source.term);
        let (Data::Present(member), Some(fork)) = (&self.data, fork) else { return Ok(()) };
        let (timeline, end) = (member.timeline, member.end);
        let mut own = history_of(&self.place.layout.pgdata(), timeline);
        own.push((timeline, end));
        let Some((last, parts)) = fork.parts(&own) else { return Ok(()) };
        // Where it crashed, its end is told only by a recovery.
        let least = if member.end_known { "" } else { "at least " };
        let what = format!(
            "its WAL after {parts} (timeline {last}) up to {least}{end} (timeline {timeline}) is not in the history of {} and is given up",
            source.instance
        );
        tracing::error!("{what}");
        self.remember(|state| state.gives_up = Some(what))
    }

    /// Makes the standby take writes, on exactly this timeline.
    pub(super) fn promote(&mut self, target: u32) -> Result<(), Error> {
        self.give_way();
        let (Some(config), Some(sync), Some(postmaster)) = (&self.config, self.sync_setting(), &self.postmaster) else {
            return Ok(());
        };
        let Data::Present(member) = &self.data else { return Ok(()) };
        if !member.end_known {
            return Ok(());
        }
        tracing::info!(timeline = target, "is promoted");
        let pgdata = self.place.layout.pgdata();
        reserve(&pgdata, member.timeline, target)?;
        // It stands in the configuration before the first write: not even the first commit is alone.
        let names = sync_names::any(sync.k, &sync.members);
        let chosen = self.chosen(config);
        let full = self.rooms.full.is_some();
        let files = self.place.files(config, &chosen, &Aim::Promotion(sync.clone()), full)?;
        self.place.write(&files)?;
        self.duties.wrote(chosen, &Aim::Primary(sync), Files { standby: false, ..files });
        postmaster.reload();
        let slots = self.slots_of_members();
        let (socket, fence) = (self.place.socket.clone(), self.fence.clone());
        self.begin(Job::Promote, None, async move {
            JobEnd::Promoted(promotion(&socket, &fence, &names, &slots, target).await)
        });
        Ok(())
    }

    /// Slots of the members that will follow, so that none has to wait for its own.
    fn slots_of_members(&self) -> Vec<String> {
        let rule = self.register().and_then(|register| register.rule());
        rule.map(|rule| rule.members.iter().map(|member| slots::of(member)).collect()).unwrap_or_default()
    }

    /// What commits wait for, by the present rule and who has joined. None where this agent holds no Lease, or does not any more.
    pub(super) fn sync_setting(&self) -> Option<SyncSetting> {
        let (register, terms, tenure) = (self.register()?, self.terms.as_ref()?, self.tenure.as_ref()?);
        if !rules::are_of(register, &self.me.holder(), tenure.term) {
            return None;
        }
        let joined = self.members.joined(register, &terms.instances, boottime());
        register.rule().map(|rule| rules::setting(rule, &joined))
    }

    pub(super) fn start_primary(&mut self) -> Result<(), Error> {
        self.give_way();
        let (Some(config), Some(sync)) = (&self.config, self.sync_setting()) else { return Ok(()) };
        // It stands in the configuration before the first connection: not even the first commit is alone.
        let aim = Aim::Primary(sync);
        let chosen = self.chosen(config);
        let full = self.rooms.full.is_some();
        let files = self.place.files(config, &chosen, &aim, full)?;
        self.place.write(&files)?;
        self.duties.wrote(chosen, &aim, files);
        tracing::info!("starts PostgreSQL as the primary");
        let fence = self.fence.clone();
        self.launch(Job::StartPrimary, None, move || fence.open())
    }

    pub(super) fn start_standby(&mut self, source: Option<Source>) -> Result<(), Error> {
        self.give_way();
        let Some(config) = &self.config else { return Ok(()) };
        let aim = self.standby_aim(source.clone());
        let chosen = self.chosen(config);
        let full = self.rooms.full.is_some();
        let files = self.place.files(config, &chosen, &aim, full)?;
        self.place.write(&files)?;
        self.duties.wrote(chosen, &aim, files);
        if let Data::Present(member) = &self.data {
            forget_reserved(&self.place.layout.pgdata(), member.timeline)?;
        }
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
                    if accepts_sessions(&pgdata) && socket.open("postgres").await.is_ok()
                        || job == Job::StartStandby && pgdata.join("postmaster.pid").exists()
                    {
                        return Ok(());
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            let outcome = tokio::select! {
                biased;
                status = postmaster.wait() => Err(Error::Program {
                    program: "PostgreSQL".into(),
                    outcome: format!(
                        "ended while it started ({}): {}",
                        status.map_or_else(|| "?".into(), |status| status.to_string()),
                        postmaster.complaint()
                    ),
                }),
                outcome = ready => outcome,
            };
            JobEnd::Started(outcome)
        });
        Ok(())
    }

    pub(super) fn stop(&mut self) {
        let Some(postmaster) = self.postmaster.clone() else {
            self.engine = EngineState::Stopped;
            return;
        };
        let primary = matches!(self.engine, EngineState::Primary);
        self.give_way();
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

    pub(super) fn restart_postgres(&mut self, id: String) -> Result<bool, Error> {
        match self.engine {
            EngineState::Primary | EngineState::Standby { .. } => {
                self.remember(|state| state.restarted_for = Some(id))?;
                self.restart = None;
                self.restarting = true;
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
    pub(super) async fn give_up_what_is_begun(&mut self) {
        match self.job.as_ref().map(|task| task.job) {
            Some(Job::Bootstrap | Job::Clone | Job::Rewind) => {
                self.job = None;
                kill(&self.processes).await;
                self.engine = EngineState::Stopped;
            }
            Some(Job::StartPrimary | Job::StartStandby | Job::Promote) => {
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
}

/// Waits until the agent of the holder says that PostgreSQL takes writes, but not for ever: it may be unreachable for us
/// while PostgreSQL is not.
async fn wait_for_primary(peers: &Peers, source: &Source) {
    let end = boottime() + FIRST_WORD;
    while boottime() < end {
        let heard = peers.ask(vec![source.instance.clone()]).await;
        if heard.iter().any(|heard| heard.report.phase == Phase::Primary && heard.report.term == source.term) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(150)).await;
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

/// Promotes the running standby, and has seen it take writes on this timeline.
async fn promotion(socket: &Socket, fence: &Fence, names: &str, slots: &[String], timeline: u32) -> Result<u32, Error> {
    let end = tokio::time::Instant::now() + PROMOTION;
    let late = || Error::Timeout("the promotion".into());
    let session = loop {
        // A session has the configuration that the postmaster had when it was opened.
        let session = socket.open("postgres").await?;
        if session.setting("synchronous_standby_names").await? == names {
            break session;
        }
        if tokio::time::Instant::now() >= end {
            return Err(late());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    // A query in conflict with the replay would hold it up.
    session.terminate_clients().await?;
    let present = session.slots().await?;
    for slot in slots.iter().filter(|name| !present.iter().any(|slot| slot.name == **name)) {
        session.create_slot(slot).await?;
    }
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
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
