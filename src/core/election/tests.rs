//! The decisions of a first primary and of a restart, and what must hold for every view.

#![allow(clippy::unchecked_time_subtraction, reason = "the times of these worlds begin at 100 s")]

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::api::agent::Lsn;
use crate::api::config::LeaseBounds;
use crate::api::spec::Durability;

#[derive(Debug)]
pub(super) struct World {
    pub(super) now: Boot,
    pub(super) me: Identity,
    pub(super) lease: Option<Seen>,
    pub(super) tenure: Option<Tenure>,
    pub(super) terms: Option<Terms>,
    pub(super) data: Data,
    pub(super) engine: EngineState,
    pub(super) joined: Vec<Joined>,
    pub(super) confirmed: Option<Rule>,
    pub(super) promise: Option<Promise>,
    pub(super) bound_until: Option<Boot>,
    pub(super) ballot: Option<Ballot>,
    pub(super) fork: Option<History>,
    pub(super) terminated: Option<String>,
    pub(super) cannot_follow: bool,
    pub(super) restarting: bool,
    pub(super) stopping: bool,
}

impl World {
    fn new(instance: &str) -> Self {
        let instances: Vec<String> = (1..=3).map(|n| format!("db-{n}")).collect();
        Self {
            now: seconds(100),
            me: Identity {
                instance: instance.into(),
                pod_uid: "u".into(),
                nonce: "n1".into(),
                address: "10.0.0.1".into(),
            },
            lease: Some(seen(Register::initial(instances.clone(), Durability::Quorum))),
            tenure: None,
            terms: Some(Terms {
                instances,
                durability: Durability::Quorum,
                k: 1,
                bounds: LeaseBounds::default(),
                failover: true,
                max_lag: 16 << 20,
                primary: None,
                accept_loss: None,
            }),
            data: Data::Empty,
            engine: EngineState::Stopped,
            joined: Vec::new(),
            confirmed: None,
            promise: None,
            bound_until: Some(Duration::ZERO),
            ballot: None,
            fork: None,
            terminated: None,
            cannot_follow: false,
            restarting: false,
            stopping: false,
        }
    }

    pub(super) fn view(&self) -> View<'_> {
        View {
            now: self.now,
            me: &self.me,
            lease: self.lease.as_ref(),
            tenure: self.tenure.as_ref(),
            terms: self.terms.as_ref(),
            data: &self.data,
            engine: &self.engine,
            joined: &self.joined,
            confirmed: self.confirmed.as_ref(),
            promise: self.promise.as_ref(),
            bound_until: self.bound_until,
            ballot: self.ballot.as_ref(),
            fork: self.fork.as_ref(),
            terminated: self.terminated.as_deref(),
            container_id: None,
            cannot_follow: self.cannot_follow,
            restarting: self.restarting,
            stopping: self.stopping,
        }
    }

    /// The register was written as asked; this process saw it at once.
    fn written(&mut self, register: Register) {
        self.tenure = (!register.released()).then(|| tenure_of(register.term, self.now));
        self.lease = Some(Seen { register, version: format!("v{:?}", self.now), since: self.now });
    }

    /// Takes the Lease, alone on the ballot if there is one.
    fn take(&mut self) {
        if let LeaseStep::Campaign(version) = lease_step(&self.view()) {
            self.vote(version, Vec::new());
        }
        match lease_step(&self.view()) {
            LeaseStep::Take(register) => self.written(*register),
            other => panic!("no take: {other:?}"),
        }
    }

    /// A ballot on this version with its own answer and these.
    pub(super) fn vote(&mut self, version: String, mut answers: Vec<Answer>) {
        let view = self.view();
        answers.push(vote::answer(&view, vote::may_freeze(&view).unwrap(), &version, 0, false));
        self.ballot = Some(Ballot { version, at: self.now, before: 0, answers });
    }
}

fn tenure_of(term: i64, renewed: Boot) -> Tenure {
    Tenure { term, renewed, attempted: renewed, held_until: None, served: false, ending: None }
}

pub(super) fn seconds(n: u64) -> Boot {
    Duration::from_secs(n)
}

fn seen(register: Register) -> Seen {
    Seen { register, version: "1".into(), since: seconds(100) }
}

pub(super) fn member(proof: Option<&str>) -> Data {
    Data::Present(Member {
        id: "db-1-n0".into(),
        system_id: "sys".into(),
        proof: proof.map(Into::into),
        marker: true,
        standby: proof.is_none(),
        end_known: true,
        history: vec![1],
        hopeless: false,
        timeline: 1,
        end: Lsn(42),
    })
}

pub(super) fn running() -> World {
    let mut world = World::new("db-1");
    world.take();
    world.data = Data::Staged { system_id: "sys".into(), member: "db-1-n1".into(), timeline: 1 };
    if let LeaseStep::Renew(register) = lease_step(&world.view()) {
        world.written(*register);
    }
    world.data = member(Some("db-1/u/n1"));
    world.engine = EngineState::Primary;
    world
}

#[test]
fn a_new_cluster_is_begun_by_its_first_instance_and_its_data_published_before_it_is_adopted() {
    let mut world = World::new("db-1");
    assert_eq!(engine_step(&world.view()), EngineStep::Keep, "nothing before the Lease is taken");
    world.take();
    let register = world.lease.as_ref().unwrap().register.clone();
    assert_eq!((register.term, register.reserved, register.established), (1, 1, 0));
    assert_eq!(register.rules, [Rule::new(["db-2-n1", "db-3-n1"], 1)], "members are named before they exist");
    assert_eq!(engine_step(&world.view()), EngineStep::Bootstrap);

    world.data = Data::Staged { system_id: "sys".into(), member: "db-1-n1".into(), timeline: 1 };
    assert_eq!(engine_step(&world.view()), EngineStep::Keep, "not adopted before it is published");
    let LeaseStep::Renew(register) = lease_step(&world.view()) else { panic!("not published") };
    assert_eq!((register.system_id.as_deref(), register.established), (Some("sys"), 1));
    world.written(*register);
    assert_eq!(engine_step(&world.view()), EngineStep::AdoptStaged("db-1/u/n1".into()));

    world.data = member(Some("db-1/u/n1"));
    assert_eq!(engine_step(&world.view()), EngineStep::StartPrimary);
}

#[test]
fn what_was_restored_goes_on_where_its_recovery_ended() {
    let mut world = World::new("db-1");
    world.take();
    world.data = Data::Staged { system_id: "sys".into(), member: "db-1-n1".into(), timeline: 5 };
    let LeaseStep::Renew(register) = lease_step(&world.view()) else { panic!("not published") };
    assert_eq!((register.timeline, register.reserved, register.established), (5, 5, 5));
}

#[test]
fn the_second_instance_begins_only_when_the_first_does_not() {
    let mut world = World::new("db-2");
    assert!(matches!(lease_step(&world.view()), LeaseStep::Wait { until: Some(_), .. }));
    world.now += seconds(5);
    world.take();
}

#[test]
fn nobody_begins_anew_on_empty_volumes_while_the_lease_tells_of_data() {
    let register = running().lease.unwrap().register;
    for instance in ["db-1", "db-2", "db-3"] {
        let mut world = World::new(instance);
        world.me.nonce = "n2".into();
        let release = Some(Release { timeline: 1, lsn: Some(Lsn(42)), wish: None });
        world.lease = Some(seen(Register { release, ..register.clone() }));
        for _ in 0..100 {
            assert!(matches!(lease_step(&world.view()), LeaseStep::Wait { .. }), "{instance}");
            assert_eq!(engine_step(&world.view()), EngineStep::Keep, "{instance}");
            world.now += seconds(10);
        }
        // Made anew by a human, it tells of none.
        world.lease = Some(seen(Register {
            term: register.term,
            ..Register::initial(register.instances.clone(), Durability::Quorum)
        }));
        let LeaseStep::Take(taken) = lease_step(&world.view()) else { panic!("{instance} does not begin") };
        assert_eq!((taken.term, taken.system_id), (register.term + 1, None));
    }
}

#[test]
fn what_is_given_up_begins_where_the_histories_part() {
    let holder = History { term: 5, forks: vec![(1, Some(Lsn(100))), (3, Some(Lsn(200))), (4, None)] };
    assert_eq!(holder.parts(&[(1, Lsn(90))]), None, "it is only behind");
    assert_eq!(holder.parts(&[(1, Lsn(100)), (3, Lsn(200)), (4, Lsn(900))]), None);
    assert_eq!(holder.parts(&[(1, Lsn(130))]), Some((1, Lsn(100))), "it wrote on after the fork");
    assert_eq!(holder.parts(&[(1, Lsn(80)), (2, Lsn(400))]), Some((1, Lsn(80))), "a timeline of its own");
    assert_eq!(holder.parts(&[(1, Lsn(100)), (3, Lsn(250))]), Some((3, Lsn(200))));
    assert_eq!(holder.parts(&[(2, Lsn(50))]), Some((0, Lsn(0))), "nothing in common");
    assert_eq!(holder.parts(&[]), None);
}

#[test]
fn a_full_volume_comes_after_position_and_before_the_wish() {
    let mut world = running();
    (world.tenure, world.engine, world.data) = (None, EngineState::Stopped, member(None));
    let register = &mut world.lease.as_mut().unwrap().register;
    register.release = Some(Release { timeline: 1, lsn: Some(Lsn(42)), wish: Some("db-1".into()) });
    register.rules = vec![Rule::new(["db-1-n0", "db-2-n1"], 1)];
    let judge = |world: &World, full, other_end| {
        let view = world.view();
        let mine = Answer { full, ..vote::answer(&view, vote::may_freeze(&view).unwrap(), "1", 0, false) };
        let (instance, member) = ("db-2".to_owned(), "db-2-n1".to_owned());
        let other = Answer { instance, member, full: false, end: Lsn(other_end), ..mine.clone() };
        choose::judge(&world.lease.as_ref().unwrap().register, "1", "db-1-n0", &[mine, other], 0)
    };
    assert_eq!(judge(&world, false, 42), Verdict::Take, "the wish");
    assert_eq!(judge(&world, true, 42), Verdict::StandBack { better: 1, may: true }, "the other has room");
    assert_eq!(judge(&world, true, 41), Verdict::Take, "the other would have to be caught up with");
}

#[test]
fn postgres_is_killed_when_the_deadline_passes_and_comes_back_by_itself() {
    let mut world = running();
    world.now += seconds(9);
    assert_eq!(engine_step(&world.view()), EngineStep::Keep);
    world.now += seconds(1);
    assert!(matches!(engine_step(&world.view()), EngineStep::Kill(_)));
    world.engine = EngineState::Stopped;
    assert_eq!(engine_step(&world.view()), EngineStep::Keep, "not started without a valid Lease");
    let LeaseStep::Renew(register) = lease_step(&world.view()) else { panic!("the Lease is still ours") };
    world.written(*register);
    assert_eq!(engine_step(&world.view()), EngineStep::StartPrimary);
}

#[test]
fn a_clean_stop_is_released_and_the_next_start_continues_at_once() {
    let mut world = running();
    world.stopping = true;
    assert!(matches!(engine_step(&world.view()), EngineStep::Stop(_)));
    world.engine = EngineState::Stopped;
    let LeaseStep::Release(register) = lease_step(&world.view()) else { panic!("not released") };
    assert_eq!(register.release, Some(Release { timeline: 1, lsn: Some(Lsn(42)), wish: None }));
    world.written(*register);

    world.stopping = false;
    world.me.pod_uid = "u2".into();
    assert_eq!(engine_step(&world.view()), EngineStep::Keep, "not started without the Lease");
    world.take();
    let register = &world.lease.as_ref().unwrap().register;
    assert_eq!((register.term, register.inherits.as_deref()), (2, Some("db-1/u/n1")));
    assert_eq!(engine_step(&world.view()), EngineStep::WriteProof("db-1/u2/n1".into()));
}

#[test]
fn a_crash_between_take_and_proof_does_not_lock_the_data_out() {
    let mut world = running();
    for nonce in ["n2", "n3"] {
        world.me.nonce = nonce.into();
        world.tenure = None;
        world.engine = EngineState::Stopped;
        world.take();
        assert!(matches!(engine_step(&world.view()), EngineStep::WriteProof(_)));
    }
    assert_eq!(world.lease.unwrap().register.term, 3);
}

#[test]
fn another_pod_waits_for_the_full_lease_since_it_saw_the_version_itself() {
    let mut world = running();
    world.me.pod_uid = "u2".into();
    world.tenure = None;
    world.engine = EngineState::Stopped;
    let since = world.lease.as_ref().unwrap().since;
    world.now = since + seconds(14);
    assert!(matches!(lease_step(&world.view()), LeaseStep::Wait { until: Some(_), .. }));
    world.now = since + seconds(15);
    world.take();
}

#[test]
fn an_instance_without_the_last_holders_data_never_takes_the_lease() {
    let mut world = running();
    world.me = Identity { instance: "db-2".into(), pod_uid: "x".into(), nonce: "n".into(), address: "10.0.0.2".into() };
    world.tenure = None;
    world.engine = EngineState::Stopped;
    world.now += seconds(3600);
    for data in [Data::Empty, member(None), member(Some("db-2/x/old"))] {
        world.data = data;
        if let LeaseStep::Campaign(version) = lease_step(&world.view()) {
            world.vote(version, Vec::new());
        }
        assert!(matches!(lease_step(&world.view()), LeaseStep::Wait { .. }), "{:?}", world.data);
    }
}

#[test]
fn a_replica_clones_under_its_planned_id_and_then_follows() {
    let mut world = running();
    world.me = Identity { instance: "db-2".into(), pod_uid: "x".into(), nonce: "n".into(), address: "10.0.0.2".into() };
    world.tenure = None;
    world.engine = EngineState::Stopped;
    world.data = Data::Empty;
    let source = Source { term: 1, instance: "db-1".into(), address: "10.0.0.1".into() };
    assert_eq!(
        engine_step(&world.view()),
        EngineStep::Clone { source: source.clone(), member: Some("db-2-n1".into()) }
    );
    world.data = member(None);
    assert_eq!(engine_step(&world.view()), EngineStep::Keep, "it does not know the holder's history yet");
    world.fork = Some(History { term: 1, forks: vec![(1, None)] });
    assert_eq!(engine_step(&world.view()), EngineStep::StartStandby(Some(source.clone())));
    world.engine = EngineState::Standby { source: None, replaying: false };
    assert_eq!(engine_step(&world.view()), EngineStep::Follow(Some(source)));
}

#[test]
fn data_of_another_cluster_is_refused_and_left_alone() {
    let mut world = running();
    world.engine = EngineState::Stopped;
    let Data::Present(data) = &mut world.data else { unreachable!() };
    data.system_id = "other".into();
    assert!(matches!(engine_step(&world.view()), EngineStep::Refuse(_)));
    world.tenure = None;
    assert!(matches!(engine_step(&world.view()), EngineStep::Refuse(_)));
}

#[test]
fn a_planned_member_that_has_joined_is_planned_no_more() {
    let mut world = running();
    let rule = world.lease.as_ref().unwrap().register.rules[0].clone();
    world.joined = vec![Joined {
        instance: "db-2".into(),
        member: "db-2-n1".into(),
        confirmed: true,
        marker: true,
        streaming: true,
        gone_for: 0,
        leaving: false,
    }];
    world.confirmed = Some(rule);
    let LeaseStep::Renew(register) = lease_step(&world.view()) else { panic!("nothing changes") };
    assert_eq!(register.planned.keys().collect::<Vec<_>>(), ["db-3"]);
}

fn any_register() -> impl Strategy<Value = Register> {
    let holder = prop_oneof![Just(""), Just("db-1/u/n1"), Just("db-1/u/n0"), Just("db-2/v/n1")];
    let release = proptest::option::of(Just(Release { timeline: 1, lsn: Some(Lsn(42)), wish: None }));
    let system = proptest::option::of(prop_oneof![Just("sys"), Just("other")]);
    let inherits = proptest::option::of(prop_oneof![Just("db-1/u/n0"), Just("db-2/v/n0")]);
    (holder, release, system, 0..3_i64, 0..2_u32, inherits).prop_map(
        |(holder, release, system, term, established, inherits)| {
            let mut register = Register::initial(vec!["db-1".into(), "db-2".into()], Durability::Quorum);
            register.holder = holder.into();
            register.inherits = inherits.map(Into::into);
            register.release = release;
            register.address = "10.0.0.9".into();
            register.system_id = system.map(Into::into);
            register.term = term;
            register.established = established;
            register
        },
    )
}

fn any_data() -> impl Strategy<Value = Data> {
    let proof = proptest::option::of(prop_oneof![Just("db-1/u/n1"), Just("db-1/u/n0"), Just("db-2/v/n1")]);
    prop_oneof![
        Just(Data::Unknown),
        Just(Data::Empty),
        prop_oneof![Just("sys"), Just("other")].prop_map(|system| Data::Staged {
            system_id: system.into(),
            member: "m".into(),
            timeline: 3
        }),
        proof.prop_map(member),
    ]
}

fn any_engine() -> impl Strategy<Value = EngineState> {
    let job = prop_oneof![
        Just(Job::Bootstrap),
        Just(Job::Clone),
        Just(Job::StartPrimary),
        Just(Job::StartStandby),
        Just(Job::StopPrimary),
        Just(Job::StopStandby),
    ];
    prop_oneof![
        Just(EngineState::Stopped),
        job.prop_map(EngineState::Busy),
        Just(EngineState::Primary),
        Just(EngineState::Standby { source: None, replaying: false }),
    ]
}

prop_compose! {
    fn any_answer()(
        id in "(db-[123]-n1|db-1-n0)",
        system_id in "(sys|other)",
        proof in proptest::option::of(prop_oneof![Just("db-1/u/n1"), Just("db-1/u/n0"), Just("db-2/v/n1")]),
        timeline in 1..3_u32,
        end in 40..44_u64,
        must_recover: bool,
    ) -> Answer {
        Answer {
            instance: id[..4].to_owned(),
            version: "1".into(),
            member: id,
            system_id,
            proof: proof.map(Into::into),
            history: (1..=timeline).collect(),
            timeline,
            end: Lsn(end),
            backlog: 0,
            must_recover,
            draining: false,
            full: false,
        }
    }
}

prop_compose! {
    fn any_world()(
        lease in proptest::option::of(any_register()),
        age in 0..40_u64,
        tenure in proptest::option::of((0..3_i64, 0..20_u64)),
        known: bool,
        data in any_data(),
        engine in any_engine(),
        cannot_follow: bool,
        stopping: bool,
        promised: bool,
        answers in proptest::collection::vec(any_answer(), 0..3),
    ) -> World {
        let mut world = World::new("db-1");
        let now = world.now;
        world.lease = lease.map(|register| Seen { register, version: "1".into(), since: now - seconds(age) });
        world.tenure = tenure.map(|(term, age)| tenure_of(term, now - seconds(age)));
        world.terms = world.terms.filter(|_| known);
        world.data = data;
        world.engine = engine;
        world.cannot_follow = cannot_follow;
        world.stopping = stopping;
        world.promise = promised.then(|| Promise::with(None, "1"));
        world.ballot = Some(Ballot { version: "1".into(), at: now, before: 0, answers });
        world
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn whatever_may_be_writable_without_a_valid_lease_is_killed(world in any_world()) {
        let valid = world.tenure.as_ref().is_some_and(|tenure| {
            world.now < tenure.renewed + seconds(10)
                && world.lease.as_ref().is_some_and(|seen| {
                    !seen.register.released() && seen.register.holder == "db-1/u/n1" && seen.register.term == tenure.term
                })
        });
        let step = engine_step(&world.view());
        if world.engine.maybe_writable() && !valid {
            prop_assert!(matches!(step, EngineStep::Kill(_)), "{step:?}");
        }
        if step == EngineStep::StartPrimary || step == EngineStep::Bootstrap {
            prop_assert!(valid && world.terms.is_some() && !world.stopping);
        }
        if step == EngineStep::StartPrimary {
            let Data::Present(member) = &world.data else { panic!("no data") };
            prop_assert_eq!(member.proof.as_deref(), Some("db-1/u/n1"));
        }
    }

    #[test]
    fn a_lease_is_taken_only_when_it_is_deposable_and_only_with_the_last_holders_data(world in any_world()) {
        if let LeaseStep::Take(next) = lease_step(&world.view()) {
            let seen = world.lease.as_ref().unwrap();
            let before = &seen.register;
            let deposable = before.released() || before.holder == "db-1/u/n0" || world.now >= seen.since + seconds(15);
            prop_assert!(deposable);
            prop_assert!(!matches!(world.engine, EngineState::Primary | EngineState::Busy(_)));
            prop_assert_eq!(next.term, before.term + 1);
            prop_assert!(next.reserved >= before.reserved && next.established == before.established);
            prop_assert!(next.rules.starts_with(&before.rules), "a take adds, it never drops");
            match (&before.system_id, &world.data) {
                (None, data) => prop_assert!(!matches!(data, Data::Unknown | Data::Present(_))),
                (Some(system), data) => prop_assert_eq!(Some(system.as_str()), data.system_id()),
            }
            let proven = match &world.data {
                Data::Present(member) => before.proven_by(member.proof.as_deref().unwrap_or_default()),
                _ => true,
            };
            if !proven {
                prop_assert!(next.timeline > before.reserved && next.rules.len() == before.rules.len() + 1);
                prop_assert_eq!(&next.inherits, &None);
            }
        }
    }

    #[test]
    fn a_staged_copy_that_the_register_names_is_never_discarded(world in any_world()) {
        if engine_step(&world.view()) == EngineStep::DiscardStaged {
            let published = world.lease.as_ref().and_then(|seen| seen.register.system_id.as_deref());
            prop_assert_ne!(published, world.data.system_id());
        }
    }
}
