//! Elections as this agent sees them: what it promises candidates, its own campaigns, and what it knows of the holder.

use std::time::Duration;

use tokio::sync::oneshot;

use super::Error;
use super::history::timelines;
use super::process::boottime;
use super::run::{Agent, Event};
use super::standstill::stand;
use crate::api::agent::{ElectionPhase, ElectionReport, Lsn, Phase};
use crate::core::election::choose::{Verdict, judge};
use crate::core::election::lease_step::unelectable;
use crate::core::election::vote::{Read, answer, marker_returns, may_freeze};
use crate::core::election::{Answer, Ballot, Boot, Data, EngineState, History, NoAnswer, Promise};

/// A member that was asked to freeze answers within this time, or not at all.
const FREEZE: Duration = Duration::from_millis(1300);
/// A ballot that could be decided already waits this long for those that may be better.
const PATIENCE: Duration = Duration::from_millis(250);
/// How often a follower asks the holder for what it needs to know of it.
const ASK: Duration = Duration::from_millis(100);

/// What an answer to a freeze is.
pub type FreezeAnswer = Result<Answer, NoAnswer>;

/// Who waits for this member's answer.
#[derive(Debug)]
enum Asker {
    /// Another agent.
    Peer(oneshot::Sender<FreezeAnswer>),
    /// This agent's own campaign.
    Own,
}

#[derive(Debug)]
struct Waiting {
    version: String,
    until: Boot,
    /// Whether it was promised to follow nobody.
    promised: bool,
    asker: Asker,
}

/// A freeze that this agent asked everybody for.
#[derive(Debug)]
struct Campaign {
    version: String,
    began: Boot,
    answers: Vec<Answer>,
    /// Own member id, when this member stands in its own election.
    own: Option<String>,
    /// How many have not answered yet, this member among them.
    open: usize,
}

/// What this agent knows and does in elections.
#[derive(Debug, Default)]
pub(super) struct Elections {
    waiting: Vec<Waiting>,
    campaign: Option<Campaign>,
    pub(super) ballot: Option<Ballot>,
    pub(super) fork: Option<History>,
    /// When the standing promises were persisted.
    promised: Boot,
    /// When the marker went, or this agent began.
    pub(super) marker_gone: Boot,
    /// Counts how often the source was changed: what was read of an earlier standstill is not about this one.
    pub(super) still: u64,
    standing_still: Option<u64>,
    asking: bool,
    asked: Boot,
}

impl Elections {
    /// Of an agent that begins now: a promise that stands is lifted only by a read that is sent from now on.
    pub(super) fn new() -> Self {
        Self { marker_gone: boottime(), promised: boottime(), ..Self::default() }
    }
}

impl Agent {
    /// Another member wants to be elected on this version of the Lease.
    pub(super) fn asked_to_freeze(&mut self, version: &str, answer: oneshot::Sender<FreezeAnswer>) {
        self.freeze(version, Asker::Peer(answer));
    }

    fn freeze(&mut self, version: &str, asker: Asker) {
        let until = boottime() + FREEZE;
        self.elections.waiting.push(Waiting { version: version.to_owned(), until, promised: false, asker });
        self.answer_freezes();
    }

    /// Promises to follow nobody until the Lease has another version than this. It is on disk before anything is answered.
    fn promise(&mut self, version: &str) -> Result<(), NoAnswer> {
        self.decide(|view| may_freeze(view).map(|_| ()))?;
        let promise = Promise::with(self.state.promise.as_ref(), version);
        if self.state.promise.as_ref() != Some(&promise) {
            tracing::info!(version, "follows nobody while an election is held");
            if let Err(error) = self.remember(|state| state.promise = Some(promise)) {
                tracing::warn!(%error, "a promise could not be kept, so it is not given");
                return Err(NoAnswer::NoMarker);
            }
            self.elections.promised = boottime();
        }
        Ok(())
    }

    fn give(&mut self, Waiting { asker, version, until, .. }: Waiting, answer: FreezeAnswer) {
        let (version, since) = (version.as_str(), until.saturating_sub(FREEZE));
        if let Err(why) = &answer {
            tracing::info!(version, ?why, "gives no answer for an election");
        }
        let outcome = match &answer {
            Ok(answer) => Ok(format!("{}:{}", answer.timeline, answer.end)),
            Err(why) => Err(format!("{why:?}")),
        };
        self.tell_step("freeze", self.next_term(), since, outcome);
        match asker {
            // Nobody may listen any more.
            Asker::Peer(sender) => drop(sender.send(answer)),
            Asker::Own => {
                if let Some(campaign) = self.elections.campaign.as_mut().filter(|own| own.version == version) {
                    if let Ok(answer) = answer {
                        campaign.own = Some(answer.member.clone());
                        campaign.answers.push(answer);
                    }
                    campaign.open = campaign.open.saturating_sub(1);
                }
            }
        }
    }

    /// Answers those that wait, once this member stands still and its end is known.
    pub(super) fn answer_freezes(&mut self) {
        for mut waiting in std::mem::take(&mut self.elections.waiting) {
            match self.stands_still_for(&mut waiting) {
                Ok(Some(answer)) => self.give(waiting, Ok(answer)),
                // It is on its way to a standstill.
                Ok(None) | Err(NoAnswer::Busy | NoAnswer::Replaying) if boottime() < waiting.until => {
                    self.elections.waiting.push(waiting);
                }
                Ok(None) => self.give(waiting, Err(NoAnswer::Busy)),
                Err(why) => self.give(waiting, Err(why)),
            }
        }
        self.count();
    }

    /// The answer for this candidate, once there is one.
    fn stands_still_for(&mut self, waiting: &mut Waiting) -> Result<Option<Answer>, NoAnswer> {
        if !waiting.promised {
            self.promise(&waiting.version)?;
            waiting.promised = true;
        }
        if !self.state.promise.as_ref().is_some_and(|promise| promise.stands(&waiting.version)) {
            // The Lease has changed meanwhile: nobody can use the answer any more.
            return Err(NoAnswer::NoMarker);
        }
        let still = self.job.is_none()
            && matches!(self.engine, EngineState::Stopped | EngineState::Standby { source: None, .. });
        let (draining, backlog, full) = (self.stopping.is_some(), self.backlog(), self.rooms.full.is_some());
        self.decide(|view| {
            let member = may_freeze(view)?;
            let known = member.end_known || *view.engine == EngineState::Stopped;
            let answer = || Answer { full, ..answer(view, member, &waiting.version, backlog, draining) };
            Ok((still && known).then(answer))
        })
    }

    /// Bytes that are received and not replayed.
    fn backlog(&self) -> u64 {
        let Data::Present(member) = &self.data else { return 0 };
        let replayed = self.observation.as_ref().and_then(|seen| seen.status.replayed);
        replayed.map_or(0, |replayed| member.end.0.saturating_sub(replayed.0))
    }

    /// Whether an election of this agent's is under way.
    pub(super) fn campaigning(&self) -> bool {
        self.elections.campaign.is_some()
    }

    /// Asks every other member to freeze on this version, and itself.
    pub(super) fn campaign(&mut self, version: &str) {
        if self.elections.campaign.is_some() {
            return;
        }
        let Some(terms) = &self.terms else { return };
        let others: Vec<String> = terms.instances.iter().filter(|name| **name != self.me.instance).cloned().collect();
        tracing::info!(version, "the Lease of the primary is free: holds an election");
        self.elections.campaign = Some(Campaign {
            version: version.to_owned(),
            began: boottime(),
            answers: Vec::new(),
            own: None,
            open: others.len() + 1,
        });
        for instance in others {
            let (peers, events, asked) = (self.peers.clone(), self.events.clone(), version.to_owned());
            tokio::spawn(async move {
                let answer = peers.freeze(&instance, &asked, FREEZE).await;
                let _ = events.send(Event::Answered(asked, answer.map(Box::new))).await;
            });
        }
        self.wake_after(PATIENCE);
        self.freeze(version, Asker::Own);
    }

    /// Another member answered this agent's own freeze, or did not.
    pub(super) fn answered(&mut self, version: &str, answer: Option<Box<Answer>>) {
        if let Some(campaign) = self.elections.campaign.as_mut().filter(|campaign| campaign.version == version) {
            campaign.answers.extend(answer.map(|answer| *answer));
            campaign.open = campaign.open.saturating_sub(1);
        }
        self.count();
    }

    /// Ends the ballot when all have answered, or when those who have are enough and the rest had their time.
    fn count(&mut self) {
        let Some(campaign) = &self.elections.campaign else { return };
        let answers = &campaign.answers;
        if campaign.open > 0 {
            let wish = self.register().and_then(|register| register.release.as_ref()?.wish.clone());
            let wished = wish.is_none_or(|wish| answers.iter().any(|answer| answer.instance == wish));
            let enough = wished
                && boottime() >= campaign.began + PATIENCE
                && self.register().zip(campaign.own.as_ref()).zip(self.terms.as_ref()).is_some_and(
                    |((register, own), terms)| {
                        judge(register, &campaign.version, own, answers, terms.max_lag) == Verdict::Take
                    },
                );
            if !enough {
                return;
            }
        }
        let who: Vec<String> =
            answers.iter().map(|answer| format!("{} {}:{}", answer.instance, answer.timeline, answer.end)).collect();
        tracing::info!(answers = %who.join(", "), "the ballot of the election");
        let Some(Campaign { version, began, answers, .. }) = self.elections.campaign.take() else { return };
        self.tell_step("ballot", self.next_term(), began, Ok(who.join(", ")));
        let before = self.elections.ballot.as_ref().filter(|ballot| ballot.version == version);
        let before = before.map_or(0, |ballot| ballot.before + 1);
        self.elections.ballot = Some(Ballot { version, at: boottime(), before, answers });
    }

    /// A consistent read, or a write of our own, showed this version; `sent` is when it was sent.
    pub(super) fn lift_promise(&mut self, version: &str, sent: Boot) {
        let Some(promise) = self.state.promise.clone() else { return };
        let left = promise.clone().after(Read { version, after_promise: sent > self.elections.promised });
        if left.as_ref() == Some(&promise) {
            return;
        }
        if left.is_none() {
            tracing::info!("the election is over: the Lease has another version");
        }
        if let Err(error) = self.remember(|state| state.promise = left) {
            // It stands for a little longer.
            tracing::warn!(%error, "the end of a promise could not be noted");
        }
    }

    /// A standby that follows nobody is brought to a standstill, so that its end can be told.
    pub(super) fn stand_still(&mut self) {
        let wanted = matches!(self.engine, EngineState::Standby { source: None, replaying: false });
        let known = matches!(&self.data, Data::Present(member) if member.end_known);
        let serial = self.elections.still;
        let Some(postmaster) =
            self.postmaster.clone().filter(|_| wanted && !known && self.elections.standing_still.is_none())
        else {
            return;
        };
        self.elections.standing_still = Some(serial);
        let (socket, processes, events) = (self.place.socket.clone(), self.processes.clone(), self.events.clone());
        tokio::spawn(async move {
            let outcome = stand(&socket, &postmaster, &processes, FREEZE).await;
            let _ = events.send(Event::StoodStill(serial, outcome)).await;
        });
    }

    /// The standstill with this number was reached, or was not.
    pub(super) fn stood_still(&mut self, serial: u64, outcome: Result<(u32, Lsn), Error>) {
        self.elections.standing_still = None;
        if serial != self.elections.still {
            return;
        }
        match outcome {
            Ok((timeline, end)) => {
                let still = matches!(self.engine, EngineState::Standby { source: None, .. });
                let history = timelines(&self.place.layout.pgdata(), timeline);
                if let Data::Present(member) = &mut self.data
                    && still
                {
                    (member.timeline, member.end, member.end_known) = (timeline, end, true);
                    member.history = history;
                }
            }
            Err(error) => {
                tracing::debug!(%error, "the end of the WAL could not be told");
                self.wake_after(Duration::from_millis(20));
            }
        }
    }

    /// A follower learns the holder's history from the holder itself.
    pub(super) fn ask_holder(&mut self) {
        let Some(register) = self.register() else { return };
        let (term, timeline) = (register.term, register.timeline);
        let told = self
            .elections
            .fork
            .as_ref()
            .is_some_and(|fork| fork.term == term && fork.forks.last().is_some_and(|(own, _)| *own == timeline));
        let holder = register.holder_instance().filter(|holder| *holder != self.me.instance && !register.released());
        let wants = !told && self.tenure.is_none() && matches!(self.data, Data::Present(_));
        let Some(holder) = holder.filter(|_| wants && !self.elections.asking).map(ToOwned::to_owned) else {
            return;
        };
        let due = self.elections.asked + ASK;
        if boottime() < due {
            self.wake_after(ASK);
            return;
        }
        (self.elections.asking, self.elections.asked) = (true, boottime());
        let (peers, events) = (self.peers.clone(), self.events.clone());
        tokio::spawn(async move {
            let heard = peers.ask(vec![holder]).await;
            let _ = events.send(Event::HolderSaid(heard.into_iter().next().map(Box::new))).await;
        });
    }

    /// The holder answered, or did not.
    pub(super) fn holder_said(&mut self, heard: Option<Box<super::peers::Heard>>) {
        self.elections.asking = false;
        let Some(report) = heard.map(|heard| heard.report) else { return };
        if report.phase == Phase::Primary && !report.history.is_empty() {
            self.elections.fork = Some(History { term: report.term, forks: report.history });
        }
    }

    /// A copy that was cloned or rewound may answer elections once it has what the holder had after that.
    pub(super) fn return_marker(&mut self) {
        if self.state.marker {
            return;
        }
        let (Some((_, seen)), Some(observed)) = (&self.lease, &self.observation) else { return };
        let EngineState::Standby { source: Some(source), replaying: false } = &self.engine else { return };
        let streams = observed.status.streaming_from.as_deref() == Some(source.instance.as_str());
        let (Some(timeline), Some(flushed)) = (observed.status.timeline, observed.status.received) else { return };
        let read_since = self.lease_read_sent > self.elections.marker_gone;
        if !streams || self.state.fresh.is_some() || source.term != seen.register.term {
            return;
        }
        if !read_since {
            // Until it is read this member cannot be elected: were the primary lost now, perhaps nobody could be.
            self.read_due = Duration::ZERO;
        } else if marker_returns(&seen.register, true, timeline, flushed)
            && let Err(error) = self.remember(|state| state.marker = true)
        {
            tracing::warn!(%error, "that this copy is complete could not be noted");
        }
    }

    /// What this agent does in an election, for the report.
    pub(super) fn election_report(&self) -> Option<ElectionReport> {
        if self.tenure.is_some() {
            return None;
        }
        let report = |phase, version: &str, missing, sentence: String| {
            Some(ElectionReport { phase, version: version.to_owned(), missing, sentence })
        };
        if let Some(campaign) = &self.elections.campaign {
            let sentence = "asks every member what it has".to_owned();
            return report(ElectionPhase::Campaigning, &campaign.version, Vec::new(), sentence);
        }
        let (Some((_, seen)), Data::Present(member), Some(terms)) = (&self.lease, &self.data, &self.terms) else {
            return None;
        };
        if let Some(ballot) = self.elections.ballot.as_ref().filter(|ballot| ballot.version == seen.version) {
            let verdict = judge(&seen.register, &seen.version, &member.id, &ballot.answers, terms.max_lag);
            return match verdict {
                Verdict::Take => report(ElectionPhase::Campaigning, &seen.version, Vec::new(), "takes over".into()),
                Verdict::StandBack { .. } => {
                    let sentence = "another member should rather take over".to_owned();
                    report(ElectionPhase::StandingBack, &seen.version, Vec::new(), sentence)
                }
                Verdict::Blocked(blocked) => {
                    report(ElectionPhase::Blocked, &seen.version, blocked.missing, blocked.sentence)
                }
            };
        }
        if let Some(sentence) = self.decide(unelectable) {
            return report(ElectionPhase::Blocked, &seen.version, Vec::new(), sentence);
        }
        let promise = self.state.promise.as_ref()?;
        let version = promise.versions.iter().next_back()?;
        report(ElectionPhase::Frozen, version, Vec::new(), "follows nobody while an election is held".into())
    }
}
