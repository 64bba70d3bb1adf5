//! What the shell does beside the two steps: messages, reads, the confirmation, holds, the marker.

use std::time::Duration;

use hello_operator::core::election::mutation::{Mutation, active};
use hello_operator::core::election::{
    Ballot, Data, EngineState, History, Promise, Read, Register, Seen, Tenure, hold, vote,
};

use super::adversary::Moment;
use super::agent::{Agent, Campaign, Kind, Known};
use super::api::{PodStatus, Reply, Request};
use super::postgres::Dir;
use super::world::{Event, Message, World};

impl Agent {
    /// The Pod's status shows a container id: only that of this very start counts, not one that the kubelet has not yet
    /// replaced.
    fn learn_container(&mut self, shown: Option<String>) {
        let mine = shown.filter(|id| *id == self.container || active(Mutation::RestartedContainerDead));
        self.container_id = mine.or(self.container_id.take());
    }
}

impl World {
    /// Reads the engine's position.
    pub fn observe(&mut self, node: usize) {
        let machine = &mut self.nodes[node];
        let (Some(agent), Some(dir)) = (machine.agent.as_mut(), machine.volume.dir.as_ref()) else { return };
        let mut end = dir.wal.len();
        let replaying = machine.pg.as_ref().filter(|pg| pg.replaying_until > self.now);
        agent.seen_all = replaying.is_none();
        if let Some(pg) = replaying {
            end = pg.shown.min(end);
        }
        agent.seen_end = (end.checked_sub(1).map_or(1, |last| dir.wal[last].timeline), end);
    }

    pub fn duties(&mut self, node: usize) {
        let now = self.clock(node);
        self.return_marker(node);
        self.tell_holder(node);
        let wants_history = self
            .view(node, |view| {
                let follower = view.tenure.is_none();
                view.lease
                    .filter(|_| follower)
                    .filter(|seen| {
                        view.fork.is_none_or(|fork| {
                            fork.term != seen.register.term
                                || fork.forks.last().map(|(timeline, _)| *timeline) != Some(seen.register.timeline)
                        })
                    })
                    .and_then(|seen| seen.register.holder_instance().map(str::to_owned))
            })
            .flatten();
        if let Some(holder) = wants_history.and_then(|instance: String| self.node_of(&instance))
            && holder != node
            && let Some(agent) = self.nodes[node].agent.as_mut()
            && agent.asked_history + Duration::from_millis(400) < now
        {
            agent.asked_history = now;
            self.send(node, holder, Message::AskHistory { asker: node });
        }
        if self.nodes[node].agent.as_ref().is_some_and(|agent| agent.tenure.is_some()) {
            self.holder_duties(node);
        }
    }

    fn return_marker(&mut self, node: usize) {
        if self.nodes[node].volume.state.marker || self.nodes[node].volume.dir.is_none() {
            return;
        }
        let consistent = self.nodes[node].volume.dir.as_ref().is_some_and(Dir::consistent);
        let returns = self.view(node, |view| {
            let agent = self.nodes[node].agent.as_ref();
            let since = agent.is_some_and(|a| a.marker_gone.is_some_and(|gone| a.lease_read_sent > gone));
            match (view.data, view.lease, view.engine) {
                (Data::Present(member), Some(seen), EngineState::Standby { replaying: false, .. }) => {
                    (consistent || active(Mutation::MarkerTooEarly))
                        && vote::marker_returns(&seen.register, since, member.timeline, member.end)
                }
                (Data::Present(_), Some(_), _) => {
                    active(Mutation::MarkerTooEarly) && *view.engine == EngineState::Stopped
                }
                _ => false,
            }
        });
        if returns == Some(true) {
            self.nodes[node].volume.state.marker = true;
            self.note(|w| format!("marker {} returns", w.nodes[node].instance));
        }
    }

    fn holder_duties(&mut self, node: usize) {
        let now = self.clock(node);
        let streaming: Vec<String> = self
            .walsenders(node)
            .into_iter()
            .filter(|conn| self.conns[*conn].flush > 0)
            .map(|conn| self.conns[conn].name.clone())
            .collect();
        let writable = self.nodes[node].pg.as_ref().is_some_and(|pg| pg.writable && !pg.killing && !pg.stopping);
        let Some(agent) = self.nodes[node].agent.as_mut() else { return };
        let Some(tenure) = agent.tenure.as_mut() else { return };
        if agent.book_term != tenure.term {
            agent.book.clear();
            agent.book_term = tenure.term;
            agent.book_since = now;
        }
        for (id, known) in &mut agent.book {
            if streaming.contains(id) {
                known.last_streamed = Some(now);
            }
        }
        let term = tenure.term;
        if writable {
            tenure.served = true;
            if agent.routed + Duration::from_millis(2_500) < now {
                agent.routed = now;
                let id = self.id();
                self.request(node, id, Request::Route { term });
            }
            if self.nodes[node].agent.as_ref().is_some_and(|agent| agent.job.is_none()) {
                self.confirm(node);
            }
        }
        self.ask_holds(node);
    }

    fn ask_holds(&mut self, node: usize) {
        let now = self.clock(node);
        let Some(agent) = self.nodes[node].agent.as_ref() else { return };
        let Some(tenure) = &agent.tenure else { return };
        let due =
            now > tenure.renewed + Duration::from_secs(3) && now > agent.asked_hold + Duration::from_millis(1_500);
        let froze = self.nodes[node].volume.state.promise.is_some() && !active(Mutation::FrozenHolderReturns);
        if !due || tenure.ending.is_some() || froze {
            return;
        }
        let term = tenure.term;
        let Some(agent) = self.nodes[node].agent.as_mut() else { return };
        agent.asked_hold = now;
        let message =
            Message::Hold { asker: node, holder: agent.me.holder(), term, sent: now, generation: agent.generation };
        self.count_holds(node);
        for other in 0..self.nodes.len() {
            if other != node && self.nodes[other].wanted {
                self.send(node, other, message.clone());
            }
        }
    }

    fn count_holds(&mut self, node: usize) {
        let Some(agent) = self.nodes[node].agent.as_mut() else { return };
        let Some(seen) = &agent.lease else { return };
        let unknown = agent.unknown.iter().filter(|_| !active(Mutation::HoldUnknownWrite));
        let possible: Vec<&Register> = std::iter::once(&seen.register).chain(unknown).collect();
        let until = hold::extended_for(possible, &agent.grants);
        if let Some(tenure) = &mut agent.tenure {
            let until = if active(Mutation::HoldAfterRules) { tenure.held_until.max(until) } else { until };
            tenure.held_until = until;
        }
    }

    pub fn on_message(&mut self, to: usize, message: Message) {
        if self.nodes[to].agent.is_none() {
            return;
        }
        match message {
            Message::Freeze { asker, version, round } => self.on_freeze(to, asker, version, round),
            Message::Frozen { round, answer } => {
                let Some(campaign) = self.nodes[to].agent.as_mut().and_then(|agent| agent.campaign.as_mut()) else {
                    return;
                };
                if campaign.round == round {
                    campaign.heard += 1;
                    if let Some(answer) = answer
                        && campaign.answers.iter().all(|other| other.member != answer.member)
                    {
                        campaign.answers.push(answer);
                    }
                    if campaign.heard >= campaign.asked {
                        self.on_ballot_end(to, round);
                    }
                }
            }
            Message::Hold { asker, holder, term, sent, generation } => {
                let now = self.clock(to);
                let may = self.view(to, |view| vote::may_hold(view, &holder, term).is_ok());
                if may != Some(true) {
                    return;
                }
                let machine = &mut self.nodes[to];
                let until = now + hold::HOLD;
                machine.volume.state.hold = Some((machine.boot_id, until));
                if let Some(agent) = &mut machine.agent {
                    agent.bound_until = agent.bound_until.max(Some(until));
                }
                let member = machine.volume.state.member.clone();
                self.note(|w| format!("hold   {} to {holder}", w.nodes[to].instance));
                self.react(Moment::Held, to);
                self.send(to, asker, Message::Held { member, holder, sent, generation });
            }
            Message::Held { member, holder, sent, generation } => {
                let now = self.clock(to);
                // An answer to an earlier start of this agent found nobody.
                let asked = |agent: &&mut Agent| agent.me.holder() == holder;
                let Some(agent) = self.nodes[to].agent.as_mut().filter(asked) else { return };
                if agent.tenure.is_none() || generation != agent.generation && !active(Mutation::HoldAfterRules) {
                    return;
                }
                let until = hold::counts_until(if active(Mutation::HoldFromAnswer) { now } else { sent });
                agent.grants.insert(member, until);
                self.count_holds(to);
                self.tick(to);
            }
            Message::Report { instance, member, term, marker } => {
                let Some(agent) = self.nodes[to].agent.as_mut() else { return };
                if agent.tenure.as_ref().is_some_and(|tenure| tenure.term == term) && agent.book_term == term {
                    agent.book.retain(|id, known| *id == member || known.instance != instance);
                    let known = agent.book.entry(member).or_default();
                    let was = known.confirmed;
                    *known = Known { instance, confirmed: true, marker, last_streamed: known.last_streamed };
                    if !was {
                        self.tick(to);
                    }
                }
            }
            Message::AskHistory { asker } => {
                let Some(agent) = self.nodes[to].agent.as_ref() else { return };
                let (Some(tenure), Some(dir)) = (&agent.tenure, &self.nodes[to].volume.dir) else { return };
                let history = History { term: tenure.term, forks: dir.forks() };
                self.send(to, asker, Message::History { history });
            }
            Message::History { history } => {
                if let Some(agent) = self.nodes[to].agent.as_mut() {
                    agent.fork = Some(history);
                }
                self.tick(to);
            }
        }
    }

    fn on_freeze(&mut self, to: usize, asker: usize, version: String, round: u64) {
        let may = self.view(to, |view| vote::may_freeze(view).map(|_| ()));
        if let Some(Err(why)) = may {
            self.note(|w| format!("freeze {} refuses v{version}: {why:?}", w.nodes[to].instance));
            self.send(to, asker, Message::Frozen { round, answer: None });
            return;
        }
        self.redeliver(to, asker, &version, round);
        let now = self.clock(to);
        let state = &mut self.nodes[to].volume.state;
        let promise = Promise::with(state.promise.as_ref(), &version);
        let made = state.promise.replace(promise.clone()) != Some(promise);
        if let Some(agent) = self.nodes[to].agent.as_mut() {
            if made {
                agent.promise_made = now;
            }
            agent.freezes.push((asker, version, round));
        }
        self.tick(to);
    }

    /// Answers those that wait for a freeze, when the receiver has been seen gone.
    pub fn answer_freezes(&mut self, node: usize) {
        let waiting =
            self.nodes[node].agent.as_mut().map(|agent| std::mem::take(&mut agent.freezes)).unwrap_or_default();
        if waiting.is_empty() {
            return;
        }
        let gone = match self.engine_state(node) {
            EngineState::Stopped | EngineState::Standby { source: None, .. } => true,
            EngineState::Busy(_) => active(Mutation::FreezeUnseen),
            EngineState::Standby { .. } => active(Mutation::FreezeSkipped) || active(Mutation::FreezeUnseen),
            EngineState::Primary => active(Mutation::FreezeByHolder),
        };
        if !gone {
            if let Some(agent) = self.nodes[node].agent.as_mut() {
                agent.freezes = waiting;
            }
            return;
        }
        self.observe(node);
        for (asker, version, round) in waiting {
            let stands = self.nodes[node].volume.state.promise.as_ref().is_some_and(|promise| promise.stands(&version));
            let answer = self
                .view(node, |view| {
                    let busy = matches!(view.engine, EngineState::Busy(_));
                    let member = match view.data {
                        Data::Present(member) if busy => Some(member),
                        _ => vote::may_freeze(view).ok(),
                    };
                    member
                        .filter(|_| stands || active(Mutation::FreezeSkipped))
                        .map(|member| vote::answer(view, member, &version, 0, view.stopping))
                })
                .flatten();
            self.note(|w| match &answer {
                Some(a) => format!(
                    "freeze {} on v{version}: {} at {}/{} proof={:?} recover={}",
                    a.instance, a.member, a.timeline, a.end.0, a.proof, a.must_recover
                ),
                None => format!("freeze {} on v{version}: nothing", w.nodes[node].instance),
            });
            self.send(node, asker, Message::Frozen { round, answer });
        }
    }

    pub fn on_ballot_end(&mut self, node: usize, round: u64) {
        let now = self.clock(node);
        let Some(agent) = self.nodes[node].agent.as_mut() else { return };
        let Some(campaign) = agent.campaign.take_if(|campaign| campaign.round == round) else { return };
        let before = agent.ballot.as_ref().filter(|ballot| ballot.version == campaign.version);
        let before = before.map_or(0, |ballot| ballot.before + 1);
        agent.ballot = Some(Ballot { version: campaign.version, at: now, before, answers: campaign.answers });
        self.tick(node);
    }

    pub fn on_request_timeout(&mut self, node: usize, id: u64) {
        let Some(agent) = self.nodes[node].agent.as_mut() else { return };
        let Some(asking) = agent.asking.take_if(|asking| asking.id == id) else { return };
        if let Kind::Write(_) = asking.kind {
            agent.read_due = Duration::ZERO;
        }
        if active(Mutation::StopsAtFirstFailure)
            && let Some(tenure) = &mut agent.tenure
        {
            tenure.renewed = Duration::ZERO;
        }
        self.tick(node);
    }

    pub fn on_answered(&mut self, node: usize, id: u64, reply: Reply) {
        let now = self.clock(node);
        let Some(agent) = self.nodes[node].agent.as_mut() else { return };
        let Some(asking) = agent.asking.take_if(|asking| asking.id == id) else { return };
        match (reply, asking.kind) {
            (Reply::Read { version, register, pods, terms }, kind) => {
                agent.lease_read_sent = asking.sent;
                agent.terms = Some(*terms);
                self.read(node, &version, *register, &pods);
                self.lift_promise(node, &version, asking.sent);
                if let Kind::Campaign(judged) = kind
                    && judged == version
                {
                    self.campaign(node, &version);
                }
            }
            (Reply::Written { version, terms, running }, Kind::Write(register)) => {
                agent.terms = Some(*terms);
                agent.learn_container(running);
                agent.unknown.clear();
                if register.released() || register.holder != agent.me.holder() {
                    agent.tenure = None;
                } else {
                    let renewed = if active(Mutation::DeadlineFromAnswer) { now } else { asking.sent };
                    match &mut agent.tenure {
                        Some(tenure) if tenure.term == register.term => tenure.renewed = renewed,
                        tenure => {
                            agent.grants.clear();
                            agent.confirmed = None;
                            *tenure = Some(Tenure {
                                term: register.term,
                                renewed,
                                attempted: asking.sent,
                                held_until: None,
                                served: false,
                                ending: None,
                            });
                        }
                    }
                }
                agent.lease = Some(Seen { register: *register, version: version.clone(), since: now });
                self.lift_promise(node, &version, asking.sent);
            }
            (Reply::Conflict, Kind::Write(_)) => {
                agent.read_due = Duration::ZERO;
            }
            _ => {}
        }
        self.tick(node);
    }

    /// A watch event: no more than a hint to read.
    pub fn on_watched(&mut self, node: usize, version: &str) {
        let machine = &mut self.nodes[node];
        let Some(agent) = machine.agent.as_mut() else { return };
        if let Some(promise) = machine.volume.state.promise.take() {
            machine.volume.state.promise = promise.after(Read { version, after_promise: false });
        }
        if agent.lease.as_ref().is_none_or(|seen| seen.version != version) && agent.tenure.is_none() {
            agent.read_due = Duration::ZERO;
        }
        self.tick(node);
    }

    /// A consistent read of the Lease.
    fn read(&mut self, node: usize, version: &str, register: Register, pods: &[PodStatus]) {
        let now = self.clock(node);
        let holder = register.holder_instance().and_then(|instance| self.node_of(instance));
        let machine = &mut self.nodes[node];
        let Some(agent) = machine.agent.as_mut() else { return };
        let status = holder.map(|holder| pods[holder].clone()).unwrap_or_default();
        agent.terminated = status.terminated;
        if status.absent && active(Mutation::AbsentPodDead) {
            agent.terminated = register.container_id.clone();
        }
        agent.learn_container(pods[node].running.clone());
        if agent.lease.as_ref().is_none_or(|seen| seen.version != version) {
            agent.unknown.clear();
            agent.lease = Some(Seen { register, version: version.to_owned(), since: now });
        }
    }

    /// A consistent read, or a write of its own, showed this version.
    fn lift_promise(&mut self, node: usize, version: &str, sent: Duration) {
        let machine = &mut self.nodes[node];
        let Some(agent) = machine.agent.as_ref() else { return };
        let after_promise = sent >= agent.promise_made;
        if let Some(promise) = machine.volume.state.promise.take() {
            machine.volume.state.promise = promise.after(Read { version, after_promise });
        }
    }

    fn campaign(&mut self, node: usize, version: &str) {
        let round = self.id();
        let asked: Vec<usize> =
            (0..self.nodes.len()).filter(|other| self.nodes[*other].wanted || *other == node).collect();
        self.note(|w| format!("vote   {} campaigns on v{version}", w.nodes[node].instance));
        if let Some(agent) = self.nodes[node].agent.as_mut() {
            agent.campaign = Some(Campaign {
                version: version.to_owned(),
                round,
                answers: Vec::new(),
                heard: 0,
                asked: asked.len(),
            });
        }
        self.react(Moment::Campaign, node);
        for other in asked {
            self.send(node, other, Message::Freeze { asker: node, version: version.to_owned(), round });
        }
        self.after(900, 1_300, Event::BallotEnd { node, round });
    }
}
