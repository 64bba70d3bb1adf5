//! The Lease as this agent reads and writes it, and what follows: its tenure, and the deadline of the fence.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ContainerStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;

use super::Error;
use super::lease::Written;
use super::process::boottime;
use super::run::{Agent, Event, show};
use crate::api::agent::{HandOver, HandOverReason};
use crate::api::names::ANNOTATION_HAND_OVER;
use crate::core::election::planned::reason_of_take;
use crate::core::election::{Boot, Ending, LeaseStep, Register, Seen, Tenure, lease_step};

/// A replica reads the Lease this often even if its watch is silent.
const READ_EVERY: Duration = Duration::from_secs(5);
/// One that promised a candidate something waits for the end of the election.
const READ_PROMISED: Duration = Duration::from_millis(300);
/// A read that failed is repeated after this.
const READ_AGAIN: Duration = Duration::from_millis(500);
/// How often the Pod of a holder that is not heard of is looked at.
const POD_EVERY: Duration = Duration::from_millis(500);
/// A holder of which nothing was heard for this long may be dead.
const SILENT: Duration = Duration::from_secs(4);

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

/// What is known of containers from the status of Pods.
#[derive(Debug, Default)]
pub(super) struct Containers {
    /// This start's own.
    pub(super) own: Option<String>,
    /// One of the holder's that the kubelet reported as terminated.
    pub(super) terminated: Option<String>,
    looking: bool,
    looked: Boot,
}

impl Agent {
    /// A version of the Lease that was read or written just now.
    pub(super) fn see(&mut self, lease: Lease) {
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        if let Some((_, seen)) = &self.lease
            && seen.version == version
        {
            return;
        }
        // Whatever was conditional on the version before is done or can never be.
        self.unknown.clear();
        match Register::from_lease(&lease) {
            Ok(register) => {
                let before = self.register().map(|register| (register.term, register.released()));
                if before != Some((register.term, register.released())) {
                    let (term, holder, released) = (register.term, register.holder.as_str(), register.released());
                    tracing::info!(term, holder, released, "the Lease of the primary");
                }
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

    /// What the watch shows is no more than a hint for a holder, and for a follower news where it is newer for certain. It may be
    /// late, so it lifts no promise.
    pub(super) fn watched(&mut self, lease: Lease) {
        let newer = self.lease.as_ref().is_some_and(|(present, seen)| {
            let version = lease.metadata.resource_version.as_deref().and_then(|version| version.parse::<u64>().ok());
            present.metadata.uid == lease.metadata.uid
                && matches!((version, seen.version.parse::<u64>()), (Some(new), Ok(old)) if new > old)
        });
        // One that was made anew is told apart by its uid.
        let other = self.lease.as_ref().is_none_or(|(present, _)| present.metadata.uid != lease.metadata.uid);
        if other || self.state.promise.is_some() {
            self.read_due = Duration::ZERO;
        }
        if newer && self.tenure.is_none() && !self.writing {
            self.see(lease);
        }
    }

    pub(super) fn read_lease_if_due(&mut self) {
        let wanted = self.doubtful || self.tenure.is_none() || self.campaigns_on.is_some();
        if self.reading || self.writing || !wanted || boottime() < self.read_due.max(self.read_not_before) {
            return;
        }
        self.reading = true;
        let sent = boottime();
        self.read_due = sent + if self.state.promise.is_some() { READ_PROMISED } else { READ_EVERY };
        let (api, events) = (self.lease_api.clone(), self.events.clone());
        tokio::spawn(async move {
            let outcome = api.get().await.map(|lease| lease.map(Box::new));
            let _ = events.send(Event::LeaseRead(sent, outcome)).await;
        });
    }

    pub(super) fn lease_was_read(&mut self, sent: Boot, outcome: Result<Option<Box<Lease>>, Error>) {
        self.reading = false;
        let campaigns_on = self.campaigns_on.take();
        match outcome {
            Ok(Some(lease)) => {
                self.see(*lease);
                self.doubtful = false;
                self.lease_read_sent = sent;
                let Some(version) = self.lease.as_ref().map(|(_, seen)| seen.version.clone()) else { return };
                self.lift_promise(&version, sent);
                if campaigns_on.is_some_and(|judged| judged == version) {
                    self.campaign(&version);
                }
            }
            // Absent is not released: what was known stays known, and cannot be written.
            Ok(None) => {
                self.waits = Some("the Lease of the primary is gone: the operator makes it anew".into());
                // Whoever wants a read at once would else ask as fast as it is answered.
                self.read_not_before = boottime() + READ_AGAIN;
            }
            Err(error) => {
                self.waits = Some(error.to_string());
                self.read_not_before = boottime() + READ_AGAIN;
            }
        }
    }

    /// Whether this agent holds the Lease, by all that it knows.
    pub(super) fn valid(&self) -> bool {
        #[allow(
            clippy::redundant_closure_for_method_calls,
            reason = "the method is of one lifetime, the closure of all"
        )]
        self.decide(|view| view.valid())
    }

    /// Until when PostgreSQL may take writes here.
    pub(super) fn arm_fence(&self) {
        #[allow(
            clippy::redundant_closure_for_method_calls,
            reason = "the method is of one lifetime, the closure of all"
        )]
        match self.decide(|view| view.deadline()) {
            Some(deadline) => self.fence.arm(deadline),
            None => self.fence.disarm(),
        }
    }

    fn took(&mut self, term: i64, sent: Boot) {
        tracing::info!(term, "took the Lease of the primary");
        self.tenure =
            Some(Tenure { term, renewed: sent, attempted: sent, held_until: None, served: false, ending: None });
        self.holds.void();
        self.ends = None;
        self.members.begin(boottime());
        self.duties.begin_term();
        self.arm_fence();
    }

    fn lost(&mut self) {
        self.tenure = None;
        self.holds.void();
        self.duties.begin_term();
        self.fence.disarm();
        self.hand_over = None;
        // Whoever holds it now has asked for nothing.
        self.switchover = None;
    }

    pub(super) fn step_lease(&mut self) {
        if self.writing || self.doubtful || self.released {
            return;
        }
        let (write, register) = match self.decide(lease_step) {
            LeaseStep::Wait { why, until } => {
                if let Some(until) = until {
                    self.wake_after(until.saturating_sub(boottime()));
                }
                if self.tenure.is_none() {
                    self.waits = Some(why);
                }
                return;
            }
            LeaseStep::Campaign(version) => {
                // A decision to take it is made on a consistent read.
                if self.campaigns_on.is_none() && !self.campaigning() {
                    self.campaigns_on = Some(version);
                    self.read_due = Duration::ZERO;
                    self.read_lease_if_due();
                }
                return;
            }
            LeaseStep::Lost => {
                tracing::warn!("the Lease of the primary is held by another now");
                self.lost();
                return;
            }
            LeaseStep::Take(register) => (Write::Take(register.term), register),
            LeaseStep::Renew(register) => (Write::Renew, register),
            LeaseStep::Release(register) => (Write::Release, register),
        };
        self.write(write, *register);
    }

    fn write(&mut self, write: Write, register: Register) {
        let Some((lease, seen)) = &self.lease else { return };
        let sent = boottime();
        let changes_rules = register.rules != seen.register.rules;
        let mut lease = lease.clone();
        match write {
            // The first take of all is no hand-over.
            Write::Take(_) if seen.register.holder.is_empty() => self.hand_over = None,
            Write::Take(_) => self.hand_over = Some(self.begins_hand_over(&lease, seen, &register)),
            Write::Release => self.hand_over = Some(self.ends_tenure(seen.register.term)),
            Write::Renew => {
                if changes_rules {
                    tracing::info!(rules = %show(&register.rules), "the sync rules change");
                }
            }
        }
        if let Some(hand_over) = &self.hand_over
            && let Ok(text) = serde_json::to_string(hand_over)
        {
            lease.metadata.annotations.get_or_insert_default().insert(ANNOTATION_HAND_OVER.to_owned(), text);
        }
        if let Some(tenure) = &mut self.tenure {
            tenure.attempted = sent;
            if changes_rules {
                tenure.held_until = None;
            }
            if write == Write::Release && tenure.ending.is_none() {
                // It may arrive whatever becomes of its answer: PostgreSQL is not started again in this tenure.
                let wish = register.release.as_ref().and_then(|release| release.wish.clone());
                tenure.ending = Some(Ending { wish });
            }
        }
        if changes_rules {
            // The promises were counted for the former rules.
            self.holds.void();
            self.arm_fence();
        }
        // From here on it counts as done and as not done. Only the rules of what is unknown matter.
        if !self.unknown.iter().any(|other| other.rules == register.rules) {
            self.unknown.push(register.clone());
        }
        let lease = register.into_lease(lease, self.lease_seconds(), MicroTime(Timestamp::now()));
        self.writing = true;
        let (api, events) = (self.lease_api.clone(), self.events.clone());
        tokio::spawn(async move {
            let outcome = api.replace(&lease).await;
            let _ = events.send(Event::LeaseWritten(write, sent, outcome)).await;
        });
    }

    fn lease_seconds(&self) -> u32 {
        self.terms.as_ref().map_or(15, |terms| terms.bounds.duration)
    }

    pub(super) fn lease_was_written(&mut self, write: Write, sent: Boot, outcome: Written) {
        self.writing = false;
        match outcome {
            Written::Done(lease) => {
                self.see(*lease);
                if let Some(version) = self.lease.as_ref().map(|(_, seen)| seen.version.clone()) {
                    self.lift_promise(&version, sent);
                }
                match write {
                    Write::Take(term) => {
                        self.took(term, sent);
                        if self.handed_over().is_some() {
                            self.tell_step("take", term, sent, Ok(String::new()));
                        }
                    }
                    Write::Renew => {
                        let term = self.register().map_or(0, |register| register.term);
                        match &mut self.tenure {
                            Some(tenure) => tenure.renewed = sent,
                            // The answer to the take was lost, and this renewal found it done.
                            None => self.took(term, sent),
                        }
                        self.arm_fence();
                    }
                    Write::Release => {
                        tracing::info!("released the Lease of the primary");
                        self.tell_step("release", self.next_term(), sent, Ok(String::new()));
                        self.lost();
                        self.released = self.stopping.is_some();
                    }
                }
            }
            Written::Conflict => {
                if let Write::Take(term) = write {
                    self.tell_step("take", term, sent, Err("another was first".into()));
                }
                self.must_read();
            }
            // Its rights went with its object. It will not be heard, and whoever comes next waits for the Lease to run out.
            Written::Refused(error) if write == Write::Release && self.stopping.is_some() => {
                tracing::warn!(%error, category = error.category().as_str(), "the Lease cannot be released");
                self.released = true;
            }
            Written::Refused(error) | Written::Unknown(error) => {
                tracing::warn!(%error, category = error.category().as_str(), ?write, "the Lease was not written");
                self.waits = Some(error.to_string());
                self.must_read();
            }
        }
    }

    fn must_read(&mut self) {
        self.doubtful = true;
        self.read_due = Duration::ZERO;
    }

    /// The record of the hand-over that this take is.
    fn begins_hand_over(&self, lease: &Lease, seen: &Seen, next: &Register) -> HandOver {
        let register = &seen.register;
        let told = lease
            .metadata
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.get(ANNOTATION_HAND_OVER))
            .and_then(|text| serde_json::from_str::<HandOver>(text).ok());
        let from = register.holder_instance().map(ToOwned::to_owned);
        let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref());
        let last_seen = renewed.map_or_else(now, |time| time.0.to_string());
        let loss = self.terms.as_ref().and_then(|terms| terms.accept_loss);
        let dead = self.containers.terminated.is_some();
        let (reason, started_at) = reason_of_take(register, next, loss, told.as_ref(), dead);
        let started_at = started_at.unwrap_or(last_seen);
        HandOver { term: next.term, from, to: self.me.instance.clone(), reason, started_at, completed_at: None }
    }

    /// The record that the holder leaves behind: whoever takes the Lease completes it.
    fn ends_tenure(&self, term: i64) -> HandOver {
        let (reason, started_at) = self.ends.clone().unwrap_or((HandOverReason::Shutdown, now()));
        let from = Some(self.me.instance.clone());
        HandOver { term, from, to: String::new(), reason, started_at, completed_at: None }
    }

    /// This holder takes writes, and clients are led to it.
    pub(super) fn complete_hand_over(&mut self) {
        if let Some(hand_over) = self.hand_over.as_mut().filter(|hand_over| hand_over.completed_at.is_none()) {
            hand_over.completed_at = Some(now());
            tracing::info!(
                term = hand_over.term,
                from = hand_over.from.as_deref(),
                reason = hand_over.reason.as_str(),
                since = hand_over.started_at,
                "the hand-over is complete"
            );
        }
    }

    /// Looks at Pods: at its own until its container is known, and at that of a holder that is not heard of.
    pub(super) fn look_at_containers(&mut self) {
        let now = boottime();
        if self.containers.looking || now < self.containers.looked + POD_EVERY {
            return;
        }
        let own = self.containers.own.is_none().then(|| self.me.instance.clone());
        let holder = self.lease.as_ref().filter(|_| self.tenure.is_none()).and_then(|(_, seen)| {
            let register = &seen.register;
            let streams = self.observation.as_ref().is_some_and(|seen| seen.status.streaming_from.is_some());
            let suspect = !register.released() && (!streams || now > seen.since + SILENT);
            let known = register.container_id.is_some() && self.containers.terminated != register.container_id;
            let holder = register.holder_instance().filter(|holder| *holder != self.me.instance)?;
            (suspect && known).then(|| holder.to_owned())
        });
        let Some(instance) = holder.or(own) else { return };
        (self.containers.looking, self.containers.looked) = (true, now);
        let (peers, events) = (self.peers.clone(), self.events.clone());
        tokio::spawn(async move {
            let status = peers.container(&instance).await;
            let _ = events.send(Event::Container(instance, status.map(|status| status.map(Box::new)))).await;
        });
    }

    /// The status of a container of the database.
    pub(super) fn saw_container(&mut self, instance: &str, status: Result<Option<Box<ContainerStatus>>, Error>) {
        self.containers.looking = false;
        // An absent Pod proves nothing.
        let Ok(Some(status)) = status else { return };
        if instance == self.me.instance {
            let running = status.state.as_ref().and_then(|state| state.running.as_ref());
            let started = running.and_then(|running| running.started_at.as_ref()).map(|time| time.0.as_millisecond());
            // Later than the start before this one: a status that still shows that one's container would prove this one dead.
            if let Some(started) = started
                && self.before.is_none_or(|before| started > before)
            {
                self.containers.own = status.container_id;
            }
            return;
        }
        let Some(wanted) = self.register().and_then(|register| register.container_id.clone()) else { return };
        let ended = [status.state, status.last_state]
            .into_iter()
            .flatten()
            .filter_map(|state| state.terminated)
            .filter(|ended| ended.reason.as_deref() != Some("ContainerStatusUnknown"))
            .any(|ended| ended.container_id.as_deref() == Some(wanted.as_str()));
        if ended && self.containers.terminated.as_ref() != Some(&wanted) {
            tracing::warn!(instance, container = wanted, "the kubelet reports that the primary's container has ended");
            self.containers.terminated = Some(wanted);
        }
    }
}

/// Now, for people.
pub(super) fn now() -> String {
    Timestamp::now().to_string()
}
