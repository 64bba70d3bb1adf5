//! Backups against the model of Kubernetes and agents.

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::backup::orphans;
use super::testing::{UID, change, empty, present, settle};
use super::{Action, Plan, plan};
use crate::api::agent::Lsn;
use crate::api::archive::{BackupEnd, BackupReport, CatalogEntry, CatalogReport, StoreError, StoreReport};
use crate::api::backup::{BackupPhase, BackupTarget, HelloBackupStatus};
use crate::api::category::Category;
use crate::core::status::status;
use crate::core::world::{BackupFacts, Failure, Known, ObjectFacts, Trouble, World};

/// A settled cluster of three with a destination, whose agents know it.
pub(super) fn three(schedule: Option<&str>) -> World {
    let mut backup = json!({"destination": {"s3": {"bucket": "b"}}});
    if let Some(schedule) = schedule {
        backup["schedule"] = json!(schedule);
    }
    let mut world = empty(json!({"instances": 3, "backup": backup}));
    settle(&mut world);
    stores(&mut world);
    catalog(&mut world, vec![]);
    world.object.status = Some(status(&world, &plan(&world), &[]));
    world
}

fn stores(world: &mut World) {
    for report in world.reports.values_mut() {
        let report = present(report);
        report.store.get_or_insert_with(StoreReport::default);
    }
}

pub(super) fn catalog(world: &mut World, backups: Vec<CatalogEntry>) {
    let read_at = Some(world.now.to_string());
    let store = present(world.reports.get_mut(&1).unwrap()).store.as_mut().unwrap();
    store.catalog = Some(CatalogReport { read_at, backups, ..CatalogReport::default() });
}

pub(super) fn entry(uid: &str, at: Timestamp) -> CatalogEntry {
    CatalogEntry {
        backup_id: format!("id-{uid}"),
        requested_by: uid.into(),
        instance: "db-2".into(),
        role: "replica".into(),
        started_at: at.to_string(),
        stopped_at: at.checked_add(SignedDuration::from_secs(10)).unwrap().to_string(),
        timeline: 1,
        start_lsn: Lsn(100),
        stop_lsn: Lsn(200),
        bytes: 3 << 30,
        stored_bytes: 1 << 30,
    }
}

pub(super) fn asked(name: &str, world: &World) -> BackupFacts {
    BackupFacts {
        name: name.into(),
        uid: format!("uid-{name}"),
        version: "1".into(),
        generation: 1,
        cluster: "db".into(),
        created: Some(world.now),
        deleting: false,
        run: None,
        target: BackupTarget::PreferReplica,
        reported: false,
        status: HelloBackupStatus::default(),
    }
}

/// Plans, writes what would be written, and makes what would be made.
fn look(world: &mut World) -> Plan {
    let next = plan(world);
    world.object.status = Some(status(world, &next, &[]));
    let now = world.now;
    let known = present(&mut world.backups);
    for facts in known.iter_mut() {
        if let Some(status) = next.backups.statuses.get(&facts.name) {
            facts.status = status.clone();
            facts.reported = true;
        }
    }
    for step in &next.steps {
        match &step.action {
            Action::Create(child) => known.push(BackupFacts {
                name: child.id.name.clone(),
                uid: format!("uid-{}", child.id.name),
                version: "1".into(),
                generation: 1,
                cluster: "db".into(),
                created: Some(now),
                deleting: false,
                run: Some("run".into()),
                target: BackupTarget::PreferReplica,
                reported: false,
                status: HelloBackupStatus::default(),
            }),
            Action::Delete { id, .. } => known.retain(|facts| facts.name != id.name),
            _ => {}
        }
    }
    next
}

pub(super) fn pass(world: &mut World, seconds: i64) {
    world.now = world.now.checked_add(SignedDuration::from_secs(seconds)).unwrap();
}

fn take(world: &mut World, ordinal: u8, id: &str, end: Option<BackupEnd>) {
    let started_at = world.now.to_string();
    let store = present(world.reports.get_mut(&ordinal).unwrap()).store.as_mut().unwrap();
    store.backup = Some(BackupReport {
        id: id.into(),
        backup_id: format!("id-{id}"),
        started_at,
        done_bytes: 1 << 30,
        total_bytes: 3 << 30,
        stored_bytes: 1 << 29,
        start_lsn: None,
        end,
    });
}

fn of<'a>(world: &'a World, name: &str) -> &'a HelloBackupStatus {
    &world.backups.present().unwrap().iter().find(|facts| facts.name == name).unwrap().status
}

fn steps(plan: &Plan) -> Vec<&str> {
    plan.steps.iter().map(|step| step.id.as_str()).collect()
}

fn healthy(world: &World) -> (String, String) {
    let conditions = &world.object.status.as_ref().unwrap().conditions;
    let found = conditions.iter().find(|condition| condition.type_ == "BackupHealthy").unwrap();
    (found.reason.clone(), format!("{}: {}", found.status, found.message))
}

#[test]
fn a_backup_is_given_to_one_replica_and_followed_to_its_end() {
    let mut world = three(None);
    let facts = asked("one", &world);
    present(&mut world.backups).push(facts);
    assert!(steps(&look(&mut world)).is_empty(), "first it is written down who takes it");
    assert_eq!((of(&world, "one").phase, of(&world, "one").instance.as_deref()), (BackupPhase::Pending, Some("db-2")));
    assert_eq!(of(&world, "one").path.as_deref(), Some("s3://b/shop/db"));
    assert_eq!(steps(&look(&mut world)), ["backup one by db-2"]);
    take(&mut world, 2, "uid-one", None);
    pass(&mut world, 10);
    let next = look(&mut world);
    assert!(next.steps.is_empty() && next.backups.runs, "{:?}", next.steps);
    let status = of(&world, "one");
    assert_eq!(status.phase, BackupPhase::Running);
    assert_eq!(status.progress.as_deref(), Some("33% of 3.0 GiB, 102.3 MiB/s, done about 08:00:30Z"));
    let done = entry("uid-one", world.now);
    take(&mut world, 2, "uid-one", Some(BackupEnd::Completed(done)));
    look(&mut world);
    assert_eq!(of(&world, "one").phase, BackupPhase::Completed);
    assert_eq!(of(&world, "one").progress.as_deref(), Some("3.0 GiB in 10 s, 1.0 GiB stored"));
    look(&mut world);
    assert_eq!(
        world
            .object
            .status
            .as_ref()
            .unwrap()
            .backup
            .as_ref()
            .unwrap()
            .last_successful
            .as_ref()
            .unwrap()
            .name
            .as_deref(),
        Some("one")
    );
    let again = look(&mut world);
    assert!(again.settled() && again.backups.statuses.is_empty(), "an idle operator writes nothing: {again:?}");
}

#[test]
fn who_takes_it() {
    let mut world = three(None);
    let taker = |world: &World, target| {
        let mut world = world.clone();
        let facts = BackupFacts { target, ..asked("one", &world) };
        present(&mut world.backups).push(facts);
        look(&mut world);
        (of(&world, "one").instance.clone(), of(&world, "one").message.clone())
    };
    assert_eq!(taker(&world, BackupTarget::Primary).0.as_deref(), Some("db-1"));
    // The one that is less behind; one that does not stream is none.
    present(world.reports.get_mut(&2).unwrap()).replayed = Some(Lsn(90));
    present(world.reports.get_mut(&3).unwrap()).replayed = Some(Lsn(99));
    assert_eq!(taker(&world, BackupTarget::PreferReplica).0.as_deref(), Some("db-3"));
    present(world.reports.get_mut(&3).unwrap()).streaming = false;
    assert_eq!(taker(&world, BackupTarget::PreferReplica).0.as_deref(), Some("db-2"));
    present(world.reports.get_mut(&2).unwrap()).draining = true;
    assert_eq!(taker(&world, BackupTarget::PreferReplica).0.as_deref(), Some("db-1"));
    present(world.reports.get_mut(&1).unwrap()).store = None;
    let (nobody, message) = taker(&world, BackupTarget::PreferReplica);
    assert!(nobody.is_none() && message.unwrap().contains("waits for a replica that streams"));
}

#[test]
fn one_at_a_time_in_the_order_in_which_they_were_asked_for() {
    let mut world = three(None);
    for name in ["a", "b", "c"] {
        let facts = asked(name, &world);
        present(&mut world.backups).push(facts);
        pass(&mut world, 1);
    }
    look(&mut world);
    look(&mut world);
    assert!(of(&world, "b").message.as_deref().unwrap().starts_with("waits until a is done"));
    take(
        &mut world,
        2,
        "uid-a",
        Some(BackupEnd::Failed(StoreError { category: Category::Store, message: "full".into() })),
    );
    look(&mut world);
    assert_eq!((of(&world, "a").phase, of(&world, "a").message.as_deref()), (BackupPhase::Failed, Some("full")));
    assert_eq!(of(&world, "b").instance.as_deref(), Some("db-2"), "a failure blocks nobody");
    assert!(of(&world, "c").message.as_deref().unwrap().starts_with("waits until b is done"));
    look(&mut world);
    assert_eq!(healthy(&world).0, "BackupFailed");
}

#[test]
fn an_agent_that_restarted_lost_it_unless_the_catalogue_has_it() {
    let mut world = three(None);
    let facts = asked("one", &world);
    present(&mut world.backups).push(facts);
    look(&mut world);
    take(&mut world, 2, "uid-one", None);
    look(&mut world);
    present(world.reports.get_mut(&2).unwrap()).store = Some(StoreReport::default());
    look(&mut world);
    assert_eq!(of(&world, "one").phase, BackupPhase::Running, "the catalogue is older than that");
    // Nobody is left who could be at it, so nobody is waited for; and it is a good one if the catalogue has it after all.
    let mut late = world.clone();
    pass(&mut late, 25);
    look(&mut late);
    assert_eq!(of(&late, "one").phase, BackupPhase::Failed);
    pass(&mut late, 600);
    let complete = entry("uid-one", late.now);
    catalog(&mut late, vec![complete]);
    look(&mut late);
    assert_eq!(of(&late, "one").phase, BackupPhase::Completed);
    let mut found = world.clone();
    pass(&mut found, 30);
    let complete = entry("uid-one", found.now);
    catalog(&mut found, vec![complete]);
    look(&mut found);
    assert_eq!(of(&found, "one").phase, BackupPhase::Completed);
    pass(&mut world, 30);
    catalog(&mut world, vec![]);
    look(&mut world);
    assert_eq!(of(&world, "one").phase, BackupPhase::Failed);
    assert!(of(&world, "one").message.as_deref().unwrap().contains("restarted"), "{:?}", of(&world, "one"));
}

#[test]
fn an_agent_that_does_not_answer_is_waited_for_and_then_not() {
    let mut world = three(None);
    let facts = asked("one", &world);
    present(&mut world.backups).push(facts);
    look(&mut world);
    take(&mut world, 2, "uid-one", None);
    look(&mut world);
    let report = world.reports.insert(2, Known::Unknown("no answer".into())).unwrap();
    look(&mut world);
    pass(&mut world, 110);
    catalog(&mut world, vec![]);
    look(&mut world);
    assert_eq!(of(&world, "one").phase, BackupPhase::Running, "it may well be at it");
    let mut back = world.clone();
    back.reports.insert(2, report.clone());
    look(&mut back);
    assert_eq!((of(&back, "one").phase, of(&back, "one").unseen_since.as_ref()), (BackupPhase::Running, None));
    pass(&mut world, 20);
    look(&mut world);
    assert!(of(&world, "one").message.as_deref().unwrap().contains("did not answer"), "{:?}", of(&world, "one"));
    // It comes back, and is at it: nobody waits for that any more.
    world.reports.insert(2, report);
    assert_eq!(steps(&look(&mut world)), ["end of the backup on db-2"]);
}

#[test]
fn deleting_it_ends_it_and_the_next_waits_until_it_is_cleaned_up() {
    let mut world = three(None);
    let facts = asked("one", &world);
    present(&mut world.backups).push(facts);
    look(&mut world);
    take(&mut world, 2, "uid-one", None);
    look(&mut world);
    let next = asked("two", &world);
    *present(&mut world.backups) = vec![next];
    assert_eq!(steps(&look(&mut world)), ["end of the backup on db-2"]);
    assert!(of(&world, "two").message.as_deref().unwrap().contains("cleaned up"));
    world.backups = Known::Unknown("no answer".into());
    assert!(steps(&plan(&world)).is_empty(), "what is not known is not deleted");
}

#[test]
fn a_refusal_stands_in_the_backup_and_makes_no_cluster_degraded() {
    let mut world = three(None);
    let facts = asked("one", &world);
    present(&mut world.backups).push(facts);
    look(&mut world);
    let step = look(&mut world).steps.remove(0);
    let trouble = Trouble { reason: "AgentUnreachable".into(), sentence: "another cluster's archive".into() };
    world.failures = vec![Failure { child: step.child(&world.object.names), trouble }];
    let next = look(&mut world);
    assert_eq!(of(&world, "one").message.as_deref(), Some("another cluster's archive"));
    let status = status(&world, &next, &world.failures);
    assert!(status.conditions.iter().any(|c| c.type_ == "Degraded" && c.status == "False"));
}

#[test]
fn the_schedule_makes_one_and_after_a_pause_only_the_newest() {
    // 2027-01-15T08:00:00Z is when the model begins.
    let mut world = three(Some("0 3 * * *"));
    let next = |world: &World| world.object.status.as_ref().unwrap().backup.as_ref().unwrap().next_run.clone();
    assert_eq!(next(&world).as_deref(), Some("2027-01-16T03:00:00Z"));
    assert_eq!(
        healthy(&world),
        ("NeverBackedUp".into(), "True: there is no backup yet; the first one is due at 2027-01-16T03:00:00Z".into())
    );
    assert!(look(&mut world).settled(), "the run of this morning was before it");
    // A look at which too little is known takes no announcement back.
    let mut unknown = world.clone();
    unknown.config = Known::Unknown("no answer".into());
    look(&mut unknown);
    assert_eq!(next(&unknown).as_deref(), Some("2027-01-16T03:00:00Z"));
    // Three days nobody looked.
    world.now = "2027-01-18T12:00:00Z".parse().unwrap();
    let due = look(&mut world);
    assert_eq!(steps(&due), ["HelloBackup db-202701180300"]);
    let Action::Create(child) = &due.steps[0].action else { panic!("{due:?}") };
    assert!(child.body.pointer("/metadata/ownerReferences").is_none(), "it outlives the cluster");
    assert_eq!(next(&world).as_deref(), Some("2027-01-18T03:00:00Z"), "announced until it is there");
    look(&mut world);
    assert_eq!(next(&world).as_deref(), Some("2027-01-19T03:00:00Z"));
    // The next day's waits while this one is not done, and is made up then.
    world.now = "2027-01-19T03:00:01Z".parse().unwrap();
    assert!(!steps(&look(&mut world)).iter().any(|id| id.starts_with("HelloBackup")));
    world.now = "2027-01-20T03:00:01Z".parse().unwrap();
    take(&mut world, 2, "uid-db-202701180300", Some(BackupEnd::Cancelled));
    look(&mut world);
    assert_eq!(steps(&look(&mut world)), ["HelloBackup db-202701200300"]);
}

#[test]
fn another_schedule_begins_now_and_a_suspended_one_not_at_all() {
    let mut world = three(Some("0 3 * * *"));
    world.now = "2027-01-18T12:00:00Z".parse().unwrap();
    let with = |world: &World, backup| {
        let mut world = world.clone();
        change(&mut world, json!({"instances": 3, "backup": backup}));
        let next = look(&mut world);
        let made = next.steps.iter().any(|step| step.id.starts_with("HelloBackup"));
        (made, world.object.status.unwrap().backup.unwrap().next_run)
    };
    let destination = json!({"s3": {"bucket": "b"}});
    let other = with(&world, json!({"destination": destination, "schedule": "30 4 * * *"}));
    assert_eq!(other, (false, Some("2027-01-19T04:30:00Z".into())));
    let zone = with(&world, json!({"destination": destination, "schedule": "0 3 * * *", "timeZone": "Europe/Zurich"}));
    assert_eq!(zone, (false, Some("2027-01-19T02:00:00Z".into())));
    let suspended = with(&world, json!({"destination": destination, "schedule": "0 3 * * *", "suspend": true}));
    assert_eq!(suspended, (false, None));
    let impossible = with(&world, json!({"destination": destination, "schedule": "0 3 30 2 *"}));
    assert_eq!(impossible, (false, None));
}

#[test]
fn objects_go_with_their_backups_and_failed_ones_but_the_newest() {
    let mut world = three(None);
    let begin = world.now;
    for at in 0..5_u8 {
        let mut facts = asked(&format!("failed-{at}"), &world);
        facts.status.phase = BackupPhase::Failed;
        facts.reported = true;
        present(&mut world.backups).push(facts);
        pass(&mut world, 1);
    }
    for (name, path) in [("kept", "s3://b/shop/db"), ("gone", "s3://b/shop/db"), ("elsewhere", "s3://old/shop/db")] {
        let mut facts = asked(name, &world);
        facts.reported = true;
        facts.status = HelloBackupStatus {
            phase: BackupPhase::Completed,
            backup_id: Some(format!("id-{name}")),
            completed_at: Some(begin.to_string()),
            path: Some(path.into()),
            ..HelloBackupStatus::default()
        };
        present(&mut world.backups).push(facts);
    }
    let kept = CatalogEntry { backup_id: "id-kept".into(), ..entry("x", begin) };
    catalog(&mut world, vec![kept.clone()]);
    let failed = ["deletion of HelloBackup failed-0", "deletion of HelloBackup failed-1"];
    assert_eq!(steps(&plan(&world)), failed, "the catalogue may be older than the newest backup");
    pass(&mut world, 3600);
    catalog(&mut world, vec![kept]);
    assert_eq!(steps(&plan(&world)), [&failed[..], &["deletion of HelloBackup gone"]].concat());
}

#[test]
fn without_a_cluster_or_a_destination_it_says_what_is_missing() {
    let mut world = three(None);
    let facts = asked("one", &world);
    present(&mut world.backups).push(facts.clone());
    change(&mut world, json!({"instances": 3}));
    look(&mut world);
    assert!(of(&world, "one").message.as_deref().unwrap().contains("no backup.destination"));
    let mut missing = World { object: ObjectFacts::missing("shop", "db"), ..world.clone() };
    let told = orphans(&missing);
    assert_eq!(told["one"].message.as_deref(), Some("there is no HelloOperator db in this namespace"));
    let mut running = facts;
    running.status.phase = BackupPhase::Running;
    missing.backups = Known::Present(vec![running]);
    assert_eq!(orphans(&missing)["one"].phase, BackupPhase::Failed);
    assert_eq!(UID, world.object.uid);
}

#[test]
fn what_is_wrong_with_backups_is_a_condition() {
    let mut world = three(Some("0 3 * * *"));
    let last = entry("x", world.now);
    let at = |world: &mut World, seconds, entries: Vec<CatalogEntry>| {
        pass(world, seconds);
        catalog(world, entries);
        look(world);
        healthy(world)
    };
    assert_eq!(at(&mut world, 60, vec![last.clone()]).0, "Healthy");
    let store = present(world.reports.get_mut(&1).unwrap()).store.as_mut().unwrap();
    store.archive.failing_since = Some("2027-01-15T08:00:00Z".into());
    store.archive.error = Some(StoreError { category: Category::Store, message: "the bucket b does not exist".into() });
    let failing = at(&mut world, 60, vec![last.clone()]);
    assert_eq!(failing.0, "ArchiveFailing");
    assert!(
        failing.1.contains("db-1 cannot archive WAL since") && failing.1.contains("does not exist"),
        "{}",
        failing.1
    );
    present(world.reports.get_mut(&1).unwrap()).store = Some(StoreReport::default());
    // The scheduled one is made, but nobody can take it.
    for report in world.reports.values_mut() {
        present(report).draining = true;
    }
    let old = at(&mut world, 86_400, vec![last.clone()]);
    assert_eq!(old.0, "BackupTooOld", "{}", old.1);
    let unreadable = StoreError { category: Category::Store, message: "access denied".into() };
    present(world.reports.get_mut(&1).unwrap()).store.as_mut().unwrap().catalog.as_mut().unwrap().error =
        Some(unreadable);
    look(&mut world);
    assert_eq!(healthy(&world).0, "CatalogUnreadable");
    change(
        &mut world,
        json!({"instances": 3, "backup": {"destination": {"s3": {"bucket": "b"}}, "schedule": "0 3 31 4 *"}}),
    );
    look(&mut world);
    assert_eq!(healthy(&world).0, "ScheduleImpossible");
}
