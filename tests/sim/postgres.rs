//! PostgreSQL as 6-postgres.md has seen it: WAL, timelines, walsenders, synchronous replication.

use hello_operator::api::agent::Lsn;
use hello_operator::core::election::mutation::{Mutation, active};
use hello_operator::core::election::{Promise, Source, SyncSetting};

use super::world::{Event, Ms, World};

/// One record; `id` 0 is no commit of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rec {
    pub timeline: u32,
    pub id: u32,
}

/// What survives a crash.
#[derive(Debug, Clone, Default)]
pub struct Volume {
    pub dir: Option<Dir>,
    pub staged: Option<(String, Dir)>,
    pub state: State,
}

/// A data directory. A position is a number of records.
#[derive(Debug, Clone, Default)]
pub struct Dir {
    pub system: String,
    pub wal: Vec<Rec>,
    pub standby: bool,
    /// Its end is known without a start: it was stopped in order.
    pub clean: bool,
    /// Where a copy becomes consistent (its timeline, its end): before, its pages are newer than its WAL.
    pub consistent_at: (u32, usize),
}

/// The agent's state file.
#[derive(Debug, Clone, Default)]
pub struct State {
    pub member: String,
    pub marker: bool,
    pub proof: Option<String>,
    pub hopeless: bool,
    /// A rewind was begun and not finished.
    pub unfinished: bool,
    pub promise: Option<Promise>,
    pub hold: Option<(u32, std::time::Duration)>,
    pub last_container: Option<String>,
}

impl Dir {
    pub fn consistent(&self) -> bool {
        self.wal.len() >= self.consistent_at.1
    }

    pub fn timeline(&self) -> u32 {
        self.wal.last().map_or(1, |rec| rec.timeline)
    }

    pub fn end(&self) -> Lsn {
        Lsn(self.wal.len() as u64)
    }

    pub fn forks(&self) -> Vec<(u32, Option<Lsn>)> {
        let mut forks: Vec<(u32, Option<Lsn>)> = Vec::new();
        for (at, rec) in self.wal.iter().enumerate() {
            match forks.last_mut() {
                Some((timeline, _)) if *timeline == rec.timeline => {}
                Some((_, end)) => {
                    *end = Some(Lsn(at as u64));
                    forks.push((rec.timeline, None));
                }
                None => forks.push((rec.timeline, None)),
            }
        }
        forks
    }

    /// Records that both have, from the beginning.
    pub fn common(&self, other: &Self) -> usize {
        self.wal.iter().zip(&other.wal).take_while(|(a, b)| a == b).count()
    }
}

/// The running processes.
pub struct Pg {
    pub run: u64,
    pub writable: bool,
    /// It replays local WAL until then, and reports only `shown` records.
    pub replaying_until: Ms,
    pub shown: usize,
    pub source: Option<Source>,
    pub receiver: Option<usize>,
    pub senders: Vec<usize>,
    pub setting: SyncSetting,
    /// Whether backends wait (the checkpointer's view of the setting).
    pub defined_at: Option<Ms>,
    /// Where the WAL ended when the setting was changed last.
    pub set_at: usize,
    pub waiting: Vec<(u32, usize)>,
    pub killing: bool,
    pub stopping: bool,
    /// Term of the tenure under which it became writable.
    pub term: i64,
    pub unflushed: Vec<Rec>,
}

impl Pg {
    pub fn new(run: u64) -> Self {
        Self {
            run,
            writable: false,
            replaying_until: 0,
            shown: 0,
            source: None,
            receiver: None,
            senders: Vec::new(),
            setting: SyncSetting { k: 0, members: Vec::new() },
            defined_at: None,
            set_at: 0,
            waiting: Vec::new(),
            killing: false,
            stopping: false,
            term: 0,
            unflushed: Vec::new(),
        }
    }
}

/// A replication connection; it outlives its ends, since bytes and answers may still be under way.
pub struct Conn {
    pub primary: usize,
    pub primary_run: u64,
    pub standby: usize,
    pub standby_run: u64,
    pub name: String,
    /// The setting that this walsender has read.
    pub setting: SyncSetting,
    pub reload_at: Ms,
    pub sent: usize,
    pub write: usize,
    pub flush: usize,
    pub sending: bool,
    pub receiving: bool,
    pub in_flight: bool,
    pub diverged: bool,
    pub last_arrival: Ms,
    pub stalled_since: Option<Ms>,
}

/// From here on ids are of marker commits of the confirmation.
pub const MARKERS: u32 = 1 << 30;

impl World {
    pub fn pg_run(&self, node: usize) -> u64 {
        self.nodes[node].pg.as_ref().map_or(0, |pg| pg.run)
    }

    /// Whether the walsender of this connection lives.
    fn sends(&self, conn: usize) -> bool {
        let c = &self.conns[conn];
        c.sending && self.pg_run(c.primary) == c.primary_run
    }

    fn receives(&self, conn: usize) -> bool {
        let c = &self.conns[conn];
        c.receiving
            && self.nodes[c.standby].pg.as_ref().is_some_and(|pg| pg.run == c.standby_run && pg.receiver == Some(conn))
    }

    pub fn walsenders(&self, node: usize) -> Vec<usize> {
        let senders = self.nodes[node].pg.as_ref().map_or(&[][..], |pg| &pg.senders);
        senders.iter().copied().filter(|conn| self.conns[*conn].sending).collect()
    }

    /// Sets synchronous_standby_names and reloads: walsenders and the checkpointer read it later, each in its time.
    pub fn set_sync(&mut self, node: usize, setting: SyncSetting, at_start: bool) {
        let now = self.now;
        let most = if self.rng.chance(30) { 3_000 } else { 700 };
        let late = self.rng.range(0, most);
        let dir_end = self.nodes[node].volume.dir.as_ref().map_or(0, |dir| dir.wal.len());
        let Some(pg) = self.nodes[node].pg.as_mut() else { return };
        let had = pg.defined_at.is_some_and(|at| at <= now);
        pg.set_at = dir_end;
        pg.setting = setting;
        pg.defined_at = match (pg.setting.k > 0, at_start || had) {
            (false, _) => None,
            (true, true) => Some(0),
            (true, false) => Some(now + late),
        };
        if pg.setting.k == 0 {
            // Emptied: all that wait are released as success.
            let released: Vec<u32> = pg.waiting.drain(..).map(|(id, _)| id).collect();
            for id in released {
                self.returns(node, id);
            }
        }
        for conn in self.walsenders(node) {
            let late = if self.rng.chance(15) { self.rng.range(700, 6_000) } else { self.rng.range(0, 300) };
            self.conns[conn].reload_at = now + late;
        }
    }

    fn returns(&mut self, node: usize, id: u32) {
        let run = self.pg_run(node);
        // A backend may get to run late.
        let most = if self.rng.chance(4) { 2_500 } else { 3 };
        self.after(0, most, Event::Acknowledge { node, run, id });
    }

    fn walsender_reloads(&mut self, conn: usize) {
        let (primary, at) = (self.conns[conn].primary, self.conns[conn].reload_at);
        if at <= self.now
            && let Some(pg) = &self.nodes[primary].pg
        {
            self.conns[conn].setting = pg.setting.clone();
        }
    }

    /// A session tries to commit.
    pub fn on_write(&mut self, node: usize) {
        self.nodes[node].write_pending = false;
        let alive = self.nodes[node].pg.as_ref().is_some_and(|pg| pg.writable && !pg.stopping);
        if !alive {
            return;
        }
        if self.nodes[node].pg.as_ref().is_some_and(|pg| pg.waiting.len() < 25) {
            let id = self.check.next_commit();
            self.commit(node, id);
        }
        self.nodes[node].write_pending = true;
        self.after(60, 450, Event::Write { node });
    }

    pub fn commit(&mut self, node: usize, id: u32) {
        let now = self.now;
        let machine = &mut self.nodes[node];
        let (Some(pg), Some(dir)) = (machine.pg.as_mut(), machine.volume.dir.as_mut()) else { return };
        let timeline = dir.timeline();
        dir.wal.push(Rec { timeline, id: if id >= MARKERS { 0 } else { id } });
        let end = dir.wal.len();
        if pg.defined_at.is_some_and(|at| at <= now) {
            pg.waiting.push((id, end));
        } else {
            self.returns(node, id);
        }
        self.pump_all(node);
    }

    /// Writes something that is no commit; returns the end.
    pub fn write_record(&mut self, node: usize) -> usize {
        let Some(dir) = self.nodes[node].volume.dir.as_mut() else { return 0 };
        let timeline = dir.timeline();
        dir.wal.push(Rec { timeline, id: 0 });
        let end = dir.wal.len();
        self.pump_all(node);
        end
    }

    pub fn pump_all(&mut self, node: usize) {
        for conn in self.walsenders(node) {
            if !self.conns[conn].in_flight {
                self.pump(conn);
            }
        }
    }

    /// The walsender sends what there is.
    pub fn pump(&mut self, conn: usize) {
        if !self.sends(conn) || self.conns[conn].in_flight || self.conns[conn].diverged {
            return;
        }
        let (primary, standby, sent) = {
            let c = &self.conns[conn];
            (c.primary, c.standby, c.sent)
        };
        let Some(dir) = &self.nodes[primary].volume.dir else { return };
        if sent >= dir.wal.len() {
            return;
        }
        if !self.reaches(primary, standby) {
            // TCP: it waits, and gives up in the end.
            let since = *self.conns[conn].stalled_since.get_or_insert(self.now);
            if self.now > since + 8_000 {
                self.conns[conn].sending = false;
            } else {
                self.after(200, 600, Event::Pump { conn });
            }
            return;
        }
        self.conns[conn].stalled_since = None;
        let records: Vec<Rec> = dir.wal[sent..].to_vec();
        let end = dir.wal.len();
        // It has read the setting before it sends what was written after the reload.
        if self.nodes[primary].pg.as_ref().is_some_and(|pg| end > pg.set_at) && self.conns[conn].reload_at > self.now {
            if self.conns[conn].reload_at < self.now + 2_500 {
                let at = self.conns[conn].reload_at;
                self.conns[conn].in_flight = true;
                self.at(at, Event::Wal { conn, records: Vec::new() });
            }
            return;
        }
        self.walsender_reloads(conn);
        let lag = self.nodes[standby].lag;
        let delay = self.rng.range(1, 6 + lag);
        let at = (self.now + delay).max(self.conns[conn].last_arrival);
        let c = &mut self.conns[conn];
        c.sent = end;
        c.in_flight = true;
        c.last_arrival = at;
        self.at(at, Event::Wal { conn, records });
    }

    pub fn on_wal(&mut self, conn: usize, records: Vec<Rec>) {
        self.conns[conn].in_flight = false;
        if !records.is_empty() && !self.reaches(self.conns[conn].primary, self.conns[conn].standby) {
            // Lost under way: the connection will break.
            self.conns[conn].sending = false;
            return;
        }
        if self.receives(conn) && !records.is_empty() {
            let standby = self.conns[conn].standby;
            if let Some(pg) = self.nodes[standby].pg.as_mut() {
                pg.unflushed.extend(records);
            }
            if active(Mutation::ReceivedCounted) {
                let machine = &self.nodes[standby];
                let end = machine.volume.dir.as_ref().map_or(0, |dir| dir.wal.len())
                    + machine.pg.as_ref().map_or(0, |pg| pg.unflushed.len());
                self.confirm_to(conn, end);
            }
            if self.rng.chance(80) {
                self.on_flush(conn);
            } else {
                let most = if self.rng.chance(20) { 1_500 } else { 60 };
                self.after(1, most, Event::Flush { conn });
            }
        } else if !self.receives(conn) && self.reaches(self.conns[conn].standby, self.conns[conn].primary) {
            self.conns[conn].sending = false;
        }
        self.pump(conn);
    }

    /// The receiver flushes what it has, and says so.
    pub fn on_flush(&mut self, conn: usize) {
        if !self.receives(conn) {
            return;
        }
        let standby = self.conns[conn].standby;
        let machine = &mut self.nodes[standby];
        let (Some(pg), Some(dir)) = (machine.pg.as_mut(), machine.volume.dir.as_mut()) else { return };
        dir.wal.append(&mut pg.unflushed);
        let end = dir.wal.len();
        self.confirm_to(conn, end);
    }

    fn confirm_to(&mut self, conn: usize, end: usize) {
        let lag = self.nodes[self.conns[conn].standby].lag;
        let delay = self.rng.range(1, 5 + lag / 2);
        self.at(self.now + delay, Event::Confirmed { conn, flush: end, write: end });
    }

    /// The walsender hears from its standby, and releases who waits, by the setting that *it* has read.
    pub fn on_confirmed(&mut self, conn: usize, flush: usize, write: usize) {
        if !self.sends(conn) {
            return;
        }
        let (primary, standby) = (self.conns[conn].primary, self.conns[conn].standby);
        if !self.reaches(standby, primary) {
            self.after(200, 500, Event::Confirmed { conn, flush, write });
            return;
        }
        self.walsender_reloads(conn);
        let c = &mut self.conns[conn];
        c.flush = c.flush.max(flush);
        c.write = c.write.max(write);
        self.release(conn);
    }

    fn release(&mut self, conn: usize) {
        let (primary, setting) = (self.conns[conn].primary, self.conns[conn].setting.clone());
        let k = setting.k as usize;
        if k == 0 || !setting.members.contains(&self.conns[conn].name) {
            return;
        }
        let mut flushed: Vec<usize> = self
            .walsenders(primary)
            .into_iter()
            .filter(|c| setting.members.contains(&self.conns[*c].name))
            .map(|c| self.conns[c].flush)
            .collect();
        if flushed.len() < k {
            return;
        }
        flushed.sort_unstable_by(|a, b| b.cmp(a));
        let upto = flushed[k - 1];
        let Some(pg) = self.nodes[primary].pg.as_mut() else { return };
        let released: Vec<u32> = pg.waiting.iter().filter(|(_, end)| *end <= upto).map(|(id, _)| *id).collect();
        pg.waiting.retain(|(_, end)| *end > upto);
        for id in released {
            self.returns(primary, id);
        }
    }

    /// The receiver of a standby tries to connect to its source.
    pub fn on_connect(&mut self, node: usize, run: u64) {
        if self.pg_run(node) != run {
            return;
        }
        self.after(300, 1_000, Event::Connect { node, run });
        let Some(pg) = &self.nodes[node].pg else { return };
        if let Some(conn) = pg.receiver {
            if self.receives(conn) {
                let end = self.nodes[node].volume.dir.as_ref().map_or(0, |dir| dir.wal.len());
                self.confirm_to(conn, end);
            }
            // A dead connection is noticed.
            if !self.sends(conn) && self.rng.chance(60) {
                self.conns[conn].receiving = false;
                if let Some(pg) = self.nodes[node].pg.as_mut() {
                    pg.receiver = None;
                    pg.unflushed.clear();
                }
            }
            return;
        }
        let Some(source) = &pg.source else { return };
        if pg.killing || pg.replaying_until > self.now {
            return;
        }
        let Some(primary) = self.nodes.iter().position(|other| other.instance == source.instance) else { return };
        if primary == node
            || !self.reaches(node, primary)
            || !self.reaches(primary, node)
            || self.nodes[primary].frozen_until > self.now
        {
            return;
        }
        let Some(ppg) = self.nodes[primary].pg.as_ref().filter(|pg| pg.writable && !pg.killing && !pg.stopping) else {
            return;
        };
        // It streams through its own slot, which one walsender can have at a time. Without that, the walsender of a
        // connection that broke unseen counts beside its successor: ANY 2 is satisfied by one standby.
        let name = &self.nodes[node].volume.state.member;
        let lingers = self.walsenders(primary).into_iter().find(|conn| self.conns[*conn].name == *name);
        if let Some(old) = lingers
            && !active(Mutation::WithoutSlot)
            && !active(Mutation::TwoOfOneName)
        {
            // wal_sender_timeout.
            if self.rng.chance(20) {
                self.conns[old].sending = false;
            }
            return;
        }
        let (Some(theirs), Some(mine)) = (&self.nodes[primary].volume.dir, &self.nodes[node].volume.dir) else {
            return;
        };
        if mine.wal.len() < self.nodes[primary].kept_from {
            self.nodes[node].cannot_follow = true;
            return;
        }
        let prefix = theirs.common(mine);
        let diverged = prefix < mine.wal.len();
        // Beyond the fork it is refused, but not within the same segment.
        if diverged && self.rng.chance(40) {
            return;
        }
        let mut name = self.nodes[node].volume.state.member.clone();
        if active(Mutation::TwoOfOneName) {
            name = self.api.register.ruled_members().into_iter().next().map_or(name, str::to_owned);
        }
        let conn = Conn {
            primary,
            primary_run: ppg.run,
            standby: node,
            standby_run: run,
            name,
            setting: ppg.setting.clone(),
            reload_at: 0,
            sent: mine.wal.len(),
            write: 0,
            flush: 0,
            sending: true,
            receiving: true,
            in_flight: false,
            diverged,
            last_arrival: self.now,
            stalled_since: None,
        };
        let end = mine.wal.len();
        // The old walsender of this very receiver goes.
        let id = self.conns.len();
        self.conns.push(conn);
        if let Some(pg) = self.nodes[primary].pg.as_mut() {
            pg.senders.push(id);
        }
        if let Some(pg) = self.nodes[node].pg.as_mut() {
            pg.receiver = Some(id);
            pg.unflushed.clear();
        }
        self.note(|w| {
            format!(
                "pg     {} connects to {}{}",
                w.nodes[node].instance,
                w.nodes[primary].instance,
                if diverged { " DIVERGED" } else { "" }
            )
        });
        self.confirm_to(id, end);
        self.pump(id);
    }

    /// The receiver goes; what was received and not flushed is flushed or lost.
    pub fn drop_receiver(&mut self, node: usize) {
        let keep = self.rng.chance(50);
        let machine = &mut self.nodes[node];
        let Some(pg) = machine.pg.as_mut() else { return };
        if let Some(conn) = pg.receiver.take() {
            let left = std::mem::take(&mut pg.unflushed);
            if keep && let Some(dir) = machine.volume.dir.as_mut() {
                dir.wal.extend(left);
            }
            self.conns[conn].receiving = false;
            self.after(1, 60, Event::Wal { conn, records: Vec::new() });
        }
    }

    /// Processes end at once.
    pub fn pg_dies(&mut self, node: usize, power: bool) {
        if power {
            // The machine goes: what was received and not flushed is lost.
            if let Some(pg) = self.nodes[node].pg.as_mut() {
                pg.unflushed.clear();
            }
        }
        self.drop_receiver(node);
        self.nodes[node].pg = None;
    }
}
