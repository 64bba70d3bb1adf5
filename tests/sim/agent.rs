//! The agent's shell, as ELECTION-NOTES.md specifies it: what it keeps, and its loop.

use std::collections::BTreeMap;

use hello_operator::core::election::mutation::{Mutation, active};
use hello_operator::core::election::{
    Answer, Ballot, Boot, Data, Ending, EngineState, History, Identity, Job, Joined, LeaseStep, Member, Register, Rule,
    Seen, Source, Tenure, Terms, View, engine_step, hold, lease_step, vote,
};

use super::api::Request;
use super::world::{Event, Message, Ms, World};

/// What one start of an agent keeps in memory.
pub struct Agent {
    pub start: u64,
    pub me: Identity,
    pub container: String,
    pub lease: Option<Seen>,
    pub tenure: Option<Tenure>,
    pub terms: Option<Terms>,
    pub bound_until: Option<Boot>,
    pub ballot: Option<Ballot>,
    pub fork: Option<History>,
    pub asked_history: Boot,
    pub terminated: Option<String>,
    pub container_id: Option<String>,
    pub confirmed: Option<Rule>,
    pub stopping: bool,
    /// The Lease request under way: one at a time.
    pub asking: Option<Asking>,
    pub read_due: Boot,
    /// Writes of unknown outcome that are conditional on the version that was read last.
    pub unknown: Vec<Register>,
    pub campaign: Option<Campaign>,
    pub job: Option<Running>,
    /// The engine's position as the shell read it last.
    pub seen_end: (u32, usize),
    /// Whether that was read after it had replayed what it had.
    pub seen_all: bool,
    pub book: BTreeMap<String, Known>,
    pub book_term: i64,
    pub book_since: Boot,
    pub grants: BTreeMap<String, Boot>,
    pub generation: u64,
    pub asked_hold: Boot,
    pub freezes: Vec<(usize, String, u64)>,
    pub proof_of: super::confirm::Confirmation,
    /// A Lease read after the marker went (None: it did not go in this start).
    pub marker_gone: Option<Boot>,
    pub lease_read_sent: Boot,
    pub promise_made: Boot,
    pub routed: Boot,
    pub believes_stopped: bool,
    pub nudged: Ms,
}

#[derive(Debug, Clone, Default)]
pub struct Known {
    pub instance: String,
    pub confirmed: bool,
    pub marker: bool,
    pub last_streamed: Option<Boot>,
}

pub struct Asking {
    pub id: u64,
    pub kind: Kind,
    pub sent: Boot,
}

pub enum Kind {
    Read,
    Campaign(String),
    Write(Box<Register>),
}

pub struct Campaign {
    pub version: String,
    pub round: u64,
    pub answers: Vec<Answer>,
    pub heard: usize,
    pub asked: usize,
}

pub struct Running {
    pub id: u64,
    pub job: Job,
    pub work: Work,
}

#[derive(Debug, Clone)]
pub enum Work {
    Bootstrap,
    Clone { from: usize, run: u64, member: String },
    StartPrimary,
    StartStandby(Option<Source>),
    Promote(u32),
    Rewind { from: usize, run: u64 },
    Stop { ship: bool },
    Follow(Option<Source>),
}

impl World {
    /// Runs `f` on what this node's agent knows.
    pub fn view<R>(&self, node: usize, f: impl FnOnce(&View<'_>) -> R) -> Option<R> {
        let machine = &self.nodes[node];
        let agent = machine.agent.as_ref()?;
        let engine = self.engine_state(node);
        let data = self.data(node);
        let joined = self.joined(node);
        let promise = machine.volume.state.promise.as_ref().filter(|_| !active(Mutation::FreezeSkipped));
        Some(f(&View {
            now: self.clock(node),
            me: &agent.me,
            lease: agent.lease.as_ref(),
            tenure: agent.tenure.as_ref(),
            terms: agent.terms.as_ref(),
            data: &data,
            engine: &engine,
            joined: &joined,
            promise,
            bound_until: agent.bound_until,
            ballot: agent.ballot.as_ref(),
            fork: agent.fork.as_ref(),
            terminated: agent.terminated.as_deref(),
            container_id: agent.container_id.as_deref(),
            confirmed: agent.confirmed.as_ref(),
            cannot_follow: machine.cannot_follow,
            restarting: false,
            stopping: agent.stopping,
        }))
    }

    /// PID 1 of a container starts.
    pub fn start_container(&mut self, node: usize) {
        if self.nodes[node].agent.is_some() || !self.nodes[node].wanted && self.nodes[node].volume.dir.is_none() {
            return;
        }
        let start = self.id();
        let now = self.clock(node);
        let machine = &mut self.nodes[node];
        let container = format!("c{start}");
        machine.container = Some(container.clone());
        machine.armed = None;
        machine.tripped = false;
        let persisted = machine.volume.state.hold.filter(|_| !active(Mutation::HoldNotPersisted));
        let same_boot = persisted.is_some_and(|(boot, _)| boot == machine.boot_id);
        let bound = vote::bound_after_start(persisted.map(|(_, until)| until), same_boot, now, hold::HOLD);
        if active(Mutation::PromiseNotPersisted) {
            machine.volume.state.promise = None;
        }
        if machine.volume.state.unfinished {
            machine.volume.state.unfinished = false;
            machine.volume.state.hopeless = true;
        }
        let index = node + 1;
        machine.agent = Some(Agent {
            start,
            me: Identity {
                instance: machine.instance.clone(),
                pod_uid: machine.pod_uid.clone(),
                nonce: format!("n{start}"),
                address: format!("10.0.0.{index}"),
            },
            container: container.clone(),
            lease: None,
            tenure: None,
            terms: None,
            bound_until: Some(bound),
            ballot: None,
            fork: None,
            asked_history: Boot::ZERO,
            terminated: None,
            container_id: None,
            confirmed: None,
            stopping: false,
            asking: None,
            read_due: Boot::ZERO,
            unknown: Vec::new(),
            campaign: None,
            job: None,
            seen_end: (1, 0),
            seen_all: false,
            book: BTreeMap::new(),
            book_term: 0,
            book_since: now,
            grants: BTreeMap::new(),
            generation: 0,
            asked_hold: Boot::ZERO,
            freezes: Vec::new(),
            proof_of: super::confirm::Confirmation::default(),
            marker_gone: Some(now),
            lease_read_sent: Boot::ZERO,
            promise_made: now,
            routed: Boot::ZERO,
            believes_stopped: false,
            nudged: 0,
        });
        self.note(|w| format!("START  {} {container} {:?}", w.nodes[node].instance, w.nodes[node].volume.state));
        self.observe(node);
        self.after(200, 3_000, Event::Kubelet { node, running: Some(container), terminated: None });
        self.after(1, 50, Event::Tick { node, start });
    }

    pub fn on_tick(&mut self, node: usize, start: u64) {
        if self.nodes[node].agent.as_ref().is_none_or(|agent| agent.start != start) {
            return;
        }
        self.observe(node);
        self.tick(node);
        self.after(700, 1_000, Event::Tick { node, start });
    }

    /// The moment that was armed: the agent looks, and then the killer.
    pub fn on_deadline(&mut self, node: usize, start: u64) {
        if self.nodes[node].agent.as_ref().is_none_or(|agent| agent.start != start) {
            return;
        }
        let now = self.clock(node);
        let armed = self.nodes[node].armed;
        if armed.is_some_and(|deadline| deadline > now) {
            let at = self.real(node, armed.unwrap_or_default());
            self.at(at, Event::Deadline { node, start });
            return;
        }
        self.nodes[node].armed = None;
        if self.nodes[node].agent_frozen_until <= self.now {
            self.tick(node);
        }
        if self.nodes[node].armed.is_none()
            && !self.nodes[node].zombie
            && !active(Mutation::KillerUnarmed)
            && !active(Mutation::DeadlineDropped)
        {
            // Whatever it is: a standby may be about to be promoted by an agent that stands still.
            let frozen = self.nodes[node].agent_frozen_until > self.now;
            self.nodes[node].tripped = frozen;
            let there = self.nodes[node].pg.as_ref().is_some_and(|pg| !pg.killing && (pg.writable || frozen));
            if there {
                self.note(|w| format!("KILLER {}", w.nodes[node].instance));
                self.start_kill(node);
            }
        }
    }

    fn deadline(&self, node: usize) -> Option<Boot> {
        #[allow(
            clippy::redundant_closure_for_method_calls,
            reason = "the method is of one lifetime, the closure of all"
        )]
        self.view(node, |view| view.deadline()).flatten()
    }

    /// Tells the killer until when PostgreSQL may live.
    fn arm(&mut self, node: usize) {
        let deadline = self.deadline(node);
        let armed = self.nodes[node].armed;
        if let Some(deadline) = deadline
            && deadline > self.clock(node)
        {
            self.nodes[node].armed = Some(deadline);
            self.nodes[node].tripped = false;
            if armed.is_none_or(|armed| deadline < armed) {
                let start = self.nodes[node].agent.as_ref().map_or(0, |agent| agent.start);
                let at = self.real(node, deadline);
                self.at(at, Event::Deadline { node, start });
            }
        }
    }

    /// The agent's loop, once.
    pub fn tick(&mut self, node: usize) {
        if self.nodes[node].agent.is_none() {
            return;
        }
        self.check_pg_died(node);
        self.duties(node);
        self.lease_loop(node);
        for _ in 0..4 {
            let Some(step) = self.view(node, engine_step) else { return };
            if !self.perform(node, step) {
                break;
            }
        }
        self.arm(node);
        self.answer_freezes(node);
    }

    fn lease_loop(&mut self, node: usize) {
        let Some(agent) = self.nodes[node].agent.as_ref() else { return };
        if agent.asking.is_some() {
            return;
        }
        let now = self.clock(node);
        let read_due = agent.read_due <= now || agent.lease.is_none() || agent.terms.is_none();
        let holder = agent.tenure.is_some();
        let unsure = !agent.unknown.is_empty();
        if read_due && (unsure || !holder) {
            self.ask(node, Kind::Read);
            return;
        }
        let Some(step) = self.view(node, lease_step) else { return };
        self.write_step(node, step);
    }

    /// Carries out what the core says of the register.
    pub fn write_step(&mut self, node: usize, step: LeaseStep) {
        let now = self.clock(node);
        if let Some(agent) = self.nodes[node].agent.as_mut() {
            match &step {
                LeaseStep::Take(_) if active(Mutation::ProofBeforeTake) => {
                    let holder = agent.me.holder();
                    self.nodes[node].volume.state.proof = Some(holder);
                }
                LeaseStep::Renew(_) => {
                    if let Some(tenure) = &mut agent.tenure {
                        tenure.attempted = now;
                    }
                }
                LeaseStep::Release(register) => {
                    if let Some(tenure) = &mut agent.tenure
                        && tenure.ending.is_none()
                    {
                        let wish = register.release.as_ref().and_then(|release| release.wish.clone());
                        tenure.ending = Some(Ending { wish });
                    }
                }
                _ => {}
            }
        }
        match step {
            LeaseStep::Wait { .. } => {}
            LeaseStep::Campaign(version) => {
                let free = self.nodes[node].agent.as_ref().is_some_and(|agent| agent.campaign.is_none());
                if free {
                    self.ask(node, Kind::Campaign(version));
                }
            }
            LeaseStep::Take(register) | LeaseStep::Renew(register) | LeaseStep::Release(register) => {
                self.ask(node, Kind::Write(register));
            }
            LeaseStep::Lost => {
                self.note(|w| format!("lost   {}", w.nodes[node].instance));
                if let Some(agent) = self.nodes[node].agent.as_mut() {
                    agent.tenure = None;
                    agent.grants.clear();
                    agent.confirmed = None;
                }
            }
        }
    }

    fn ask(&mut self, node: usize, kind: Kind) {
        let id = self.id();
        let now = self.clock(node);
        let Some(agent) = self.nodes[node].agent.as_mut() else { return };
        let request = match &kind {
            Kind::Read | Kind::Campaign(_) => Request::Get,
            Kind::Write(register) => {
                let Some(seen) = &agent.lease else { return };
                if register.rules != seen.register.rules {
                    agent.generation += 1;
                    if !active(Mutation::HoldAfterRules) {
                        // The promises were counted for the former rules.
                        agent.grants.clear();
                        if let Some(tenure) = &mut agent.tenure {
                            tenure.held_until = None;
                        }
                    }
                }
                // From here on it counts as done and as not done.
                agent.unknown.push((**register).clone());
                let version = if active(Mutation::OtherVersionWritten) {
                    self.api.version.to_string()
                } else {
                    seen.version.clone()
                };
                Request::Put {
                    version,
                    register: register.clone(),
                    unconditional: active(Mutation::WriteUnconditional),
                }
            }
        };
        let promised = self.nodes[node].volume.state.promise.is_some();
        if let Some(agent) = self.nodes[node].agent.as_mut() {
            agent.read_due = now + std::time::Duration::from_millis(if promised { 400 } else { 1_200 });
            agent.asking = Some(Asking { id, kind, sent: now });
        }
        self.request(node, id, request);
    }

    /// What is on the volume, as the core wants it.
    pub fn data(&self, node: usize) -> Data {
        let machine = &self.nodes[node];
        let volume = &machine.volume;
        let Some(dir) = &volume.dir else {
            return match &volume.staged {
                Some((member, dir)) => {
                    Data::Staged { system_id: dir.system.clone(), member: member.clone(), timeline: dir.timeline() }
                }
                None => Data::Empty,
            };
        };
        let replaying = machine.pg.as_ref().is_some_and(|pg| pg.replaying_until > self.now);
        let running = machine.pg.as_ref().is_some_and(|pg| !pg.killing);
        let (mut timeline, mut end) = machine.agent.as_ref().map_or((1, 0), |agent| agent.seen_end);
        // A copy that has not reached its consistent point counts as being there: its pages may be.
        if !dir.consistent() {
            (timeline, end) = dir.consistent_at;
        }
        let history = dir.forks().into_iter().map(|(id, _)| id).filter(|id| *id <= timeline).collect();
        Data::Present(Member {
            id: volume.state.member.clone(),
            system_id: dir.system.clone(),
            proof: volume.state.proof.clone(),
            marker: volume.state.marker,
            standby: dir.standby,
            end_known: if running {
                !replaying && machine.agent.as_ref().is_some_and(|agent| agent.seen_all)
            } else {
                dir.clean || !dir.consistent()
            },
            history,
            hopeless: volume.state.hopeless,
            timeline,
            end: hello_operator::api::agent::Lsn(end as u64),
        })
    }

    pub fn engine_state(&self, node: usize) -> EngineState {
        let machine = &self.nodes[node];
        if let Some(running) = machine.agent.as_ref().and_then(|agent| agent.job.as_ref()) {
            return EngineState::Busy(running.job);
        }
        match &machine.pg {
            None => EngineState::Stopped,
            Some(_) if machine.agent.as_ref().is_some_and(|agent| agent.believes_stopped) => EngineState::Stopped,
            Some(pg) if pg.killing => EngineState::Busy(Job::StopStandby),
            Some(pg) if pg.writable => EngineState::Primary,
            Some(pg) => EngineState::Standby { source: pg.source.clone(), replaying: pg.replaying_until > self.now },
        }
    }

    /// The holder's book, as the rules want it.
    pub fn joined(&self, node: usize) -> Vec<Joined> {
        let machine = &self.nodes[node];
        let Some(agent) = &machine.agent else { return Vec::new() };
        if agent.tenure.is_none() {
            return Vec::new();
        }
        let (Some(seen), Some(terms)) = (&agent.lease, &agent.terms) else { return Vec::new() };
        let now = self.clock(node);
        let streaming: Vec<&str> = self
            .walsenders(node)
            .into_iter()
            .filter(|c| self.conns[*c].flush > 0)
            .map(|c| self.conns[c].name.as_str())
            .collect();
        let known = agent.book.iter().map(|(id, known)| (id.as_str(), known.clone()));
        let unknown = seen.register.ruled_members().into_iter().filter(|id| !agent.book.contains_key(*id)).map(|id| {
            let instance = id.rsplit_once('-').map_or(id, |(instance, _)| instance).to_owned();
            (id, Known { instance, ..Known::default() })
        });
        known
            .chain(unknown)
            .map(|(id, known)| {
                let streams = streaming.contains(&id);
                Joined {
                    leaving: !terms.instances.contains(&known.instance),
                    instance: known.instance,
                    member: id.to_owned(),
                    confirmed: known.confirmed,
                    marker: known.marker,
                    streaming: streams,
                    gone_for: if streams {
                        0
                    } else {
                        now.saturating_sub(known.last_streamed.unwrap_or(agent.book_since)).as_secs()
                    },
                }
            })
            .collect()
    }

    pub fn node_of(&self, instance: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.instance == instance)
    }

    pub fn tell_holder(&mut self, node: usize) {
        let report = self.view(node, |view| {
            let seen = view.lease?;
            let EngineState::Standby { source: Some(source), .. } = view.engine else { return None };
            let Data::Present(member) = view.data else { return None };
            (member.timeline == seen.register.timeline && source.term == seen.register.term).then(|| {
                (
                    source.instance.clone(),
                    Message::Report {
                        instance: view.me.instance.clone(),
                        member: member.id.clone(),
                        term: source.term,
                        marker: member.marker,
                    },
                )
            })
        });
        if let Some((instance, message)) = report.flatten()
            && let Some(holder) = self.node_of(&instance)
        {
            self.send(node, holder, message);
        }
    }
}
