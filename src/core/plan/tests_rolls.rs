//! Rolling changes, restarts, and the instance that should be primary.

use serde_json::{Value, json};

use super::testing::{agents_work, apply_to, change, condition, deletions, empty, hand_over, ids, present, settle};
use super::{Action, Doing, Plan, plan};
use crate::core::world::{Kind, Known, World};

const RAISED: &str = r#"{"max_connections": 300}"#;

fn settled(spec: Value) -> World {
    let mut world = empty(spec);
    settle(&mut world);
    world
}

/// Pods in the order in which they are deleted.
fn rolled(plans: &[Plan]) -> Vec<Vec<String>> {
    plans.iter().map(|plan| deletions(plan, Kind::Pod)).filter(|deleted| !deleted.is_empty()).collect()
}

/// Restarts in place (`true`) and switchovers (`false`), in their order.
fn restarts(plans: &[Plan]) -> Vec<(u8, bool)> {
    let restart = |action: &Action| match action {
        Action::Restart { ordinal, .. } => Some((*ordinal, true)),
        Action::Switchover { primary, .. } => Some((*primary, false)),
        _ => None,
    };
    plans.iter().flat_map(|plan| &plan.steps).filter_map(|step| restart(&step.action)).collect()
}

fn primary(world: &World) -> String {
    let register = world.lease.present().unwrap().register.present().unwrap();
    register.holder_instance().unwrap().to_owned()
}

#[test]
fn replicas_roll_one_at_a_time_and_the_primary_last() {
    let mut world = settled(json!({"instances": 3}));
    change(&mut world, json!({"instances": 3, "image": "postgres:17.9"}));
    let plans = settle(&mut world);
    assert_eq!(rolled(&plans), [["db-3"], ["db-2"], ["db-1"]]);
    assert_eq!(primary(&world), "db-2", "the end of db-1 was a hand-over, and nothing goes back");
    let reason = plans.iter().flat_map(|plan| &plan.steps).find(|step| step.id == "deletion of Pod db-3").unwrap();
    assert_eq!((reason.reason.as_str(), reason.event), ("image from postgres:17 to postgres:17.9", Some("Rolling")));
}

#[test]
fn a_roll_goes_on_from_wherever_the_role_went_meanwhile() {
    let mut world = settled(json!({"instances": 3}));
    change(&mut world, json!({"instances": 3, "image": "postgres:17.9"}));
    // db-3 was replaced, and takes the role before its turn comes to db-2.
    loop {
        let next = plan(&world);
        if deletions(&next, Kind::Pod) == ["db-2"] {
            break;
        }
        apply_to(&mut world, &next);
        agents_work(&mut world);
    }
    hand_over(&mut world, 3);
    assert_eq!(rolled(&settle(&mut world)), [["db-2"], ["db-1"]]);
    assert_eq!(primary(&world), "db-3");
}

#[test]
fn nobody_is_stopped_before_commits_count_who_came_back() {
    let mut world = settled(json!({"instances": 3}));
    change(&mut world, json!({"instances": 3, "image": "postgres:17.9"}));
    let deletes = |world: &World| deletions(&plan(world), Kind::Pod);
    assert!(!deletes(&settled_but(&world, |_| {})).is_empty());
    let unproven = settled_but(&world, |world| {
        present(world.reports.get_mut(&1).unwrap()).rules_confirmed = false;
    });
    assert_eq!((deletes(&unproven), plan(&unproven).doing), (vec![], Doing::Rolling));
    assert!(plan(&unproven).progress.contains("sync rule is in force"), "{}", plan(&unproven).progress);
    let uncounted = settled_but(&world, |world| {
        present(&mut present(&mut world.lease).register).rules[0].members.remove("m3");
    });
    assert!(deletes(&uncounted).is_empty());
    assert!(
        plan(&uncounted).progress.contains("db-3 streams and counts for commits again"),
        "{}",
        plan(&uncounted).progress
    );
    // Its node is lost, and nobody has noticed but the primary.
    let lost = settled_but(&world, |world| {
        world.reports.insert(2, Known::Unknown("no answer".into()));
        present(world.reports.get_mut(&1).unwrap()).replicas[0].streaming = false;
    });
    assert!(deletes(&lost).is_empty());
    assert!(plan(&lost).progress.contains("until db-2 streams"), "{}", plan(&lost).progress);
    let silent = settled_but(&world, |world| {
        world.reports.insert(1, Known::Unknown("no answer".into()));
    });
    assert!(deletes(&silent).is_empty());
    let handing = settled_but(&world, |world| {
        hand_over(world, 2);
        present(&mut world.lease).hand_over.as_mut().unwrap().completed_at = None;
    });
    assert!(deletes(&handing).is_empty());
}

/// The world, with a difference.
fn settled_but(world: &World, change: impl FnOnce(&mut World)) -> World {
    let mut world = world.clone();
    change(&mut world);
    world
}

#[test]
fn a_roll_waits_while_one_does_not_serve_and_a_broken_one_is_replaced_at_once() {
    let mut world = empty(json!({"instances": 3}));
    settle(&mut world);
    change(&mut world, json!({"instances": 3, "image": "postgres:nope"}));
    let (first, second) = (plan(&world), |world: &mut World| {
        let next = plan(world);
        apply_to(world, &next);
        next
    });
    apply_to(&mut world, &first);
    second(&mut world);
    // The new Pod of db-3 never starts.
    let stuck = plan(&world);
    assert!(deletions(&stuck, Kind::Pod).is_empty(), "{:?}", ids(&stuck));
    change(&mut world, json!({"instances": 3}));
    second(&mut world);
    let healed = plan(&world);
    assert_eq!(deletions(&healed, Kind::Pod), Vec::<String>::new(), "it was deleted in the step before");
    settle(&mut world);
    assert!(present(&mut world.pods).values().all(|pod| pod.template.as_ref().unwrap()["image"] == "postgres:17"));
}

#[test]
fn a_setting_that_needs_a_restart_restarts_replicas_first_and_ends_with_a_switchover() {
    let spec = |extra: Value| {
        let mut spec = json!({"instances": 3, "postgresql": {"parameters": {}}});
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        spec
    };
    let raised = |extra: Value| {
        let mut spec = spec(extra);
        spec["postgresql"]["parameters"] = serde_json::from_str(RAISED).unwrap();
        spec
    };
    for (extra, expected) in [
        (json!({}), vec![(3, true), (2, true), (1, false)]),
        (json!({"failover": {"enabled": false}}), vec![(3, true), (2, true), (1, true)]),
        (json!({"primary": "db-1"}), vec![(3, true), (2, true), (1, true)]),
        (json!({"instances": 1}), vec![(1, true)]),
    ] {
        let mut world = settled(spec(extra.clone()));
        change(&mut world, raised(extra.clone()));
        assert_eq!(restarts(&settle(&mut world)), expected, "{extra}");
    }
}

#[test]
fn a_setting_that_gets_smaller_restarts_the_primary_in_place() {
    let mut world = settled(json!({"instances": 3}));
    let report = present(world.reports.get_mut(&1).unwrap());
    (report.pending_restart, report.restart_in_place) = (vec!["max_connections".into()], true);
    assert_eq!(restarts(&settle(&mut world)), [(1, true)], "whoever took over would wait for the same restart");
}

#[test]
fn the_annotation_restarts_every_instance_once() {
    let mut world = settled(json!({"instances": 3}));
    world.object.restart = Some("now".into());
    assert_eq!(restarts(&settle(&mut world)), [(3, true), (2, true), (1, false)]);
    assert!(plan(&world).settled());
    // An agent that does not take the switchover for the restart that it was restarts once more, as a replica.
    present(world.reports.get_mut(&1).unwrap()).restarted_for = None;
    assert_eq!(restarts(&settle(&mut world)), [(1, true)]);
}

#[test]
fn an_instance_can_be_asked_alone_and_nothing_restarts_for_what_was_obeyed() {
    let mut world = settled(json!({"instances": 3}));
    let ask = |world: &mut World, ordinal, value: &str| world.object.restart_one.insert(ordinal, value.into());
    ask(&mut world, 2, "a");
    assert_eq!(restarts(&settle(&mut world)), [(2, true)]);
    world.object.restart = Some("now".into());
    assert_eq!(restarts(&settle(&mut world)), [(3, true), (2, true), (1, false)]);
    ask(&mut world, 3, "b");
    ask(&mut world, 2, "c");
    let primary_last = restarts(&settle(&mut world));
    assert_eq!(primary_last, [(3, true), (2, false)], "db-2 is primary since the restart of all");
    // Annotations that go ask for nothing, in whatever order.
    world.object.restart_one.remove(&3);
    assert!(restarts(&settle(&mut world)).is_empty());
    world.object.restart = None;
    world.object.restart_one.remove(&2);
    assert!(restarts(&settle(&mut world)).is_empty());
    // A value that looks like what the operator makes of one restarts once, too.
    world.object.restart = Some("x#@y#1".into());
    assert_eq!(restarts(&settle(&mut world)).len(), 3);
    // A new Pod is no reason to restart.
    ask(&mut world, 1, "d");
    present(&mut world.pods).remove(&1);
    assert!(restarts(&settle(&mut world)).is_empty());
}

#[test]
fn it_is_said_why_the_instance_that_should_be_primary_is_not() {
    let mut world = settled(json!({"instances": 3}));
    present(&mut world.pods).get_mut(&3).unwrap().ready = false;
    present(world.reports.get_mut(&3).unwrap()).message = Some("does not stream from db-1 yet".into());
    change(&mut world, json!({"instances": 3, "primary": "db-3"}));
    let next = plan(&world);
    // Somebody who is not ready is told of first.
    assert!(next.progress.contains("db-3: does not stream from db-1 yet"), "{}", next.progress);
    apply_to(&mut world, &next);
    present(&mut world.pods).get_mut(&3).unwrap().ready = true;
    world.reports.values_mut().for_each(|report| present(report).config_generation = 2);
    let next = plan(&world);
    assert_eq!(next.progress, "db-1 hands over to db-3, which spec.primary names");
    settle(&mut world);
    assert_eq!(primary(&world), "db-3");
    change(&mut world, json!({"instances": 3, "primary": "db-7"}));
    settle(&mut world);
    let (holds, reason, sentence) = condition(&world, "Degraded");
    assert_eq!((holds.as_str(), reason.as_str()), ("True", "PrimaryUnknown"));
    assert!(sentence.contains("name one of db-1, db-2, db-3"), "{sentence}");
}

#[test]
fn scaling_down_keeps_the_instance_that_should_be_primary() {
    let spec = |instances, primary: Option<&str>| json!({"instances": instances, "primary": primary, "replication": {"durability": "Async"}});
    let mut world = settled(spec(3, None));
    change(&mut world, spec(2, Some("db-3")));
    settle(&mut world);
    assert_eq!(present(&mut world.pods).keys().copied().collect::<Vec<_>>(), [1, 3]);
    change(&mut world, spec(1, Some("db-3")));
    present(world.reports.get_mut(&3).unwrap()).ready = false;
    hand_over(&mut world, 1);
    let refused = plan(&world);
    let notice = refused.notices.iter().find(|notice| notice.reason == "ScalingRefused").unwrap();
    assert!(notice.sentence.contains("once db-3 is primary"), "{}", notice.sentence);
    assert!(!ids(&refused).iter().any(|id| id.starts_with("leave")), "{:?}", ids(&refused));
    settle(&mut world);
    assert_eq!(present(&mut world.pods).keys().copied().collect::<Vec<_>>(), [3]);
    assert!(matches!(world.lease, Known::Present(_)));
}
