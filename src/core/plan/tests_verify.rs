//! The proof of backups, against the model of Kubernetes and agents.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::testing::{UID, change, empty, present, settle};
use super::{Action, Plan, plan};
use crate::api::agent::Lsn;
use crate::api::archive::{CatalogEntry, CatalogReport, StoreReport};
use crate::api::status::BackupStatus;
use crate::api::verify::VerifyResult;
use crate::core::status::status;
use crate::core::world::{ChildMeta, Known, Owner, VerifyFacts, World};

fn spec() -> Value {
    json!({"backup": {"destination": {"s3": {"bucket": "b"}}, "verify": {"schedule": "0 9 * * *", "query": "select 1"}}})
}

/// A settled cluster whose proof is due in an hour.
fn world() -> World {
    let mut world = empty(spec());
    settle(&mut world);
    for report in world.reports.values_mut() {
        present(report).store = Some(StoreReport::default());
    }
    look(&mut world);
    world
}

fn catalog(world: &mut World) {
    let at = world.now.to_string();
    let entry = CatalogEntry {
        backup_id: "b1".into(),
        requested_by: "u".into(),
        instance: "db-2".into(),
        role: "replica".into(),
        started_at: at.clone(),
        stopped_at: at.clone(),
        timeline: 1,
        start_lsn: Lsn(1),
        stop_lsn: Lsn(2),
        bytes: 1,
        stored_bytes: 1,
    };
    let store = present(world.reports.get_mut(&1).unwrap()).store.as_mut().unwrap();
    store.catalog = Some(CatalogReport { read_at: Some(at), backups: vec![entry], ..CatalogReport::default() });
}

fn look(world: &mut World) -> Plan {
    let next = plan(world);
    world.object.status = Some(status(world, &next, &[]));
    for step in &next.steps {
        match &step.action {
            Action::Create(child) => {
                assert_eq!(child.id.name, "db-verify");
                let meta = ChildMeta {
                    uid: format!("pod of {}", world.now),
                    version: "1".into(),
                    owner: Owner::Object(UID.into()),
                    created: Some(world.now),
                    hash: None,
                    deleting: false,
                    edited: false,
                };
                world.verify = Known::Present(VerifyFacts { meta, ended: None, trouble: None });
            }
            Action::Delete { .. } => world.verify = Known::Absent,
            other => panic!("{other:?}"),
        }
    }
    next
}

fn told(world: &World) -> BackupStatus {
    world.object.status.as_ref().unwrap().backup.clone().unwrap()
}

fn end(world: &mut World, result: Result<VerifyResult, String>) {
    present(&mut world.verify).ended = Some(result);
}

fn steps(plan: &Plan) -> Vec<&str> {
    plan.steps.iter().map(|step| step.id.as_str()).collect()
}

fn at(world: &mut World, time_of_day: &str) {
    world.now = format!("2027-01-15T{time_of_day}Z").parse().unwrap();
}

#[test]
fn it_is_made_when_it_is_due_and_its_result_is_written_down_before_it_goes() {
    let mut world = world();
    assert_eq!(told(&world).next_verification.as_deref(), Some("2027-01-15T09:00:00Z"));
    at(&mut world, "09:30:00");
    assert!(look(&mut world).steps.is_empty(), "there is nothing to prove yet");
    catalog(&mut world);
    assert_eq!(steps(&look(&mut world)), ["Pod db-verify"]);
    assert!(look(&mut world).steps.is_empty());
    assert_eq!(told(&world).next_verification.as_deref(), Some("2027-01-16T09:00:00Z"));
    let good = VerifyResult { ok: true, backup_id: Some("b1".into()), message: "all read".into(), seconds: 9 };
    end(&mut world, Ok(good));
    assert!(look(&mut world).steps.is_empty(), "first it is written down");
    let verified = told(&world).last_verified.unwrap();
    assert_eq!((verified.backup_id.as_str(), verified.at.as_str()), ("b1", "2027-01-15T09:30:00Z"));
    assert_eq!(steps(&look(&mut world)), ["deletion of Pod db-verify"]);
    let settled = look(&mut world);
    assert!(settled.steps.is_empty() && told(&world).last_verified == Some(verified));
}

#[test]
fn a_backup_that_cannot_be_restored_is_a_condition_until_one_can() {
    let mut world = world();
    catalog(&mut world);
    at(&mut world, "09:00:00");
    look(&mut world);
    let bad = VerifyResult { ok: false, backup_id: Some("b1".into()), message: "page 7 of x".into(), seconds: 9 };
    end(&mut world, Ok(bad));
    look(&mut world);
    let condition = |world: &World| {
        let all = world.object.status.clone().unwrap().conditions;
        let found = all.into_iter().find(|condition| condition.type_ == "BackupHealthy").unwrap();
        (found.reason, found.message)
    };
    assert_eq!(condition(&world).0, "VerificationFailed");
    assert!(condition(&world).1.contains("b1: page 7 of x"), "{}", condition(&world).1);
    look(&mut world);
    look(&mut world);
    assert_eq!(condition(&world).0, "VerificationFailed");
    world.now = world.now.checked_add(SignedDuration::from_hours(24)).unwrap();
    look(&mut world);
    end(&mut world, Ok(VerifyResult { ok: true, backup_id: None, message: String::new(), seconds: 1 }));
    look(&mut world);
    assert_eq!(condition(&world).0, "Healthy");
}

#[test]
fn one_that_never_ends_or_is_not_wanted_any_more_goes() {
    let mut world = world();
    catalog(&mut world);
    at(&mut world, "09:00:00");
    look(&mut world);
    let mut unwanted = world.clone();
    change(&mut unwanted, json!({"backup": {"destination": {"s3": {"bucket": "b"}}}}));
    let next = plan(&unwanted);
    assert!(steps(&next).contains(&"deletion of Pod db-verify"), "{:?}", steps(&next));
    at(&mut world, "15:00:02");
    look(&mut world);
    assert!(told(&world).verification_error.unwrap().contains("not done within 6 h"));
    assert_eq!(steps(&look(&mut world)), ["deletion of Pod db-verify"]);
    let begin: Timestamp = "2027-01-15T08:00:00Z".parse().unwrap();
    assert!(world.now > begin);
}
