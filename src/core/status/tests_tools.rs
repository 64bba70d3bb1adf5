//! What tools that know nothing of databases make of a status. The rule is that of kstatus; `tests/e2e/kstatus.rs` asks the library itself.

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::json;

use super::status;
use crate::api::agent::{ElectionPhase as Ballot, ElectionReport, FullVolume};
use crate::api::backup::{BackupPhase, HelloBackupStatus};
use crate::api::status::UNSEEN;
use crate::core::backup::conditions::with_conditions;
use crate::core::plan::plan;
use crate::core::plan::testing::{change, empty, present, settle};
use crate::core::world::{Known, Trouble, World};

fn verdict(generation: i64, observed: Option<i64>, conditions: &[Condition]) -> &'static str {
    let holds = |kind: &str| conditions.iter().any(|c| c.type_ == kind && c.status == "True");
    assert!(!(holds("Reconciling") && holds("Stalled")), "the first one in the list would win");
    match conditions.iter().find(|condition| condition.type_ == "Ready").map(|ready| ready.status.as_str()) {
        _ if observed.is_some_and(|observed| observed != generation) || holds("Reconciling") => "InProgress",
        _ if holds("Stalled") => "Failed",
        Some("True") | None => "Current",
        Some(_) => "InProgress",
    }
}

/// Looks once, writes the status, and says what tools make of it.
fn of(world: &mut World) -> &'static str {
    let after = status(world, &plan(world), &[]);
    let said = verdict(world.object.generation, after.observed_generation, &after.conditions);
    world.object.status = Some(after);
    said
}

fn three() -> World {
    let mut world = empty(json!({"instances": 3}));
    settle(&mut world);
    world
}

fn later(world: &mut World, seconds: i64) {
    world.now = world.now.checked_add(SignedDuration::from_secs(seconds)).unwrap();
}

#[test]
fn a_new_object_is_in_progress_until_it_runs_and_again_while_it_changes() {
    assert_eq!(verdict(1, Some(UNSEEN), &[]), "InProgress", "what the CRD fills in");
    let mut world = empty(json!({"instances": 3}));
    assert_eq!(of(&mut world), "InProgress");
    settle(&mut world);
    assert_eq!(of(&mut world), "Current");
    change(&mut world, json!({"instances": 4}));
    assert_eq!(of(&mut world), "InProgress");
    settle(&mut world);
    change(&mut world, json!({"instances": 4, "image": "postgres:17.9"}));
    assert_eq!(of(&mut world), "InProgress");
    settle(&mut world);
    assert_eq!(of(&mut world), "Current");
}

#[test]
fn what_sleeps_as_it_should_is_current() {
    let mut world = three();
    change(&mut world, json!({"instances": 3, "state": "Paused"}));
    assert_eq!(of(&mut world), "Current");
    change(&mut world, json!({"instances": 3, "state": "Hibernated"}));
    assert_eq!(of(&mut world), "InProgress");
    settle(&mut world);
    assert_eq!(of(&mut world), "Current");
    change(&mut world, json!({"instances": 3}));
    assert_eq!(of(&mut world), "InProgress");
}

#[test]
fn what_somebody_has_to_mend_failed_at_once() {
    for (spec, reason) in [
        (json!({"instances": 3, "version": 18}), "UpgradeUnsupported"),
        (json!({"instances": 1}), "ScalingRefused"),
        (json!({"instances": 3, "backup": {"schedule": "nonsense", "destination": {}}}), "Invalid"),
    ] {
        let mut world = three();
        change(&mut world, spec);
        assert_eq!(of(&mut world), "Failed", "{reason}");
        let conditions = world.object.status.as_ref().unwrap().conditions.clone();
        assert_eq!(conditions.iter().find(|c| c.type_ == "Stalled").unwrap().reason, reason);
        change(&mut world, json!({"instances": 3}));
        settle(&mut world);
        assert_eq!(of(&mut world), "Current");
    }
    let mut world = three();
    present(world.reports.get_mut(&1).unwrap()).full = Some(FullVolume::Data);
    assert_eq!(of(&mut world), "Failed");

    let mut world = three();
    for gone in [1, 3] {
        world.reports.insert(gone, Known::Unknown("no answer within 2 s".into()));
    }
    present(world.reports.get_mut(&2).unwrap()).election = Some(ElectionReport {
        phase: Ballot::Blocked,
        version: "7".into(),
        missing: vec!["m3".into()],
        sentence: "said by the agent".into(),
    });
    assert_eq!(of(&mut world), "Failed");
}

#[test]
fn what_may_pass_is_in_progress_for_five_minutes() {
    let mut world = three();
    let trouble = Trouble { reason: "ImagePullFailed".into(), sentence: "the image cannot be pulled".into() };
    present(&mut world.pods).get_mut(&3).unwrap().trouble = Some(trouble);
    assert_eq!(of(&mut world), "InProgress");
    later(&mut world, 299);
    assert_eq!(of(&mut world), "InProgress");
    later(&mut world, 1);
    assert_eq!(of(&mut world), "Failed");
    present(&mut world.pods).get_mut(&3).unwrap().trouble = None;
    assert_eq!(of(&mut world), "Current");
}

#[test]
fn a_backup_is_current_when_it_can_be_restored() {
    let now = three().now;
    let of = |phase| {
        let status = with_conditions(HelloBackupStatus { phase, ..HelloBackupStatus::default() }, 1, now);
        let again = with_conditions(status.clone(), 1, now.checked_add(SignedDuration::from_secs(9)).unwrap());
        assert_eq!(status, again, "nothing new is no write");
        verdict(1, status.observed_generation, &status.conditions)
    };
    assert_eq!(of(BackupPhase::Pending), "InProgress");
    assert_eq!(of(BackupPhase::Running), "InProgress");
    assert_eq!(of(BackupPhase::Completed), "Current");
    assert_eq!(of(BackupPhase::Failed), "Failed");
}
