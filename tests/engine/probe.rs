//! What the probes see of a PostgreSQL that is not well, and how soon.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use hello_operator::agent::probe::{self, Disk, Health, Verdict, Watched};
use hello_operator::agent::process::boottime;
use hello_operator::engine::postgres::settings::Role;
use rustix::process::Signal;
use tokio::sync::watch;

use crate::world::{Instance, World, isolated, until};

const ALONE: Role = Role::Primary { sync: String::new() };

/// From the first sign to the verdict: the whole hand-over has 10 s.
const SOON: Duration = Duration::from_millis(6500);

struct Probes {
    verdicts: watch::Receiver<Verdict>,
    running: watch::Sender<bool>,
}

impl Probes {
    fn start(instance: &Instance) -> Self {
        let (running, runs) = watch::channel(true);
        let (sender, verdicts) = watch::channel(Verdict::default());
        let watched = Watched { socket: instance.socket.clone(), layout: instance.layout.clone() };
        tokio::spawn(probe::watch(watched, runs, sender));
        Self { verdicts, running }
    }

    async fn stays_well(&mut self, time: Duration) {
        let ill = self.verdicts.wait_for(|verdict| verdict.health != Health::Well);
        let ill = tokio::time::timeout(time, ill).await.map(|verdict| *verdict.unwrap());
        assert!(ill.is_err(), "{ill:?}");
    }

    /// Awaits this health; since when it was.
    async fn says(&mut self, health: Health) -> Duration {
        let begun = boottime();
        let seen = self.verdicts.wait_for(|verdict| verdict.health == health);
        let since = tokio::time::timeout(Duration::from_secs(20), seen).await.unwrap().unwrap().since;
        println!("{health:?} after {} ms", (boottime() - begun).as_millis());
        since
    }
}

async fn prepared(world: &World, settings: &[(&str, &str)]) -> Instance {
    let mut instance = world.instance("db-1");
    world.bootstrap(&mut instance).await;
    world.write_files(&instance, ALONE, settings);
    instance
}

#[test]
fn a_frozen_postmaster_is_seen_and_a_busy_one_is_well() {
    isolated("probe::a_frozen_postmaster_is_seen_and_a_busy_one_is_well", async |world| {
        let instance = prepared(&world, &[("max_connections", "10")]).await;
        let (postmaster, session) = world.start(&instance).await;
        let mut probes = Probes::start(&instance);
        // Every connection is taken, and the machine has ten times as much to do as it can.
        let mut open = Vec::new();
        while let Ok(session) = instance.socket.open("postgres").await {
            open.push(session);
        }
        let end = Arc::new(AtomicBool::new(false));
        for _ in 0..10 * std::thread::available_parallelism().unwrap().get() {
            let end = end.clone();
            std::thread::spawn(move || while !end.load(Ordering::Relaxed) {});
        }
        probes.stays_well(Duration::from_secs(8)).await;
        end.store(true, Ordering::Relaxed);
        drop(open);

        postmaster.signal(Signal::STOP);
        let frozen = boottime();
        let since = probes.says(Health::Frozen).await;
        assert!(boottime() < frozen + SOON && since + Duration::from_secs(2) > frozen);
        session.run("a session goes on", "SELECT 1").await.unwrap();
        postmaster.signal(Signal::CONT);
        probes.says(Health::Well).await;
        // Where there is none, none is frozen.
        postmaster.signal(Signal::STOP);
        probes.running.send(false).unwrap();
        probes.stays_well(Duration::from_secs(6)).await;
    });
}

#[test]
fn a_postgres_that_takes_no_sessions_yet_is_well() {
    isolated("probe::a_postgres_that_takes_no_sessions_yet_is_well", async |world| {
        let instance = prepared(&world, &[]).await;
        world.write_files(&instance, Role::Standby { upstream: None, critical: None }, &[]);
        let conf = instance.layout.pgdata().join("postgresql.conf");
        let text = std::fs::read_to_string(&conf).unwrap() + "hot_standby = off\n";
        std::fs::write(conf, text).unwrap();
        let _postmaster = hello_operator::agent::postmaster::Postmaster::start(
            &world.processes,
            &instance.layout.pgdata(),
            &instance.socket,
            || true,
        )
        .unwrap();
        let mut probes = Probes::start(&instance);
        probes.stays_well(Duration::from_secs(6)).await;
        assert!(instance.socket.open("postgres").await.is_err());
    });
}

#[test]
fn data_that_vanishes_under_postgres_is_seen() {
    isolated("probe::data_that_vanishes_under_postgres_is_seen", async |world| {
        let instance = prepared(&world, &[]).await;
        let (_postmaster, session) = world.start(&instance).await;
        let mut probes = Probes::start(&instance);
        probes.stays_well(Duration::from_secs(3)).await;
        // A copy of everything in the same place is still not the data that PostgreSQL works on.
        let (pgdata, other) = (instance.layout.pgdata(), instance.layout.data().join("other"));
        let copy = std::process::Command::new("cp").arg("-a").args([&pgdata, &other]).status().unwrap();
        assert!(copy.success());
        let gone = boottime();
        std::fs::remove_dir_all(&pgdata).unwrap();
        std::fs::rename(&other, &pgdata).unwrap();
        probes.says(Health::DataGone).await;
        assert!(boottime() < gone + SOON);
        std::fs::remove_dir_all(&pgdata).unwrap();
        probes.stays_ill(Duration::from_secs(3)).await;
        drop(session);
    });
}

impl Probes {
    async fn stays_ill(&mut self, time: Duration) {
        assert!(tokio::time::timeout(time, self.verdicts.wait_for(|seen| seen.health == Health::Well)).await.is_err());
    }
}

#[test]
fn a_disk_that_hangs_is_seen_and_asked_once() {
    isolated("probe::a_disk_that_hangs_is_seen_and_asked_once", async |world| {
        let instance = prepared(&world, &[]).await;
        let (_postmaster, _session) = world.start(&instance).await;
        // To open a pipe without a reader hangs as long as nobody comes.
        let pipe = world.root.join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (hangs, looks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let look = {
            let (pipe, hangs, looks) = (pipe.clone(), hangs.clone(), looks.clone());
            move |_: bool, _: &probe::Device| {
                looks.fetch_add(1, Ordering::Relaxed);
                if hangs.load(Ordering::Relaxed) {
                    drop(std::fs::File::options().write(true).open(&pipe));
                }
                Disk::Well
            }
        };
        let (running, runs) = watch::channel(true);
        let (sender, verdicts) = watch::channel(Verdict::default());
        tokio::spawn(probe::watch_with(instance.socket.clone(), look, runs, sender));
        let mut probes = Probes { verdicts, running };
        probes.stays_well(Duration::from_secs(3)).await;
        let before = looks.load(Ordering::Relaxed);
        assert!(before > 1);
        hangs.store(true, Ordering::Relaxed);
        let hung = boottime();
        probes.says(Health::DiskHangs).await;
        assert!(boottime() < hung + SOON);
        probes.stays_ill(Duration::from_secs(3)).await;
        assert_eq!(looks.load(Ordering::Relaxed), before + 1, "one look hangs, and no other is begun");
        hangs.store(false, Ordering::Relaxed);
        drop(std::fs::File::open(&pipe).unwrap());
        probes.says(Health::Well).await;
        until("more looks", async || looks.load(Ordering::Relaxed) > before + 2).await;
    });
}
