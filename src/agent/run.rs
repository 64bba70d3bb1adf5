//! The agent's one loop: what happened comes in as events, `core::election` says what to do, and the rest carries it out.
//!
//! Nothing here waits for PostgreSQL, for another agent or for the API server: each of these is a task that ends in an
//! event. So renewals, the deadline and commands go on whatever hangs.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ContainerStatus;
use opentelemetry::Context;
use opentelemetry::context::FutureExt;
use opentelemetry::trace::TraceContextExt;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::Error;
use super::backups::Backups;
use super::commands::{Command, Switchover};
use super::conf::Place;
use super::configure::Reread;
use super::election::{Elections, FreezeAnswer};
use super::endpoints::{Endpoints, Routes};
use super::fence::Fence;
use super::files::Fingerprint;
use super::holds::{HoldReply, Holds};
use super::job_end::JobEnd;
use super::jobs::JobTask;
use super::lease::{LeaseApi, Written};
use super::members::Members;
use super::observe::Observation;
use super::peers::{Heard, Peers};
use super::postmaster::Postmaster;
use super::probe::Verdict;
use super::process::{Processes, boottime};
use super::report::Shared;
use super::room::Rooms;
use super::spans::Spans;
use super::steps::Look;
use super::tenure::{Containers, Write};
use super::tls::Tls;
use super::volume::{Chosen, State, VolumeLock};
use crate::api::agent::{HandOver, HandOverReason, HoldAnswer, HoldRequest, Lsn};
use crate::api::archive::{BackupEnd, CatalogReport};
use crate::api::config::ClusterConfig;
use crate::core::election::planned::wish;
use crate::core::election::{Answer, Boot, Data, EngineState, Identity, Register, Rule, Seen, Tenure, Terms, View};
use crate::core::quantity;
use crate::engine::postgres::control::Critical;

/// The loop turns at least this often.
const TICK: Duration = Duration::from_millis(500);
/// After SIGTERM, the agent ends after this long even if it could not release the Lease.
const END: Duration = Duration::from_secs(55);
/// It looks again no sooner than this, whatever it waits for.
const SOONEST: Duration = Duration::from_millis(10);

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// The watch showed the Lease.
    LeaseSeen(Box<Lease>),
    /// A read of the Lease ended.
    LeaseRead(Boot, Result<Option<Box<Lease>>, Error>),
    /// A write of the Lease ended: what it was, when it was sent, how it ended.
    LeaseWritten(Write, Boot, Written),
    /// The watch showed the configuration.
    Config(Result<Box<ClusterConfig>, Error>),
    /// The job on PostgreSQL with this number ended.
    Job(u64, Box<JobEnd>),
    /// PostgreSQL said what it does, or that it accepts no sessions yet, or did not answer.
    Observed(Result<Option<Box<Observation>>, Error>),
    /// Another agent answered what it does, or did not, in this term.
    Heard(String, Option<Box<Heard>>, i64),
    /// A proof of a sync rule ended.
    Confirmed(Rule, String, Result<bool, Error>),
    /// PostgreSQL has read its configuration again.
    Reloaded(Chosen, Result<Reread, Error>),
    /// What the control file says of the primary's settings.
    Floor(Result<Critical, Error>),
    /// The slots were looked after.
    Slots(Result<(), Error>),
    /// The EndpointSlices were looked after.
    Routed(Routes, Result<(), Error>),
    /// The passwords were set.
    Passwords(Fingerprint, Result<(), Error>),
    /// A candidate asks to freeze on this version of the Lease.
    Freeze(String, oneshot::Sender<FreezeAnswer>),
    /// Another member answered this agent's own freeze on this version, or did not.
    Answered(String, Option<Box<Answer>>),
    /// The standstill with this number: timeline and end of the WAL.
    StoodStill(u64, Result<(u32, Lsn), Error>),
    /// The holder answered, or did not.
    HolderSaid(Option<Box<Heard>>),
    /// The holder asks for a hold.
    Hold(HoldRequest, oneshot::Sender<HoldReply>),
    /// A member promised a hold: for which rules, and when it was asked.
    Held(u64, Boot, HoldAnswer),
    /// The status of the database's container of an instance.
    Container(String, Result<Option<Box<ContainerStatus>>, Error>),
    /// A command came in, and the span of the request that brought it.
    Command(Command, Context),
    /// A base backup ended.
    BackupEnded(String, Box<BackupEnd>),
    /// The store was looked at.
    Catalog(Box<CatalogReport>),
    /// The reserve of a volume was made, or could not be.
    Reserved(Result<(), Error>),
    /// The volume was looked at.
    Looked(Look),
    /// What was killed has ended, or has not.
    Cleared(bool),
    /// A child ended, perhaps an orphan.
    Child,
    /// The agent shall end.
    Stop,
}

/// The agent.
pub(super) struct Agent {
    pub(super) namespace: String,
    pub(super) cluster: String,
    pub(super) backups: Backups,
    pub(super) me: Identity,
    pub(super) address: IpAddr,
    pub(super) place: Place,
    pub(super) lock: VolumeLock,
    pub(super) processes: Processes,
    pub(super) fence: Fence,
    pub(super) tls: Tls,
    pub(super) lease_api: LeaseApi,
    pub(super) peers: Peers,
    pub(super) endpoints: Endpoints,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) shared: Shared,

    /// The Lease as last read, and the register in it.
    pub(super) lease: Option<(Lease, Seen)>,
    /// A write is under way.
    pub(super) writing: bool,
    /// A read is under way.
    pub(super) reading: bool,
    /// When it is to be read next, at the latest and at the soonest.
    pub(super) read_due: Boot,
    pub(super) read_not_before: Boot,
    /// When the last read that succeeded was sent.
    pub(super) lease_read_sent: Boot,
    /// A write ended without an answer, or in a conflict: nothing is written before the Lease was read again.
    pub(super) doubtful: bool,
    /// Writes of unknown outcome that are conditional on the version that was read last.
    pub(super) unknown: Vec<Register>,
    /// A read is to confirm this version; then an election is held.
    pub(super) campaigns_on: Option<String>,
    pub(super) containers: Containers,
    /// When this agent began before, in milliseconds of wall time.
    pub(super) before: Option<i64>,
    /// The hand-over that this agent began or completed, for the Lease.
    pub(super) hand_over: Option<HandOver>,
    /// Why and since when this holder's tenure ends.
    pub(super) ends: Option<(HandOverReason, String)>,
    pub(super) elections: Elections,
    pub(super) holds: Holds,
    /// PostgreSQL was stopped on purpose, to be started again in place.
    pub(super) restarting: bool,
    /// The room on the volumes.
    pub(super) rooms: Rooms,
    /// Another primary was asked for.
    pub(super) switchover: Option<Switchover>,
    pub(super) tenure: Option<Tenure>,
    pub(super) config: Option<ClusterConfig>,
    pub(super) terms: Option<Terms>,
    pub(super) state: State,
    pub(super) data: Data,
    pub(super) critical: Option<Critical>,
    pub(super) engine: EngineState,
    pub(super) postmaster: Option<Postmaster>,
    pub(super) job: Option<JobTask>,
    pub(super) jobs_begun: u64,
    /// After a failure, no job begins before this moment.
    pub(super) not_before: Boot,
    pub(super) failures: u32,
    pub(super) cannot_follow: bool,
    /// Why this copy cannot follow any more.
    pub(super) given_up: Option<String>,
    /// When this replica was last cloned again because it could not follow.
    pub(super) cloned_again: Option<Boot>,
    pub(super) members: Members,
    pub(super) observation: Option<Observation>,
    pub(super) duties: super::duties::Duties,
    pub(super) spans: Spans,
    pub(super) stopping: Option<Boot>,
    pub(super) released: bool,
    pub(super) restart: Option<String>,
    /// What is wrong or what is awaited, for people: of the loop, and of PostgreSQL.
    pub(super) waits: Option<String>,
    pub(super) trouble: Option<String>,
    /// Why nothing can be done with this data.
    pub(super) refusal: Option<String>,
    /// The configuration of this generation is not accepted by PostgreSQL; this is why.
    pub(super) rejected: Option<(i64, String)>,
    /// How PostgreSQL, its disks and its data are.
    pub(super) health: watch::Receiver<Verdict>,
    /// Processes of PostgreSQL are left that were killed and cannot end yet.
    pub(super) doomed: bool,
    /// The volume is looked at.
    pub(super) looking: bool,
    pub(super) running: watch::Sender<bool>,
    pub(super) eager: watch::Sender<bool>,
    /// It looks again after this even if nothing happens.
    pub(super) wake: Option<Duration>,
}

/// Something that was not there before: names a start, or a member.
pub(super) fn random_word() -> String {
    format!("{:08x}", rand::random::<u32>())
}

impl Agent {
    /// Turns until it is told to end, and everything is in order.
    pub(super) async fn run(mut self, mut inbox: mpsc::Receiver<Event>) {
        loop {
            let wait = self.wake.take().unwrap_or(TICK);
            tokio::select! {
                event = inbox.recv() => if let Some(event) = event { self.take_in_traced(event).await },
                () = tokio::time::sleep(wait) => {}
            }
            // What came in meanwhile belongs to the same turn.
            while let Ok(event) = inbox.try_recv() {
                self.take_in_traced(event).await;
            }
            let trace = self.trace();
            self.turn().with_context(trace).await;
            if self.at_end() {
                tracing::info!(released = self.released, "the agent ends");
                self.spans.traces.shutdown().await;
                return;
            }
        }
    }

    /// One turn: what do the facts ask for?
    async fn turn(&mut self) {
        self.look_at_room();
        self.notice_end_of_postgres().await;
        self.notice_illness().await;
        self.look_if_unknown();
        self.read_lease_if_due();
        self.step_lease();
        self.step_engine().await;
        // What the engine's step changed may be worth a write at once.
        self.step_lease();
        self.stand_still();
        self.answer_freezes();
        self.ask_holder();
        self.return_marker();
        self.ask_holds();
        self.look_at_containers();
        self.do_duties();
        self.publish();
        let _ = self.running.send_if_modified(|running| {
            let runs = self.postmaster.as_ref().is_some_and(|postmaster| postmaster.ended().is_none());
            std::mem::replace(running, runs) != runs
        });
    }

    /// Asks a pure function with everything that is known now.
    pub(super) fn decide<T>(&self, function: impl FnOnce(&View<'_>) -> T) -> T {
        let now = boottime();
        let joined = match (&self.tenure, &self.lease, &self.terms) {
            (Some(_), Some((_, seen)), Some(terms)) => self.members.joined(&seen.register, &terms.instances, now),
            _ => Vec::new(),
        };
        let asked = self.switchover.as_ref().map(|asked| asked.to.as_str());
        let terms = self.terms.as_ref().map(|terms| Terms {
            primary: wish(asked, terms.primary.as_deref(), &self.members.full()),
            ..terms.clone()
        });
        function(&View {
            now,
            me: &self.me,
            lease: self.lease.as_ref().map(|(_, seen)| seen),
            tenure: self.tenure.as_ref(),
            terms: terms.as_ref(),
            data: &self.data,
            engine: &self.engine,
            joined: &joined,
            promise: self.state.promise.as_ref(),
            bound_until: Some(self.holds.bound_until),
            ballot: self.elections.ballot.as_ref(),
            fork: self.elections.fork.as_ref(),
            terminated: self.containers.terminated.as_deref(),
            container_id: self.containers.own.as_deref(),
            confirmed: self.duties.confirmed(),
            cannot_follow: self.cannot_follow,
            restarting: self.restarting,
            stopping: self.stopping.is_some(),
        })
    }

    /// The register as last read.
    pub(super) fn register(&self) -> Option<&Register> {
        self.lease.as_ref().map(|(_, seen)| &seen.register)
    }

    /// Lines of the log that belong to a hand-over name its trace.
    async fn take_in_traced(&mut self, event: Event) {
        let trace = self.trace();
        self.take_in(event).with_context(trace).await;
    }

    async fn take_in(&mut self, event: Event) {
        match event {
            Event::LeaseSeen(lease) => self.watched(*lease),
            Event::LeaseRead(sent, outcome) => self.lease_was_read(sent, outcome),
            Event::Freeze(version, answer) => self.asked_to_freeze(&version, answer),
            Event::Answered(version, answer) => self.answered(&version, answer),
            Event::StoodStill(serial, outcome) => self.stood_still(serial, outcome),
            Event::HolderSaid(heard) => self.holder_said(heard),
            Event::Hold(question, answer) => self.asked_to_hold(&question, answer),
            Event::Held(generation, sent, answer) => self.held(generation, sent, answer),
            Event::Container(instance, status) => self.saw_container(&instance, status),
            Event::LeaseWritten(write, sent, outcome) => self.lease_was_written(write, sent, outcome),
            Event::Config(Ok(config)) => self.configured(*config),
            Event::Config(Err(error)) => self.waits = Some(error.to_string()),
            Event::Job(serial, end) => self.job_ended(serial, *end).await,
            Event::Looked(look) => self.looked(look),
            Event::Reserved(outcome) => self.reserved(&outcome),
            Event::Cleared(complete) => self.cleared(complete),
            Event::Child => self.processes.reap_orphans(),
            Event::Stop => {
                if self.stopping.is_none() {
                    tracing::info!("asked to end");
                    self.stopping = Some(boottime());
                    self.tenure_ends(HandOverReason::Shutdown);
                }
            }
            Event::Command(command, context) => {
                let _traced = context.span().span_context().is_valid().then(|| context.attach());
                self.command(command);
            }
            Event::BackupEnded(id, end) => self.backup_ended(&id, *end),
            Event::Catalog(report) => self.looked_at_store(*report),
            other => self.duty_ended(other),
        }
    }

    fn configured(&mut self, config: ClusterConfig) {
        let terms = Terms {
            instances: config.instances.clone(),
            durability: config.durability,
            k: u32::try_from(config.sync_replicas).unwrap_or(1),
            bounds: config.lease,
            failover: config.spec.failover.enabled,
            max_lag: quantity::parse(&config.spec.failover.max_lag_bytes.0)
                .and_then(|bytes| u64::try_from(bytes).ok())
                .unwrap_or(0),
            primary: config.spec.primary.clone(),
            accept_loss: config.accept_loss,
        };
        if self.config.as_ref().is_none_or(|present| present.generation != config.generation) {
            tracing::info!(generation = config.generation, "new configuration");
        }
        if self.rejected.as_ref().is_some_and(|(generation, _)| *generation != config.generation) {
            self.rejected = None;
        }
        self.members.wanted(&terms.instances);
        self.spans.traces.follow(config.traces.as_ref());
        self.terms = Some(terms);
        self.config = Some(config);
    }

    /// Looks again after this at the latest.
    pub(super) fn wake_after(&mut self, pause: Duration) {
        let pause = pause.max(SOONEST);
        self.wake = Some(self.wake.map_or(pause, |wake| wake.min(pause)).min(TICK));
    }

    /// Notes why and when the tenure began to end, once.
    pub(super) fn tenure_ends(&mut self, reason: HandOverReason) {
        if self.tenure.is_some() && self.ends.is_none() {
            self.ends = Some((reason, super::tenure::now()));
        }
    }

    fn at_end(&self) -> bool {
        let Some(since) = self.stopping else { return false };
        let stopped = self.engine == EngineState::Stopped && self.job.is_none();
        stopped && (self.tenure.is_none() || self.released) && !self.writing || boottime().saturating_sub(since) >= END
    }
}

/// The sync rules for people.
pub(super) fn show(rules: &[Rule]) -> String {
    rules.iter().map(ToString::to_string).collect::<Vec<_>>().join(", then ")
}

/// A task that ends with its owner.
#[derive(Debug)]
pub(super) struct Task(pub(super) JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
