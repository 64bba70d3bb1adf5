use serde_json::json;

use super::{completed, started, status};
use crate::api::agent::{ElectionPhase as Ballot, ElectionReport, FullVolume, HandOver, HandOverReason};
use crate::api::status::{ElectionPhase, HelloOperatorStatus};
use crate::core::plan::plan;
use crate::core::plan::testing::{agents_work, change, empty, hand_over, present, settle};
use crate::core::world::{Known, World};

/// A settled cluster of three, and its status.
fn three() -> World {
    let mut world = empty(json!({"instances": 3}));
    settle(&mut world);
    world
}

/// Looks again: the status before and after.
fn look(world: &mut World) -> (HelloOperatorStatus, HelloOperatorStatus) {
    let before = world.object.status.clone().unwrap();
    let after = status(world, &plan(world), &[]);
    world.object.status = Some(after.clone());
    (before, after)
}

fn condition(status: &HelloOperatorStatus, kind: &str) -> (String, String, String) {
    let found = status.conditions.iter().find(|condition| condition.type_ == kind).unwrap();
    (found.status.clone(), found.reason.clone(), found.message.clone())
}

fn phase(status: &HelloOperatorStatus) -> ElectionPhase {
    status.election.as_ref().unwrap().phase
}

/// The primary's Pod is told to end: it releases, and says so.
fn release(world: &mut World) {
    let lease = present(&mut world.lease);
    let register = present(&mut lease.register);
    register.release = serde_json::from_value(json!({"timeline": 1, "lsn": "0/64"})).unwrap();
    lease.hand_over = Some(HandOver {
        term: register.term,
        from: Some("db-1".into()),
        to: String::new(),
        reason: HandOverReason::Shutdown,
        started_at: "2027-01-15T08:00:00.5Z".into(),
        completed_at: None,
    });
}

fn say(world: &mut World, ordinal: u8, election: Option<Ballot>) {
    let report = present(world.reports.get_mut(&ordinal).unwrap());
    report.election = election.map(|phase| ElectionReport {
        phase,
        version: "7".into(),
        missing: vec!["m3".into(), "db-9-gone".into()],
        sentence: "said by the agent".into(),
    });
}

#[test]
fn a_settled_cluster_is_held_and_its_rules_are_confirmed() {
    let world = three();
    let status = world.object.status.unwrap();
    assert_eq!(phase(&status), ElectionPhase::Held);
    assert_eq!(status.last_failover, None, "the first primary took over from nobody");
    let replication = status.replication.unwrap();
    assert_eq!((replication.rules, replication.confirmed), (vec!["ANY 1 (db-2, db-3)".to_owned()], Some(true)));
}

#[test]
fn a_planned_hand_over_is_told_once_at_each_end() {
    let mut world = three();
    release(&mut world);
    let (before, after) = look(&mut world);
    assert_eq!(phase(&after), ElectionPhase::HandOver);
    let begun = started(Some(&before), &after).unwrap();
    assert_eq!((begun.from.as_deref(), begun.to, begun.reason.as_deref()), (Some("db-1"), None, Some("shutdown")));
    let (holds, reason, sentence) = condition(&after, "WriteAvailable");
    assert_eq!((holds.as_str(), reason.as_str()), ("False", "HandOver"));
    assert!(sentence.contains("db-1 has given up the Lease"), "{sentence}");

    // Taken, and writable before its Lease says that clients were led there.
    hand_over(&mut world, 2);
    let done = present(&mut world.lease).hand_over.as_mut().unwrap().completed_at.take();
    let (before, after) = look(&mut world);
    assert_eq!(phase(&after), ElectionPhase::HandOver);
    assert_eq!((started(Some(&before), &after), completed(Some(&before), &after)), (None, None));
    present(&mut world.lease).hand_over.as_mut().unwrap().completed_at = done;
    let (before, after) = look(&mut world);
    let last = completed(Some(&before), &after).unwrap();
    assert_eq!((last.from.as_str(), last.to.as_str(), last.reason.as_str()), ("db-1", "db-2", "shutdown"));
    assert!((last.duration_seconds - 1.25).abs() < 1e-9);
    assert_eq!(started(Some(&before), &after), None);
    assert_eq!(condition(&after, "WriteAvailable").0, "True");
    let (before, after) = look(&mut world);
    assert_eq!(before, after, "nothing is written twice");
}

#[test]
fn an_operator_that_was_away_tells_the_last_one() {
    let mut world = three();
    hand_over(&mut world, 2);
    hand_over(&mut world, 3);
    let (before, after) = look(&mut world);
    assert_eq!(started(Some(&before), &after).unwrap().from.as_deref(), Some("db-2"));
    assert_eq!(completed(Some(&before), &after).unwrap().to, "db-3");
    let (before, after) = look(&mut world);
    assert_eq!((started(Some(&before), &after), completed(Some(&before), &after)), (None, None));
    // Its holder is not heard of for a moment: the same hand-over is no news.
    say(&mut world, 1, Some(Ballot::Campaigning));
    present(world.reports.get_mut(&3).unwrap()).ready = false;
    assert_eq!(phase(&look(&mut world).1), ElectionPhase::Electing);
    say(&mut world, 1, None);
    agents_work(&mut world);
    let (before, after) = look(&mut world);
    assert_eq!((started(Some(&before), &after), completed(Some(&before), &after)), (None, None));
}

#[test]
fn who_wakes_a_cluster_takes_over_from_nobody() {
    let mut world = three();
    change(&mut world, json!({"instances": 3, "state": "Hibernated"}));
    release(&mut world);
    settle(&mut world);
    release(&mut world);
    let (_, asleep) = look(&mut world);
    assert_eq!(phase(&asleep), ElectionPhase::Released);
    assert_eq!(condition(&asleep, "WriteAvailable").1, "Hibernated");
    change(&mut world, json!({"instances": 3}));
    settle(&mut world);
    hand_over(&mut world, 1);
    let done = present(&mut world.lease).hand_over.as_mut().unwrap().completed_at.take();
    let mut world_before = world.clone();
    world_before.object.status = Some(asleep);
    let (before, after) = look(&mut world_before);
    assert_eq!(started(Some(&before), &after), None);
    present(&mut world_before.lease).hand_over.as_mut().unwrap().completed_at = done;
    let (before, after) = look(&mut world_before);
    assert_eq!((phase(&after), started(Some(&before), &after)), (ElectionPhase::Held, None));
    assert_eq!(after.last_failover, None);
}

#[test]
fn a_blocked_election_says_who_is_missing_and_which_command_gives_up_what_they_have() {
    let mut world = three();
    world.reports.insert(1, Known::Unknown("no answer within 2 s".into()));
    world.reports.insert(3, Known::Unknown("no answer within 2 s".into()));
    say(&mut world, 2, Some(Ballot::Campaigning));
    let (_, after) = look(&mut world);
    assert_eq!((phase(&after), condition(&after, "WriteAvailable").1.as_str()), (ElectionPhase::Electing, "Electing"));
    say(&mut world, 2, Some(Ballot::Blocked));
    let (_, after) = look(&mut world);
    let (holds, reason, sentence) = condition(&after, "WriteAvailable");
    assert_eq!((holds.as_str(), reason.as_str()), ("False", "ElectionBlocked"));
    assert!(sentence.contains("may be only on db-9, m3, which did not answer"), "{sentence}");
    let term = after.election.as_ref().unwrap().term;
    let command = format!("kubectl annotate helloop db -n shop terry.com/accept-data-loss={term} --overwrite");
    assert!(sentence.ends_with(&command), "{sentence}");
    // It is tried again and again: that is no news.
    for phase in [Ballot::Campaigning, Ballot::Frozen, Ballot::Blocked] {
        say(&mut world, 2, Some(phase));
        let (before, after) = look(&mut world);
        assert_eq!(before, after, "{phase:?}");
    }
    say(&mut world, 2, None);
    assert_ne!(phase(&look(&mut world).1), ElectionPhase::Blocked);
}

#[test]
fn commits_that_wait_for_replicas_are_no_available_writes() {
    let mut world = three();
    for replica in &mut present(world.reports.get_mut(&1).unwrap()).replicas {
        replica.streaming = false;
    }
    let (_, after) = look(&mut world);
    let (holds, reason, sentence) = condition(&after, "WriteAvailable");
    assert_eq!((holds.as_str(), reason.as_str()), ("False", "SyncReplicasMissing"));
    assert!(sentence.contains("1 of its replicas must have each one") && sentence.contains("db-2, db-3"), "{sentence}");
    present(world.reports.get_mut(&1).unwrap()).replicas[1].streaming = true;
    assert_eq!(condition(&look(&mut world).1, "WriteAvailable").0, "True");
}

#[test]
fn a_full_volume_is_named_with_its_instance_and_what_helps() {
    let mut world = three();
    let full = |world: &mut World, ordinal: u8, which| {
        let report = present(world.reports.get_mut(&ordinal).unwrap());
        report.full = which;
        // A replica that is full serves on.
        report.ready = which.is_none() || ordinal != 1;
    };
    full(&mut world, 2, Some(FullVolume::Wal));
    let (_, after) = look(&mut world);
    let (holds, reason, sentence) = condition(&after, "Degraded");
    assert_eq!((holds.as_str(), reason.as_str()), ("True", "DiskFull"));
    assert_eq!(sentence, "the WAL volume of db-2 is full: raise spec.storage.walSize");
    assert_eq!(condition(&after, "WriteAvailable").0, "True");

    for ordinal in 1..=3 {
        full(&mut world, ordinal, Some(FullVolume::Data));
    }
    let (before, after) = look(&mut world);
    assert_eq!(condition(&after, "Degraded").2, "the volume of db-1, db-2, db-3 is full: raise spec.storage.size",);
    let (holds, reason, sentence) = condition(&after, "WriteAvailable");
    assert_eq!((holds.as_str(), reason.as_str()), ("False", "DiskFull"));
    assert!(sentence.starts_with("db-1 takes no writes, because its volume is full"), "{sentence}");
    assert!(sentence.contains("raise spec.storage.size"), "{sentence}");
    assert_eq!((phase(&after), started(Some(&before), &after)), (ElectionPhase::Held, None), "no hand-over");

    for ordinal in 1..=3 {
        full(&mut world, ordinal, None);
    }
    let (_, after) = look(&mut world);
    assert_eq!(
        (condition(&after, "Degraded").0.as_str(), condition(&after, "WriteAvailable").0.as_str()),
        ("False", "True")
    );
}

#[test]
fn a_member_that_stays_away_is_a_trouble_and_one_that_restarts_or_is_new_is_none() {
    let later = |world: &mut World, seconds: i64| {
        world.now = jiff::Timestamp::from_second(world.now.as_second() + seconds).unwrap();
        look(world).1
    };
    let mut world = three();
    let lost = present(&mut world.pods).remove(&2).unwrap();
    let (_, after) = look(&mut world);
    assert_eq!(condition(&after, "Degraded").0, "False");
    assert_eq!((after.instance_count, after.instances[1].role.as_str()), (2, "missing"));
    let (holds, reason, sentence) = condition(&later(&mut world, 31), "Degraded");
    assert_eq!((holds.as_str(), reason.as_str()), ("True", "InstanceMissing"));
    assert!(sentence.starts_with("db-2 is out of service"), "{sentence}");
    present(&mut world.pods).insert(2, lost);
    assert_eq!(condition(&look(&mut world).1, "Degraded").0, "False");

    // A new one may take its time.
    change(&mut world, json!({"instances": 4}));
    for _ in 0..3 {
        let next = plan(&world);
        crate::core::plan::testing::apply_to(&mut world, &next);
    }
    assert_eq!(condition(&later(&mut world, 1), "Ready").0, "False");
    assert_eq!(condition(&later(&mut world, 600), "Degraded").0, "False");
}
