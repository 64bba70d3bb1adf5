//! What a run is about, and what goes wrong in it.

use hello_operator::api::config::LeaseBounds;
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
    /// A cut that ends when another was elected: its id, and the former primary.
    pub fork: Option<(u64, usize)>,
    /// The next change of the rules that is done is struck.
    pub eager: bool,
    dead: Option<usize>,
}

#[derive(Debug)]
pub enum Undo {
    Cut(Vec<(usize, usize)>),
    ApiUp,
    Net,
    Lag(usize),
    ApiLag(usize),
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
            7..=9 if matches!(focus, Focus::Elections | Focus::Rules) => 5,
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
            accept_loss: None,
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
            fork: None,
            eager: false,
            dead: None,
        };
        (story, terms)
    }

    pub fn last_undo(&self) -> Option<u64> {
        self.open.last().map(|(id, _)| *id)
    }

    pub fn quiet(&self) -> bool {
        self.kind != Kind::Chaos
    }

    /// Whether all is well since it was whole for the first time.
    pub fn was_whole(&self) -> bool {
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

    pub fn undo(&mut self, after: Ms, undo: Undo) -> Ms {
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
            Undo::ApiLag(node) => self.nodes[node].api_lag = 0,
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

    pub fn harm(&mut self, node: usize, what: u64, lasts: Ms) -> Ms {
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
                let lasts = if self.story.zombies && self.rng.chance(60) { lasts.max(18_000) + 9_000 } else { lasts };
                self.nodes[node].agent_frozen_until = self.nodes[node].agent_frozen_until.max(self.now + lasts);
                self.nodes[node].zombie |= self.story.zombies;
                lasts
            }
            35..=42 => {
                let machine = &mut self.nodes[node];
                let until = machine.frozen_until.max(self.now + lasts);
                machine.slept += until - machine.frozen_until.max(self.now);
                machine.frozen_until = until;
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
            102 => {
                // It recycles WAL that a replica may still need.
                self.nodes[node].kept_from = self.nodes[node].volume.dir.as_ref().map_or(0, |dir| dir.wal.len());
                0
            }
            101 => {
                self.nodes[node].deaf_until = self.now + lasts;
                lasts
            }
            100 => {
                self.nodes[node].api_lag = self.rng.range(100, 4_000);
                self.undo(lasts, Undo::ApiLag(node))
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
            Focus::Lease => &[101, 101, 0, 19, 27, 35, 45, 45, 46, 46, 47, 47, 63, 63, 68, 82, 98, 98],
            Focus::Rules => &[102, 102, 0, 0, 12, 19, 43, 48, 75, 75, 80, 82, 88, 93, 93, 93, 96, 98],
            Focus::Elections => &[102, 0, 12, 19, 27, 27, 43, 43, 48, 48, 49, 49, 68, 68, 75, 82, 88],
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
        if self.story.zombies && matches!(way, 3..=6) && self.rng.chance(50) {
            self.nodes[node].zombie = true;
            self.nodes[node].unkillable_until = self.now + lasts;
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
        self.nodes[node].unkillable_until = 0;
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
