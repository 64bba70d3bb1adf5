//! Archives of several instances, whose WAL parts: what a standby's archiver hands over is not always a whole segment.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use hello_operator::agent::archive::{Wish, Written};
use hello_operator::agent::postmaster::Postmaster;
use hello_operator::agent::restore::restore;
use hello_operator::agent::sql::Session;
use hello_operator::backup::layout::{Segment, SegmentSize};
use hello_operator::engine::postgres::settings::Archiving;
use hello_operator::engine::postgres::slots;
use rustix::process::Signal;

use super::backup::{ROOT, Store, back_up, primary_with, rows};
use super::world::{Instance, World, isolated, until};

/// A replica that archives, too.
struct Replica {
    store: Store,
    instance: Instance,
    postmaster: Postmaster,
    session: Session,
}

impl Replica {
    async fn start(world: &World, name: &str, source: &Instance, wish: &Wish) -> Self {
        let store = Store::new(world, name);
        store.archive.wish(Wish { primary: false, ..wish.clone() });
        store.archive.written(None);
        let (mut instance, member) = (world.instance(name), format!("{name}-x"));
        world.clone_from(source, &member, &mut instance).await.unwrap();
        world.write_archiving(&instance, world.follows(source, &member), &[], store.archiving());
        let (postmaster, session) = world.start(&instance).await;
        Self { store, instance, postmaster, session }
    }

    fn wal(&self) -> PathBuf {
        self.instance.layout.pgdata().join("pg_wal")
    }

    async fn streams(&self) -> bool {
        self.tell().await;
        self.session.status().await.unwrap().streaming_from.is_some()
    }

    /// As the agent's loop does.
    async fn tell(&self) {
        tell(&self.store, &self.session).await;
    }
}

async fn tell(store: &Store, session: &Session) {
    let status = session.status().await.unwrap();
    let standby = status.in_recovery;
    if let (Some(timeline), Some(end)) = (status.timeline, if standby { status.received } else { status.flushed }) {
        store.archive.written(Some(Written { timeline, end, standby }));
    }
}

/// In order, and only this one: [`Postmaster::stop`] ends what is left of all.
async fn stop(postmaster: &Postmaster) {
    postmaster.signal(Signal::INT);
    assert!(postmaster.wait().await.unwrap().success());
}

/// What waits for an archiver.
fn ready(wal: &Path) -> Vec<String> {
    let all = std::fs::read_dir(wal.join("archive_status")).unwrap();
    let names = all.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter_map(|name| name.strip_suffix(".ready").map(str::to_owned)).collect()
}

/// Older than a segment that is left to the primary.
fn age(path: &Path) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
}

fn stored(store: &Store, name: &str) -> bool {
    store.mount.join(ROOT).join("wal").join(&name[..8]).join(format!("{name}.zst")).exists()
}

#[test]
fn a_replica_archives_no_segment_that_its_primary_still_writes() {
    isolated("archive::a_replica_archives_no_segment_that_its_primary_still_writes", async |world| {
        let store = Store::new(&world, "db-1");
        let (instance, session, postmaster, wish) = primary_with(&world, &store).await;
        let replica = Replica::start(&world, "db-2", &instance, &wish).await;
        until("streaming", async || replica.streams().await).await;
        session.run("rows", "CREATE TABLE t(v text); INSERT INTO t VALUES ('one')").await.unwrap();
        drop(session);
        stop(&postmaster).await;
        let (_postmaster, session) = world.start(&instance).await;
        until("streaming again", async || replica.streams().await).await;
        let segment = Segment::of(1, session.flushed().await.unwrap(), SegmentSize::default()).to_string();
        // The archiver of a replica is told of the segment in which the stream ended, if its primary heard the last word of the
        // walreceiver: by chance, which is not left to chance here.
        std::fs::write(replica.wal().join("archive_status").join(format!("{segment}.ready")), "").unwrap();
        replica.session.run("a look", "SELECT pg_reload_conf()").await.unwrap();
        let asked = "SELECT FROM pg_stat_activity WHERE backend_type = 'archiver' AND wait_event = 'ArchiveCommand'";
        until("the replica's archiver asks", async || replica.session.exists(asked).await.unwrap()).await;
        for _ in 0..20 {
            // Nobody writes for long, so that it looks abandoned.
            age(&replica.wal().join(&segment));
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert!(!stored(&store, &segment), "{segment} is not full yet");
        }
        // It is, and everybody goes on.
        let row = "SELECT pg_logical_emit_message(true, 'a', 'b'); SELECT pg_switch_wal()";
        session.run("the next segment", row).await.unwrap();
        until("the primary archives it", async || {
            tell(&store, &session).await;
            stored(&store, &segment)
        })
        .await;
        until("the replica's archiver goes on", async || {
            replica.tell().await;
            !ready(&replica.wal()).contains(&segment)
        })
        .await;
        for archive in [&store.archive, &replica.store.archive] {
            assert_eq!((archive.report().failures, archive.report().aside), (0, 0), "{:?}", archive.report());
        }
    });
}

#[test]
fn a_segment_that_a_failover_cut_short_holds_up_nobody() {
    isolated("archive::a_segment_that_a_failover_cut_short_holds_up_nobody", async |world| {
        let store = Store::new(&world, "db-1");
        let (instance, session, postmaster, wish) = primary_with(&world, &store).await;
        back_up(&world, &store, &instance).await.unwrap();
        let second = Replica::start(&world, "db-2", &instance, &wish).await;
        let third = Replica::start(&world, "db-3", &instance, &wish).await;
        until("streaming", async || second.streams().await && third.streams().await).await;
        session.run("rows", "CREATE TABLE t(v text); INSERT INTO t VALUES ('one')").await.unwrap();
        drop(session);
        stop(&postmaster).await;
        // A primary that stops closes its segment, and ends in the next one.
        let received = third.session.flushed().await.unwrap();
        let segment = Segment::of(1, received, SegmentSize::default()).to_string();
        // Behind the end stands what the file was before it was used again, on each instance something else.
        let file = std::fs::File::options().write(true).open(third.wal().join(&segment)).unwrap();
        file.write_all_at(b"left over", (16 << 20) - 100).unwrap();
        second.session.run("promotion", "SELECT pg_promote()").await.unwrap();
        until("the end of recovery", async || !second.session.status().await.unwrap().in_recovery).await;
        second.store.archive.wish(wish.clone());
        let make = format!("SELECT pg_create_physical_replication_slot('{}', true)", slots::of("db-3-x"));
        second.session.run("a slot", &make).await.unwrap();
        world.write_archiving(&third.instance, world.follows(&second.instance, "db-3-x"), &[], third.store.archiving());
        third.postmaster.reload();
        until("streaming from the new primary", async || third.streams().await).await;
        let app = second.instance.socket.open("app").await.unwrap();
        app.run("rows", "INSERT INTO t VALUES ('two')").await.unwrap();
        app.run("the next segment", "SELECT pg_switch_wal()").await.unwrap();
        for replica in [&second, &third] {
            let wal = replica.wal();
            until("nothing waits any more", async || {
                replica.tell().await;
                for waiting in ready(&wal) {
                    age(&wal.join(waiting));
                }
                ready(&wal).is_empty()
            })
            .await;
            let report = replica.store.archive.report();
            assert_eq!(report.failures, 0, "{report:?}");
        }
        assert!(third.store.archive.report().aside > 0, "{:?}", third.store.archive.report());
        assert!(!stored(&store, &segment), "what was cut short does not stand there as a whole one");
        assert!(stored(&store, &format!("{segment}.partial")));
        // Rows of both sides of the fork come back.
        let mut target = world.instance("target");
        let wish = store.restore(&world, store.order());
        restore(&world.processes, &store.archive, &target.layout, &wish, &std::sync::Arc::default(), &mut |_| {})
            .await
            .unwrap();
        assert_eq!(rows(&world, &mut target, Archiving::none(), "t").await, ["one", "two"]);
    });
}
