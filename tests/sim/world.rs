//! The world: real time, events, machines with their clocks, the network.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use hello_operator::core::election::mutation::{Mutation, active};
use hello_operator::core::election::{Answer, Boot, History, Register, Terms};

use super::agent::Agent;
use super::api::{Api, Reply, Request};
use super::check::Check;
use super::postgres::{Conn, Pg, Rec, Volume};
use super::rng::Rng;

/// Real time, in milliseconds.
pub type Ms = u64;

/// What agents say to each other.
#[derive(Debug, Clone)]
pub enum Message {
    Freeze { asker: usize, version: String, round: u64 },
    Frozen { round: u64, answer: Option<Answer> },
    Hold { asker: usize, holder: String, term: i64, sent: Boot, generation: u64 },
    Held { member: String, holder: String, sent: Boot, generation: u64 },
    Report { instance: String, member: String, term: i64, marker: bool },
    AskHistory { asker: usize },
    History { history: History },
}

#[derive(Debug)]
pub enum Event {
    Tick {
        node: usize,
        start: u64,
    },
    /// The agent looks again soon: a confirmation is under way.
    Nudge {
        node: usize,
        start: u64,
    },
    Deadline {
        node: usize,
        start: u64,
    },
    Request {
        from: usize,
        id: u64,
        request: Request,
    },
    Answered {
        to: usize,
        id: u64,
        reply: Reply,
    },
    RequestTimeout {
        to: usize,
        id: u64,
    },
    Peer {
        to: usize,
        message: Message,
    },
    BallotEnd {
        node: usize,
        round: u64,
    },
    JobDone {
        node: usize,
        job: u64,
    },
    Killed {
        node: usize,
        run: u64,
    },
    Write {
        node: usize,
    },
    Acknowledge {
        node: usize,
        run: u64,
        id: u32,
    },
    Connect {
        node: usize,
        run: u64,
    },
    Wal {
        conn: usize,
        records: Vec<Rec>,
    },
    Flush {
        conn: usize,
    },
    Confirmed {
        conn: usize,
        flush: usize,
        write: usize,
    },
    Pump {
        conn: usize,
    },
    Kubelet {
        node: usize,
        running: Option<String>,
        terminated: Option<String>,
    },
    StartContainer {
        node: usize,
    },
    EndPod {
        node: usize,
    },
    Fault,
    Strike {
        node: usize,
        what: u64,
        lasts: Ms,
    },
    FaultEnd {
        id: u64,
    },
    Look,
    /// A watch event of the Lease; it may be old.
    Watched {
        node: usize,
        version: String,
    },
}

struct Item {
    at: Ms,
    seq: u64,
    event: Event,
}

impl PartialEq for Item {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.seq) == (other.at, other.seq)
    }
}
impl Eq for Item {}
impl PartialOrd for Item {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Item {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.seq).cmp(&(other.at, other.seq))
    }
}

/// A machine with one Pod of the cluster, its volume, and what runs in it.
pub struct Node {
    pub instance: String,
    pub pod_uid: String,
    /// Clock: offset at boot, and how many thousandths it runs too fast.
    pub booted: Ms,
    pub offset: u64,
    pub skew: i64,
    pub boot_id: u32,
    /// Time that the machine slept since its boot (what a clock that stops would miss).
    pub slept: Ms,
    /// The whole container stands still until then.
    pub frozen_until: Ms,
    /// Only the agent's process stands still until then.
    pub agent_frozen_until: Ms,
    pub volume: Volume,
    pub container: Option<String>,
    pub agent: Option<Agent>,
    pub pg: Option<Pg>,
    /// The killer's deadline, on this machine's clock.
    pub armed: Option<Boot>,
    /// Replication to this machine is slow by up to so much.
    pub lag: Ms,
    /// Requests to the API server take up to so much longer.
    pub api_lag: Ms,
    /// The network may deliver this once more.
    pub old_freeze: Option<Message>,
    pub wanted: bool,
    /// Its killer and its clock are broken (worlds in which only S2 is asked for).
    pub zombie: bool,
    /// Its source has no longer the WAL that it needs.
    pub cannot_follow: bool,
    /// WAL before this is gone here.
    pub kept_from: usize,
    /// Until then what the holder asks it for is lost, while its PostgreSQL streams.
    pub deaf_until: Ms,
    /// Until then PostgreSQL cannot be killed.
    pub unkillable_until: Ms,
    /// The killer's deadline passed, and nobody has armed it again: it kills whatever PostgreSQL there is.
    pub tripped: bool,
    pub write_pending: bool,
}

/// Who reaches whom.
pub struct Net {
    pub cut: [[bool; 6]; 6],
    /// Messages of this and to this machine may be lost (percent), late, or come twice.
    pub loss: u64,
    pub late: u64,
    pub twice: u64,
}

/// The API server's place in the network.
pub const API: usize = 5;

pub struct World {
    pub now: Ms,
    seq: u64,
    queue: BinaryHeap<Reverse<Item>>,
    pub rng: Rng,
    pub api: Api,
    pub net: Net,
    pub nodes: Vec<Node>,
    pub conns: Vec<Conn>,
    pub terms: Terms,
    pub check: Check,
    pub story: super::adversary::Story,
    pub trace: Option<Vec<String>>,
    pub events: u64,
    next_id: u64,
}

impl World {
    pub fn new(seed: u64, trace: bool) -> Self {
        let mut rng = Rng::new(seed);
        let (story, terms) = super::adversary::Story::new(&mut rng);
        let mut world = Self {
            now: 0,
            seq: 0,
            queue: BinaryHeap::new(),
            api: Api::new(Register::initial(terms.instances.clone(), terms.durability), &terms),
            net: Net { cut: [[false; 6]; 6], loss: 0, late: 0, twice: 0 },
            nodes: Vec::new(),
            conns: Vec::new(),
            check: Check::default(),
            story,
            trace: trace.then(Vec::new),
            events: 0,
            next_id: 1,
            terms,
            rng,
        };
        for index in 0..world.story.machines {
            let node = Node {
                instance: format!("db-{}", index + 1),
                pod_uid: format!("u{index}"),
                booted: 0,
                offset: world.rng.range(50_000, 9_000_000),
                skew: world.rng.range(0, 20) as i64 - 10,
                boot_id: 0,
                slept: 0,
                frozen_until: 0,
                agent_frozen_until: 0,
                volume: Volume::default(),
                container: None,
                agent: None,
                pg: None,
                armed: None,
                lag: 0,
                api_lag: 0,
                old_freeze: None,
                wanted: index < world.terms.instances.len(),
                zombie: false,
                cannot_follow: false,
                kept_from: 0,
                deaf_until: 0,
                unkillable_until: 0,
                tripped: false,
                write_pending: false,
            };
            world.nodes.push(node);
            if world.nodes[index].wanted {
                let at = world.rng.range(0, 1500);
                world.at(at, Event::StartContainer { node: index });
            }
        }
        world.at(500, Event::Look);
        world
    }

    pub fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub fn at(&mut self, at: Ms, event: Event) {
        self.seq += 1;
        self.queue.push(Reverse(Item { at: at.max(self.now), seq: self.seq, event }));
    }

    pub fn after(&mut self, from: u64, to: u64, event: Event) {
        let delay = self.rng.range(from, to);
        self.at(self.now + delay, event);
    }

    pub fn note(&mut self, text: impl FnOnce(&Self) -> String) {
        if self.trace.is_some() {
            let line = format!("{:>7} {}", self.now, text(self));
            if let Some(trace) = &mut self.trace {
                trace.push(line);
            }
        }
    }

    /// How each agent sees it at the end.
    pub fn note_all(&mut self) {
        for node in 0..self.nodes.len() {
            let seen = self.view(node, |view| {
                format!(
                    "engine={:?} data={:?} lease=v{} tenure={:?} promise={:?} fork={:?} -> {:?} / {:?}",
                    view.engine,
                    view.data,
                    view.lease.map_or("?", |seen| &seen.version),
                    view.tenure,
                    view.promise,
                    view.fork,
                    hello_operator::core::election::engine_step(view),
                    hello_operator::core::election::lease_step(view),
                )
            });
            self.note(|w| format!("END    {} {}", w.nodes[node].instance, seen.unwrap_or_else(|| "no agent".into())));
        }
    }

    /// The machine's CLOCK_BOOTTIME.
    pub fn clock(&self, node: usize) -> Boot {
        let machine = &self.nodes[node];
        let mut elapsed = self.now - machine.booted;
        if active(Mutation::ClockSleeps) {
            elapsed -= machine.slept.min(elapsed);
        }
        Duration::from_millis(machine.offset + (elapsed as i64 * (1000 + machine.skew) / 1000) as u64)
    }

    /// When the machine's clock will show this.
    pub fn real(&self, node: usize, boot: Boot) -> Ms {
        let machine = &self.nodes[node];
        let clock = u64::try_from(boot.as_millis()).unwrap_or(u64::MAX / 4);
        let slept = if active(Mutation::ClockSleeps) { machine.slept } else { 0 };
        let elapsed = clock.saturating_sub(machine.offset).min(1 << 40) as i64 * 1000 / (1000 + machine.skew);
        machine.booted + slept + elapsed as u64 + 2
    }

    pub fn reaches(&self, from: usize, to: usize) -> bool {
        from == to || !self.net.cut[from][to]
    }

    /// Sends a message; it may be lost, late, or come twice.
    pub fn send(&mut self, from: usize, to: usize, message: Message) {
        if from == to {
            self.after(0, 2, Event::Peer { to, message });
            return;
        }
        let deaf = self.nodes[to].deaf_until > self.now && matches!(message, Message::Hold { .. });
        if deaf || !self.reaches(from, to) || self.rng.chance(self.net.loss) {
            return;
        }
        if self.rng.chance(self.net.twice) {
            self.after(1, 9_000, Event::Peer { to, message: message.clone() });
        }
        let most = if self.rng.chance(self.net.late) { 6_000 } else { 12 };
        self.after(1, most, Event::Peer { to, message });
    }

    /// Runs one event; false when there is none left.
    pub fn step(&mut self) -> bool {
        let Some(Reverse(item)) = self.queue.pop() else { return false };
        self.now = item.at;
        self.events += 1;
        if let Some(until) = self.stands_still(&item.event) {
            self.at(until + 1, item.event);
            return true;
        }
        self.dispatch(item.event);
        true
    }

    /// Until when that which this event concerns stands still.
    fn stands_still(&self, event: &Event) -> Option<Ms> {
        let (node, agent_only) = match event {
            Event::Tick { node, .. }
            | Event::Nudge { node, .. }
            | Event::BallotEnd { node, .. }
            | Event::JobDone { node, .. } => (*node, true),
            Event::Watched { node: to, .. }
            | Event::Answered { to, .. }
            | Event::RequestTimeout { to, .. }
            | Event::Peer { to, .. } => (*to, true),
            Event::Deadline { node, .. }
            | Event::Killed { node, .. }
            | Event::Write { node }
            | Event::Acknowledge { node, .. }
            | Event::Connect { node, .. } => (*node, false),
            Event::Wal { conn, .. } | Event::Flush { conn } => (self.conns[*conn].standby, false),
            Event::Confirmed { conn, .. } | Event::Pump { conn } => (self.conns[*conn].primary, false),
            _ => return None,
        };
        let machine = &self.nodes[node];
        let until =
            if agent_only { machine.frozen_until.max(machine.agent_frozen_until) } else { machine.frozen_until };
        (until > self.now).then_some(until)
    }

    fn dispatch(&mut self, event: Event) {
        match event {
            Event::Tick { node, start } => self.on_tick(node, start),
            Event::Nudge { node, start } => {
                if self.nodes[node].agent.as_ref().is_some_and(|agent| agent.start == start) {
                    self.tick(node);
                }
            }
            Event::Deadline { node, start } => self.on_deadline(node, start),
            Event::Request { from, id, request } => self.on_request(from, id, request),
            Event::Answered { to, id, reply } => self.on_answered(to, id, reply),
            Event::RequestTimeout { to, id } => self.on_request_timeout(to, id),
            Event::Peer { to, message } => self.on_message(to, message),
            Event::BallotEnd { node, round } => self.on_ballot_end(node, round),
            Event::JobDone { node, job } => self.on_job_done(node, job),
            Event::Killed { node, run } => self.on_killed(node, run),
            Event::Write { node } => self.on_write(node),
            Event::Acknowledge { node, run, id } => self.on_acknowledge(node, run, id),
            Event::Connect { node, run } => self.on_connect(node, run),
            Event::Wal { conn, records } => self.on_wal(conn, records),
            Event::Flush { conn } => self.on_flush(conn),
            Event::Confirmed { conn, flush, write } => self.on_confirmed(conn, flush, write),
            Event::Pump { conn } => self.pump(conn),
            Event::Kubelet { node, running, terminated } => self.api.kubelet(node, running, terminated),
            Event::StartContainer { node } => self.start_container(node),
            Event::EndPod { node } => self.end_container(node, false),
            Event::Fault => self.on_fault(),
            Event::Strike { node, what, lasts } => self.strike(node, what, lasts),
            Event::FaultEnd { id } => self.on_fault_end(id),
            Event::Look => self.on_look(),
            Event::Watched { node, version } => self.on_watched(node, &version),
        }
    }
}
