//! Faults at the worst moment, and several that belong together.

use hello_operator::api::spec::Durability;

use super::adversary::{Focus, HOLDER, Kind, Moment, Undo};
use super::world::{API, Event, Message, Ms, World};

impl World {
    /// Something is happening: the adversary may strike into it.
    pub fn react(&mut self, moment: Moment, node: usize) {
        let open = self.story.kind == Kind::Chaos
            && self.story.began
            && self.story.calm_from.is_none_or(|calm| self.now < calm);
        if !open || self.story.strikes == 0 {
            return;
        }
        if self.strike_together(moment, node) {
            self.story.strikes -= 1;
            self.story.calm_from = self.story.calm_from.map(|calm| calm.max(self.now + 80_000));
            return;
        }
        let percent = match (moment, self.story.focus) {
            (Moment::Renewed, Focus::Lease | Focus::Birth) => 4,
            (Moment::Renewed, _) => 1,
            (Moment::Campaign, Focus::Elections) => 30,
            (Moment::Taken | Moment::Opened, Focus::Elections) | (Moment::Rules, Focus::Rules) => 40,
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
        if moment == Moment::Campaign && self.rng.chance(35) {
            // Its way to the API server is slow, and those that answer it restart meanwhile.
            let lasts = self.rng.range(3_000, 9_000);
            self.nodes[node].api_lag = self.rng.range(1_500, 6_000);
            self.undo(lasts, Undo::ApiLag(node));
            for other in (0..self.nodes.len()).filter(|other| *other != node && *other != holder) {
                if self.rng.chance(60) {
                    let soon = self.rng.range(20, 500);
                    self.at(self.now + soon, Event::Strike { node: other, what: 0, lasts: 150 });
                }
            }
            self.story.calm_from = self.story.calm_from.map(|calm| calm.max(self.now + 10_000));
            return;
        }
        let list: &[u64] = match moment {
            Moment::Renewed => &[0, 27, 46, 46, 47, 45, 19],
            Moment::Held => &[0, 48, 49, 43, 12, 27, 46, 68, 101],
            Moment::Campaign => &[0, 0, 12, 68, 43, 27, 35, 100, 100, 100, 100],
            Moment::Rules => &[0, 0, 12, 12, 46, 46, 27, 43, 75],
            _ => &[0, 0, 12, 19, 27, 43, 75],
        };
        let what = list[self.rng.index(list.len())];
        let lasts = if moment == Moment::Renewed && what == 27 {
            self.rng.range(6_000, 14_500)
        } else {
            self.rng.range(300, 35_000)
        };
        if matches!(what, 27 | 46) && self.rng.chance(50) {
            // Before the answer is under way.
            if moment == Moment::Rules {
                for other in (0..self.nodes.len()).filter(|other| *other != victim) {
                    if self.rng.chance(40) {
                        let what = [99, 101][self.rng.index(2)];
                        self.strike(other, what, lasts + 20_000);
                    }
                }
            }
            self.strike(victim, what, lasts);
            return;
        }
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

    /// Several things at one moment.
    fn strike_together(&mut self, moment: Moment, node: usize) -> bool {
        let holder = self.api.register.holder_instance().and_then(|instance| self.node_of(instance)).unwrap_or(node);
        let others: Vec<usize> = (0..self.nodes.len()).filter(|other| *other != holder).collect();
        match moment {
            // Another was elected while the former primary is alone with one replica that nobody heard: it goes before it
            // can confirm, and then they all meet.
            Moment::Opened if self.story.fork.is_some() && node == holder && self.api.register.term > 1 => {
                let Some((id, former)) = self.story.fork.take() else { return false };
                if former == node {
                    return false;
                }
                self.strike(node, 45, 30_000);
                let soon = self.rng.range(1_000, 6_000);
                self.at(self.now + soon, Event::Strike { node, what: 12, lasts: 80_000 });
                self.at(self.now + soon + 200, Event::FaultEnd { id });
                true
            }
            // From nobody to a quorum, and at once to another one: only the first came from an empty setting.
            Moment::Rules
                if matches!(self.api.register.rules.as_slice(), [none, some] if none.k == 0 && some.k > 0)
                    && self.terms.instances.len() > 2
                    && self.rng.chance(60) =>
            {
                self.terms.k = if self.terms.k == 1 { 2 } else { 1 };
                self.api.terms = self.terms.clone();
                self.note(|w| format!("----   terms {:?}", w.terms));
                // What is acknowledged when that is done must be on the new members.
                self.story.eager = true;
                true
            }
            // The change of the rules is done: what is acknowledged from here on must be on the new members.
            Moment::Rules if self.api.register.rules.len() == 1 && (self.story.eager || self.rng.chance(25)) => {
                self.story.eager = false;
                let away: Vec<usize> = if others.len() > 2 && self.rng.chance(60) {
                    others[..others.len() / 2].to_vec()
                } else {
                    others.clone()
                };
                for other in &away {
                    self.strike(*other, 99, 20_000);
                }
                let soon = self.rng.range(100, 2_600);
                self.at(self.now + soon, Event::Strike { node: holder, what: 12, lasts: 70_000 });
                if let Some(last) = others.last().filter(|last| !away.contains(last)) {
                    self.at(self.now + soon, Event::Strike { node: *last, what: 12, lasts: 70_000 });
                }
                true
            }
            // Who answered the freeze restarts, and the candidate's way to the API server is slow.
            Moment::Campaign if self.story.zombies && self.rng.chance(35) => {
                self.nodes[node].api_lag = self.rng.range(2_000, 6_000);
                self.undo(9_000, Undo::ApiLag(node));
                for other in others.into_iter().filter(|other| *other != node) {
                    let soon = self.rng.range(20, 400);
                    self.at(self.now + soon, Event::Strike { node: other, what: 0, lasts: 150 });
                }
                true
            }
            // Who holds restarts, and hears no more of the holder.
            Moment::Held if self.story.focus == Focus::Lease && self.rng.chance(8) => {
                self.strike(node, 101, 9_000);
                let soon = self.rng.range(0, 6_000);
                self.at(self.now + soon, Event::Strike { node, what: 0, lasts: 150 });
                true
            }
            _ => false,
        }
    }

    /// A member freezes: an older request to it, and an older watch event, may come just now.
    pub fn redeliver(&mut self, to: usize, asker: usize, version: &str, round: u64) {
        let open = self.story.kind == Kind::Chaos && self.story.calm_from.is_none_or(|calm| self.now < calm);
        if open && self.rng.chance(25) {
            let older = version.parse::<u64>().unwrap_or(1).saturating_sub(self.rng.range(1, 3));
            self.after(0, 800, Event::Watched { node: to, version: older.to_string() });
        }
        let message = Message::Freeze { asker, version: version.to_owned(), round };
        let old = self.nodes[to].old_freeze.replace(message);
        if let Some(Message::Freeze { asker, version: older, round }) = old
            && open
            && older != version
            && self.rng.chance(40)
        {
            self.after(0, 800, Event::Peer { to, message: Message::Freeze { asker, version: older, round } });
        }
    }

    pub fn strike(&mut self, node: usize, what: u64, lasts: Ms) {
        let lasts = self.harm(node, what, lasts);
        let until = self.now + lasts + 500;
        self.story.calm_from = self.story.calm_from.map(|calm| calm.max(until));
    }

    /// The primary and one replica alone, out of the others' sight.
    fn fork(&mut self) -> Ms {
        let holder = self.api.register.holder_instance().and_then(|instance| self.node_of(instance)).unwrap_or(0);
        let with = (holder + 1 + self.rng.index(self.nodes.len() - 1)) % self.nodes.len();
        let inside = |node: usize| node == holder || node == with;
        let mut pairs = vec![(holder, API), (API, holder)];
        for from in 0..self.nodes.len() {
            for to in 0..self.nodes.len() {
                if inside(from) != inside(to) {
                    pairs.push((from, to));
                }
            }
        }
        for (from, to) in &pairs {
            self.net.cut[*from][*to] = true;
        }
        let lasts = self.undo(40_000, Undo::Cut(pairs));
        self.story.fork = self.story.last_undo().map(|id| (id, holder));
        lasts + 40_000
    }

    /// A replica that lags, the primary goes, and then the next one, before anybody has caught up.
    pub fn cascade(&mut self) -> Ms {
        if let Some(lasts) = self.twins() {
            return lasts;
        }
        if self.nodes.len() == 5 && self.rng.chance(60) {
            return self.fork();
        }
        let holder = self.api.register.holder_instance().and_then(|instance| self.node_of(instance)).unwrap_or(0);
        let count = self.terms.instances.len();
        let slow = (holder + 1 + self.rng.index(count.max(2) - 1)) % count;
        let lag = self.rng.range(800, 6_000);
        self.nodes[slow].lag = lag;
        let lasts = self.undo(25_000, Undo::Lag(slow));
        self.note(|w| format!("----   cascade: {} is slow by {lag}", w.nodes[slow].instance));
        if self.rng.chance(40) {
            let second = (slow + 1) % count;
            self.nodes[second].lag = self.rng.range(800, 7_000);
            self.undo(25_000, Undo::Lag(second));
        }
        if self.rng.chance(30) {
            self.harm(slow, 99, 18_000);
        }
        let mut at = self.now + self.rng.range(200, 4_000);
        if self.rng.chance(60) {
            // A replica restarts, and reports less than it has for a while.
            let other = (holder + 1 + self.rng.index(count.max(2) - 1)) % count;
            let back = at + if self.rng.chance(50) { self.rng.range(0, 3_500) } else { self.rng.range(12_500, 18_000) };
            self.at(back, Event::Strike { node: other, what: 0, lasts: 200 });
        }
        let kill =
            if self.story.zombies && self.rng.chance(50) { 27 } else { [0, 0, 12, 12, 49, 27, 35][self.rng.index(7)] };
        self.at(at, Event::Strike { node: holder, what: kill, lasts: 30_000 });
        for _ in 0..self.rng.range(0, 2) {
            at += self.rng.range(900, 22_000);
            self.at(at, Event::Strike { node: HOLDER, what: 0, lasts: 20_000 });
        }
        lasts + 40_000
    }

    /// Two replicas must have each commit. One is away, so all commits wait for it; the other's connection breaks unseen, and it
    /// comes back beside its own walsender that lingers. Then the primary goes, and that one as well.
    fn twins(&mut self) -> Option<Ms> {
        let holder = self.api.register.holder_instance().and_then(|instance| self.node_of(instance))?;
        let mut others: Vec<usize> = (0..self.terms.instances.len()).filter(|other| *other != holder).collect();
        let both = self.terms.durability == Durability::Quorum && self.terms.k == 2 && others.len() == 2;
        if !both || self.rng.chance(50) {
            return None;
        }
        if self.rng.chance(50) {
            others.reverse();
        }
        let (back, away) = (others[0], others[1]);
        self.note(|w| format!("----   twins: {} comes back twice", w.nodes[back].instance));
        self.harm(away, 99, 30_000);
        // As many wait as can, so nothing is sent that would show the broken connection.
        let breaks = self.now + self.rng.range(7_000, 11_000);
        self.at(breaks, Event::Strike { node: back, what: 99, lasts: 150 });
        self.at(breaks + 5, Event::Strike { node: back, what: 19, lasts: 0 });
        let goes = breaks + self.rng.range(1_000, 6_000);
        for (node, lasts) in [(holder, 70_000), (back, 40_000)] {
            self.at(goes, Event::Strike { node, what: 12, lasts });
        }
        Some(90_000)
    }

    /// The holder does not reach the API server; members hold, restart, and are cut off from it one by one.
    pub fn edge(&mut self) -> Ms {
        let holder = self.api.register.holder_instance().and_then(|instance| self.node_of(instance)).unwrap_or(0);
        let way = [45, 46, 47][self.rng.index(3)];
        let lasts = self.rng.range(20_000, 60_000);
        self.note(|w| format!("----   edge: {} and the API server", w.nodes[holder].instance));
        self.harm(holder, way, lasts);
        if self.rng.chance(40) {
            // One replica does not hear the holder, and elects without its answer.
            let deaf = (holder + 1 + self.rng.index(self.nodes.len() - 1)) % self.nodes.len();
            let pairs = vec![(holder, deaf), (deaf, holder)];
            for (from, to) in &pairs {
                self.net.cut[*from][*to] = true;
            }
            self.undo(lasts, Undo::Cut(pairs));
        }
        if self.rng.chance(50) {
            self.net.late = self.rng.range(10, 60);
            self.undo(lasts, Undo::Net);
        }
        for _ in 0..self.rng.range(1, 5) {
            let other = self.rng.index(self.nodes.len());
            let what = [0, 0, 0, 99, 99, 99, 27, 27, 75, 43, 19, 98, 101, 101, 101, 101][self.rng.index(16)];
            let soon = self.rng.range(0, 30_000);
            let lasts = self.rng.range(300, 40_000);
            self.at(self.now + soon, Event::Strike { node: other, what, lasts });
        }
        lasts + 40_000
    }

    /// The configuration of the sync rules changes, a replica is slow, and the primary goes when the change is done.
    pub fn change(&mut self) -> Ms {
        if let Some(lasts) = self.twins() {
            return lasts;
        }
        let other = self.rng.index(self.nodes.len());
        let lasts = self.rng.range(6_000, 25_000);
        let lasts = if self.rng.chance(50) {
            self.harm(other, 99, lasts)
        } else {
            self.nodes[other].lag = self.rng.range(500, 5_000);
            self.undo(lasts, Undo::Lag(other))
        };
        let which = [93, 93, 93, 96][self.rng.index(4)];
        let before = self.rng.range(0, 2_500);
        self.at(self.now + before, Event::Strike { node: other, what: which, lasts: 0 });
        let soon = before + self.rng.range(300, 4_500);
        if self.rng.chance(55) {
            // All but that one; the holder stays away longest.
            let holder = self.api.register.holder_instance().and_then(|instance| self.node_of(instance));
            for node in (0..self.nodes.len()).filter(|node| *node != other) {
                let soon = soon + self.rng.range(0, 300);
                let lasts = if Some(node) == holder { 70_000 } else { 27_000 };
                self.at(self.now + soon, Event::Strike { node, what: 12, lasts });
            }
            return lasts + 75_000;
        }
        for _ in 0..self.rng.range(1, 3) {
            let soon = soon + self.rng.range(0, 2_000);
            let what = [0, 12][self.rng.index(2)];
            let node = if self.rng.chance(60) { HOLDER } else { self.rng.index(self.nodes.len()) };
            self.at(self.now + soon, Event::Strike { node, what, lasts: 25_000 });
        }
        lasts + 30_000
    }
}
