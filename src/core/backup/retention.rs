//! Which backups and which WAL may go.
//!
//! A backup stays when any of these wants it: the count, the age, or that it is the last good one. What can be restored along
//! the latest timeline is what counts for age and for the last good one: a backup of a timeline that was abandoned before it was
//! consistent cannot lead to the present.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::{Entry, Wal};
use crate::api::agent::Lsn;
use crate::api::spec::RetentionSpec;

/// What is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// As many of the newest.
    pub keep_last: Option<u32>,
    /// Any moment of this long.
    pub keep_for: Option<SignedDuration>,
    /// The same as it was written.
    pub keep_for_text: String,
}

impl Policy {
    /// From what a user wrote, which was validated; what does not read keeps everything.
    pub fn of(spec: &RetentionSpec) -> Self {
        let text = spec.keep_for.clone().unwrap_or_default();
        Self {
            keep_last: spec.keep_last.and_then(|count| u32::try_from(count).ok()),
            keep_for: spec.keep_for.as_deref().map(|text| duration(text).unwrap_or(SignedDuration::MAX)),
            keep_for_text: text,
        }
    }
}

/// A number and a unit: `30d`.
pub fn duration(text: &str) -> Option<SignedDuration> {
    let unit = text.chars().last()?;
    let number: i64 = text.strip_suffix(unit)?.parse().ok().filter(|number| *number > 0)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        'w' => 7 * 86_400,
        _ => return None,
    };
    Some(SignedDuration::from_secs(number.checked_mul(seconds)?))
}

/// A backup that goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// Its id.
    pub id: String,
    /// Why, in a sentence.
    pub reason: String,
}

/// What goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Retention {
    /// Backups, oldest first.
    pub backups: Vec<Removal>,
    /// Segments with a smaller number, of every timeline. None: nothing is known to be of no use.
    pub wal_before: Option<u64>,
    /// Why these, in a sentence.
    pub wal_reason: String,
}

/// Decides what goes. `running` are the start positions of backups that are being taken.
pub fn retention(entries: &[Entry], running: &[Lsn], wal: &Wal, now: Timestamp, policy: &Policy) -> Retention {
    let mut ordered: Vec<&Entry> = entries.iter().collect();
    ordered.sort_by_key(|entry| (entry.stopped_at, entry.stop_lsn));
    let kept = kept(&ordered, wal, now, policy);
    let backups = ordered
        .iter()
        .filter(|entry| !kept.contains(entry.id.as_str()))
        .map(|entry| Removal { id: entry.id.clone(), reason: why(policy, &ordered, entry) })
        .collect();
    let (wal_before, wal_reason) = wal_floor(&ordered, &kept, running, wal);
    Retention { backups, wal_before, wal_reason }
}

/// Ids of the backups that stay.
fn kept<'a>(ordered: &[&'a Entry], wal: &Wal, now: Timestamp, policy: &Policy) -> BTreeSet<&'a str> {
    if policy.keep_last.is_none() && policy.keep_for.is_none() {
        return ordered.iter().map(|entry| entry.id.as_str()).collect();
    }
    let way = wal.latest().map(|latest| wal.way(latest)).unwrap_or_default();
    let mut kept = BTreeSet::new();
    // The last good one, and the last one that leads to the present.
    kept.extend(ordered.last().map(|entry| entry.id.as_str()));
    kept.extend(ordered.iter().rev().find(|entry| entry.on(&way)).map(|entry| entry.id.as_str()));
    if let Some(count) = policy.keep_last {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        kept.extend(ordered.iter().rev().take(count).map(|entry| entry.id.as_str()));
    }
    if let Some(long) = policy.keep_for {
        // A time before the calendar begins: everything is younger.
        let Ok(since) = now.checked_sub(long) else {
            return ordered.iter().map(|entry| entry.id.as_str()).collect();
        };
        kept.extend(ordered.iter().filter(|entry| entry.stopped_at > since).map(|entry| entry.id.as_str()));
        // The moments from then to the first younger backup are restored from the newest one that is older. A timeline may have
        // been left since then: also from the newest that leads to the present.
        let older = || ordered.iter().rev().filter(|entry| entry.stopped_at <= since);
        kept.extend(older().next().map(|entry| entry.id.as_str()));
        kept.extend(older().find(|entry| entry.on(&way)).map(|entry| entry.id.as_str()));
    }
    kept
}

fn why(policy: &Policy, ordered: &[&Entry], entry: &Entry) -> String {
    let newer = ordered.iter().filter(|other| other.stopped_at > entry.stopped_at).count();
    let count = policy.keep_last.map(|count| format!("keepLast is {count} and {newer} are newer"));
    let age = policy
        .keep_for
        .map(|_| format!("keepFor is {} and a newer one reaches back further than that", policy.keep_for_text));
    match (count, age) {
        (Some(count), Some(age)) => format!("{count}; {age}"),
        (Some(reason), None) | (None, Some(reason)) => reason,
        (None, None) => String::new(),
    }
}

/// The segment before which nothing is needed. Numbers grow along every way, so the smallest start of what is kept is a floor
/// for all timelines; a timeline that has no backup yet, or only one that is being taken, keeps all of its own.
fn wal_floor(ordered: &[&Entry], kept: &BTreeSet<&str>, running: &[Lsn], wal: &Wal) -> (Option<u64>, String) {
    let stay: Vec<&&Entry> = ordered.iter().filter(|entry| kept.contains(entry.id.as_str())).collect();
    let Some(oldest) = stay.iter().min_by_key(|entry| entry.start_lsn) else { return (None, String::new()) };
    let latest = wal.latest();
    let entered = latest
        .filter(|latest| stay.iter().all(|entry| entry.timeline != *latest))
        .and_then(|latest| wal.histories.get(&latest)?.last().map(|(_, left_at)| *left_at));
    let floor = running.iter().copied().chain(entered).fold(oldest.start_lsn, Lsn::min);
    let reason = format!("no backup that is kept needs WAL before {floor}, where {} begins", oldest.id);
    (Some(wal.number(floor)), reason)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::super::WalRange;
    use super::*;

    const SIZE: u64 = 16 << 20;
    const DAY: i64 = 86_400;

    fn at(day: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + day * DAY).unwrap()
    }

    fn entry(id: &str, day: i64, timeline: u32, segment: u64) -> Entry {
        Entry {
            id: id.into(),
            major: 17,
            started_at: at(day),
            stopped_at: at(day),
            timeline,
            start_lsn: Lsn(segment * SIZE + 100),
            stop_lsn: Lsn(segment * SIZE + 200),
        }
    }

    fn wal(ranges: &[(u32, u64, u64)], histories: &[(u32, &[(u32, u64)])]) -> Wal {
        Wal {
            segment_size: SIZE,
            ranges: ranges
                .iter()
                .map(|(timeline, first, last)| WalRange { timeline: *timeline, first: *first, last: *last })
                .collect(),
            histories: histories
                .iter()
                .map(|(timeline, parents)| (*timeline, parents.iter().map(|(p, s)| (*p, Lsn(s * SIZE + 50))).collect()))
                .collect(),
        }
    }

    fn policy(last: Option<i32>, long: Option<&str>) -> Policy {
        Policy::of(&RetentionSpec { keep_last: last, keep_for: long.map(Into::into) })
    }

    fn gone(plan: &Retention) -> Vec<&str> {
        plan.backups.iter().map(|removal| removal.id.as_str()).collect()
    }

    #[test]
    fn without_a_rule_everything_stays() {
        let entries = [entry("a", 1, 1, 5), entry("b", 2, 1, 9)];
        let plan = retention(&entries, &[], &wal(&[(1, 0, 20)], &[]), at(400), &policy(None, None));
        assert!(plan.backups.is_empty());
        assert_eq!(plan.wal_before, Some(5), "what is older than the oldest backup is of no use to anybody");
        let none = retention(&[], &[], &wal(&[(1, 0, 20)], &[]), at(400), &policy(Some(1), None));
        assert_eq!(none, Retention::default(), "without a backup nothing is known to be of no use");
    }

    #[test]
    fn the_count_keeps_the_newest_and_the_age_the_one_that_reaches_back() {
        let entries: Vec<Entry> =
            (1..=5).map(|day| entry(&format!("d{day}"), day, 1, u64::try_from(day).unwrap() * 10)).collect();
        let wal = wal(&[(1, 0, 60)], &[]);
        let plan = |last, long| retention(&entries, &[], &wal, at(6), &policy(last, long));
        assert_eq!(gone(&plan(Some(2), None)), ["d1", "d2", "d3"]);
        assert_eq!(plan(Some(2), None).wal_before, Some(40));
        // 2 days and a half back lies between d3 and d4: d3 is needed for it.
        assert_eq!(gone(&plan(None, Some("60h"))), ["d1", "d2"]);
        assert_eq!(gone(&plan(Some(1), Some("60h"))), ["d1", "d2"], "what either rule wants stays");
        assert_eq!(gone(&plan(Some(4), Some("1h"))), ["d1"]);
        assert_eq!(gone(&plan(None, Some("1s"))), ["d1", "d2", "d3", "d4"], "the last good one stays");
        assert!(plan(Some(2), None).backups[0].reason.contains("keepLast is 2"), "{:?}", plan(Some(2), None));
    }

    #[test]
    fn a_backup_of_an_abandoned_timeline_does_not_stand_in_for_one_that_leads_to_the_present() {
        // b was taken by a primary that was already given up: timeline 2 left timeline 1 at segment 15.
        let entries = [entry("a", 1, 1, 10), entry("b", 2, 1, 20)];
        let wal = wal(&[(1, 10, 22), (2, 15, 30)], &[(2, &[(1, 15)])]);
        let plan = retention(&entries, &[], &wal, at(9), &policy(Some(1), Some("1d")));
        assert!(gone(&plan).is_empty(), "{plan:?}");
        assert_eq!(plan.wal_before, Some(10));
        // One on the new timeline makes both of no use.
        let entries = [entries[0].clone(), entries[1].clone(), entry("c", 3, 2, 18)];
        let plan = retention(&entries, &[], &wal, at(9), &policy(Some(1), None));
        assert_eq!(gone(&plan), ["a", "b"]);
        assert_eq!(plan.wal_before, Some(18));
    }

    #[test]
    fn wal_of_a_backup_that_is_being_taken_and_of_a_timeline_without_one_stays() {
        let entries = [entry("b", 2, 1, 20)];
        let forked = wal(&[(1, 10, 22), (2, 15, 30)], &[(2, &[(1, 15)])]);
        assert_eq!(retention(&entries, &[], &forked, at(9), &policy(None, None)).wal_before, Some(15));
        let running = [Lsn(12 * SIZE)];
        assert_eq!(retention(&entries, &running, &forked, at(9), &policy(None, None)).wal_before, Some(12));
    }

    #[test]
    fn durations_read_as_they_are_written() {
        assert_eq!(duration("30d"), Some(SignedDuration::from_hours(30 * 24)));
        assert_eq!(duration("2w"), Some(SignedDuration::from_hours(14 * 24)));
        for wrong in ["", "d", "0d", "-1d", "1y", "1 d", "99999999999999999999d"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
    }

    /// An archive as a cluster writes it: days pass, WAL grows, backups are taken, and at times the timeline is left behind where
    /// it stands or a little earlier.
    #[derive(Debug, Clone)]
    enum Day {
        Write(u64),
        Backup,
        Fork(u64),
    }

    fn days() -> impl Strategy<Value = Vec<Day>> {
        let day = prop_oneof![
            4 => (1_u64..20).prop_map(Day::Write),
            3 => Just(Day::Backup),
            1 => (0_u64..12).prop_map(Day::Fork),
        ];
        prop::collection::vec(day, 1..60)
    }

    struct Archive {
        entries: Vec<Entry>,
        wal: Wal,
        end: i64,
    }

    fn archive(days: &[Day]) -> Archive {
        let (mut timeline, mut segment, mut day, mut entered) = (1_u32, 10_u64, 0_i64, 10_u64);
        let mut entries: Vec<Entry> = Vec::new();
        let mut written: BTreeMap<u32, (u64, u64)> = BTreeMap::from([(1, (10, 10))]);
        let mut histories: BTreeMap<u32, Vec<(u32, Lsn)>> = BTreeMap::new();
        for step in days {
            day += 1;
            match step {
                Day::Write(count) => segment += count,
                Day::Backup => {
                    segment += 1;
                    entries.push(entry(&format!("{day:03}"), day, timeline, segment));
                    segment += 1;
                }
                Day::Fork(back) => {
                    let left = segment.saturating_sub(*back).max(entered + 1);
                    segment = segment.max(left);
                    written.insert(timeline, (entered, segment));
                    let mut history = histories.get(&timeline).cloned().unwrap_or_default();
                    history.push((timeline, Lsn(left * SIZE + 50)));
                    timeline += 1;
                    histories.insert(timeline, history);
                    (segment, entered) = (left, left);
                }
            }
            written.insert(timeline, (entered, segment));
        }
        let ranges = written.into_iter().map(|(timeline, (first, last))| WalRange { timeline, first, last }).collect();
        Archive { entries, wal: Wal { segment_size: SIZE, ranges, histories }, end: day }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn whatever_goes_every_kept_backup_can_be_restored_and_every_moment_of_the_window_too(
            days in days(), last in prop::option::of(1_i32..6), long in prop::option::of(1_i64..40),
            starts in prop::collection::vec(0_u64..200, 0..3),
        ) {
            let before = archive(&days);
            let policy = policy(last, long.map(|days| format!("{days}d")).as_deref());
            let running: Vec<Lsn> = starts.iter().map(|segment| Lsn(segment * SIZE + 50)).collect();
            let plan = retention(&before.entries, &running, &before.wal, at(before.end), &policy);
            let gone = gone(&plan);
            let left: Vec<Entry> = before.entries.iter().filter(|entry| !gone.contains(&entry.id.as_str())).cloned().collect();
            prop_assert!(before.entries.is_empty() || !left.is_empty(), "the last one went");
            let floor = plan.wal_before.unwrap_or(0);
            let ranges = before.wal.ranges.iter().filter(|r| r.last >= floor).map(|r| WalRange { first: r.first.max(floor), ..*r });
            let wal = Wal { ranges: ranges.collect(), ..before.wal.clone() };
            // On every way that a kept backup leads, all of its WAL is there.
            for timeline in before.wal.timelines() {
                let way = before.wal.way(timeline);
                let Some((_, end)) = before.wal.end(&way) else { continue };
                for entry in left.iter().filter(|entry| entry.on(&way)) {
                    let from = wal.number(entry.start_lsn);
                    prop_assert_eq!(wal.missing(&way, from, end), None, "{} along {}", &entry.id, timeline);
                }
            }
            // Of a backup that is being taken nothing goes, of whatever timeline it is.
            for start in &running {
                prop_assert!(floor <= wal.number(*start), "WAL of one that begins at {} goes", start);
            }
            // And it keeps no backup that would go otherwise.
            let without = retention(&before.entries, &[], &before.wal, at(before.end), &policy);
            prop_assert_eq!(&without.backups, &plan.backups);
            // A moment that could be restored before along the latest timeline, and that the age wants, still can.
            let way = before.wal.latest().map(|latest| before.wal.way(latest)).unwrap_or_default();
            let could = |entries: &[Entry], day: i64| entries.iter().any(|entry| entry.on(&way) && entry.stopped_at <= at(day));
            if let Some(long) = long {
                for day in (before.end - long).max(0)..=before.end {
                    prop_assert!(!could(&before.entries, day) || could(&left, day), "day {day} is lost");
                }
            }
            // And the present, whatever the rules.
            prop_assert!(!could(&before.entries, before.end) || could(&left, before.end));
            // The count is kept.
            if let Some(last) = last {
                let last = usize::try_from(last).unwrap();
                prop_assert!(left.len() >= before.entries.len().min(last));
            }
            // Nothing is kept without a wish: a second look removes nothing more.
            let again = retention(&left, &running, &wal, at(before.end), &policy);
            prop_assert!(again.backups.is_empty(), "{:?}", again);
            prop_assert_eq!(again.wal_before, plan.wal_before);
        }
    }
}
