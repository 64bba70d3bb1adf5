use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{Entry, Refusal, Target, Wal, WalRange, Wish, choose};
use crate::api::agent::Lsn;
use crate::api::config::RestoreOrder;

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
