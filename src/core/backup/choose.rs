//! With which backup a restore begins, along which timeline it goes, and why it cannot be: all that can be told before
//! a volume is touched.

use jiff::Timestamp;

use super::{Entry, Leg, Wal};
use crate::api::Category;
use crate::api::agent::{Lsn, RestoreOrder};

/// Up to where a restore goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// All that was archived.
    Latest,
    /// The last commit until then.
    Time(Timestamp),
    /// This position.
    Lsn(Lsn),
    /// The point of this name.
    Name(String),
}

/// What is to be restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// Up to where.
    pub target: Target,
    /// The backup to begin with. None: the best one.
    pub backup_id: Option<String>,
    /// The timeline to follow. None: the latest that has the target.
    pub timeline: Option<u32>,
    /// Major version of the cluster that is to have the data.
    pub major: u32,
}

impl Wish {
    /// From the operator's order.
    pub fn of(order: &RestoreOrder, major: u32) -> Result<Self, Refusal> {
        let target = match (&order.target_time, order.target_lsn, &order.target_name) {
            (Some(moment), None, None) => {
                Target::Time(moment.parse().map_err(|_| Refusal::InvalidTime { text: moment.clone() })?)
            }
            (None, Some(lsn), None) => Target::Lsn(lsn),
            (None, None, Some(name)) => Target::Name(name.clone()),
            (None, None, None) => Target::Latest,
            _ => return Err(Refusal::SeveralTargets),
        };
        Ok(Self { target, backup_id: order.backup_id.clone(), timeline: order.target_timeline, major })
    }
}

/// How to restore it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The backup to begin with.
    pub backup_id: String,
    /// The timeline to follow, as a number.
    pub timeline: u32,
    /// Timelines on the way, from the backup's on.
    pub path: Vec<u32>,
    /// The first segment that is needed.
    pub first: String,
    /// The last segment on the way that is there.
    pub last: Option<String>,
    /// A segment that is missing although later ones are there, where it is not known whether the target lies behind it.
    pub gap: Option<String>,
}

/// Why it cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no backup.
    #[error("the archive holds no complete backup: check bucket and path of bootstrap.restore.source")]
    NoBackup,
    /// The backup that was named is not there.
    #[error("the archive holds no complete backup {id}; it holds {known}")]
    UnknownBackup {
        /// Its id.
        id: String,
        /// Those that are there, in words.
        known: String,
    },
    /// The timeline is not there.
    #[error(
        "the archive holds no timeline {timeline}; it holds {known}: write one of these as targetTimeline, or leave it out"
    )]
    UnknownTimeline {
        /// The timeline.
        timeline: u32,
        /// Those that are there, in words.
        known: String,
    },
    /// The target lies before everything.
    #[error(
        "the target {target} lies before the first backup{along}, which was complete at {first}: choose a later one"
    )]
    BeforeFirst {
        /// The target.
        target: String,
        /// Along which timeline, in words; empty where it was not chosen.
        along: String,
        /// The first moment or position that can be restored.
        first: String,
    },
    /// The backup that was named is younger than the target.
    #[error(
        "backup {id} was complete at {complete}, after the target {target}: leave out backupId, or choose an older one"
    )]
    BackupAfterTarget {
        /// Its id.
        id: String,
        /// When or where it was complete.
        complete: String,
        /// The target.
        target: String,
    },
    /// The backup that was named does not lead to the timeline.
    #[error(
        "backup {id} is of timeline {of}, and the way to timeline {timeline} does not lead through it: choose another targetTimeline or another backup"
    )]
    NotOnTimeline {
        /// Its id.
        id: String,
        /// Its timeline.
        of: u32,
        /// The timeline that was asked for.
        timeline: u32,
    },
    /// No backup leads to the timeline.
    #[error("no backup leads to timeline {timeline}: choose another targetTimeline, or leave it out")]
    NoneOnTimeline {
        /// The timeline.
        timeline: u32,
    },
    /// The data are of another version.
    #[error("backup {id} is of PostgreSQL {have}, and spec.version is {want}: restore into version {have}")]
    WrongMajor {
        /// Its id.
        id: String,
        /// Its version.
        have: u32,
        /// The new cluster's.
        want: u32,
    },
    /// WAL is missing on the way.
    #[error(
        "WAL segment {segment} is missing in the archive, and backup {id} cannot get past it to {target}: choose a target before it{other}"
    )]
    MissingWal {
        /// The first one that is missing.
        segment: String,
        /// The backup.
        id: String,
        /// The target.
        target: String,
        /// What else helps, in words.
        other: String,
    },
    /// The position lies behind everything.
    #[error(
        "the position {lsn} lies behind the last archived WAL, which ends before {end}: choose an earlier one, or leave out targetLsn for all there is"
    )]
    BehindLast {
        /// The position.
        lsn: Lsn,
        /// Where the archive ends.
        end: Lsn,
    },
    /// A text that is no time.
    #[error("{text:?} is no time with a zone, such as 2026-11-30T10:01:00Z")]
    InvalidTime {
        /// The text.
        text: String,
    },
    /// More than one target.
    #[error("{}", crate::api::crd::ONE_TARGET)]
    SeveralTargets,
}

impl Refusal {
    /// For conditions, in CamelCase.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoBackup => "NoBackup",
            Self::UnknownBackup { .. } => "UnknownBackup",
            Self::UnknownTimeline { .. } | Self::NoneOnTimeline { .. } | Self::NotOnTimeline { .. } => {
                "UnknownTimeline"
            }
            Self::BeforeFirst { .. } | Self::BackupAfterTarget { .. } => "TargetTooEarly",
            Self::WrongMajor { .. } => "WrongVersion",
            Self::MissingWal { .. } => "MissingWal",
            Self::BehindLast { .. } => "TargetTooLate",
            Self::InvalidTime { .. } | Self::SeveralTargets => "InvalidTarget",
        }
    }

    /// What kind of trouble it is.
    pub fn category(&self) -> Category {
        match self {
            Self::MissingWal { .. } => Category::Corrupt,
            _ => Category::Invalid,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Latest => f.write_str("the end of the archive"),
            Self::Time(moment) => write!(f, "{moment}"),
            Self::Lsn(lsn) => write!(f, "{lsn}"),
            Self::Name(name) => write!(f, "{name:?}"),
        }
    }
}

/// Decides it.
pub fn choose(entries: &[Entry], wal: &Wal, wish: &Wish) -> Result<Choice, Refusal> {
    if entries.is_empty() {
        return Err(Refusal::NoBackup);
    }
    let named = match &wish.backup_id {
        None => None,
        Some(id) => Some(entries.iter().find(|entry| entry.id == *id).ok_or_else(|| Refusal::UnknownBackup {
            id: id.clone(),
            known: names(entries.iter().map(|entry| entry.id.clone()).collect()),
        })?),
    };
    let mut timelines = wal.timelines();
    timelines.extend(entries.iter().map(|entry| entry.timeline));
    timelines.sort_unstable_by(|a, b| b.cmp(a));
    timelines.dedup();
    if let Some(timeline) = wish.timeline {
        if !timelines.contains(&timeline) {
            let known = names(timelines.iter().rev().map(ToString::to_string).collect());
            return Err(Refusal::UnknownTimeline { timeline, known });
        }
        timelines = vec![timeline];
    }
    // The latest timeline that has the target; where none has it, what the latest one says.
    let mut first = None;
    for timeline in timelines {
        match along(entries, wal, wish, named, timeline) {
            Ok(choice) => return Ok(choice),
            // Another timeline would not be what "the latest" means.
            Err(refusal @ (Refusal::WrongMajor { .. } | Refusal::MissingWal { .. })) => return Err(refusal),
            Err(refusal) => first = first.or(Some(refusal)),
        }
    }
    Err(first.unwrap_or(Refusal::NoBackup))
}

/// Decides it for one timeline.
fn along(entries: &[Entry], wal: &Wal, wish: &Wish, named: Option<&Entry>, timeline: u32) -> Result<Choice, Refusal> {
    let way = wal.way(timeline);
    let mut able: Vec<&Entry> = entries.iter().filter(|entry| entry.on(&way)).collect();
    able.sort_by_key(|entry| (entry.stop_lsn, entry.stopped_at));
    let end = wal.end(&way);
    let entry = match named {
        Some(entry) if !entry.on(&way) => {
            return Err(Refusal::NotOnTimeline { id: entry.id.clone(), of: entry.timeline, timeline });
        }
        Some(entry) if !before(entry, &wish.target) => {
            return Err(Refusal::BackupAfterTarget {
                id: entry.id.clone(),
                complete: complete(entry, &wish.target),
                target: wish.target.to_string(),
            });
        }
        Some(entry) => entry,
        None => best(&able, wal, wish, &way, timeline)?,
    };
    if entry.major != wish.major {
        return Err(Refusal::WrongMajor { id: entry.id.clone(), have: entry.major, want: wish.major });
    }
    let from = wal.number(entry.start_lsn);
    // What its own consistency needs, and what the target needs.
    let own = wal.number(Lsn(entry.stop_lsn.0.saturating_sub(1)));
    let last = end.map_or(own, |(_, end)| end.max(own));
    let to = match &wish.target {
        Target::Lsn(lsn) => {
            let wanted = wal.number(Lsn(lsn.0.saturating_sub(1)));
            if wanted > last {
                let end = Lsn(last.saturating_add(1).saturating_mul(wal.segment_size));
                return Err(Refusal::BehindLast { lsn: *lsn, end });
            }
            wanted.max(own)
        }
        Target::Latest => last,
        Target::Time(_) | Target::Name(_) => own,
    };
    if let Some((on, number)) = wal.missing(&way, from, to) {
        let other = able.iter().any(|other| wal.number(other.start_lsn) > number);
        return Err(Refusal::MissingWal {
            segment: wal.name(on, number),
            id: entry.id.clone(),
            target: if number <= own { "the moment at which it is consistent".into() } else { wish.target.to_string() },
            other: if other { ", or begin with a backup behind it (backupId)".into() } else { String::new() },
        });
    }
    let gap = wal.missing(&way, to, last).map(|(on, number)| wal.name(on, number));
    Ok(Choice {
        backup_id: entry.id.clone(),
        timeline,
        path: way.iter().map(|leg| leg.timeline).skip_while(|on| *on != entry.timeline).collect(),
        first: wal.name(wal.leg_of(&way, from).unwrap_or(entry.timeline), from),
        last: end.map(|(on, number)| wal.name(on, number)),
        gap,
    })
}

/// The best backup to begin with: the newest before the target.
fn best<'a>(able: &[&'a Entry], wal: &Wal, wish: &Wish, way: &[Leg], timeline: u32) -> Result<&'a Entry, Refusal> {
    let Some(oldest) = able.first() else { return Err(Refusal::NoneOnTimeline { timeline }) };
    if let Target::Name(_) = wish.target {
        // A name does not say when: the oldest that can read on to the end passes every point that can be passed.
        let end = wal.end(way).map_or(0, |(_, end)| end);
        let reads_on = |entry: &&&Entry| wal.missing(way, wal.number(entry.start_lsn), end).is_none();
        return Ok(able.iter().find(reads_on).unwrap_or(oldest));
    }
    able.iter().rev().find(|entry| before(entry, &wish.target)).copied().ok_or_else(|| Refusal::BeforeFirst {
        target: wish.target.to_string(),
        along: wish.timeline.map_or_else(String::new, |timeline| format!(" of timeline {timeline}")),
        first: complete(oldest, &wish.target),
    })
}

fn before(entry: &Entry, target: &Target) -> bool {
    match target {
        Target::Latest | Target::Name(_) => true,
        Target::Time(moment) => entry.stopped_at <= *moment,
        Target::Lsn(lsn) => entry.stop_lsn <= *lsn,
    }
}

/// When or where a backup was complete, in the terms of the target.
fn complete(entry: &Entry, target: &Target) -> String {
    match target {
        Target::Lsn(_) => entry.stop_lsn.to_string(),
        Target::Latest | Target::Time(_) | Target::Name(_) => entry.stopped_at.to_string(),
    }
}

/// As many of them as people read.
fn names(mut all: Vec<String>) -> String {
    const MOST: usize = 10;
    let more = all.len().saturating_sub(MOST);
    if more > 0 {
        // The newest are what is looked for.
        all.drain(..more);
        return format!("{} and {more} older ones", all.join(", "));
    }
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::WalRange;
    use super::*;

    const SIZE: u64 = 16 << 20;

    fn at(hour: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + hour * 3600).unwrap()
    }

    fn entry(id: &str, hour: i64, timeline: u32, segment: u64) -> Entry {
        Entry {
            id: id.into(),
            major: 17,
            started_at: at(hour),
            stopped_at: at(hour),
            timeline,
            start_lsn: Lsn(segment * SIZE + 100),
            stop_lsn: Lsn((segment + 1) * SIZE + 200),
        }
    }

    /// Timeline 2 left timeline 1 in segment 25; timeline 3 left timeline 2 in segment 40.
    fn archive() -> (Vec<Entry>, Wal) {
        let range = |timeline, first, last| WalRange { timeline, first, last };
        let wal = Wal {
            segment_size: SIZE,
            ranges: vec![range(1, 8, 30), range(2, 25, 45), range(3, 40, 60)],
            histories: BTreeMap::from([
                (2, vec![(1, Lsn(25 * SIZE + 50))]),
                (3, vec![(1, Lsn(25 * SIZE + 50)), (2, Lsn(40 * SIZE + 50))]),
            ]),
        };
        (vec![entry("a", 1, 1, 10), entry("b", 2, 1, 27), entry("c", 3, 2, 30), entry("d", 4, 3, 50)], wal)
    }

    fn wish(target: Target) -> Wish {
        Wish { target, backup_id: None, timeline: None, major: 17 }
    }

    fn chosen(wish: &Wish) -> (String, u32, Vec<u32>) {
        let (entries, wal) = archive();
        let choice = choose(&entries, &wal, wish).unwrap();
        (choice.backup_id, choice.timeline, choice.path)
    }

    fn refused(wish: &Wish) -> Refusal {
        let (entries, wal) = archive();
        choose(&entries, &wal, wish).unwrap_err()
    }

    #[test]
    fn the_newest_backup_before_the_target_on_the_way_to_the_latest_timeline() {
        assert_eq!(chosen(&wish(Target::Latest)), ("d".into(), 3, vec![3]));
        assert_eq!(chosen(&wish(Target::Time(at(3)))), ("c".into(), 3, vec![2, 3]));
        // b is of the piece of timeline 1 that was abandoned.
        assert_eq!(chosen(&wish(Target::Time(at(2)))), ("a".into(), 3, vec![1, 2, 3]));
        assert_eq!(chosen(&wish(Target::Lsn(Lsn(20 * SIZE)))), ("a".into(), 3, vec![1, 2, 3]));
        assert_eq!(chosen(&wish(Target::Name("before".into()))), ("a".into(), 3, vec![1, 2, 3]));
    }

    #[test]
    fn before_and_after_a_fork_by_timeline() {
        let on = |timeline, target| chosen(&Wish { timeline: Some(timeline), ..wish(target) });
        assert_eq!(on(1, Target::Latest), ("b".into(), 1, vec![1]));
        assert_eq!(on(2, Target::Latest), ("c".into(), 2, vec![2]));
        assert_eq!(on(2, Target::Time(at(2))), ("a".into(), 2, vec![1, 2]));
        let unknown = refused(&Wish { timeline: Some(7), ..wish(Target::Latest) });
        assert!(unknown.to_string().contains("it holds 1, 2, 3"), "{unknown}");
    }

    #[test]
    fn a_named_backup_is_taken_or_refused_with_the_reason() {
        let with = |id: &str, target| Wish { backup_id: Some(id.into()), ..wish(target) };
        assert_eq!(chosen(&with("a", Target::Latest)), ("a".into(), 3, vec![1, 2, 3]));
        assert_eq!(chosen(&with("b", Target::Latest)), ("b".into(), 1, vec![1]), "the latest that it leads to");
        assert!(matches!(refused(&with("c", Target::Time(at(2)))), Refusal::BackupAfterTarget { .. }));
        let unknown = refused(&with("x", Target::Latest));
        assert_eq!(unknown.to_string(), "the archive holds no complete backup x; it holds a, b, c, d");
        let off = refused(&Wish { timeline: Some(3), ..with("b", Target::Latest) });
        assert!(matches!(off, Refusal::NotOnTimeline { of: 1, timeline: 3, .. }), "{off}");
    }

    #[test]
    fn what_cannot_be_is_told_in_words() {
        let early = refused(&wish(Target::Time(at(0))));
        assert!(early.to_string().contains(&format!("complete at {}", at(1))), "{early}");
        assert!(matches!(refused(&wish(Target::Lsn(Lsn(9 * SIZE)))), Refusal::BeforeFirst { .. }));
        let late = refused(&wish(Target::Lsn(Lsn(61 * SIZE + 1))));
        assert!(matches!(late, Refusal::BehindLast { end: Lsn(end), .. } if end == 61 * SIZE), "{late}");
        let version = refused(&Wish { major: 18, ..wish(Target::Latest) });
        assert!(version.to_string().contains("restore into version 17"), "{version}");
        assert_eq!(choose(&[], &archive().1, &wish(Target::Latest)).unwrap_err(), Refusal::NoBackup);
    }

    #[test]
    fn a_missing_segment_is_named_where_it_is_in_the_way() {
        let (entries, mut wal) = archive();
        wal.ranges = wal
            .ranges
            .into_iter()
            .flat_map(|range| match range.timeline {
                2 => vec![WalRange { last: 34, ..range }, WalRange { first: 36, ..range }],
                _ => vec![range],
            })
            .collect();
        let from = |id: &str, target| Wish { backup_id: Some(id.into()), ..wish(target) };
        let missing = choose(&entries, &wal, &from("c", Target::Latest)).unwrap_err();
        assert!(missing.to_string().contains("000000020000000000000023"), "{missing}");
        assert!(missing.to_string().contains("begin with a backup behind it"), "{missing}");
        // In front of the gap there is no harm, and a time may lie in front of it.
        assert!(choose(&entries, &wal, &from("c", Target::Lsn(Lsn(34 * SIZE)))).is_ok());
        let timed = choose(&entries, &wal, &from("c", Target::Time(at(3)))).unwrap();
        assert_eq!(timed.gap.as_deref(), Some("000000020000000000000023"));
        assert!(choose(&entries, &wal, &wish(Target::Latest)).is_ok(), "d lies behind it");
        assert_eq!(choose(&entries, &wal, &wish(Target::Name("x".into()))).unwrap().backup_id, "d");
        // Of the backup's own WAL nothing may be missing.
        wal.ranges.retain(|range| range.timeline != 3);
        wal.ranges.push(WalRange { timeline: 3, first: 52, last: 60 });
        let own = choose(&entries, &wal, &wish(Target::Latest)).unwrap_err();
        assert!(own.to_string().contains("at which it is consistent"), "{own}");
    }

    #[test]
    fn the_segment_of_a_fork_may_stand_under_the_old_name_alone() {
        let (entries, mut wal) = archive();
        // Timeline 3 began in segment 40 and filled nothing yet.
        wal.ranges.retain(|range| range.timeline != 3);
        let choice = choose(&entries[..3], &wal, &wish(Target::Latest)).unwrap();
        assert_eq!((choice.backup_id.as_str(), choice.timeline), ("c", 3));
        assert_eq!(choice.last.as_deref(), Some("000000020000000000000028"));
        assert_eq!(wal.unbroken_from(), Some((1, 8)));
    }

    #[test]
    fn an_order_becomes_a_wish() {
        let order = RestoreOrder {
            source: crate::api::spec::Destination::default(),
            root: "r".into(),
            backup_id: None,
            target_time: Some("2026-11-30 10:01:00+01:00".into()),
            target_lsn: None,
            target_name: None,
            target_timeline: Some(2),
        };
        let wish = Wish::of(&order, 17).unwrap();
        assert_eq!(wish.target, Target::Time("2026-11-30T09:01:00Z".parse().unwrap()));
        assert_eq!(wish.timeline, Some(2));
        let several = RestoreOrder { target_name: Some("x".into()), ..order };
        assert_eq!(Wish::of(&several, 17), Err(Refusal::SeveralTargets));
    }
}
