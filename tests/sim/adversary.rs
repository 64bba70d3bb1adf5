//! What a run is about, and what goes wrong in it.

use hello_operator::api::agent::LeaseBounds;
use hello_operator::api::spec::Durability;
use hello_operator::core::election::Terms;

use super::postgres::Volume;
use super::rng::Rng;
use super::world::{API, Event, Ms, World};

/// Stands for whoever holds the Lease at that moment.
pub const HOLDER: usize = usize::MAX;

/// How long a cluster has to become whole when nothing goes wrong any more.
pub const SETTLE: Ms = 150_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Anything, at any time.
    Chaos,
    /// All is well, and then the API server is away (and perhaps one replica dead): not one write is refused.
    Outage,
    /// All is well, for a long time.
    Healthy,
}

/// What a chaotic run is most about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Focus {
    Anything,
    /// The holder and the API server do not see each other; the members come and go.
    Lease,
    /// Members come and go, and the rules with them; then the primary.
    Rules,
    /// One election after the other, with messages late and twice, and groups that do not see each other.
    Elections,
    /// From the first moment.
    Birth,
}

/// Moments at which a fault does most harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    Taken,
    Rules,
    Renewed,
    Opened,
    Held,
    Campaign,
    Rewound,
}

#[derive(Debug)]
pub struct Story {
    pub kind: Kind,
    pub focus: Focus,
    /// Agents and killers may fail to stop PostgreSQL: S2 must hold without clocks.
    pub zombies: bool,
    pub machines: usize,
    pub faults_left: u64,
    pub began: bool,
    /// When the last fault ends.
    pub calm_from: Option<Ms>,
    pub settled: Option<Ms>,
    pub over: bool,
    mean: Ms,
    open: Vec<(u64, Undo)>,
    disks: u64,
    pub strikes: u64,
    dead: Option<usize>,
}

#[derive(Debug)]
enum Undo {
    Cut(Vec<(usize, usize)>),
    ApiUp,
    Net,
    Lag(usize),
    OutageEnds,
}

impl Story {
    pub fn new(rng: &mut Rng) -> (Self, Terms) {
        let kind = match rng.below(100) {
            0..=87 => Kind::Chaos,
            88..=96 => Kind::Outage,
            _ => Kind::Healthy,
        };
        let focus = match rng.below(10) {
            0..=2 => Focus::Anything,
            3..=4 => Focus::Lease,
            5..=6 => Focus::Rules,
            7..=8 => Focus::Elections,
            _ => Focus::Birth,
        };
        let count = match rng.below(20) {
            0 if kind == Kind::Chaos => 1,
            1..=3 => 2,
            4..=6 => 5,
            7..=9 if focus == Focus::Elections => 5,
            _ => 3,
        };
        let often = if focus == Focus::Lease { 50 } else { 22 };
        let durability = if count == 1 || rng.chance(often) { Durability::Async } else { Durability::Quorum };
        let k = if count >= 3 && rng.chance(35) { 2 } else { 1 };
        let instances = (1..=count).map(|n| format!("db-{n}")).collect();
        let terms = Terms {
            instances,
            durability,
            k,
            bounds: LeaseBounds::default(),
            failover: true,
            max_lag: 12,
            primary: None,
        };
        let story = Self {
            kind,
            focus,
            zombies: kind == Kind::Chaos && durability == Durability::Quorum && rng.chance(45),
            machines: if kind == Kind::Chaos && count < 5 { count + rng.index(2) } else { count },
            faults_left: if kind == Kind::Chaos { rng.range(1, 12) } else { 1 },
            began: false,
            calm_from: None,
            settled: None,
            over: false,
            mean: [700, 1_500, 7_000][rng.index(3)],
            open: Vec::new(),
            disks: u64::from(rng.chance(25)),
            strikes: rng.below(7),
            dead: None,
        };
        (story, terms)
    }

    pub fn quiet(&self) -> bool {
        self.kind != Kind::Chaos
    }

    /// Whether all is well since it was whole for the first time.
    pub fn calm_since(&self, _now: Ms) -> bool {
        self.began
    }
}

impl World {
    /// Looks at the whole twice a second: begins the faults when it has settled (or before), and ends the run.
    pub fn on_look(&mut self) {
        let unsettled = self.unsettled();
        let chaos = self.story.kind == Kind::Chaos;
        if !self.story.began {
            let early = chaos && (self.story.focus == Focus::Birth || self.rng.chance(5));
            if unsettled.is_none() || early {
                self.story.began = true;
                self.note(|_| "----   faults begin".into());
                self.after(0, 2_000, Event::Fault);
            } else if self.now > 90_000 {
                self.violate(
                    "S3",
                    format!("a new cluster does not become whole: {}", unsettled.clone().unwrap_or_default()),
                );
            }
        } else if !chaos && self.story.calm_from.is_none() && self.check.last_acknowledged + 4_500 < self.now {
            self.violate("S5", "writes are refused although enough members hold".into());
        }
        if let Some(calm) = self.story.calm_from.filter(|calm| *calm <= self.now) {
            match unsettled {
                None => {
                    let since = *self.story.settled.get_or_insert(self.now);
                    self.story.over = since + 1_500 < self.now;
                }
                Some(why) => {
                    self.story.settled = None;
                    if self.now > calm + SETTLE {
                        if self.check.disk_lost {
                            self.story.over = true;
                        } else {
                            self.violate("S3", why);
                        }
                    }
                }
            }
        }
        self.at(self.now + 500, Event::Look);
    }

    fn victim(&mut self) -> usize {
        let holder = self.api.register.holder_instance().and_then(|instance| self.node_of(instance));
        match holder {
            Some(holder) if self.rng.chance(55) => holder,
            _ => self.rng.index(self.nodes.len()),
        }
    }

    pub fn on_fault(&mut self) {
        if self.story.faults_left == 0 {
            return;
        }
        self.story.faults_left -= 1;
        let lasts = match self.story.kind {
            Kind::Chaos => self.chaos(),
            Kind::Outage => self.outage(),
            Kind::Healthy => 40_000,
        };
        if self.story.faults_left == 0 {
            let last = self.story.calm_from.unwrap_or(0).max(self.now + lasts);
            self.story.calm_from = Some(last + 500);
        } else {
            let mean = self.story.mean;
            self.after(0, mean * 2, Event::Fault);
        }
    }

    fn undo(&mut self, after: Ms, undo: Undo) -> Ms {
        let id = self.id();
        self.story.open.push((id, undo));
        self.at(self.now + after, Event::FaultEnd { id });
        after
    }

    pub fn on_fault_end(&mut self, id: u64) {
        let Some(at) = self.story.open.iter().position(|(other, _)| *other == id) else { return };
        let (_, undo) = self.story.open.remove(at);
        self.note(|_| format!("----   ends: {undo:?}"));
        match undo {
            Undo::Cut(pairs) => {
                for (from, to) in pairs {
                    self.net.cut[from][to] = false;
                }
            }
            Undo::ApiUp => self.api.down = false,
            Undo::OutageEnds => {
                self.api.down = false;
                for from in 0..self.nodes.len() {
                    self.net.cut[from][API] = false;
                }
                self.story.calm_from = Some(self.now);
                if let Some(dead) = self.story.dead.take() {
                    self.start_container(dead);
                }
            }
            Undo::Net => {
                self.net.loss = 0;
                self.net.late = 0;
                self.net.twice = 0;
            }
            Undo::Lag(node) => self.nodes[node].lag = 0,
        }
    }

    fn outage(&mut self) -> Ms {
        let lasts = self.rng.range(8_000, 100_000);
        let holder = self.api.register.holder_instance().and_then(|instance| self.node_of(instance));
        // The API server is away from all, or from the holder only.
        let Some(cut) = holder.filter(|_| self.rng.chance(40)) else {
            self.api.down = true;
            self.spare_dies(holder);
            return self.undo(lasts, Undo::OutageEnds);
        };
        self.net.cut[cut][API] = true;
        self.spare_dies(holder);
        self.undo(lasts, Undo::OutageEnds)
    }

    /// One replica that is not needed may be dead as well.
    fn spare_dies(&mut self, holder: Option<usize>) {
        let others = self.nodes.len() - 1;
        let spare = self.terms.durability == Durability::Quorum && others > self.terms.k as usize;
        if spare && self.rng.chance(70) {
            let dead = (0..self.nodes.len()).find(|node| Some(*node) != holder);
            if let Some(dead) = dead {
                self.end_container(dead, false);
                self.story.dead = Some(dead);
            }
        }
        self.note(|w| format!("----   API server away, dead: {:?}", w.story.dead));
    }

    /// Something is happening: the adversary may strike into it.
    pub fn react(&mut self, moment: Moment, node: usize) {
        let open = self.story.kind == Kind::Chaos
            && self.story.began
            && self.story.calm_from.is_none_or(|calm| self.now < calm);
        if !open || self.story.strikes == 0 {
            return;
        }
        let percent = match (moment, self.story.focus) {
            (Moment::Renewed, Focus::Lease | Focus::Birth) => 4,
            (Moment::Renewed, _) => 1,
            (Moment::Held, _) => 12,
            (Moment::Campaign, Focus::Elections) => 30,
            (Moment::Taken | Moment::Opened, Focus::Elections) => 40,
            (Moment::Rules, Focus::Rules) => 40,
            (Moment::Rewound, _) => 60,
            _ => 12,
        };
        if !self.rng.chance(percent) {
            return;
        }
        self.story.strikes -= 1;
        let holder = self.api.register.holder_instance().and_then(|instance| self.node_of(instance)).unwrap_or(node);
        let victim = match moment {
            Moment::Held | Moment::Campaign if self.rng.chance(50) => self.rng.index(self.nodes.len()),
            Moment::Campaign => node,
            Moment::Rules if self.rng.chance(40) => self.rng.index(self.nodes.len()),
            _ => holder,
        };
        let list: &[u64] = match moment {
            Moment::Renewed => &[0, 27, 46, 46, 47, 45, 19],
            Moment::Held => &[0, 48, 49, 43, 12, 27, 46, 68],
            Moment::Campaign => &[0, 0, 12, 68, 43, 27, 35],
            Moment::Rules => &[0, 0, 12, 12, 46, 27, 43, 75],
            _ => &[0, 0, 12, 19, 27, 43, 75],
        };
        let what = list[self.rng.index(list.len())];
        let lasts = self.rng.range(300, 35_000);
        let soon = if self.rng.chance(40) { self.rng.range(0, 30) } else { self.rng.range(0, 1_800) };
        self.at(self.now + soon, Event::Strike { node: victim, what, lasts });
        // And somebody else as well, often.
        if self.rng.chance(35) {
            let other = self.rng.index(self.nodes.len());
            let lasts = self.rng.range(300, 30_000);
            let what = [0, 12, 75, 48, 43][self.rng.index(5)];
            let soon = self.rng.range(0, 2_500);
            self.at(self.now + soon, Event::Strike { node: other, what, lasts });
        }
        let until = self.now + 2_600;
        self.story.calm_from = self.story.calm_from.map(|calm| calm.max(until));
    }

    pub fn strike(&mut self, node: usize, what: u64, lasts: Ms) {
        let lasts = self.harm(node, what, lasts);
        let until = self.now + lasts + 500;
        self.story.calm_from = self.story.calm_from.map(|calm| calm.max(until));
    }

    /// A replica that lags, the primary goes, and then the next one, before anybody has caught up.
    fn cascade(&mut self) -> Ms {
        let holder = self.api.register.holder_instance().and_then(|instance| self.node_of(instance)).unwrap_or(0);
        let count = self.terms.instances.len();
        let slow = (holder + 1 + self.rng.index(count.max(2) - 1)) % count;
        let lag = self.rng.range(800, 6_000);
        self.nodes[slow].lag = lag;
        let lasts = self.undo(25_000, Undo::Lag(slow));
        self.note(|w| format!("----   cascade: {} is slow by {lag}", w.nodes[slow].instance));
        let mut at = self.now + self.rng.range(200, 4_000);
        if self.rng.chance(50) {
            // A replica restarts, and reports less than it has for a while.
            let other = (holder + 1 + self.rng.index(count.max(2) - 1)) % count;
            let back = at + self.rng.range(0, 2_500);
            self.at(back, Event::Strike { node: other, what: 0, lasts: 200 });
        }
        let kill = [0, 0, 12, 12, 49, 27, 35][self.rng.index(7)];
        self.at(at, Event::Strike { node: holder, what: kill, lasts: 30_000 });
        for _ in 0..self.rng.range(0, 2) {
            at += self.rng.range(900, 22_000);
            self.at(at, Event::Strike { node: HOLDER, what: 0, lasts: 20_000 });
        }
        lasts + 40_000
    }

    /// The holder does not reach the API server; members hold, restart, and are cut off from it one by one.
    fn edge(&mut self) -> Ms {
        let holder = self.api.register.holder_instance().and_then(|instance| self.node_of(instance)).unwrap_or(0);
        let way = [45, 46, 47][self.rng.index(3)];
        let lasts = self.rng.range(20_000, 60_000);
        self.note(|w| format!("----   edge: {} and the API server", w.nodes[holder].instance));
        self.harm(holder, way, lasts);
        if self.rng.chance(50) {
            self.net.late = self.rng.range(10, 60);
            self.undo(lasts, Undo::Net);
        }
        for _ in 0..self.rng.range(1, 5) {
            let other = self.rng.index(self.nodes.len());
            let what = [0, 0, 99, 99, 99, 99, 27, 75, 43, 19, 98][self.rng.index(11)];
            let soon = self.rng.range(0, 30_000);
            let lasts = self.rng.range(300, 40_000);
            self.at(self.now + soon, Event::Strike { node: other, what, lasts });
        }
        lasts + 40_000
    }

    /// The configuration of the sync rules changes, a replica is slow, and the primary goes when the change is done.
    fn change(&mut self) -> Ms {
        let other = self.rng.index(self.nodes.len());
        self.nodes[other].lag = self.rng.range(500, 5_000);
        let lasts = self.undo(20_000, Undo::Lag(other));
        let which = [93, 93, 93, 96][self.rng.index(4)];
        self.harm(other, which, 0);
        let soon = self.rng.range(300, 9_000);
        for _ in 0..self.rng.range(0, 2) {
            let soon = soon + self.rng.range(0, 2_000);
            let what = [0, 12][self.rng.index(2)];
            let node = if self.rng.chance(60) { HOLDER } else { self.rng.index(self.nodes.len()) };
            self.at(self.now + soon, Event::Strike { node, what, lasts: 25_000 });
        }
        lasts + 30_000
    }

    fn chaos(&mut self) -> Ms {
        if self.rng.chance(30) {
            match self.story.focus {
                Focus::Elections => return self.cascade(),
                Focus::Lease => return self.edge(),
                Focus::Rules => return self.change(),
                Focus::Anything | Focus::Birth => {}
            }
        }
        let node = self.victim();
        let lasts = match self.rng.below(10) {
            0..=3 => self.rng.range(200, 5_000),
            4..=8 => self.rng.range(5_000, 28_000),
            _ => self.rng.range(20_000, 60_000),
        };
        let what = self.what();
        self.harm(node, what, lasts)
    }

    fn harm(&mut self, node: usize, what: u64, lasts: Ms) -> Ms {
        let node = if node == HOLDER {
            self.api.register.holder_instance().and_then(|instance| self.node_of(instance)).unwrap_or(0)
        } else {
            node
        };
        self.note(|w| format!("----   fault {what} on {} for {lasts}", w.nodes[node].instance));
        match what {
            0..=11 => {
                self.end_container(node, false);
                let back = if self.rng.chance(50) { self.rng.range(100, 1_500) } else { lasts };
                self.at(self.now + back, Event::StartContainer { node });
                back
            }
            12..=18 => {
                self.end_container(node, true);
                self.reboot(node);
                self.at(self.now + lasts, Event::StartContainer { node });
                lasts
            }
            19..=26 => {
                self.pg_dies(node, false);
                if self.nodes[node].agent_frozen_until <= self.now && self.nodes[node].frozen_until <= self.now {
                    self.observe(node);
                    self.tick(node);
                }
                0
            }
            27..=34 => {
                self.nodes[node].agent_frozen_until = self.now + lasts;
                self.nodes[node].zombie |= self.story.zombies;
                lasts
            }
            35..=42 => {
                self.nodes[node].frozen_until = self.now + lasts;
                self.nodes[node].frozen_from = self.now;
                self.nodes[node].slept += lasts;
                lasts
            }
            43..=62 => self.partition(node, what, lasts),
            63..=67 => {
                self.api.down = true;
                self.undo(lasts, Undo::ApiUp)
            }
            68..=74 => {
                self.net.loss = self.rng.below(40);
                self.net.late = self.rng.below(40);
                self.net.twice = self.rng.below(30);
                self.undo(lasts, Undo::Net)
            }
            75..=79 => {
                self.nodes[node].lag = self.rng.range(50, 4_000);
                self.undo(lasts, Undo::Lag(node))
            }
            80..=81 => self.lose_disk(node),
            82..=87 => self.delete_pod(node, lasts),
            88..=92 => {
                let wish = self.rng.index(self.terms.instances.len());
                self.terms.primary = Some(self.terms.instances[wish].clone());
                self.api.terms = self.terms.clone();
                0
            }
            99 => {
                // From the holder only.
                let holder = self.api.register.holder_instance().and_then(|instance| self.node_of(instance));
                let Some(holder) = holder.filter(|holder| *holder != node) else { return 0 };
                let pairs = vec![(holder, node), (node, holder)];
                let pairs: Vec<_> = pairs.into_iter().filter(|(from, to)| !self.net.cut[*from][*to]).collect();
                for (from, to) in &pairs {
                    self.net.cut[*from][*to] = true;
                }
                self.undo(lasts, Undo::Cut(pairs))
            }
            _ => self.change_terms(what),
        }
    }

    /// What goes wrong next, by what the run is about.
    fn what(&mut self) -> u64 {
        let list: &[u64] = match self.story.focus {
            _ if self.rng.chance(25) => return self.rng.below(100),
            Focus::Anything => return self.rng.below(100),
            Focus::Lease => &[0, 19, 27, 35, 45, 45, 46, 46, 47, 47, 63, 63, 68, 82, 98, 98],
            Focus::Rules => &[0, 0, 12, 19, 43, 48, 75, 75, 80, 82, 88, 93, 93, 93, 96, 98],
            Focus::Elections => &[0, 12, 19, 27, 27, 43, 43, 48, 48, 49, 49, 68, 68, 75, 82, 88],
            Focus::Birth => &[0, 0, 0, 12, 19, 45, 46, 63, 68, 68, 82],
        };
        list[self.rng.index(list.len())]
    }

    fn partition(&mut self, node: usize, what: u64, lasts: Ms) -> Ms {
        // 45: the API server; 46: only its answers; 47: only the way to it; 49: two groups.
        let way = match what {
            45 => 3,
            46 => 5,
            47 => 6,
            49 => 7,
            _ => self.rng.below(8),
        };
        let side = self.rng.next();
        let mut pairs = Vec::new();
        let mut cut = |from: usize, to: usize| pairs.push((from, to));
        for other in 0..self.nodes.len() {
            match way {
                0 | 4 if other != node => {
                    cut(node, other);
                    cut(other, node);
                }
                1 if other != node => cut(node, other),
                2 if other != node => cut(other, node),
                7 => {
                    for third in 0..self.nodes.len() {
                        if (side >> other) & 1 != (side >> third) & 1 {
                            cut(other, third);
                        }
                    }
                }
                _ => {}
            }
        }
        match way {
            3 | 4 => {
                cut(node, API);
                cut(API, node);
            }
            5 => cut(API, node),
            6 => cut(node, API),
            _ => {}
        }
        let pairs: Vec<_> = pairs.into_iter().filter(|(from, to)| !self.net.cut[*from][*to]).collect();
        for (from, to) in &pairs {
            self.net.cut[*from][*to] = true;
        }
        if way == 4 {
            // An absent or unready Pod object proves nothing.
            self.api.pods[node].absent = self.rng.chance(50);
        }
        self.undo(lasts, Undo::Cut(pairs))
    }

    /// PID 1 ends; the kernel ends the rest.
    pub fn end_container(&mut self, node: usize, power: bool) {
        self.pg_dies(node, power);
        let container = self.nodes[node].container.take();
        self.nodes[node].agent = None;
        self.nodes[node].armed = None;
        self.nodes[node].zombie = false;
        self.nodes[node].frozen_until = self.nodes[node].frozen_until.min(self.now);
        self.nodes[node].agent_frozen_until = self.nodes[node].agent_frozen_until.min(self.now);
        if !power && container.is_some() {
            self.after(200, 4_000, Event::Kubelet { node, running: None, terminated: container });
        }
    }

    fn reboot(&mut self, node: usize) {
        let offset = self.rng.range(1_000, 60_000);
        let machine = &mut self.nodes[node];
        machine.boot_id += 1;
        machine.booted = self.now;
        machine.offset = offset;
        machine.slept = 0;
    }

    fn lose_disk(&mut self, node: usize) -> Ms {
        // At most one, and never that of the only instance.
        if self.story.disks == 0 || self.terms.instances.len() < 2 || self.nodes[node].volume.dir.is_none() {
            return 0;
        }
        self.story.disks -= 1;
        self.check.disk_lost = true;
        self.end_container(node, false);
        self.nodes[node].volume = Volume::default();
        self.note(|w| format!("----   {} lost its disk", w.nodes[node].instance));
        self.after(500, 8_000, Event::StartContainer { node });
        8_000
    }

    /// The Pod is deleted: SIGTERM, and a new Pod later.
    fn delete_pod(&mut self, node: usize, lasts: Ms) -> Ms {
        if let Some(agent) = self.nodes[node].agent.as_mut() {
            agent.stopping = true;
            let id = self.id();
            self.nodes[node].pod_uid = format!("u{id}");
            self.tick(node);
            self.at(self.now + lasts.min(9_000), Event::EndPod { node });
            self.at(self.now + lasts.min(9_000) + 800, Event::StartContainer { node });
        }
        lasts + 1_000
    }

    fn change_terms(&mut self, what: u64) -> Ms {
        let which = match what {
            93 => self.rng.below(2),
            96 => 3,
            98 => 2,
            _ => self.rng.below(4),
        };
        match which {
            0 if self.terms.instances.len() > 2 => {
                self.terms.k = if self.terms.k == 1 { 2 } else { 1 };
            }
            1 if self.terms.instances.len() > 1 => {
                self.terms.durability = match self.terms.durability {
                    Durability::Quorum => Durability::Async,
                    Durability::Async => Durability::Quorum,
                };
            }
            2 => {
                self.terms.bounds = if self.terms.bounds.duration == 15 {
                    LeaseBounds { duration: 40, renew_deadline: 32, retry_period: 2 }
                } else {
                    LeaseBounds::default()
                };
            }
            _ if self.terms.instances.len() < self.nodes.len() => {
                let node = self.terms.instances.len();
                self.terms.instances.push(format!("db-{}", node + 1));
                self.nodes[node].wanted = true;
                self.at(self.now + 1_000, Event::StartContainer { node });
            }
            _ => {}
        }
        self.api.terms = self.terms.clone();
        self.note(|w| format!("----   terms {:?}", w.terms));
        1_000
    }
}
