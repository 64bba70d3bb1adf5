//! A former primary, taken back to where its history left that of its successor.

use std::time::Duration;

use hello_operator::agent::bootstrap::control;
use hello_operator::agent::rewind::{Outcome, rewind};
use hello_operator::agent::standstill::stand;
use hello_operator::engine::postgres::control::ClusterState;
use hello_operator::engine::postgres::settings::Role;
use rustix::process::Signal;

use crate::timelines::{Running, cluster, follows_on, make_slot, promote};
use crate::world::{Instance, World, isolated};

const NOBODY: Role = Role::Standby { upstream: None, critical: None };

/// The replica is promoted while the primary goes on with rows of its own; then that crashes. Successor and what crashed.
async fn parted(world: &World, settings: &[(&str, &str)], diverge: &[&str]) -> (Running, Instance) {
    let (first, mut replicas) = cluster(world, 1, settings).await;
    let second = replicas.pop().unwrap();
    let rows = "CREATE TABLE t AS SELECT generate_series(1, 1000) AS i";
    first.session.run("rows", rows).await.unwrap();
    let position = first.session.write_marker().await.unwrap();
    crate::world::until("replay", async || second.session.status().await.unwrap().replayed >= Some(position)).await;
    world.write_files(&second.instance, NOBODY, settings);
    second.postmaster.reload();
    let limit = Duration::from_secs(3);
    let end = stand(&second.instance.socket, &second.postmaster, &world.processes, limit).await.unwrap();
    promote(&second, end, 4).await;
    second.session.run("rows", "INSERT INTO t SELECT generate_series(2001, 3000)").await.unwrap();
    second.session.run_within("a checkpoint", "CHECKPOINT", Duration::from_mins(1)).await.unwrap();
    for sql in diverge {
        first.session.run_within("rows that nobody has", sql, Duration::from_mins(2)).await.unwrap();
    }
    first.session.write_marker().await.unwrap();
    crash(&first.postmaster).await;
    (second, first.instance)
}

/// Whatever is left of it ends by itself.
async fn crash(postmaster: &hello_operator::agent::postmaster::Postmaster) {
    postmaster.signal(Signal::QUIT);
    postmaster.wait().await;
}

const DIVERGE: [&str; 1] = ["INSERT INTO t SELECT generate_series(1001, 2000); DELETE FROM t WHERE i < 500"];

#[test]
fn a_crashed_primary_is_rewound_and_follows() {
    isolated("rewind::a_crashed_primary_is_rewound_and_follows", async |world| {
        let (second, mut first) = parted(&world, &[], &DIVERGE).await;
        let pgdata = first.layout.pgdata();
        assert!(pgdata.join("pg_wal").symlink_metadata().unwrap().is_symlink(), "WAL has a volume of its own");
        // As an agent left it that was about to start it as a standby.
        std::fs::write(pgdata.join("standby.signal"), "").unwrap();
        let begun = std::time::Instant::now();
        let outcome = rewind(&world.processes, &first.layout, &world.upstream(&second.instance)).await;
        println!("rewound after {} ms", begun.elapsed().as_millis());
        let Outcome::Rewound(rewound) = outcome else { panic!("{outcome:?}") };
        assert_eq!(rewound.min_recovery_timeline, 4);
        assert!(rewound.state == ClusterState::InArchiveRecovery && rewound.min_recovery > rewound.checkpoint);
        assert!(
            pgdata.join("pg_wal").symlink_metadata().unwrap().is_symlink() && pgdata.join("standby.signal").exists()
        );
        // A new member: nothing that it acknowledged before counts.
        first.state.member = Some("db-1-new".into());
        make_slot(&second, "db-1-new").await;
        world.write_files(&first, world.follows(&second.instance, "db-1-new"), &[]);
        let (postmaster, session) = world.start(&first).await;
        let first = Running { instance: first, postmaster, session };
        follows_on(&second, &first, 4).await;
        let same = "DO 'BEGIN ASSERT (SELECT count(*) = 2000 AND min(i) = 1 AND max(i) = 3000 FROM t); END'";
        first.session.run("exactly the successor's rows", same).await.unwrap();
    });
}

#[test]
fn nothing_is_rewound_that_needs_no_rewind() {
    isolated("rewind::nothing_is_rewound_that_needs_no_rewind", async |world| {
        let (first, mut replicas) = cluster(&world, 1, &[]).await;
        let second = replicas.pop().unwrap();
        first.session.run("rows", "CREATE TABLE t(i int)").await.unwrap();
        first.postmaster.signal(Signal::INT);
        assert!(first.postmaster.wait().await.unwrap().success());
        world.write_files(&second.instance, NOBODY, &[]);
        second.postmaster.reload();
        let limit = Duration::from_secs(3);
        let end = stand(&second.instance.socket, &second.postmaster, &world.processes, limit).await.unwrap();
        let before = control(&world.processes, &first.instance.layout.pgdata()).await.unwrap();
        assert_eq!(before.reached(), end, "the successor has it all");
        promote(&second, end, 4).await;
        second.session.run_within("a checkpoint", "CHECKPOINT", Duration::from_mins(1)).await.unwrap();
        let outcome = rewind(&world.processes, &first.instance.layout, &world.upstream(&second.instance)).await;
        let Outcome::NotNeeded(after) = outcome else { panic!("{outcome:?}") };
        assert_eq!(after, before, "nothing was touched");
    });
}

#[test]
fn a_source_that_is_away_leaves_the_data_alone() {
    isolated("rewind::a_source_that_is_away_leaves_the_data_alone", async |world| {
        let (second, first) = parted(&world, &[], &DIVERGE).await;
        let mut upstream = world.upstream(&second.instance);
        upstream.port = crate::world::free_port();
        std::fs::write(first.layout.pgdata().join("standby.signal"), "").unwrap();
        let outcome = rewind(&world.processes, &first.layout, &upstream).await;
        assert!(matches!(outcome, Outcome::Untouched(_)), "{outcome:?}");
        assert!(first.layout.pgdata().join("standby.signal").exists(), "still a standby");
        let data = control(&world.processes, &first.layout.pgdata()).await.unwrap();
        assert!(data.clean() && data.timeline == 1);
        // It comes back.
        let outcome = rewind(&world.processes, &first.layout, &world.upstream(&second.instance)).await;
        assert!(matches!(outcome, Outcome::Rewound(_)), "{outcome:?}");
        // One that ends in the middle is never tried again: as if the connection broke.
        second.postmaster.signal(Signal::QUIT);
    });
}

#[test]
fn without_the_wal_back_to_the_fork_only_a_clone_helps() {
    isolated("rewind::without_the_wal_back_to_the_fork_only_a_clone_helps", async |world| {
        let small = [
            ("max_slot_wal_keep_size", "32MB"),
            ("wal_keep_size", "0"),
            ("max_wal_size", "64MB"),
            ("min_wal_size", "32MB"),
        ];
        let fill = "INSERT INTO gone SELECT repeat('x', 1000) FROM generate_series(1, 10000)";
        let switch = "SELECT pg_switch_wal()";
        let mut diverge = vec!["CREATE TABLE gone(x text)"];
        diverge.extend([fill, switch].repeat(12));
        diverge.extend(["CHECKPOINT", switch, "CHECKPOINT"]);
        let (second, first) = parted(&world, &small, &diverge).await;
        let outcome = rewind(&world.processes, &first.layout, &world.upstream(&second.instance)).await;
        println!("{outcome:?}");
        assert!(matches!(outcome, Outcome::Hopeless(_)));
    });
}

#[test]
fn the_role_of_the_replicas_reads_files_and_no_data() {
    isolated("rewind::the_role_of_the_replicas_reads_files_and_no_data", async |world| {
        let (first, _) = cluster(&world, 0, &[]).await;
        first.session.run("a table", "CREATE TABLE secret(i int)").await.unwrap();
        let upstream = world.upstream(&first.instance);
        let ask = |database: &str, sql: &str| {
            let conninfo = format!("{} dbname={database}", upstream.conninfo("test"));
            let answer = std::process::Command::new("psql").args(["-XAtc", sql, "-d", &conninfo]).output().unwrap();
            answer.status.success()
        };
        assert!(ask("postgres", "SELECT length(pg_read_binary_file('PG_VERSION'))"));
        assert!(!ask("postgres", "SELECT * FROM secret"));
        assert!(!ask("app", "SELECT 1"));
    });
}
