//! Timelines of our choosing, and the end of a standby's WAL.

use std::time::Duration;

use hello_operator::agent::history::{forget_reserved, history_of, reserve};
use hello_operator::agent::postmaster::Postmaster;
use hello_operator::agent::sql::Session;
use hello_operator::agent::standstill::{end_of_wal, stand};
use hello_operator::api::agent::Lsn;
use hello_operator::engine::postgres::settings::Role;
use hello_operator::engine::postgres::{history, slots};
use rustix::process::Signal;

use crate::world::{Instance, World, isolated, until};

/// How long a member that is asked to freeze has.
const FREEZE: Duration = Duration::from_millis(1500);
const ALONE: Role = Role::Primary { sync: String::new() };
const NOBODY: Role = Role::Standby { upstream: None, critical: None };

/// An instance with its PostgreSQL.
pub struct Running {
    pub instance: Instance,
    pub postmaster: Postmaster,
    pub session: Session,
}

impl Running {
    pub fn member(&self) -> String {
        self.instance.state.member.clone().unwrap()
    }
}

/// A primary, db-1, with replicas that stream from it.
pub async fn cluster(world: &World, replicas: usize, settings: &[(&str, &str)]) -> (Running, Vec<Running>) {
    let mut instance = world.instance("db-1");
    world.bootstrap(&mut instance).await;
    world.write_files(&instance, ALONE, settings);
    let (postmaster, session) = world.start(&instance).await;
    let primary = Running { instance, postmaster, session };
    let mut all = Vec::new();
    for number in 2..2 + replicas {
        let mut instance = world.instance(&format!("db-{number}"));
        let member = format!("db-{number}-x");
        world.clone_from(&primary.instance, &member, &mut instance).await.unwrap();
        world.write_files(&instance, world.follows(&primary.instance, &member), settings);
        let (postmaster, session) = world.start(&instance).await;
        all.push(Running { instance, postmaster, session });
    }
    until("streaming", async || {
        primary.session.walsenders().await.unwrap().iter().filter(|sender| sender.streaming).count() == replicas
    })
    .await;
    (primary, all)
}

/// Follows nobody, stands still, and says where.
async fn freeze(world: &World, standby: &Running, settings: &[(&str, &str)]) -> (u32, Lsn) {
    world.write_files(&standby.instance, NOBODY, settings);
    standby.postmaster.reload();
    let begun = std::time::Instant::now();
    let end = stand(&standby.instance.socket, &standby.postmaster, &world.processes, FREEZE).await.unwrap();
    println!("stood still after {} ms", begun.elapsed().as_millis());
    end
}

/// Promotes to exactly this timeline; how long it took until it was writable.
pub async fn promote(standby: &Running, at: (u32, Lsn), target: u32) {
    let pgdata = standby.instance.layout.pgdata();
    reserve(&pgdata, at.0, target).unwrap();
    let begun = std::time::Instant::now();
    standby.session.terminate_clients().await.unwrap();
    standby.session.run("promotion", "SELECT pg_promote(false)").await.unwrap();
    until("the end of recovery", async || !standby.session.status().await.unwrap().in_recovery).await;
    println!("promoted after {} ms", begun.elapsed().as_millis());
    assert_eq!(standby.session.status().await.unwrap().timeline, Some(target));
    assert_eq!(history_of(&pgdata, target).last(), Some(&at));
}

/// A slot for the member at its new primary, which it then follows.
pub async fn follow(world: &World, primary: &Running, standby: &Running) {
    let member = standby.member();
    make_slot(primary, &member).await;
    world.write_files(&standby.instance, world.follows(&primary.instance, &member), &[]);
    standby.postmaster.reload();
}

pub async fn make_slot(primary: &Running, member: &str) {
    let slot = format!("SELECT pg_create_physical_replication_slot('{}', true)", slots::of(member));
    primary.session.run("a slot", &slot).await.unwrap();
}

/// Streams on the timeline, and has what is written now.
pub async fn follows_on(primary: &Running, standby: &Running, timeline: u32) {
    until("streaming on the timeline", async || {
        let status = standby.session.status().await.unwrap();
        status.streaming_from.as_deref() == Some(primary.instance.name.as_str()) && status.timeline == Some(timeline)
    })
    .await;
    let position = primary.session.write_marker().await.unwrap();
    until("replay", async || standby.session.status().await.unwrap().replayed >= Some(position)).await;
}

async fn stop(running: &Running) {
    running.postmaster.signal(Signal::INT);
    assert!(running.postmaster.wait().await.unwrap().success());
}

#[test]
fn a_promotion_takes_the_reserved_timeline_and_others_follow_across_it() {
    isolated("timelines::a_promotion_takes_the_reserved_timeline_and_others_follow_across_it", async |world| {
        let (first, mut replicas) = cluster(&world, 2, &[]).await;
        let (third, second) = (replicas.pop().unwrap(), replicas.pop().unwrap());
        let position = first.session.write_marker().await.unwrap();
        stop(&first).await;
        let (second_end, third_end) = (freeze(&world, &second, &[]).await, freeze(&world, &third, &[]).await);
        assert_eq!(second_end, third_end, "a fast shutdown streams everything");
        assert!(second_end.0 == 1 && second_end.1 > position);
        promote(&second, second_end, 5).await;
        follow(&world, &second, &third).await;
        follows_on(&second, &third, 5).await;
        // It has fetched every id's file by name, and needs them when it is promoted itself.
        for id in 2..=5 {
            assert!(third.instance.layout.pgdata().join("pg_wal").join(history::file_name(id)).exists(), "{id}");
        }
        // Once more, the other way round: the former primary follows without a rewind.
        stop(&second).await;
        let end = freeze(&world, &third, &[]).await;
        assert_eq!(end.0, 5);
        // A standby looks for newer timelines all the time, and must not take a reserved id for one.
        let pgdata = third.instance.layout.pgdata();
        reserve(&pgdata, end.0, 9).unwrap();
        tokio::time::sleep(Duration::from_secs(3)).await;
        promote(&third, end, 9).await;
        let parents: Vec<u32> = history_of(&pgdata, 9).iter().map(|(parent, _)| *parent).collect();
        assert_eq!(parents, [1, 5], "the reserved ids are nobody's parents");
        make_slot(&third, "db-2-x").await;
        world.write_files(&second.instance, world.follows(&third.instance, "db-2-x"), &[]);
        let (postmaster, session) = world.start(&second.instance).await;
        let second = Running { instance: second.instance, postmaster, session };
        follows_on(&third, &second, 9).await;
        // And the very first one, which stopped in order two timelines ago.
        make_slot(&third, "m1").await;
        world.write_files(&first.instance, world.follows(&third.instance, "m1"), &[]);
        let (postmaster, session) = world.start(&first.instance).await;
        let first = Running { instance: first.instance, postmaster, session };
        follows_on(&third, &first, 9).await;
        // Reserved, and never promoted: it starts again, and follows.
        first.postmaster.signal(Signal::KILL);
        second.postmaster.signal(Signal::KILL);
        third.postmaster.signal(Signal::KILL);
        assert!(hello_operator::agent::postmaster::kill(&world.processes).await);
        let pgdata = first.instance.layout.pgdata();
        reserve(&pgdata, 9, 12).unwrap();
        forget_reserved(&pgdata, 9).unwrap();
        let (postmaster, session) = world.start(&third.instance).await;
        let third = Running { instance: third.instance, postmaster, session };
        let (postmaster, session) = world.start(&first.instance).await;
        follows_on(&third, &Running { instance: first.instance, postmaster, session }, 9).await;
    });
}

#[test]
fn the_end_that_is_told_is_where_the_next_timeline_begins_also_under_load() {
    isolated("timelines::the_end_that_is_told_is_where_the_next_timeline_begins_also_under_load", async |world| {
        let (primary, mut replicas) = cluster(&world, 2, &[]).await;
        primary.session.run("a table", "CREATE TABLE t(x text)").await.unwrap();
        for _ in 0..4 {
            let session = primary.instance.socket.open("postgres").await.unwrap();
            tokio::spawn(async move {
                let insert = "INSERT INTO t SELECT repeat('x', 5000) FROM generate_series(1, 50)";
                while session.run("rows", insert).await.is_ok() {}
            });
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        // Each in the middle of what it receives.
        for target in [4, 7] {
            let standby = replicas.pop().unwrap();
            let end = freeze(&world, &standby, &[]).await;
            let received = standby.session.replay().await.unwrap().received.unwrap();
            println!("{} bytes of a record were received", received.0 - end.1.0);
            promote(&standby, end, target).await;
        }
    });
}

#[test]
fn a_standby_stands_still_also_when_its_replay_is_stuck() {
    isolated("timelines::a_standby_stands_still_also_when_its_replay_is_stuck", async |world| {
        let settings = [("max_standby_streaming_delay", "-1")];
        let (primary, replicas) = cluster(&world, 1, &settings).await;
        let standby = &replicas[0];
        primary.session.run("a table", "CREATE TABLE t(i int); INSERT INTO t VALUES (1)").await.unwrap();
        let position = primary.session.write_marker().await.unwrap();
        until("replay", async || standby.session.status().await.unwrap().replayed >= Some(position)).await;
        // A reader's lock holds the replay up; the receiver goes on.
        let reader = standby.instance.socket.open("postgres").await.unwrap();
        reader.run("a lock", "BEGIN; SELECT * FROM t").await.unwrap();
        primary.session.run("the conflict", "TRUNCATE t; INSERT INTO t VALUES (2)").await.unwrap();
        let position = primary.session.write_marker().await.unwrap();
        until("the flush", async || {
            primary.session.walsenders().await.unwrap().iter().any(|sender| sender.flushed >= Some(position))
        })
        .await;
        assert!(standby.session.status().await.unwrap().replayed < Some(position), "replay is stuck");
        let end = freeze(&world, standby, &settings).await;
        assert!(end.0 == 1 && end.1 >= position, "it tells what it acknowledged: {end:?}");
        primary.session.write_marker().await.unwrap();
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let later = end_of_wal(&standby.instance.socket, &world.processes).await.unwrap();
        assert_eq!(later, end, "it stays where it is, over the receiver's own retries");
        // Promotion ends the reader's session, and nothing is lost.
        promote(standby, end, 4).await;
        assert!(reader.run("more", "SELECT 1").await.is_err());
        standby.session.run("the row is there", "DO 'BEGIN ASSERT (SELECT i = 2 FROM t); END'").await.unwrap();
    });
}

#[test]
fn a_standby_tells_all_that_it_acknowledged_once_it_has_replayed_it() {
    isolated("timelines::a_standby_tells_all_that_it_acknowledged_once_it_has_replayed_it", async |world| {
        let (primary, mut replicas) = cluster(&world, 1, &[]).await;
        let standby = replicas.pop().unwrap();
        standby.session.run("a pause", "SELECT pg_wal_replay_pause()").await.unwrap();
        let fill = "CREATE TABLE t AS SELECT repeat('x', 500) FROM generate_series(1, 300000)";
        primary.session.run_within("rows", fill, Duration::from_mins(1)).await.unwrap();
        let position = primary.session.write_marker().await.unwrap();
        until("the flush", async || {
            primary.session.walsenders().await.unwrap().iter().any(|sender| sender.flushed >= Some(position))
        })
        .await;
        primary.postmaster.signal(Signal::QUIT);
        standby.postmaster.signal(Signal::KILL);
        assert!(hello_operator::agent::postmaster::kill(&world.processes).await);
        world.write_files(&standby.instance, NOBODY, &[]);
        let (_postmaster, session) = world.start(&standby.instance).await;
        let (mut replayed_less, mut told) = (false, None);
        while told.is_none() {
            let end = end_of_wal(&standby.instance.socket, &world.processes).await.unwrap();
            // Asked after the end: what still replays now replayed then.
            if session.status().await.unwrap().replaying {
                replayed_less |= end.1 < position;
            } else {
                told = Some(end_of_wal(&standby.instance.socket, &world.processes).await.unwrap());
            }
        }
        // Whether that is seen depends on who is quicker; what counts is that nobody is told while it replays.
        println!("told less while it replayed: {replayed_less}");
        assert!(told.unwrap().1 >= position, "{told:?} after the replay, acknowledged {position}");
    });
}
