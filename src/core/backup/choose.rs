//! With which backup a restore begins, along which timeline it goes, and why it cannot be: all that can be told before
//! a volume is touched.

use jiff::Timestamp;

use super::{Entry, Leg, Wal};
use crate::api::Category;
use crate::api::agent::Lsn;
use crate::api::config::RestoreOrder;

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
