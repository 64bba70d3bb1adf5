//! What the real cluster showed, each as one case.

use super::lease_step::unelectable;
use super::tests::{World, member, running, seconds};
use super::*;
use crate::api::agent::Lsn;

/// A replica of a released cluster, with a ballot in which another one is as good and comes first.
fn second_of_two() -> World {
    let mut world = running();
    world.me = Identity { instance: "db-3".into(), pod_uid: "x".into(), nonce: "n".into(), address: "10.0.0.3".into() };
    world.tenure = None;
    world.data = standby("db-3-n0");
    world.engine = EngineState::Standby { source: None, replaying: false };
    let seen = world.lease.as_mut().unwrap();
    seen.register.rules = vec![Rule::new(["db-2-n0", "db-3-n0"], 1)];
    seen.register.release = Some(Release { timeline: 1, lsn: Some(Lsn(42)), wish: None });
    let version = seen.version.clone();
    let mut other = Answer { instance: "db-2".into(), ..own_answer(&world, &version) };
    other.member = "db-2-n0".into();
    world.vote(version, vec![other]);
    world
}

fn standby(id: &str) -> Data {
    let Data::Present(mut data) = member(None) else { panic!() };
    (data.id, data.standby, data.end_known) = (id.into(), true, true);
    Data::Present(data)
}

fn own_answer(world: &World, version: &str) -> Answer {
    let view = world.view();
    vote::answer(&view, vote::may_freeze(&view).unwrap(), version, 0, false)
}

#[test]
fn standing_back_for_a_better_one_that_does_nothing_has_an_end() {
    let mut world = second_of_two();
    assert!(matches!(lease_step(&world.view()), LeaseStep::Wait { .. }), "db-2 is as good, and its name comes first");
    world.ballot.as_mut().unwrap().before = 2;
    assert!(matches!(lease_step(&world.view()), LeaseStep::Take(_)), "db-2 may hear fewer members");
    let ballot = world.ballot.as_mut().unwrap();
    ballot.answers.iter_mut().filter(|answer| answer.instance == "db-3").for_each(|answer| answer.end = Lsn(41));
    assert!(!matches!(lease_step(&world.view()), LeaseStep::Take(_)), "who lacks something never takes it");
}

#[test]
fn who_handed_over_leaves_the_lease_to_the_others_for_a_while() {
    let mut world = running();
    world.tenure = None;
    world.engine = EngineState::Stopped;
    let seen = world.lease.as_mut().unwrap();
    seen.since = world.now;
    seen.register.release = Some(Release { timeline: 1, lsn: Some(Lsn(42)), wish: Some("db-2".into()) });
    assert!(matches!(lease_step(&world.view()), LeaseStep::Wait { .. }));
    world.now += seconds(4);
    assert!(matches!(lease_step(&world.view()), LeaseStep::Campaign(_)), "nobody took it: it goes on itself");
}

#[test]
fn a_holder_that_crashed_with_its_container_is_released_by_its_next_start() {
    let mut world = running();
    world.tenure = None;
    world.me.nonce = "n2".into();
    world.engine = EngineState::Stopped;
    let Data::Present(data) = &mut world.data else { panic!() };
    data.end_known = false;
    match lease_step(&world.view()) {
        LeaseStep::Release(register) => {
            assert_eq!(register.release.unwrap().lsn, None, "nothing is claimed of the end");
            assert!(register.holder.ends_with("/n1"), "its data stays known as the last holder's");
        }
        other => panic!("{other:?}"),
    }
    world.terms.as_mut().unwrap().instances = vec!["db-1".into()];
    assert!(matches!(lease_step(&world.view()), LeaseStep::Campaign(_)), "a lone one recovers in place");
}

#[test]
fn a_restart_in_place_keeps_the_lease() {
    let mut world = running();
    world.engine = EngineState::Stopped;
    world.tenure.as_mut().unwrap().served = true;
    assert!(matches!(lease_step(&world.view()), LeaseStep::Release(_)), "PostgreSQL died");
    world.restarting = true;
    assert!(!matches!(lease_step(&world.view()), LeaseStep::Release(_)));
    assert_eq!(engine_step(&world.view()), EngineStep::StartPrimary);
}

#[test]
fn a_switchover_waits_until_the_wished_one_may_be_elected() {
    let mut world = running();
    let rule = Rule::new(["db-2-n0"], 1);
    world.lease.as_mut().unwrap().register.rules = vec![rule.clone()];
    world.confirmed = Some(rule);
    world.terms.as_mut().unwrap().primary = Some("db-2".into());
    let joined = Joined {
        instance: "db-2".into(),
        member: "db-2-n0".into(),
        confirmed: true,
        marker: true,
        streaming: true,
        gone_for: 0,
        leaving: false,
    };
    for (unready, why) in [
        (Joined { marker: false, ..joined.clone() }, "it was cloned just now"),
        (Joined { streaming: false, ..joined.clone() }, "it does not stream"),
        (Joined { member: "db-2-n9".into(), ..joined.clone() }, "the rule in force does not name it"),
    ] {
        world.joined = vec![unready];
        assert_eq!(engine_step(&world.view()), EngineStep::Keep, "{why}");
    }
    world.joined = vec![joined];
    assert_eq!(engine_step(&world.view()), EngineStep::HandOver("db-2".into()));
}

#[test]
fn a_running_standby_is_compared_only_where_its_end_is_known() {
    let mut world = second_of_two();
    world.ballot = None;
    world.lease.as_mut().unwrap().register.release = None;
    world.fork = Some(History { term: 1, forks: vec![(1, None)] });
    let Data::Present(data) = &mut world.data else { panic!() };
    data.end_known = false;
    assert_eq!(engine_step(&world.view()), EngineStep::Keep, "it is on its way to a standstill");
    let Data::Present(data) = &mut world.data else { panic!() };
    (data.end_known, data.hopeless) = (true, true);
    assert!(matches!(engine_step(&world.view()), EngineStep::Stop(_)), "a clone takes the place of a stopped one only");
    world.engine = EngineState::Stopped;
    assert!(matches!(engine_step(&world.view()), EngineStep::Clone { .. }));
}

/// Seen in CI: a primary lost three seconds after its replicas were made. They waited for ever, and nobody was told why.
#[test]
fn a_copy_that_may_not_be_elected_says_so_when_nobody_takes_over() {
    let mut world = second_of_two();
    let free = world.lease.as_ref().unwrap().since;
    world.now = free + seconds(60);
    assert_eq!(unelectable(&world.view()), None, "it is electable");
    let Data::Present(data) = &mut world.data else { panic!() };
    data.marker = false;
    let told = unelectable(&world.view()).unwrap();
    assert!(told.contains("db-3") && told.contains("bring db-1 back"), "{told}");
    assert!(matches!(lease_step(&world.view()), LeaseStep::Wait { .. }));
    world.now = free + seconds(1);
    assert_eq!(unelectable(&world.view()), None, "the others may be at it");
}

#[test]
fn a_loss_that_a_human_accepted_is_taken_once_by_the_best_that_is_left() {
    let mut world = second_of_two();
    let seen = world.lease.as_mut().unwrap();
    seen.register.rules = vec![Rule::new(["db-2-n0", "db-3-n0"], 1)];
    seen.register.release = Some(Release { timeline: 1, lsn: None, wish: None });
    let (version, term) = (seen.version.clone(), seen.register.term);
    world.vote(version, Vec::new());
    assert!(matches!(lease_step(&world.view()), LeaseStep::Wait { .. }), "db-2 may have more");
    world.terms.as_mut().unwrap().accept_loss = Some(term - 1);
    assert!(matches!(lease_step(&world.view()), LeaseStep::Wait { .. }), "that was for another term");
    world.terms.as_mut().unwrap().accept_loss = Some(term);
    match lease_step(&world.view()) {
        LeaseStep::Take(register) => assert_eq!((register.term, register.rules.len()), (term + 1, 1)),
        other => panic!("{other:?}"),
    }
}
