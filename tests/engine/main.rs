//! The agent's parts against real PostgreSQL, without Kubernetes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests say what went wrong by ending")]

mod archive;
mod backup;
mod killer;
mod probe;
mod retention;
mod rewind;
mod timelines;
mod world;

use std::time::Duration;

use hello_operator::agent::commands::Command;
use hello_operator::agent::fence::Fence;
use hello_operator::agent::postmaster::{Postmaster, kill};
use hello_operator::agent::report::Shared;
use hello_operator::agent::rules::confirm;
use hello_operator::agent::run::Event;
use hello_operator::agent::tls::Tls;
use hello_operator::agent::{Error, bootstrap, process, server};
use hello_operator::core::election::Rule;
use hello_operator::engine::postgres::control::ClusterState;
use hello_operator::engine::postgres::settings::Role;
use hello_operator::engine::postgres::{slots, sync_names};
use hello_operator::telemetry::traces::agent::AgentTraces;
use opentelemetry::trace::TraceContextExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use world::{isolated, until};

fn alone() -> Role {
    Role::Primary { sync: String::new() }
}

#[test]
fn a_bootstrap_makes_roles_and_database_and_goes_live_in_one_step() {
    isolated("a_bootstrap_makes_roles_and_database_and_goes_live_in_one_step", async |world| {
        let mut instance = world.instance("db-1");
        world.bootstrap(&mut instance).await;
        assert!(instance.layout.has_data().unwrap() && !instance.layout.staging().exists());
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
        assert!(!instance.layout.has_data().unwrap() && !instance.layout.staging().exists());
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
        let mut busy = Vec::new();
        for _ in 0..5 {
            // Open before the kill begins: whoever connects meanwhile is refused.
            let writer = instance.socket.open("postgres").await.unwrap();
            busy.push(tokio::spawn(async move {
                while writer.run("a row", "INSERT INTO t SELECT generate_series(1, 1000)").await.is_ok() {}
            }));
        }
        // A division by zero until the first row stands there.
        until("rows", async || session.run("rows", "SELECT 1 / count(*) FROM t").await.is_ok()).await;
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

#[test]
fn a_sync_rule_is_confirmed_only_when_commits_really_wait_for_it() {
    isolated("a_sync_rule_is_confirmed_only_when_commits_really_wait_for_it", async |world| {
        let mut primary = world.instance("db-1");
        world.bootstrap(&mut primary).await;
        world.write_files(&primary, alone(), &[]);
        let (postmaster, session) = world.start(&primary).await;
        let mut replica = world.instance("db-2");
        world.clone_from(&primary, "db-2-x", &mut replica).await.unwrap();
        world.write_files(&replica, world.follows(&primary, "db-2-x"), &[]);
        let (standby, reader) = world.start(&replica).await;
        drop(reader);
        until("streaming", async || session.walsenders().await.unwrap().iter().any(|sender| sender.streaming)).await;

        let rule = Rule::new(["db-2-x"], 1);
        let setting = sync_names::any(1, &["db-2-x".to_owned()]);
        assert!(!confirm(&primary.socket, &rule, &setting, true).await.unwrap(), "the setting is not even there");
        world.write_files(&primary, Role::Primary { sync: setting.clone() }, &[]);
        postmaster.reload();
        until("confirmation", async || confirm(&primary.socket, &rule, &setting, true).await.unwrap()).await;

        // Without the member, a commit waits and nothing is confirmed; with it, the same commit returns.
        standby.signal(rustix::process::Signal::INT);
        standby.wait().await;
        let waiting = {
            let session = primary.socket.open("postgres").await.unwrap();
            tokio::spawn(async move {
                let commit = "SET synchronous_commit = on; CREATE TABLE waits(i int)";
                session.run_within("a commit", commit, Duration::from_mins(1)).await
            })
        };
        assert!(!confirm(&primary.socket, &rule, &setting, false).await.unwrap());
        assert!(!waiting.is_finished(), "the commit waits");
        world.start(&replica).await;
        waiting.await.unwrap().unwrap();
    });
}

#[test]
fn a_replica_whose_wal_is_gone_says_so() {
    isolated("a_replica_whose_wal_is_gone_says_so", async |world| {
        let small = [("max_slot_wal_keep_size", "32MB"), ("wal_keep_size", "0"), ("max_wal_size", "64MB")];
        let mut primary = world.instance("db-1");
        world.bootstrap(&mut primary).await;
        world.write_files(&primary, alone(), &small);
        let (_postmaster, session) = world.start(&primary).await;
        let mut replica = world.instance("db-2");
        world.clone_from(&primary, "db-2-x", &mut replica).await.unwrap();
        session.run("a table", "CREATE TABLE t(x text)").await.unwrap();
        for _ in 0..12 {
            let fill = "INSERT INTO t SELECT repeat('x', 1000) FROM generate_series(1, 10000); SELECT pg_switch_wal()";
            session.run_within("rows", fill, Duration::from_mins(1)).await.unwrap();
        }
        session.run_within("a checkpoint", "CHECKPOINT", Duration::from_mins(1)).await.unwrap();
        assert!(session.slots().await.unwrap().iter().any(|slot| slot.lost), "the slot lost its WAL");
        world.write_files(&replica, world.follows(&primary, "db-2-x"), &[]);
        let standby = Postmaster::start(&world.processes, &replica.layout.pgdata(), &replica.socket, || true).unwrap();
        until("the standby says that it can never catch up", async || standby.wal_is_gone()).await;
    });
}

#[test]
fn nothing_starts_without_permission_at_the_very_moment() {
    isolated("nothing_starts_without_permission_at_the_very_moment", async |world| {
        let mut instance = world.instance("db-1");
        world.bootstrap(&mut instance).await;
        world.write_files(&instance, alone(), &[]);
        let fence = Fence::start_with(world.processes.clone(), &world.program).unwrap();
        let start =
            || Postmaster::start(&world.processes, &instance.layout.pgdata(), &instance.socket, || fence.open());
        assert!(start().is_err(), "not armed");
        fence.arm(process::boottime() + Duration::from_secs(3));
        let postmaster = start().unwrap();
        // Nobody renews: it ends by the fence, and nothing is left but the killer.
        assert!(postmaster.wait().await.is_some());
        until("the end of all", async || {
            let alive = |child: &&process::Seen| !child.zombie;
            process::children_of(std::process::id()).iter().filter(alive).count() == 1
        })
        .await;
        assert!(fence.fired() && start().is_err(), "after the deadline");
    });
}

#[test]
fn a_setting_that_postgres_does_not_accept_is_named() {
    isolated("a_setting_that_postgres_does_not_accept_is_named", async |world| {
        let mut instance = world.instance("db-1");
        world.bootstrap(&mut instance).await;
        world.write_files(&instance, alone(), &[("work_mem", "banana")]);
        let postmaster =
            Postmaster::start(&world.processes, &instance.layout.pgdata(), &instance.socket, || true).unwrap();
        assert!(postmaster.wait().await.is_some_and(|status| !status.success()));
        until("the complaint", async || postmaster.complaint().contains("contains errors")).await;
        world.write_files(&instance, alone(), &[]);
        let (postmaster, session) = world.start(&instance).await;
        world.write_files(&instance, alone(), &[("work_mem", "banana")]);
        postmaster.reload();
        until("the error", async || {
            session.configuration_errors().await.unwrap().iter().any(|error| error.contains("work_mem"))
        })
        .await;
        world.write_files(&instance, alone(), &[("max_connections", "90")]);
        postmaster.reload();
        until("a pending restart", async || session.pending_restart().await.unwrap() == ["max_connections"]).await;
        assert_eq!(session.configuration_errors().await.unwrap(), Vec::<String>::new(), "waiting is no error");
    });
}

/// One request over mutual TLS; the status, or None where the handshake fails.
async fn ask(port: u16, tls: &Tls, request: &str) -> Option<u16> {
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(tls.client());
    let mut stream = connector.connect("db-1".try_into().unwrap(), stream).await.ok()?;
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    answer.split(' ').nth(1)?.parse().ok()
}

#[test]
fn the_agents_api_lets_peers_ask_the_operator_command_and_nobody_else_anything() {
    isolated("the_agents_api_lets_peers_ask_the_operator_command_and_nobody_else_anything", async |world| {
        rustls::crypto::aws_lc_rs::default_provider().install_default().unwrap();
        let tls = Tls::load(&world.secrets).unwrap();
        let report = serde_json::json!({"instance": "db-1", "podUid": "u", "agentVersion": "1", "phase": "primary"});
        let shared = Shared::new(serde_json::from_value(report).unwrap());
        let (events, mut inbox) = tokio::sync::mpsc::channel(4);
        let port = world::free_port();
        let socket = hello_operator::agent::sql::Socket::new(&world.root, 1);
        let traces = AgentTraces::new("shop", "db", "db-1");
        let nobody = serde_json::json!({"endpoint": "http://127.0.0.1:1", "protocol": "grpc", "timeoutMillis": 100});
        traces.follow(Some(&serde_json::from_value(nobody).unwrap()));
        server::serve(([127, 0, 0, 1], port).into(), tls.clone(), shared, events, socket, traces).await.unwrap();
        let report = "GET /v1/report HTTP/1.1\r\nhost: db-1\r\nconnection: close\r\n\r\n";
        const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
        let body = r#"{"term":1,"id":"a","reason":"test"}"#;
        let restart = format!(
            "POST /v1/restart HTTP/1.1\r\nhost: db-1\r\nconnection: close\r\ncontent-type: application/json\r\ntraceparent: 00-{TRACE}-b7ad6b7169203331-01\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let operator = Tls::load(&world.identity_of("operator")).unwrap();
        let stranger = Tls::load(&world.identity_of("stranger")).unwrap();
        assert_eq!(ask(port, &tls, report).await, Some(200));
        assert_eq!(ask(port, &tls, &restart).await, Some(403), "a peer does not command");
        assert_eq!(ask(port, &stranger, report).await, Some(403));
        let command = tokio::spawn(async move { ask(port, &operator, &restart).await });
        match inbox.recv().await {
            Some(Event::Command(Command::Restart(command, answer), context)) => {
                let span = context.span().span_context().clone();
                assert_eq!(span.trace_id().to_string(), TRACE, "it continues the operator's trace");
                assert_ne!(span.span_id().to_string(), "b7ad6b7169203331", "by a span of its own");
                assert_eq!((command.term, command.id.as_str()), (1, "a"));
                answer.send(Err("older".into())).unwrap();
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(command.await.unwrap(), Some(409), "a refusal is told");

        // Another cluster's authority: no handshake. The same after the Secret was exchanged while it runs.
        let other = world::World::new("other");
        let foreign = Tls::load(&other.secrets).unwrap();
        assert_eq!(ask(port, &foreign, report).await, None);
        tls.reload(&other.secrets).unwrap();
        assert_eq!(ask(port, &foreign, report).await, Some(200));
    });
}
