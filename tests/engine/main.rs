//! The agent's parts against real PostgreSQL, without Kubernetes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests say what went wrong by ending")]

mod world;

use std::time::Duration;

use hello_operator::agent::postmaster::kill;
use hello_operator::agent::{Error, bootstrap, process};
use hello_operator::engine::postgres::control::ClusterState;
use hello_operator::engine::postgres::settings::Role;
use hello_operator::engine::postgres::slots;
use world::{isolated, until};

fn alone() -> Role {
    Role::Primary { sync: String::new() }
}

#[test]
fn a_bootstrap_makes_roles_and_database_and_goes_live_in_one_step() {
    isolated("a_bootstrap_makes_roles_and_database_and_goes_live_in_one_step", async |world| {
        let mut instance = world.instance("db-1");
        world.bootstrap(&mut instance).await;
        assert!(instance.layout.has_data() && !instance.layout.staging().exists());
        let control = bootstrap::control(&world.processes, &instance.layout.pgdata()).await.unwrap();
        assert!(control.checksums && control.state == ClusterState::ShutDown);

        world.write_files(&instance, alone(), &[("work_mem", "5MB")]);
        let (postmaster, session) = world.start(&instance).await;
        assert_eq!(session.setting("work_mem").await.unwrap(), "5MB");
        assert_eq!(session.setting("data_checksums").await.unwrap(), "on");
        assert_eq!(session.configuration_errors().await.unwrap(), Vec::<String>::new());
        // The owner logs in over TLS with its password, which has characters that need quoting everywhere.
        let login = std::process::Command::new("psql")
            .arg(format!(
                "host=127.0.0.1 port={} user=app dbname=app sslmode=require password='p\\'\\\\app'",
                instance.socket.port
            ))
            .args(["-Atc", "create table t(i int); select current_user || ':' || ssl from pg_stat_ssl where pid = pg_backend_pid()"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&login.stdout);
        assert!(said.contains("app:true"), "{said}{}", String::from_utf8_lossy(&login.stderr));
        let plain = std::process::Command::new("psql")
            .arg(format!("host=127.0.0.1 port={} user=app dbname=app sslmode=disable password=x", instance.socket.port))
            .args(["-Atc", "select 1"])
            .output()
            .unwrap();
        assert!(!plain.status.success(), "plain TCP must be refused");
        let status = session.status().await.unwrap();
        assert!(!status.in_recovery && status.timeline == Some(1));
        drop(session);
        assert!(postmaster.stop(&world.processes, Duration::from_secs(30)).await);
        let control = bootstrap::control(&world.processes, &instance.layout.pgdata()).await.unwrap();
        assert!(control.clean());
    });
}

#[test]
fn a_failed_statement_of_the_user_is_named_and_leaves_no_data() {
    isolated("a_failed_statement_of_the_user_is_named_and_leaves_no_data", async |world| {
        let instance = world.instance("db-1");
        let wish = world.wish(&["select 1", "create table x(i nonsense)"]);
        let error = bootstrap::bootstrap(&world.processes, &instance.layout, &wish).await.unwrap_err();
        assert!(matches!(error, Error::InitSql { number: 2, .. }), "{error}");
        assert!(error.to_string().contains("nonsense"), "{error}");
        instance.layout.settle(&instance.lock).unwrap();
        assert!(!instance.layout.has_data() && !instance.layout.staging().exists());
        assert!(process::children_of(std::process::id()).iter().all(|child| child.zombie), "nothing is left running");
    });
}

#[test]
fn a_clone_streams_by_certificate_and_slot() {
    isolated("a_clone_streams_by_certificate_and_slot", async |world| {
        let mut primary = world.instance("db-1");
        world.bootstrap(&mut primary).await;
        world.write_files(&primary, alone(), &[("max_connections", "150")]);
        let (_postmaster, session) = world.start(&primary).await;

        let mut replica = world.instance("db-2");
        world.clone_from(&primary, "db-2-x", &mut replica).await.unwrap();
        let copied = bootstrap::control(&world.processes, &replica.layout.pgdata()).await.unwrap();
        assert_eq!(copied.critical.max_connections, 150);
        let role = match world.follows(&primary, "db-2-x") {
            Role::Standby { upstream, .. } => Role::Standby { upstream, critical: Some(copied.critical) },
            primary @ Role::Primary { .. } => primary,
        };
        // Fewer connections than the primary: replay would stop.
        world.write_files(&replica, role, &[("max_connections", "50")]);
        let (standby, reader) = world.start(&replica).await;
        assert_eq!(reader.setting("max_connections").await.unwrap(), "150");
        until("streaming", async || {
            session.walsenders().await.unwrap().iter().any(|sender| sender.name == "db-2-x" && sender.streaming)
        })
        .await;
        let position = session.write_marker().await.unwrap();
        until("replay", async || reader.status().await.unwrap().replayed >= Some(position)).await;
        let status = reader.status().await.unwrap();
        assert!(status.in_recovery && status.timeline == Some(1), "{status:?}");
        assert_eq!(status.streaming_from.as_deref(), Some("db-1"));
        let slots_now = session.slots().await.unwrap();
        assert!(slots_now.iter().any(|slot| slot.name == slots::of("db-2-x") && slot.active && !slot.lost));
        drop(reader);
        standby.signal(rustix::process::Signal::INT);
        assert!(standby.wait().await.is_some_and(|status| status.success()));
    });
}

#[test]
fn after_the_kill_no_process_is_left_and_a_restart_recovers() {
    isolated("after_the_kill_no_process_is_left_and_a_restart_recovers", async |world| {
        let mut instance = world.instance("db-1");
        world.bootstrap(&mut instance).await;
        world.write_files(&instance, alone(), &[]);
        let (postmaster, session) = world.start(&instance).await;
        session.run("a table", "CREATE TABLE t(i int)").await.unwrap();
        let busy: Vec<_> = (0..5)
            .map(|_| {
                let socket = instance.socket.clone();
                tokio::spawn(async move {
                    let session = socket.open("postgres").await.unwrap();
                    while session.run("a row", "INSERT INTO t SELECT generate_series(1, 1000)").await.is_ok() {}
                })
            })
            .collect();
        until("rows", async || session.write_marker().await.is_ok()).await;
        assert!(kill(&world.processes).await, "the fence is complete within its budget");
        let left: Vec<_> =
            process::snapshot().into_iter().filter(|seen| seen.parent == std::process::id() && !seen.zombie).collect();
        assert_eq!(left, [], "no child is left");
        assert!(postmaster.wait().await.is_some());
        for task in busy {
            task.await.unwrap();
        }
        world.processes.reap_orphans();
        assert_eq!(process::children_of(std::process::id()), [], "no zombie either");
        let (_postmaster, session) = world.start(&instance).await;
        assert!(session.write_marker().await.is_ok());
    });
}

#[test]
fn orphans_of_a_dead_postmaster_are_killed_and_reaped() {
    isolated("orphans_of_a_dead_postmaster_are_killed_and_reaped", async |world| {
        let mut instance = world.instance("db-1");
        world.bootstrap(&mut instance).await;
        world.write_files(&instance, alone(), &[]);
        let (postmaster, _session) = world.start(&instance).await;
        postmaster.signal(rustix::process::Signal::KILL);
        postmaster.wait().await;
        assert!(kill(&world.processes).await);
        world.processes.reap_orphans();
        assert_eq!(process::children_of(std::process::id()), []);
        world.start(&instance).await;
    });
}
