use proptest::prelude::*;
use serde_json::{Value, json};

use super::testing::{agents_work, apply_to, change, condition, deletions, empty, ids, present, settle};
use super::{Action, Doing, Plan, plan};
use crate::api::agent::{Lsn, Phase};
use crate::api::spec::Durability;
use crate::core::election::{Register, Rule};
use crate::core::status::status;
use crate::core::world::{ChildId, Failure, Kind, Known, Owner, SecretKind, Trouble, Volume, World};

#[test]
fn the_first_plan_makes_everything() {
    let mut world = empty(json!({"instances": 3}));
    let first = plan(&world);
    for id in [
        "ConfigMap db-config",
        "ServiceAccount db-agent",
        "Role db-agent",
        "RoleBinding db-agent",
        "Service db-rw",
        "Service db-ro",
        "Service db-r",
        "Service db",
        "EndpointSlice db-rw",
        "EndpointSlice db-ro",
        "PodDisruptionBudget db",
        "Secret db-ca",
        "Secret db-app",
        "Secret db-superuser",
        "Secret db-server",
        "Secret db-replication",
        "Lease db-primary",
        "PersistentVolumeClaim db-3",
        "Pod db-1",
        "Pod db-2",
        "Pod db-3",
    ] {
        assert!(ids(&first).contains(&id), "{id} in {:?}", ids(&first));
    }
    settle(&mut world);
    assert_eq!(condition(&world, "Ready").0, "True");
    assert_eq!(world.object.status.unwrap().phase.as_deref(), Some("Ready"));
}

#[test]
fn what_a_step_needs_comes_before_it() {
    let first = plan(&empty(json!({"storage": {"walSize": "1Gi"}})));
    let all = ids(&first);
    for (at, step) in first.steps.iter().enumerate() {
        for need in &step.needs {
            if let Some(found) = all.iter().position(|id| id == need) {
                assert!(found < at, "{} needs {need}", step.id);
            }
        }
    }
}

#[test]
fn each_child_comes_back() {
    let mut settled = empty(json!({"instances": 2}));
    settle(&mut settled);
    let children: Vec<_> = settled.children.present().unwrap().keys().cloned().collect();
    for id in children {
        let mut world = settled.clone();
        present(&mut world.children).remove(&id);
        if id.kind == Kind::ConfigMap {
            world.config = Known::Absent;
        }
        assert_eq!(ids(&plan(&world)), [id.to_string()]);
        settle(&mut world);
    }
    for kind in SecretKind::ALL {
        let mut world = settled.clone();
        world.secrets.insert(kind, Known::Absent);
        assert!(matches!(plan(&world).steps[0].action, Action::MakeSecret { .. }));
        settle(&mut world);
    }
    for ordinal in [1, 2] {
        let mut world = settled.clone();
        present(&mut world.pods).remove(&ordinal);
        world.reports.remove(&ordinal);
        assert_eq!(ids(&plan(&world)), [format!("Pod db-{ordinal}")]);
        settle(&mut world);
    }
}

#[test]
fn scaling_down_takes_the_highest_but_never_the_primary() {
    let mut world = empty(json!({"instances": 5, "storage": {"walSize": "1Gi"}}));
    settle(&mut world);
    let lease = present(&mut world.lease);
    present(&mut lease.register).holder = "db-5/uid/nonce".into();
    agents_work(&mut world);
    change(&mut world, json!({"instances": 2, "storage": {"walSize": "1Gi"}}));
    let plans = settle(&mut world);
    let left: Vec<u8> = present(&mut world.pods).keys().copied().collect();
    assert_eq!(left, [1, 5]);
    let volumes: Vec<(u8, Volume)> = present(&mut world.volumes).keys().copied().collect();
    assert_eq!(volumes, [(1, Volume::Data), (1, Volume::Wal), (5, Volume::Data), (5, Volume::Wal)]);
    for step in plans.iter().flat_map(|plan| &plan.steps).filter(|step| matches!(step.action, Action::Delete { .. })) {
        assert!(step.needs.iter().any(|need| need.starts_with("leave of")), "{} only after it left", step.id);
    }
}

#[test]
fn quorum_is_never_lowered_silently() {
    let mut world = empty(json!({"instances": 3}));
    settle(&mut world);
    change(&mut world, json!({"instances": 1}));
    settle(&mut world);
    assert_eq!(present(&mut world.pods).len(), 3);
    let (status, reason, sentence) = condition(&world, "Degraded");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "ScalingRefused"));
    assert!(sentence.contains("replication.durability: Async"), "{sentence}");
    change(&mut world, json!({"instances": 1, "replication": {"durability": "Async"}}));
    settle(&mut world);
    assert_eq!(present(&mut world.pods).len(), 1);
}

#[test]
fn what_somebody_changed_in_a_child_is_undone_and_told() {
    let mut world = empty(json!({"instances": 3}));
    settle(&mut world);
    let settled = world.clone();
    for id in present(&mut world.children).keys().cloned().collect::<Vec<_>>() {
        let mut world = settled.clone();
        present(&mut world.children).get_mut(&id).unwrap().edited = true;
        let steps: Vec<_> = plan(&world).steps.into_iter().map(|step| (step.id, step.event)).collect();
        // The agents write what stands in an EndpointSlice.
        let undone = (id.kind != Kind::EndpointSlice).then(|| (id.to_string(), Some(super::REPAIRED)));
        assert_eq!(steps, undone.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn the_bounds_of_the_lease_and_an_accepted_loss_reach_the_agents() {
    let failover = json!({"leaseDurationSeconds": 30, "renewDeadlineSeconds": 20, "retryPeriodSeconds": 3});
    let mut world = empty(json!({"instances": 3, "failover": failover}));
    settle(&mut world);
    let bounds = present(&mut world.config).lease;
    assert_eq!((bounds.duration, bounds.renew_deadline, bounds.retry_period), (30, 20, 3));
    let term = plan(&world).members.term;
    world.object.accept_loss = Some((term + 1).to_string());
    assert!(plan(&world).settled(), "another term's annotation says nothing");
    world.object.accept_loss = Some(term.to_string());
    let next = plan(&world);
    let step = &next.steps[0];
    assert_eq!((step.id.as_str(), step.event), ("ConfigMap db-config", Some(super::DATA_LOSS_ACCEPTED)));
    settle(&mut world);
    assert_eq!(present(&mut world.config).accept_loss, Some(term));
    present(&mut present(&mut world.lease).register).term += 1;
    let plans = settle(&mut world);
    assert_eq!(plans[0].steps[0].event, None);
    assert_eq!(present(&mut world.config).accept_loss, None, "it counts once");
}

#[test]
fn where_traces_go_reaches_the_agents_and_restarts_nothing() {
    let mut world = empty(json!({"instances": 3}));
    settle(&mut world);
    let collector = json!({"endpoint": "http://c:4317", "protocol": "grpc", "timeoutMillis": 10_000});
    let on = serde_json::from_value(collector).ok();
    for traces in [on, None] {
        world.traces.clone_from(&traces);
        assert_eq!(ids(&plan(&world)), ["ConfigMap db-config"]);
        settle(&mut world);
        assert_eq!(present(&mut world.config).traces, traces);
    }
}

#[test]
fn a_hibernated_cluster_keeps_its_volumes_and_wakes_up() {
    let mut world = empty(json!({"instances": 3}));
    settle(&mut world);
    change(&mut world, json!({"instances": 3, "state": "Hibernated"}));
    let plans = settle(&mut world);
    let deleted: Vec<Vec<String>> = plans.iter().map(|p| deletions(p, Kind::Pod)).filter(|d| !d.is_empty()).collect();
    assert_eq!(deleted, [vec!["db-2".to_owned(), "db-3".into()], vec!["db-1".into()]]);
    assert_eq!(present(&mut world.volumes).len(), 3);
    assert_eq!(world.object.status.as_ref().unwrap().phase.as_deref(), Some("Hibernated"));
    change(&mut world, json!({"instances": 3}));
    settle(&mut world);
    assert_eq!(condition(&world, "Ready").0, "True");
}

#[test]
fn a_paused_cluster_is_not_touched() {
    let plan = plan(&empty(json!({"state": "Paused"})));
    assert!(plan.settled());
}

#[test]
fn a_new_object_adopts_what_the_old_one_left() {
    let mut world = empty(json!({"instances": 3}));
    settle(&mut world);
    // The object goes: what it owns goes, what lasts stays.
    present(&mut world.children).clear();
    present(&mut world.pods).clear();
    world.reports.clear();
    world.config = Known::Absent;
    for kind in [SecretKind::Server, SecretKind::Replication] {
        world.secrets.insert(kind, Known::Absent);
    }
    agents_work(&mut world);
    assert!(present(&mut world.volumes).values().all(|volume| volume.meta.owner == Owner::Adoptable));
    world.object.uid = "uid-2".into();
    world.object.status = None;
    let first = plan(&world);
    let made = |id: &str| ids(&first).contains(&id);
    assert!(made("Pod db-1") && made("Secret db-server"));
    assert!(!made("Secret db-app") && !made("Lease db-primary") && !made("PersistentVolumeClaim db-1"));
    settle(&mut world);
}

#[test]
fn volumes_follow_the_policy_of_deletion() {
    let mut world = empty(json!({"instances": 1}));
    settle(&mut world);
    change(&mut world, json!({"instances": 1, "storage": {"onDelete": "Delete", "size": "2Gi"}}));
    settle(&mut world);
    let volume = present(&mut world.volumes)[&(1, Volume::Data)].clone();
    assert_eq!((volume.meta.owner, volume.requested), (Owner::Object(super::testing::UID.into()), 2 << 30));
}

#[test]
fn a_lease_that_is_gone_is_made_anew_only_from_the_answers_of_all() {
    let mut world = empty(json!({"instances": 3}));
    settle(&mut world);
    world.lease = Known::Absent;
    world.reports.insert(2, Known::Unknown("no answer".into()));
    let waits = plan(&world);
    assert!(!ids(&waits).iter().any(|id| id.starts_with("Lease")));
    assert!(waits.notices.iter().any(|notice| notice.reason == "LeaseLost" && notice.sentence.contains("db-2")));
    let Some(Known::Present(answer)) = world.reports.get(&1).cloned() else { panic!() };
    world.reports.insert(2, Known::Present(crate::api::agent::Report { instance: "db-2".into(), ..answer }));
    let mut known = Register::initial(vec!["db-1".into()], Durability::Quorum);
    (known.term, known.holder, known.rules) = (8, "db-1/uid/nonce".into(), vec![Rule::new(["m2"], 1)]);
    for (ordinal, report) in &mut world.reports {
        let report = present(report);
        report.phase = Phase::Waiting;
        (report.lsn, report.term) = (Some(Lsn(100 + u64::from(*ordinal))), 9);
        report.register = (*ordinal == 1).then(|| serde_json::to_string(&known).unwrap());
    }
    let made = plan(&world);
    apply_to(&mut world, &made);
    let lease = present(&mut world.lease);
    let register = present(&mut lease.register);
    assert_eq!(register.release.as_ref().map(|release| release.lsn), Some(None), "the end is what the ballot says");
    assert_eq!((register.term, register.reserved, &register.holder), (10, 5, &known.holder));
    let all = Rule::new(["m1", "m3"], 1);
    assert_eq!(register.rules, [known.rules[0].clone(), all], "the first election needs the answers of all");
    assert_eq!(register.system_id.as_deref(), Some("7"));
}

#[test]
fn volumes_that_are_all_empty_are_not_begun_anew_while_the_lease_tells_of_data() {
    let mut world = empty(json!({"instances": 3}));
    settle(&mut world);
    for (ordinal, report) in &mut world.reports {
        let report = present(report);
        (report.system_id, report.member, report.ready) = (None, None, false);
        // The third has not looked yet.
        (report.phase, report.empty) = (Phase::Waiting, *ordinal != 3);
    }
    let sentence = |world: &World| {
        let notices = plan(world).notices;
        notices.into_iter().find(|notice| notice.reason == super::DATA_MISSING).map(|notice| notice.sentence)
    };
    assert_eq!(sentence(&world), None, "what was not looked at may hold it");
    present(world.reports.get_mut(&3).unwrap()).empty = true;
    let said = sentence(&world).unwrap();
    assert!(said.ends_with("kubectl delete lease db-primary -n shop"), "{said}");
    let status = status(&world, &plan(&world), &[]);
    for (kind, holds) in [("WriteAvailable", "False"), ("Degraded", "True")] {
        let condition = status.conditions.iter().find(|condition| condition.type_ == kind).unwrap();
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), (holds, super::DATA_MISSING));
    }

    // The Lease was deleted: a new cluster begins, and its terms go on, so that its routes count.
    let term = present(&mut present(&mut world.lease).register).term;
    world.object.status = Some(status);
    world.lease = Known::Absent;
    present(world.reports.get_mut(&2).unwrap()).empty = false;
    assert!(!ids(&plan(&world)).contains(&"Lease db-primary"), "one has not looked yet");
    present(world.reports.get_mut(&2).unwrap()).empty = true;
    let made = plan(&world);
    apply_to(&mut world, &made);
    let register = present(&mut present(&mut world.lease).register).clone();
    assert_eq!((register.system_id, register.established), (None, 0));
    assert!(term > 0 && register.term >= term, "{} after {term}", register.term);
}

#[test]
fn pods_of_an_account_that_was_made_anew_are_replaced() {
    let mut world = empty(json!({"instances": 2}));
    settle(&mut world);
    let now = world.now;
    for pod in present(&mut world.pods).values_mut() {
        pod.meta.created = Some(now);
    }
    let account = ChildId::new(Kind::ServiceAccount, "db-agent");
    present(&mut world.children).get_mut(&account).unwrap().created = Some(now);
    assert!(plan(&world).settled());
    let later = jiff::Timestamp::from_second(now.as_second() + 1).unwrap();
    present(&mut world.children).get_mut(&account).unwrap().created = Some(later);
    assert_eq!(deletions(&plan(&world), Kind::Pod), ["db-1", "db-2"]);
}

#[test]
fn what_is_not_ours_is_left_alone() {
    let mut world = empty(json!({"instances": 1}));
    settle(&mut world);
    for meta in present(&mut world.children).values_mut() {
        meta.owner = Owner::Foreign;
        meta.hash = None;
    }
    let plan = plan(&world);
    assert!(plan.steps.is_empty(), "{:?}", ids(&plan));
    assert!(plan.notices.iter().any(|notice| notice.sentence.contains("Service db-rw exists and is not ours")));
}

#[test]
fn a_failure_is_told_in_its_words() {
    let mut world = empty(json!({"instances": 1}));
    let plan = plan(&world);
    let failure = Failure {
        child: None,
        trouble: Trouble {
            reason: "QuotaExceeded".into(),
            sentence: "Pod db-1 cannot be created: exceeded quota".into(),
        },
    };
    world.object.status = Some(status(&world, &plan, &[failure]));
    let (holds, reason, sentence) = condition(&world, "Degraded");
    assert_eq!((holds.as_str(), reason.as_str()), ("True", "QuotaExceeded"));
    assert!(sentence.contains("exceeded quota"));
}

#[test]
fn an_upgrade_is_held_back_with_a_sentence() {
    let mut world = empty(json!({"instances": 1, "version": 16}));
    settle(&mut world);
    change(&mut world, json!({"instances": 1, "version": 17}));
    let plans = settle(&mut world);
    assert!(plans.iter().all(|plan| deletions(plan, Kind::Pod).is_empty()));
    assert_eq!(condition(&world, "Degraded").1, "UpgradeUnsupported");
}

#[test]
fn under_a_bare_crd_a_cluster_stays_on_its_last_accepted_spec() {
    let mut world = empty(json!({"instances": 1}));
    settle(&mut world);
    world.crd_degraded = true;
    world.object.spec = None;
    for generation in [world.object.generation, world.object.generation + 1] {
        world.object.generation = generation;
        let plan = plan(&world);
        assert!(plan.steps.is_empty(), "{:?}", ids(&plan));
    }
    // Ours stands again, and fills in defaults that nobody wrote.
    let mut repaired = world.clone();
    repaired.crd_degraded = false;
    repaired.object.generation -= 1;
    repaired.object.spec = Some(serde_json::from_str("{}").unwrap());
    for seen in [true, false] {
        repaired.crd_degraded = seen;
        settle(&mut repaired);
        assert_eq!(present(&mut repaired.pods).len(), 1);
    }
    assert_eq!(condition(&repaired, "Degraded").1, "SpecErased");
    change(&mut repaired, json!({"instances": 2}));
    settle(&mut repaired);
    assert_eq!(present(&mut repaired.pods).len(), 2);
    assert_ne!(condition(&repaired, "Degraded").1, "SpecErased");
    let mut fresh = empty(json!({}));
    fresh.crd_degraded = true;
    fresh.object.spec = None;
    settle(&mut fresh);
    assert_eq!(present(&mut fresh.pods).len(), 3);
}

#[test]
fn certificates_are_renewed_and_passwords_rotated() {
    let mut world = empty(json!({"instances": 1}));
    settle(&mut world);
    world.now = jiff::Timestamp::from_second(world.now.as_second() + 61 * 86_400).unwrap();
    let due = plan(&world);
    assert!(ids(&due).contains(&"Secret db-server") && ids(&due).contains(&"Secret db-replication"), "{:?}", ids(&due));
    settle(&mut world);
    world.object.rotate_passwords = Some("1".into());
    let fresh: Vec<bool> = plan(&world)
        .steps
        .iter()
        .filter_map(|step| {
            if let Action::MakeSecret { fresh_password, .. } = step.action { Some(fresh_password) } else { None }
        })
        .collect();
    assert_eq!(fresh, [true, true]);
    settle(&mut world);
}

#[test]
fn a_users_secret_that_is_missing_is_named_and_waited_for() {
    let world = empty(json!({"instances": 1, "secrets": {"app": "mine"}}));
    let plan = plan(&world);
    assert!(
        plan.notices
            .iter()
            .any(|notice| notice.sentence.contains("mine") && notice.sentence.contains("does not exist"))
    );
    assert!(!ids(&plan).contains(&"Pod db-1"));
}

fn any_spec() -> impl Strategy<Value = Value> {
    let primary = proptest::option::of(1..=9_u8);
    (1..=9_u8, any::<bool>(), any::<bool>(), 0..3_u8, any::<bool>(), any::<bool>(), primary, any::<bool>()).prop_map(
        |(instances, delete, hibernated, image, restart, big, primary, failover)| {
            json!({
                "primary": primary.map(|ordinal| format!("db-{ordinal}")),
                "failover": {"enabled": failover},
                "instances": instances,
                "image": format!("postgres:17.{image}"),
                "state": if hibernated { "Hibernated" } else { "Running" },
                "replication": {"durability": "Async"},
                "storage": {"onDelete": if delete { "Delete" } else { "Retain" }, "size": if big { "2Gi" } else { "1Gi" }},
                "postgresql": {"parameters": if restart { json!({"max_connections": 5}) } else { json!({}) }},
            })
        },
    )
}

/// What may never be planned.
fn check(world: &World, plan: &Plan) {
    let primary = plan.members.primary.map(|ordinal| format!("db-{ordinal}"));
    for volume in deletions(plan, Kind::PersistentVolumeClaim) {
        assert_ne!(Some(&volume), primary.as_ref(), "the primary's volume");
        assert!(plan.members.settled, "nobody takes writes: {volume} may be the newest copy");
    }
    if plan.doing != Doing::Hibernating {
        assert!(deletions(plan, Kind::Pod).len() <= 1, "one at a time: {:?}", ids(plan));
    }
    let unknown = |known: bool, kind: Kind| {
        if known {
            return;
        }
        for step in &plan.steps {
            let touched = match &step.action {
                Action::Create(child) => Some(child.id.kind),
                Action::Delete { id, .. } => Some(id.kind),
                _ => None,
            };
            assert_ne!(touched, Some(kind), "{} although it is not known", step.id);
        }
    };
    unknown(world.pods.unknown().is_none(), Kind::Pod);
    unknown(world.volumes.unknown().is_none(), Kind::PersistentVolumeClaim);
    unknown(world.volumes.unknown().is_none(), Kind::Pod);
    unknown(world.lease.unknown().is_none(), Kind::Lease);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_history_of_specs_settles_and_never_takes_the_newest_copy(specs in proptest::collection::vec(any_spec(), 1..5)) {
        let mut world = empty(specs[0].clone());
        for wanted in specs {
            change(&mut world, wanted);
            for _ in 0..200 {
                let next = plan(&world);
                check(&world, &next);
                if next.settled() {
                    break;
                }
                apply_to(&mut world, &next);
                agents_work(&mut world);
            }
            prop_assert!(plan(&world).settled(), "{:?}", plan(&world).steps);
        }
    }

    #[test]
    fn what_is_unknown_is_neither_made_nor_deleted(
        wanted in any_spec(), next in any_spec(), steps in 0..6_usize, blind in proptest::collection::vec(0..8_u8, 0..4),
    ) {
        let mut world = empty(wanted);
        for _ in 0..steps {
            let plan = plan(&world);
            apply_to(&mut world, &plan);
            agents_work(&mut world);
        }
        change(&mut world, next);
        let why = || "it cannot be learnt".to_owned();
        for what in blind {
            match what {
                0 => world.pods = Known::Unknown(why()),
                1 => world.volumes = Known::Unknown(why()),
                2 => world.lease = Known::Unknown(why()),
                3 => world.children = Known::Unknown(why()),
                4 => world.config = Known::Unknown(why()),
                5 => { world.secrets.insert(SecretKind::Ca, Known::Unknown(why())); }
                6 => { world.reports.clear(); }
                _ => { world.secrets.clear(); }
            }
        }
        let plan = plan(&world);
        check(&world, &plan);
        status(&world, &plan, &[]);
    }
}
