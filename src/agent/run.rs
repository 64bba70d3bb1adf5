//! The agent's one loop: what happened comes in as events, `core::election` says what to do, and the rest carries it out.
//!
//! Nothing here waits for PostgreSQL, for another agent or for the API server: each of these is a task that ends in an
//! event. So renewals, the deadline and commands go on whatever hangs.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::Error;
use super::conf::Place;
use super::election::{Elections, FreezeAnswer};
use super::endpoints::{Endpoints, Routes};
use super::fence::Fence;
use super::files::{Fingerprint, Secrets};
use super::lease::{LeaseApi, Written, watch as watch_api};
use super::members::Members;
use super::observe::{Observation, observe};
use super::peers::{Heard, Peers};
use super::postmaster::Postmaster;
use super::process::{Processes, boottime};
use super::report::Shared;
use super::sql::Socket;
use super::steps::{JobEnd, JobTask};
use super::tls::Tls;
use super::volume::{Layout, State, VolumeLock};
use crate::api::agent::{ClusterConfig, CommandAnswer, LeaveCommand, Lsn, RestartCommand};
use crate::api::names::{Names, PORT_AGENT, PORT_HEALTH, PORT_POSTGRES, SECRETS_MOUNT, SOCKET_DIR};
use crate::config::AgentArgs;
use crate::core::election::{
    Answer, Boot, Data, Ending, EngineState, Identity, LeaseStep, Register, Rule, Seen, Tenure, Terms, View, lease_step,
};
use crate::engine::postgres::control::Critical;

/// The loop turns at least this often.
const TICK: Duration = Duration::from_millis(500);
/// After SIGTERM, the agent ends after this long even if it could not release the Lease.
const END: Duration = Duration::from_secs(55);
/// With `Async`: how many bytes behind the last known position a new primary may be.
const MAX_LAG: u64 = 16 << 20;
/// A replica reads the Lease this often even if its watch is silent.
const READ_EVERY: Duration = Duration::from_secs(10);

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
    /// PostgreSQL said what it does, or did not answer.
    Observed(Result<Box<Observation>, Error>),
    /// The other agents answered.
    Heard(Vec<Heard>, Vec<String>, i64),
    /// A proof of a sync rule ended.
    Confirmed(Rule, String, Result<bool, Error>),
    /// PostgreSQL has read the configuration of this generation again; these settings wait for a restart.
    Reloaded(i64, Result<Vec<String>, Error>),
    /// The slots were looked after.
    Slots(Result<(), Error>),
    /// The EndpointSlices were looked after.
    Routed(Routes, Result<(), Error>),
    /// The passwords were set.
    Passwords(Fingerprint, Result<(), Error>),
    /// A candidate asks to freeze on this version of the Lease.
    Freeze(String, oneshot::Sender<FreezeAnswer>),
    /// Another member answered this agent's own freeze on this version, or did not.
    Answered(String, Option<Answer>),
    /// This standby stands still: timeline and end of its WAL.
    StoodStill(Result<(u32, Lsn), Error>),
    /// The holder answered, or did not.
    HolderSaid(Option<Heard>),
    /// A command came in.
    Command(Command),
    /// A child ended, perhaps an orphan.
    Child,
    /// The agent shall end.
    Stop,
}

/// Which write of the Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// The take of this term.
    Take(i64),
    /// A renewal.
    Renew,
    /// The release.
    Release,
}

/// A command with where to answer.
#[derive(Debug)]
pub enum Command {
    /// Restart PostgreSQL in place.
    Restart(RestartCommand, oneshot::Sender<Result<CommandAnswer, String>>),
    /// An instance is removed.
    Leave(LeaveCommand, oneshot::Sender<Result<CommandAnswer, String>>),
}

/// The agent.
pub(super) struct Agent {
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
    /// When it was read last.
    pub(super) read_at: Boot,
    /// A write ended without an answer, or in a conflict: nothing is written before the Lease was read again.
    pub(super) doubtful: bool,
    /// A take without an answer: term, and when it was first sent.
    pub(super) attempt: Option<(i64, Boot)>,
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
    /// When a replica was last discarded because it could not follow.
    pub(super) discarded: Option<Boot>,
    pub(super) members: Members,
    pub(super) observation: Option<Observation>,
    pub(super) duties: super::duties::Duties,
    pub(super) elections: Elections,
    pub(super) stopping: Option<Boot>,
    pub(super) released: bool,
    pub(super) restart: Option<String>,
    /// What is wrong or what is awaited, for people: of the loop, and of PostgreSQL.
    pub(super) waits: Option<String>,
    pub(super) trouble: Option<String>,
    pub(super) running: watch::Sender<bool>,
    pub(super) eager: watch::Sender<bool>,
}

/// Runs the agent until it is told to end and everything is in order, or something is so broken that a fresh start in the
/// same Pod is the better way.
pub async fn run(args: AgentArgs) -> Result<(), Error> {
    let processes = Processes::new()?;
    let names = Names::new(&args.cluster);
    let secrets = Secrets::new(SECRETS_MOUNT);
    let layout = Layout::new(&args.data, args.wal.clone());
    let socket = Socket::new(SOCKET_DIR, PORT_POSTGRES);
    let me = Identity {
        instance: args.instance.clone(),
        pod_uid: args.pod_uid.clone(),
        nonce: random_word(),
        address: args.address.to_string(),
    };
    tracing::info!(instance = %me.instance, nonce = %me.nonce, version = env!("CARGO_PKG_VERSION"), "the agent begins");
    let shared = Shared::new(super::duties::first_report(&me));
    let (events, mut inbox) = mpsc::channel(64);
    // Health first: the kubelet must be able to see an agent that waits for its volume.
    let health = crate::telemetry::health::Server::bind(
        SocketAddr::new(unspecified(args.address), PORT_HEALTH),
        &shared.health(),
        {
            let shared = shared.clone();
            move || shared.metrics()
        },
    )
    .await
    .map_err(|error| Error::Invalid { what: "the address of the health endpoints", message: error.to_string() })?;
    tokio::spawn(health.serve(std::future::pending()));

    let lock = take_volume(&layout, &shared).await?;
    let fence = Fence::start(processes.clone())?;
    let client = client()?;
    let tls = Tls::load(&secrets)?;
    super::server::serve(
        SocketAddr::new(unspecified(args.address), PORT_AGENT),
        tls.clone(),
        shared.clone(),
        events.clone(),
    )
    .await?;
    let (running, running_seen) = watch::channel(false);
    let (eager, eager_seen) = watch::channel(true);
    tokio::spawn(observe(socket.clone(), running_seen, eager_seen, events.clone()));
    watch_api(client.clone(), &args.namespace, &names, &events);
    listen_to_signals(&events)?;

    let state = layout.settle(&lock)?;
    let place = Place { instance: args.instance.clone(), memory: args.memory_bytes, layout, socket, secrets };
    let mut agent = Agent {
        duties: super::duties::Duties::new(&place.secrets),
        lease_api: LeaseApi::new(client.clone(), &args.namespace, &names),
        peers: Peers::new(client.clone(), &args.namespace, tls.clone()),
        endpoints: Endpoints::new(client, &args.namespace, &names),
        me,
        address: args.address,
        place,
        lock,
        processes,
        fence,
        tls,
        events,
        shared,
        lease: None,
        writing: false,
        reading: false,
        read_at: Duration::ZERO,
        doubtful: false,
        attempt: None,
        tenure: None,
        config: None,
        terms: None,
        state,
        data: Data::Unknown,
        critical: None,
        engine: EngineState::Stopped,
        postmaster: None,
        job: None,
        jobs_begun: 0,
        not_before: Duration::ZERO,
        failures: 0,
        cannot_follow: false,
        discarded: None,
        members: Members::default(),
        observation: None,
        elections: Elections::new(),
        stopping: None,
        released: false,
        restart: None,
        waits: None,
        trouble: None,
        running,
        eager,
    };
    agent.look_at_volume().await?;
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            event = inbox.recv() => if let Some(event) = event { agent.take_in(event).await },
            _ = tick.tick() => {}
        }
        // What came in meanwhile belongs to the same turn.
        while let Ok(event) = inbox.try_recv() {
            agent.take_in(event).await;
        }
        agent.turn().await;
        if agent.at_end() {
            tracing::info!(released = agent.released, "the agent ends");
            return Ok(());
        }
    }
}

/// All addresses of the family that the Pod has.
fn unspecified(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Something that was not there before: names a start, or a member.
pub(super) fn random_word() -> String {
    format!("{:08x}", rand::random::<u32>())
}

fn client() -> Result<Client, Error> {
    let invalid = |message: String| Error::Invalid { what: "the Pod's access to the API server", message };
    let mut config = kube::Config::incluster().map_err(|error| invalid(error.to_string()))?;
    config.connect_timeout = Some(Duration::from_secs(3));
    // Longer than a watch lives; every other call has a shorter limit of its own.
    config.read_timeout = Some(Duration::from_secs(210));
    Client::try_from(config).map_err(|error| invalid(error.to_string()))
}

/// An agent of an earlier container of this Pod, or of a Pod that is still ending, may hold the volume for a moment.
async fn take_volume(layout: &Layout, shared: &Shared) -> Result<VolumeLock, Error> {
    loop {
        match layout.lock() {
            Err(error @ Error::Locked(_)) => {
                let mut report = shared.report();
                report.message = Some(error.to_string());
                shared.publish(report, None);
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            other => return other,
        }
    }
}

fn listen_to_signals(events: &mpsc::Sender<Event>) -> Result<(), Error> {
    let listen = |kind: SignalKind| signal(kind).map_err(Error::io("listen to signals", "/proc/self"));
    for (kind, event) in [
        (SignalKind::terminate(), (|| Event::Stop) as fn() -> Event),
        (SignalKind::interrupt(), || Event::Stop),
        (SignalKind::child(), || Event::Child),
    ] {
        let (mut stream, events) = (listen(kind)?, events.clone());
        tokio::spawn(async move {
            while stream.recv().await.is_some() {
                if events.send(event()).await.is_err() {
                    return;
                }
            }
        });
    }
    Ok(())
}

impl Agent {
    /// One turn: what do the facts ask for?
    async fn turn(&mut self) {
        self.notice_end_of_postgres().await;
        self.read_lease_if_due();
        self.step_lease();
        self.step_engine().await;
        // What the engine's step changed may be worth a write at once.
        self.step_lease();
        self.stand_still();
        self.answer_freezes();
        self.ask_holder();
        self.return_marker();
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
        function(&View {
            now,
            me: &self.me,
            lease: self.lease.as_ref().map(|(_, seen)| seen),
            tenure: self.tenure.as_ref(),
            terms: self.terms.as_ref(),
            data: &self.data,
            engine: &self.engine,
            joined: &joined,
            promise: self.state.promise.as_ref(),
            // Nobody asks for holds yet.
            bound_until: Some(Duration::ZERO),
            ballot: self.elections.ballot.as_ref(),
            fork: self.elections.fork.as_ref(),
            terminated: None,
            container_id: None,
            confirmed: self.duties.confirmed(),
            stopping: self.stopping.is_some(),
        })
    }

    /// The register as last read.
    pub(super) fn register(&self) -> Option<&Register> {
        self.lease.as_ref().map(|(_, seen)| &seen.register)
    }

    async fn take_in(&mut self, event: Event) {
        match event {
            Event::LeaseSeen(lease) => self.see(*lease, false),
            Event::LeaseRead(sent, outcome) => self.lease_was_read(sent, outcome),
            Event::Freeze(version, answer) => self.freeze(&version, Some(answer)),
            Event::Answered(version, answer) => self.answered(&version, answer),
            Event::StoodStill(outcome) => self.stood_still(outcome),
            Event::HolderSaid(heard) => self.holder_said(heard),
            Event::LeaseWritten(write, sent, outcome) => self.lease_was_written(write, sent, outcome),
            Event::Config(Ok(config)) => self.configured(*config),
            Event::Config(Err(error)) => self.waits = Some(error.to_string()),
            Event::Job(serial, end) => self.job_ended(serial, *end).await,
            Event::Child => self.processes.reap_orphans(),
            Event::Stop => {
                if self.stopping.is_none() {
                    tracing::info!("asked to end");
                    self.stopping = Some(boottime());
                }
            }
            Event::Command(Command::Restart(command, answer)) => {
                let _ = answer.send(self.restart(command));
            }
            Event::Command(Command::Leave(command, answer)) => {
                let _ = answer.send(self.leave(&command));
            }
            other => self.duty_ended(other),
        }
    }

    fn configured(&mut self, config: ClusterConfig) {
        let k = u32::try_from(config.sync_replicas).unwrap_or(1);
        let terms = Terms {
            instances: config.instances.clone(),
            durability: config.durability,
            k,
            bounds: config.lease,
            failover: true,
            max_lag: MAX_LAG,
            primary: None,
        };
        if self.config.as_ref().is_none_or(|present| present.generation != config.generation) {
            tracing::info!(generation = config.generation, "new configuration");
        }
        self.members.wanted(&terms.instances);
        self.terms = Some(terms);
        self.config = Some(config);
    }

    /// A version of the Lease: from the watch (which may be late), or read or written just now.
    fn see(&mut self, lease: Lease, certain: bool) {
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        if let Some((present, seen)) = &self.lease {
            let same_object = present.metadata.uid == lease.metadata.uid;
            let older = match (version.parse::<u64>(), seen.version.parse::<u64>()) {
                (Ok(new), Ok(old)) => new < old,
                _ => false,
            };
            if seen.version == version || (same_object && older && !certain) {
                return;
            }
        }
        match Register::from_lease(&lease) {
            Ok(register) => {
                let seen = Seen { register, version, since: boottime() };
                self.lease = Some((lease, seen));
                self.waits = None;
            }
            Err(error) => {
                self.waits = Some(error.to_string());
                // What cannot be understood is not what was known before: nothing is decided on it.
                if self.tenure.is_none() {
                    self.lease = None;
                }
            }
        }
    }

    fn read_lease_if_due(&mut self) {
        let age = boottime().saturating_sub(self.read_at);
        // A promise ends with a consistent read.
        let promised = self.state.promise.is_some() && age >= TICK;
        let due = self.doubtful || promised || age >= READ_EVERY && self.tenure.is_none();
        if self.reading || self.writing || !due {
            return;
        }
        // A read that fails is repeated, but not in a circle.
        if self.doubtful && boottime().saturating_sub(self.read_at) < TICK {
            return;
        }
        (self.reading, self.read_at) = (true, boottime());
        let (api, events, sent) = (self.lease_api.clone(), self.events.clone(), self.read_at);
        tokio::spawn(async move {
            let outcome = api.get().await.map(|lease| lease.map(Box::new));
            let _ = events.send(Event::LeaseRead(sent, outcome)).await;
        });
    }

    fn lease_was_read(&mut self, sent: Boot, outcome: Result<Option<Box<Lease>>, Error>) {
        self.reading = false;
        match outcome {
            Ok(Some(lease)) => {
                let version = lease.metadata.resource_version.clone().unwrap_or_default();
                self.see(*lease, true);
                self.lift_promise(&version, sent);
                self.doubtful = false;
                self.adopt_attempt();
            }
            // Absent is not released: what was known stays known, and cannot be written.
            Ok(None) => self.waits = Some("the Lease of the primary is gone: the operator makes it anew".into()),
            Err(error) => self.waits = Some(error.to_string()),
        }
    }

    /// A take of unknown outcome turns out to be done, or to be void.
    fn adopt_attempt(&mut self) {
        let (Some((term, sent)), Some(register)) = (self.attempt, self.register()) else { return };
        if register.holder == self.me.holder() && register.term == term && !register.released() {
            self.took(term, sent);
        } else if register.term >= term {
            self.attempt = None;
        }
    }

    fn took(&mut self, term: i64, sent: Boot) {
        tracing::info!(term, "took the Lease of the primary");
        self.attempt = None;
        self.tenure =
            Some(Tenure { term, renewed: sent, attempted: sent, held_until: None, served: false, ending: None });
        self.members.begin(boottime());
        self.duties.begin_term();
        self.arm_fence();
    }

    pub(super) fn arm_fence(&self) {
        match self.decide(|view| view.deadline()) {
            Some(deadline) => self.fence.arm(deadline),
            None => self.fence.disarm(),
        }
    }

    fn step_lease(&mut self) {
        if self.writing || self.doubtful || self.released {
            return;
        }
        let (write, register) = match self.decide(lease_step) {
            LeaseStep::Wait { why, .. } => {
                if self.tenure.is_none() {
                    self.waits = Some(why);
                }
                return;
            }
            LeaseStep::Read => {
                self.doubtful = true;
                return;
            }
            LeaseStep::Campaign(version) => {
                self.campaign(version);
                return;
            }
            LeaseStep::Lost => {
                tracing::warn!("the Lease of the primary is held by another now");
                self.tenure = None;
                self.fence.disarm();
                return;
            }
            LeaseStep::Take(register) => (Write::Take(register.term), register),
            LeaseStep::Renew(register) => (Write::Renew, register),
            LeaseStep::Release(register) => (Write::Release, register),
        };
        let (Some((lease, seen)), Some(terms)) = (&self.lease, &self.terms) else { return };
        let sent = boottime();
        if let Some(tenure) = &mut self.tenure {
            tenure.attempted = sent;
        }
        if let Write::Take(term) = write {
            let first = self.attempt.filter(|(attempted, _)| *attempted == term).map_or(sent, |(_, first)| first);
            self.attempt = Some((term, first));
        }
        if write == Write::Release
            && let Some(tenure) = &mut self.tenure
        {
            // Whatever becomes of it, this tenure ends: the write may arrive at any time.
            tenure.ending.get_or_insert(Ending { wish: None });
        }
        if write == Write::Renew && register.rules != seen.register.rules {
            tracing::info!(rules = %show(&register.rules), "the sync rules change");
        }
        let now = MicroTime(Timestamp::now());
        let lease = register.into_lease(lease.clone(), terms.bounds.duration, now);
        self.writing = true;
        let (api, events) = (self.lease_api.clone(), self.events.clone());
        tokio::spawn(async move {
            let outcome = api.replace(&lease).await;
            let _ = events.send(Event::LeaseWritten(write, sent, outcome)).await;
        });
    }

    fn lease_was_written(&mut self, write: Write, sent: Boot, outcome: Written) {
        self.writing = false;
        match outcome {
            Written::Done(lease) => {
                let version = lease.metadata.resource_version.clone().unwrap_or_default();
                self.see(*lease, true);
                self.lift_promise(&version, sent);
                match write {
                    Write::Take(term) => {
                        let sent = self.attempt.map_or(sent, |(_, first)| first);
                        self.took(term, sent);
                    }
                    Write::Renew => {
                        match &mut self.tenure {
                            Some(tenure) => tenure.renewed = sent,
                            // The take of which no answer came is this agent's after all.
                            None => {
                                if let Some(term) = self.register().map(|register| register.term) {
                                    self.took(term, sent);
                                }
                            }
                        }
                        self.arm_fence();
                    }
                    Write::Release => {
                        tracing::info!("released the Lease of the primary");
                        self.tenure = None;
                        self.released = self.stopping.is_some();
                        self.fence.disarm();
                    }
                }
            }
            Written::Conflict => self.doubtful = true,
            Written::Refused(error) | Written::Unknown(error) => {
                tracing::warn!(%error, category = error.category().as_str(), ?write, "the Lease was not written");
                self.waits = Some(error.to_string());
                self.doubtful = true;
            }
        }
    }

    fn restart(&mut self, command: RestartCommand) -> Result<CommandAnswer, String> {
        self.refuse_older(command.term)?;
        if self.state.restarted_for.as_deref() == Some(command.id.as_str()) {
            return Ok(CommandAnswer { done: true, message: "PostgreSQL was restarted".into() });
        }
        if self.restart.as_deref() != Some(command.id.as_str()) {
            tracing::info!(id = %command.id, reason = %command.reason, "a restart of PostgreSQL was asked for");
            self.restart = Some(command.id);
        }
        Ok(CommandAnswer { done: false, message: "PostgreSQL restarts".into() })
    }

    fn leave(&mut self, command: &LeaveCommand) -> Result<CommandAnswer, String> {
        self.refuse_older(command.term)?;
        if self.tenure.is_none() {
            return Err("this instance does not hold the Lease of the primary".into());
        }
        if command.instance == self.me.instance {
            return Err("the primary itself cannot leave".into());
        }
        self.members.leave(&command.instance);
        let Some(register) = self.register() else { return Err("the Lease is not known".into()) };
        let done = self.members.left(&command.instance, register);
        let message = if done {
            format!("no sync rule names {}", command.instance)
        } else {
            format!("{} is still named by a sync rule: {}", command.instance, show(&register.rules))
        };
        Ok(CommandAnswer { done, message })
    }

    fn refuse_older(&self, term: i64) -> Result<(), String> {
        let known = self.register().map_or(0, |register| register.term);
        if term < known { Err(format!("the command is of term {term}, and this is term {known}")) } else { Ok(()) }
    }

    fn at_end(&self) -> bool {
        let Some(since) = self.stopping else { return false };
        let stopped = self.engine == EngineState::Stopped && self.job.is_none();
        stopped && (self.tenure.is_none() || self.released) && !self.writing && self.attempt.is_none()
            || boottime().saturating_sub(since) >= END
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
