//! Decisions about backups: when one is due, which ones are kept, and with which a restore begins. What they need to know
//! of an archive comes in as plain values, so that no store is needed to decide or to test.

mod choose;
#[cfg(test)]
mod choose_tests;
pub mod conditions;
pub mod follow;
mod retention;
pub mod schedule;

pub use choose::{Choice, Refusal, Target, Wish, choose};
pub use retention::{Policy, Removal, Retention, retention};

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::api::agent::Lsn;

/// A complete backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its id in the store.
    pub id: String,
    /// Major version of PostgreSQL.
    pub major: u32,
    /// When it began.
    pub started_at: Timestamp,
    /// When it was consistent: the first moment that it can be restored to.
    pub stopped_at: Timestamp,
    /// Timeline.
    pub timeline: u32,
    /// Position at which its WAL begins.
    pub start_lsn: Lsn,
    /// Position from which it is consistent.
    pub stop_lsn: Lsn,
}

/// Segments of one timeline that follow each other. The number of a segment is its position divided by its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WalRange {
    /// Timeline.
    pub timeline: u32,
    /// First segment.
    pub first: u64,
    /// Last segment.
    pub last: u64,
}

/// The WAL that an archive holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wal {
    /// Bytes of a segment.
    pub segment_size: u64,
    /// Segments.
    pub ranges: Vec<WalRange>,
    /// Timeline histories: the ancestors of each, oldest first, with the position at which each was left.
    pub histories: BTreeMap<u32, Vec<(u32, Lsn)>>,
}

/// A piece of a way through the archive: one timeline, from where it is entered to where it is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Leg {
    timeline: u32,
    /// None: it is the last one.
    left_at: Option<Lsn>,
}

impl Wal {
    /// Number of the segment that holds a position.
    pub fn number(&self, lsn: Lsn) -> u64 {
        lsn.0 / self.segment_size.max(1)
    }

    /// Name of a segment.
    pub fn name(&self, timeline: u32, number: u64) -> String {
        let per_log = (1_u64 << 32) / self.segment_size.max(1);
        let (log, rest) = (number / per_log.max(1), number % per_log.max(1));
        format!("{timeline:08X}{log:08X}{rest:08X}")
    }

    /// The newest timeline of which there is WAL or a history.
    pub fn latest(&self) -> Option<u32> {
        let written = self.ranges.iter().map(|range| range.timeline);
        written.chain(self.histories.keys().copied()).max()
    }

    /// The timelines of which there is WAL or a history, newest first.
    fn timelines(&self) -> Vec<u32> {
        let written = self.ranges.iter().map(|range| range.timeline);
        let mut all: Vec<u32> = written.chain(self.histories.keys().copied()).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.dedup();
        all
    }

    /// Whether a segment is there.
    fn has(&self, timeline: u32, number: u64) -> bool {
        self.ranges.iter().any(|range| range.timeline == timeline && (range.first..=range.last).contains(&number))
    }

    /// The way to a timeline: its ancestors and itself.
    fn way(&self, timeline: u32) -> Vec<Leg> {
        let ancestors = self.histories.get(&timeline).into_iter().flatten();
        let mut way: Vec<Leg> =
            ancestors.map(|(ancestor, left_at)| Leg { timeline: *ancestor, left_at: Some(*left_at) }).collect();
        way.push(Leg { timeline, left_at: None });
        way
    }

    /// The timeline on which recovery along a way reads a segment: where one is left in it, the next one's copy holds both.
    fn leg_of(&self, way: &[Leg], number: u64) -> Option<u32> {
        way.iter().find(|leg| leg.left_at.is_none_or(|left_at| number < self.number(left_at))).map(|leg| leg.timeline)
    }

    /// Whether a segment can be read along a way. The segment in which a timeline is left may be there under the old one's name
    /// alone, when the new one has not filled it yet; then it is enough, unless the new one has later ones.
    fn readable(&self, way: &[Leg], number: u64) -> bool {
        self.leg_of(way, number).is_some_and(|timeline| self.has(timeline, number))
            || way.iter().any(|leg| {
                leg.left_at.is_some_and(|left_at| self.number(left_at) == number) && self.has(leg.timeline, number)
            })
    }

    /// The last segment on a way, and its timeline.
    fn end(&self, way: &[Leg]) -> Option<(u32, u64)> {
        way.iter()
            .flat_map(|leg| {
                let most = leg.left_at.map(|left_at| self.number(left_at));
                let own = self.ranges.iter().filter(move |range| range.timeline == leg.timeline);
                own.filter_map(move |range| {
                    let last = most.map_or(range.last, |most| range.last.min(most));
                    (range.first <= last).then_some((last, leg.timeline))
                })
            })
            .max()
            .map(|(number, timeline)| (timeline, number))
    }

    /// The first segment from `from` to `to` that cannot be read along a way, with the timeline on which it is missing.
    fn missing(&self, way: &[Leg], from: u64, to: u64) -> Option<(u32, u64)> {
        let mut number = from;
        while number <= to {
            if !self.readable(way, number) {
                return Some((self.leg_of(way, number)?, number));
            }
            // On to the end of the range that holds it: an archive holds many segments and few gaps.
            let timeline = self.leg_of(way, number);
            let left_at = way.iter().find(|leg| Some(leg.timeline) == timeline).and_then(|leg| leg.left_at);
            let last = self
                .ranges
                .iter()
                .find(|range| Some(range.timeline) == timeline && (range.first..=range.last).contains(&number))
                .map_or(number, |range| range.last);
            let last = left_at.map_or(last, |left_at| last.min(self.number(left_at).saturating_sub(1)));
            number = last.max(number).saturating_add(1);
        }
        None
    }

    /// The oldest segment from which on everything on the way to the latest timeline is there, and its timeline.
    pub fn unbroken_from(&self) -> Option<(u32, u64)> {
        let way = self.way(self.latest()?);
        let (_, end) = self.end(&way)?;
        let mut first = self.ranges.iter().map(|range| range.first).min()?;
        while let Some((_, gap)) = self.missing(&way, first, end) {
            // None behind a gap that reaches the end: the end itself may be older than what an abandoned timeline holds.
            first = self.ranges.iter().map(|range| range.first).filter(|first| *first > gap).min()?;
        }
        Some((self.leg_of(&way, first)?, first)).filter(|_| first <= end)
    }
}

/// The first moment that can be restored along the latest timeline, and from which on every one that was archived can be.
pub fn recoverable_from(entries: &[Entry], wal: &Wal) -> Option<Timestamp> {
    let way = wal.way(wal.latest()?);
    let (_, end) = wal.end(&way)?;
    let reads_on = |entry: &&Entry| entry.on(&way) && wal.missing(&way, wal.number(entry.start_lsn), end).is_none();
    entries.iter().filter(reads_on).map(|entry| entry.stopped_at).min()
}

impl Entry {
    /// Whether it lies on a way: its timeline is one of it, and was left only after the backup was consistent.
    fn on(&self, way: &[Leg]) -> bool {
        way.iter()
            .any(|leg| leg.timeline == self.timeline && leg.left_at.is_none_or(|left_at| self.stop_lsn <= left_at))
    }
}
