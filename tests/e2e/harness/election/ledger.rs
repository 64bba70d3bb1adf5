//! What was acknowledged to whom, and when.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One acknowledged row.
#[derive(Debug, Clone, Copy)]
pub struct Ack {
    pub session: u32,
    pub number: u64,
    /// When it was sent.
    pub sent: Instant,
    /// When the commit returned, without a warning.
    pub at: Instant,
}

/// Rows of one session that were all acknowledged, without a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub session: u32,
    pub first: u64,
    pub last: u64,
}

/// All that a writer saw.
#[derive(Default)]
pub struct Ledger {
    acks: Mutex<Vec<Ack>>,
    wrong: Mutex<Vec<String>>,
    failures: Mutex<Vec<(Instant, String)>>,
}

impl Ledger {
    pub fn acknowledge(&self, ack: Ack) {
        lock(&self.acks).push(ack);
    }

    /// A row was acknowledged and then not there.
    pub fn wrong(&self, what: String) {
        lock(&self.wrong).push(what);
    }

    /// A write, or a connection, failed.
    pub fn fail(&self, why: String) {
        lock(&self.failures).push((Instant::now(), why));
    }

    pub fn count(&self) -> usize {
        lock(&self.acks).len()
    }

    /// What must not be.
    pub fn wrongs(&self) -> Vec<String> {
        lock(&self.wrong).clone()
    }

    /// What failed since a moment: how often, and the last reasons.
    pub fn failures_since(&self, since: Instant) -> Vec<String> {
        lock(&self.failures).iter().filter(|(at, _)| *at >= since).map(|(_, why)| why.clone()).collect()
    }

    /// What failed since a moment, in the order in which it began: the reason, and from when to when it was seen.
    pub fn reasons_since(&self, since: Instant) -> Vec<String> {
        let mut reasons: Vec<(String, Duration, Duration)> = Vec::new();
        for (at, why) in lock(&self.failures).iter().filter(|(at, _)| *at >= since) {
            let at = at.saturating_duration_since(since);
            match reasons.iter_mut().find(|(known, ..)| known == why) {
                Some((.., last)) => *last = at,
                None => reasons.push((why.clone(), at, at)),
            }
        }
        reasons.iter().map(|(why, first, last)| format!("{first:.2?} to {last:.2?}: {why}")).collect()
    }

    /// Whether a row that was sent after a moment is acknowledged.
    pub fn acknowledged_after(&self, moment: Instant) -> bool {
        lock(&self.acks).iter().rev().take(5000).any(|ack| ack.sent > moment)
    }

    /// The longest time without an acknowledgement that ended after a moment; the present one counts.
    pub fn longest_gap_since(&self, since: Instant) -> Duration {
        let acks = lock(&self.acks);
        let mut longest = Duration::ZERO;
        let mut later = Instant::now();
        for ack in acks.iter().rev() {
            longest = longest.max(later.saturating_duration_since(ack.at));
            later = ack.at;
            if later < since {
                return longest;
            }
        }
        longest
    }

    /// How many were acknowledged since a moment.
    pub fn count_since(&self, since: Instant) -> usize {
        lock(&self.acks).iter().rev().take_while(|ack| ack.at >= since).count()
    }

    /// Everything that was acknowledged, as ranges.
    pub fn ranges(&self) -> Vec<Range> {
        let mut rows: Vec<_> = lock(&self.acks).iter().map(|ack| (ack.session, ack.number)).collect();
        rows.sort_unstable();
        let mut ranges: Vec<Range> = Vec::new();
        for (session, number) in rows {
            match ranges.last_mut() {
                Some(range) if range.session == session && range.last + 1 == number => range.last = number,
                _ => ranges.push(Range { session, first: number, last: number }),
            }
        }
        ranges
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
