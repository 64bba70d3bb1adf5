//! What one replica knows of the Lease, and what it may do with it: (facts, time) -> decision. No clock, no I/O.
//!
//! Two rules make that no two replicas act at once. A holder acts until `renew_deadline` after it *sent* its last
//! successful renewal; anybody else takes the Lease only after *receiving* the same version of it for the holder's whole
//! lease duration, which is longer. And every write is conditional on the version that was read, so that of two takers
//! one fails.

use std::time::Duration;

/// A moment on a clock that starts at boot and never stands still or jumps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Moment(Duration);

impl Moment {
    /// The moment so long after boot.
    pub const fn since_boot(elapsed: Duration) -> Self {
        Self(elapsed)
    }
    /// The moment so much later.
    #[must_use]
    pub const fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(wait))
    }
    /// How much later this is than `earlier`; zero if it is not.
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
    /// Nanoseconds since boot.
    pub fn as_nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Bounds of the Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timings {
    lease: Duration,
    renew_deadline: Duration,
    retry_period: Duration,
}

/// Bounds that do not keep two replicas apart.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTimings {
    /// The Lease stores whole seconds.
    #[error("the lease duration must be whole seconds, at least 1")]
    WholeSeconds,
    /// The deadline must leave room for writes in flight.
    #[error("the renew deadline must be shorter than the lease duration")]
    Deadline,
    /// At least two attempts must fit.
    #[error("the retry period must be shorter than half of the renew deadline")]
    Retry,
}

impl Timings {
    /// Checks the bounds.
    pub fn new(lease: Duration, renew_deadline: Duration, retry_period: Duration) -> Result<Self, InvalidTimings> {
        if lease.subsec_nanos() != 0 || lease.is_zero() || i32::try_from(lease.as_secs()).is_err() {
            return Err(InvalidTimings::WholeSeconds);
        }
        if renew_deadline >= lease {
            return Err(InvalidTimings::Deadline);
        }
        if retry_period.is_zero() || retry_period >= renew_deadline / 2 {
            return Err(InvalidTimings::Retry);
        }
        Ok(Self { lease, renew_deadline, retry_period })
    }
    /// After this long without a change anybody may take the Lease.
    pub fn lease(&self) -> Duration {
        self.lease
    }
    /// After this long without a renewal the holder stops acting.
    pub fn renew_deadline(&self) -> Duration {
        self.renew_deadline
    }
    /// Between two attempts.
    pub fn retry_period(&self) -> Duration {
        self.retry_period
    }
    /// What lies between the holder's last moment and the first of another: the time that a write in flight has left.
    pub fn grace(&self) -> Duration {
        self.lease.saturating_sub(self.renew_deadline)
    }
    /// How long one attempt may take, so that a second one still fits before the deadline.
    pub fn attempt_timeout(&self) -> Duration {
        self.renew_deadline.saturating_sub(self.retry_period) / 2
    }
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// The Lease as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Uid of the object.
    pub uid: String,
    /// Its resourceVersion.
    pub version: String,
    /// Who holds it; empty when nobody does.
    pub holder: String,
    /// For how long the holder wants it unchanged before others take it; None when it does not say.
    pub duration: Option<Duration>,
}

/// What a read found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// There is no such object.
    Absent,
    /// There is one.
    Record(Record),
}

impl Seen {
    /// Whether the other is the very same version of it.
    fn unchanged(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Absent, Self::Absent) => true,
            (Self::Record(mine), Self::Record(theirs)) => mine.uid == theirs.uid && mine.version == theirs.version,
            _ => false,
        }
    }
}

/// What may be done with the Lease now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Create it, as ours.
    Create,
    /// Say that we are still there.
    Renew,
    /// Put our name into it.
    Take,
    /// Blank our name in it.
    Release,
    /// Nothing, until then at least; None: for as long as nothing changes.
    Wait(Option<Moment>),
}

/// One replica's side of the election.
#[derive(Debug, Clone)]
pub struct Machine {
    me: String,
    timings: Timings,
    seen: Option<(Seen, Moment)>,
    met: bool,
    valid_until: Option<Moment>,
    held_until: Option<Moment>,
    releasing: bool,
    attempt: Option<Attempt>,
}

#[derive(Debug, Clone, Copy)]
struct Attempt {
    began: Moment,
    failed: bool,
    hinted: bool,
}

impl Machine {
    /// A replica that knows nothing yet. `me` must be unique among all processes that ever were.
    pub fn new(me: String, timings: Timings) -> Self {
        Self {
            me,
            timings,
            seen: None,
            met: false,
            valid_until: None,
            held_until: None,
            releasing: false,
            attempt: None,
        }
    }

    /// Our name in the Lease.
    pub fn me(&self) -> &str {
        &self.me
    }

    /// The bounds.
    pub fn timings(&self) -> &Timings {
        &self.timings
    }

    /// Until when this replica may act.
    pub fn valid_until(&self) -> Option<Moment> {
        self.valid_until
    }

    /// Whether this replica may act.
    pub fn leading(&self, now: Moment) -> bool {
        self.valid_until.is_some_and(|until| now < until)
    }

    /// Who holds the Lease, as last read.
    pub fn holder(&self) -> Option<&str> {
        self.record().map(|record| record.holder.as_str()).filter(|holder| !holder.is_empty())
    }

    /// The Lease as last read; a write is conditional on its uid and version.
    pub fn record(&self) -> Option<&Record> {
        match &self.seen {
            Some((Seen::Record(record), _)) => Some(record),
            _ => None,
        }
    }

    /// A consistent read was answered. `now` is when the answer was complete: the holder renewed before that.
    pub fn read(&mut self, now: Moment, seen: Seen) {
        match &seen {
            Seen::Record(record) => {
                self.met = true;
                if record.holder != self.me {
                    self.valid_until = None;
                    self.held_until = None;
                }
            }
            // Somebody may be about to create it, so nothing is done in its name until we have; but who held it a
            // moment ago need not wait for itself.
            Seen::Absent => {
                self.held_until = self.valid_until.take().or(self.held_until);
            }
        }
        if !self.seen.as_ref().is_some_and(|(known, _)| known.unchanged(&seen)) {
            self.seen = Some((seen, now));
        }
    }

    /// What may be done with what was last read.
    pub fn verdict(&self, now: Moment) -> Verdict {
        let Some((seen, since)) = &self.seen else {
            return Verdict::Wait(None);
        };
        match seen {
            Seen::Record(record) if record.holder == self.me && self.releasing => Verdict::Release,
            _ if self.releasing => Verdict::Wait(None),
            Seen::Record(record) if record.holder == self.me => Verdict::Renew,
            Seen::Record(record) if record.holder.is_empty() => Verdict::Take,
            Seen::Record(record) => {
                Self::after(now, since.after(record.duration.unwrap_or(self.timings.lease)), Verdict::Take)
            }
            // A Lease that was there and is gone had a holder, who may not know yet. Who never saw it takes it for the
            // first start: everybody else waits here, and of several creators one succeeds.
            Seen::Absent if !self.met || self.held_until.is_some_and(|until| now < until) => Verdict::Create,
            Seen::Absent => Self::after(now, since.after(self.timings.lease), Verdict::Create),
        }
    }

    fn after(now: Moment, until: Moment, then: Verdict) -> Verdict {
        if now < until { Verdict::Wait(Some(until)) } else { then }
    }

    /// An attempt to get or keep the Lease begins: nothing was sent yet.
    pub fn begin(&mut self, now: Moment) {
        self.attempt = Some(Attempt { began: now, failed: false, hinted: false });
    }

    /// The attempt that began at `began` was answered: this is the Lease after our write.
    pub fn written(&mut self, began: Moment, now: Moment, record: Record) {
        let ours = record.holder == self.me;
        self.read(now, Seen::Record(record));
        if ours && !self.releasing {
            self.valid_until = Some(began.after(self.timings.renew_deadline));
        }
    }

    /// The deadline passed.
    pub fn lapse(&mut self) {
        self.valid_until = None;
    }

    /// The attempt failed, or its outcome is unknown: nothing changes but the time of the next.
    pub fn failed(&mut self) {
        if let Some(attempt) = &mut self.attempt {
            attempt.failed = true;
        }
    }

    /// A watch says that the Lease differs from what we know. It only brings the next read forward.
    pub fn hint(&mut self) {
        if let Some(attempt) = &mut self.attempt {
            attempt.hinted = true;
        }
    }

    /// This replica stops for good: it acts no more from now on, and gets the Lease no more.
    pub fn stop(&mut self) {
        self.releasing = true;
        self.valid_until = None;
    }

    /// When to attempt next.
    pub fn next_attempt(&self) -> Moment {
        let Some(attempt) = self.attempt else {
            return Moment::default();
        };
        let pause = match attempt {
            Attempt { hinted: true, .. } => self.timings.retry_period / 20,
            Attempt { failed: true, .. } => self.timings.retry_period / 4,
            Attempt { .. } => self.timings.retry_period,
        };
        let regular = attempt.began.after(pause);
        // Not "now": at the very moment of expiry, when that is sooner than the regular attempt.
        match self.verdict(attempt.began) {
            Verdict::Wait(Some(until)) => regular.min(until),
            _ => regular,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::since_boot(Duration::from_secs(seconds))
    }
    fn machine() -> Machine {
        Machine::new("me".into(), Timings::default())
    }
    fn record(holder: &str, version: u64) -> Record {
        Record {
            uid: "u".into(),
            version: version.to_string(),
            holder: holder.into(),
            duration: Some(Duration::from_secs(15)),
        }
    }
    fn seen(holder: &str, version: u64) -> Seen {
        Seen::Record(record(holder, version))
    }

    #[test]
    fn bounds_that_do_not_keep_replicas_apart_are_refused() {
        let s = Duration::from_secs;
        assert_eq!(Timings::new(s(15), s(10), s(2)), Ok(Timings::default()));
        assert_eq!(Timings::new(s(15), s(15), s(2)), Err(InvalidTimings::Deadline));
        assert_eq!(Timings::new(s(15), s(10), s(5)), Err(InvalidTimings::Retry));
        assert_eq!(Timings::new(s(15), s(10), s(0)), Err(InvalidTimings::Retry));
        assert_eq!(Timings::new(Duration::from_millis(1500), s(1), s(0)), Err(InvalidTimings::WholeSeconds));
        assert_eq!(Timings::new(s(0), s(0), s(0)), Err(InvalidTimings::WholeSeconds));
    }

    #[test]
    fn nothing_is_done_before_the_first_read() {
        assert_eq!(machine().verdict(at(100)), Verdict::Wait(None));
    }

    #[test]
    fn a_holder_is_left_alone_until_one_version_stood_for_its_whole_duration() {
        let mut machine = machine();
        machine.read(at(100), seen("other", 1));
        assert_eq!(machine.verdict(at(114)), Verdict::Wait(Some(at(115))));
        machine.read(at(114), seen("other", 1));
        assert_eq!(machine.verdict(at(115)), Verdict::Take);
        machine.read(at(115), seen("other", 2));
        assert_eq!(machine.verdict(at(115)), Verdict::Wait(Some(at(130))));
    }

    #[test]
    fn the_holders_own_duration_counts_and_ours_where_it_names_none() {
        let mut machine = machine();
        machine.read(at(0), Seen::Record(Record { duration: Some(Duration::from_mins(1)), ..record("other", 1) }));
        assert_eq!(machine.verdict(at(59)), Verdict::Wait(Some(at(60))));
        machine.read(at(0), Seen::Record(Record { duration: None, ..record("other", 2) }));
        assert_eq!(machine.verdict(at(14)), Verdict::Wait(Some(at(15))));
    }

    #[test]
    fn a_released_lease_is_taken_at_once() {
        let mut machine = machine();
        machine.read(at(0), seen("", 1));
        assert_eq!(machine.verdict(at(0)), Verdict::Take);
    }

    #[test]
    fn validity_counts_from_before_the_request() {
        let mut machine = machine();
        machine.begin(at(10));
        machine.read(at(13), seen("", 1));
        machine.written(at(10), at(14), record("me", 2));
        assert_eq!(machine.valid_until(), Some(at(20)));
        assert!(machine.leading(at(19)) && !machine.leading(at(20)));
    }

    #[test]
    fn an_answer_that_names_another_ends_it() {
        let mut machine = machine();
        machine.written(at(0), at(0), record("me", 1));
        machine.written(at(2), at(2), record("other", 3));
        assert!(!machine.leading(at(2)));
        assert_eq!(machine.holder(), Some("other"));
    }

    #[test]
    fn a_failed_attempt_changes_nothing_but_the_pause() {
        let mut machine = machine();
        machine.written(at(0), at(0), record("me", 1));
        machine.begin(at(2));
        assert_eq!(machine.next_attempt(), at(4));
        machine.failed();
        assert_eq!(machine.next_attempt(), at(2).after(Duration::from_millis(500)));
        assert!(machine.leading(at(9)));
    }

    #[test]
    fn the_next_attempt_comes_at_the_moment_of_expiry() {
        let mut machine = machine();
        machine.begin(at(0));
        machine.read(at(0), seen("other", 1));
        machine.begin(at(14));
        assert_eq!(machine.next_attempt(), at(15));
    }

    #[test]
    fn the_first_start_creates_the_lease_and_a_lost_one_is_waited_for() {
        let mut fresh = machine();
        fresh.read(at(0), Seen::Absent);
        assert_eq!(fresh.verdict(at(0)), Verdict::Create);

        let mut standby = machine();
        standby.read(at(0), seen("other", 1));
        standby.read(at(1), Seen::Absent);
        assert_eq!(standby.verdict(at(15)), Verdict::Wait(Some(at(16))));
        assert_eq!(standby.verdict(at(16)), Verdict::Create);
    }

    #[test]
    fn who_held_a_deleted_lease_creates_it_again_but_acts_only_then() {
        let mut holder = machine();
        holder.written(at(0), at(0), record("me", 1));
        holder.read(at(2), Seen::Absent);
        assert!(!holder.leading(at(2)));
        assert_eq!(holder.verdict(at(2)), Verdict::Create);
        assert_eq!(holder.verdict(at(11)), Verdict::Wait(Some(at(17))));
    }

    #[test]
    fn who_stops_only_releases_what_it_holds() {
        let mut machine = machine();
        machine.written(at(0), at(0), record("me", 1));
        machine.stop();
        assert!(!machine.leading(at(0)));
        assert_eq!(machine.verdict(at(0)), Verdict::Release);
        machine.written(at(0), at(1), record("me", 2));
        assert!(!machine.leading(at(1)), "a late answer opens nothing");
        machine.read(at(1), seen("", 3));
        assert_eq!(machine.verdict(at(100)), Verdict::Wait(None));
        machine.read(at(1), seen("other", 4));
        assert_eq!(machine.verdict(at(100)), Verdict::Wait(None));
    }
}
