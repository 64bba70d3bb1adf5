//! Holes that were found by reading and by the simulation, each as one case.

use std::collections::BTreeMap;

use super::tests::{World, member, running, seconds};
use super::vote::may_freeze;
use super::*;
use crate::api::agent::Lsn;
use crate::api::config::LeaseBounds;
use crate::api::spec::Durability;

fn follower() -> World {
    let mut world = running();
    world.me = Identity { instance: "db-2".into(), pod_uid: "x".into(), nonce: "n".into(), address: "10.0.0.2".into() };
    world.tenure = None;
    world.data = member(None);
    world
}

fn source(term: i64) -> Source {
    Source { term, instance: "db-1".into(), address: "10.0.0.1".into() }
}

#[test]
fn a_late_request_does_not_replace_the_promise_for_a_later_version() {
    let promise = Promise::with(Some(&Promise::with(None, "7")), "6");
    let read = |version, after_promise| Read { version, after_promise };
    let left = promise.clone().after(read("7", true)).unwrap();
    assert!(left.stands("7") && !left.stands("6"), "version 7 is the present one: that promise stands");
    assert_eq!(promise.clone().after(read("8", false)), Some(promise.clone()), "a watch frees nobody");
    assert_eq!(promise.after(read("8", true)), None);
}

#[test]
fn a_holder_that_froze_is_brought_back_by_a_renewal_and_not_by_a_hold() {
    let mut holder = running();
    holder.engine = EngineState::Stopped;
    (holder.tenure.as_mut().unwrap().served, holder.terms.as_mut().unwrap().failover) = (false, true);
    holder.now = holder.view().deadline().unwrap();
    assert!(may_freeze(&holder.view()).is_ok(), "it is overdue, and nothing runs: it answers");
    holder.promise = Some(Promise::with(None, &holder.lease.as_ref().unwrap().version.clone()));
    holder.tenure.as_mut().unwrap().held_until = Some(holder.now + seconds(5));
    assert!(!holder.view().valid());
    assert_eq!(engine_step(&holder.view()), EngineStep::Keep, "the candidate counts on what it answered");
    assert!(may_freeze(&holder.view()).is_ok(), "it says so again to whoever asks");
    holder.promise = None;
    assert_eq!(engine_step(&holder.view()), EngineStep::StartPrimary);
}

#[test]
fn a_primary_that_outlives_its_kill_is_not_told_of_anothers_rules() {
    let holder = running();
    let register = holder.lease.unwrap().register;
    let (me, term) = (register.holder.clone(), register.term);
    assert!(rules::are_of(&register, &me, term));
    let next = Register { holder: "db-2/x/n".into(), term: term + 1, rules: vec![Rule::none()], ..register.clone() };
    assert!(!rules::are_of(&next, &me, term), "there nobody is waited for");
    assert!(!rules::are_of(&register, &me, term - 1), "an earlier tenure of the same start");
}

#[test]
fn the_receiver_of_the_former_holder_goes_before_the_end_is_compared() {
    let mut world = follower();
    world.engine = EngineState::Standby { source: Some(source(0)), replaying: false };
    world.fork = Some(History { term: 1, forks: vec![(1, None)] });
    assert_eq!(engine_step(&world.view()), EngineStep::Follow(None));
    world.engine = EngineState::Standby { source: None, replaying: false };
    assert_eq!(engine_step(&world.view()), EngineStep::Follow(Some(source(1))));
}

#[test]
fn a_history_from_before_the_promotion_is_not_believed() {
    let mut world = follower();
    world.lease.as_mut().unwrap().register.timeline = 2;
    world.engine = EngineState::Standby { source: None, replaying: false };
    world.fork = Some(History { term: 1, forks: vec![(1, None)] });
    assert_eq!(engine_step(&world.view()), EngineStep::Keep, "its own timeline is still the old one, without an end");
    world.fork = Some(History { term: 1, forks: vec![(1, Some(Lsn(40))), (2, None)] });
    assert!(matches!(engine_step(&world.view()), EngineStep::Stop(_)), "42 is beyond the fork at 40");
}

#[test]
fn postgres_is_not_started_while_a_release_is_due_or_was_sent() {
    let mut world = running();
    world.engine = EngineState::Stopped;
    world.tenure.as_mut().unwrap().served = true;
    assert!(matches!(lease_step(&world.view()), LeaseStep::Release(_)));
    assert_eq!(engine_step(&world.view()), EngineStep::Keep, "the release is due");
    let tenure = world.tenure.as_mut().unwrap();
    (tenure.served, tenure.ending) = (false, Some(Ending { wish: None }));
    assert_eq!(engine_step(&world.view()), EngineStep::Keep, "it was sent, and may still arrive");
}

#[test]
fn a_holder_is_judged_by_the_bounds_that_it_registered() {
    let long = LeaseBounds { duration: 60, renew_deadline: 40, retry_period: 5 };
    let mut world = follower();
    world.lease.as_mut().unwrap().register.bounds = long;
    world.now = world.lease.as_ref().unwrap().since + seconds(59);
    assert!(matches!(lease_step(&world.view()), LeaseStep::Wait { .. }), "the configuration says 15 s meanwhile");

    let mut holder = running();
    holder.lease.as_mut().unwrap().register.bounds = LeaseBounds::default();
    holder.terms.as_mut().unwrap().bounds = long;
    assert_eq!(holder.view().deadline(), Some(holder.tenure.as_ref().unwrap().renewed + seconds(10)));
}

#[test]
fn a_staged_bootstrap_is_kept_while_its_publication_may_be_under_way() {
    let mut world = follower();
    world.engine = EngineState::Stopped;
    world.data = Data::Staged { system_id: "mine".into(), member: "db-2-n".into(), timeline: 1 };
    world.lease.as_mut().unwrap().register.system_id = None;
    assert_eq!(engine_step(&world.view()), EngineStep::Keep);
    world.lease.as_mut().unwrap().register.system_id = Some("theirs".into());
    assert_eq!(engine_step(&world.view()), EngineStep::DiscardStaged);
}

#[test]
fn a_taker_that_died_before_its_proof_is_known_by_its_member() {
    let mut register = running().lease.unwrap().register;
    register.holder = "db-2/x/n".into();
    register.member = Some("db-2-n1".into());
    assert!(register.whole("db-2-n1", None));
    assert!(!register.whole("db-2-n1", Some("db-2/x/old")), "it wrote in an earlier term");
    assert!(!register.whole("db-3-n1", None));
}

#[test]
fn the_rules_do_not_change_while_the_register_cannot_be_reached() {
    let mut world = running();
    let joined = |member: &str| Joined {
        instance: member[..4].into(),
        member: member.into(),
        confirmed: true,
        marker: true,
        streaming: true,
        gone_for: 0,
        leaving: false,
    };
    world.joined = vec![joined("db-2-m9")];
    let rules = |step| match step {
        LeaseStep::Renew(register) => register.rules.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(rules(lease_step(&world.view())), 2);
    world.tenure.as_mut().unwrap().attempted += seconds(2);
    world.now += seconds(5);
    assert_eq!(rules(lease_step(&world.view())), 1, "such a write would void the holds");
}

#[test]
fn a_full_list_whose_last_rule_cannot_be_served_takes_one_that_can() {
    let dead = |n: u32| Rule::new([format!("dead-{n}")], 1);
    let list: Vec<Rule> = (0..4).map(dead).collect();
    let alive = Joined {
        instance: "db-2".into(),
        member: "b".into(),
        confirmed: true,
        marker: true,
        streaming: true,
        gone_for: 0,
        leaving: false,
    };
    let wanted = Rule::new(["b"], 1);
    assert_eq!(rules::next(&list, &wanted, None, &[]), None);
    assert_eq!(rules::next(&list, &wanted, None, &[alive]).unwrap().last(), Some(&wanted));
    assert_eq!(rules::with(&list, dead(1)).len(), 4, "an equal rule is not kept twice");
}

#[test]
fn a_write_of_unknown_outcome_counts_as_done_and_as_not_done_for_the_holds() {
    let with = |rules| Register { rules, ..Register::initial(Vec::new(), Durability::Quorum) };
    let known = with(vec![Rule::new(["b", "c"], 1), Rule::new(["b", "c"], 2)]);
    let sent = with(vec![Rule::new(["b", "c"], 2)]);
    let grants = BTreeMap::from([("b".to_owned(), seconds(9))]);
    assert_eq!(hold::extended_for([&known], &grants), Some(seconds(9)));
    assert_eq!(hold::extended_for([&known, &sent], &grants), None, "with that rule alone, c can be elected");
}

#[test]
fn a_rule_is_in_force_when_all_of_the_evidence_is_there() {
    let rule = Rule::new(["b", "c"], 1);
    let sender = |member: &str, at| Walsender { member: member.into(), written: Lsn(at), flushed: Lsn(at) };
    let walsenders = [sender("b", 9), sender("x", 9)];
    let whole = Evidence {
        shown: true,
        position: Lsn(9),
        from_empty: true,
        checkpointed: true,
        walsenders: &walsenders,
        committed: true,
    };
    assert!(rules::in_force(&rule, &whole));
    for broken in [
        Evidence { shown: false, ..whole.clone() },
        Evidence { checkpointed: false, ..whole.clone() },
        Evidence { committed: false, ..whole.clone() },
        Evidence { walsenders: &[sender("b", 8), sender("x", 9)], ..whole.clone() },
        Evidence { walsenders: &[sender("b", 9), sender("x", 8)], ..whole.clone() },
        Evidence { walsenders: &[sender("x", 9)], ..whole.clone() },
    ] {
        assert!(!rules::in_force(&rule, &broken), "{broken:?}");
    }
}

#[test]
fn a_marker_returns_on_the_holders_timeline_with_what_it_reported_since() {
    let mut register = running().lease.unwrap().register;
    (register.timeline, register.end) = (2, Lsn(50));
    assert!(vote::marker_returns(&register, true, 2, Lsn(50)));
    assert!(!vote::marker_returns(&register, false, 2, Lsn(50)), "the Lease was read before the marker went");
    assert!(!vote::marker_returns(&register, true, 1, Lsn(60)));
    assert!(!vote::marker_returns(&register, true, 2, Lsn(49)));
}

#[test]
fn a_replica_whose_wal_is_gone_keeps_its_copy_until_the_new_one_is_there() {
    let mut world = follower();
    world.cannot_follow = true;
    world.engine = EngineState::Standby { source: Some(source(1)), replaying: false };
    assert!(matches!(engine_step(&world.view()), EngineStep::Stop(_)));
    world.engine = EngineState::Stopped;
    assert_eq!(engine_step(&world.view()), EngineStep::Clone { source: source(1), member: None });
}
