//! The killer, with an agent that stands still.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hello_operator::agent::fence::Fence;
use hello_operator::agent::postmaster::{Postmaster, first_session};
use hello_operator::agent::process::{self, Processes, STOP_BUDGET, Seen, boottime};
use hello_operator::agent::sql::Socket;
use hello_operator::engine::postgres::settings::Role;
use rustix::process::Signal;

use crate::world::{Instance, World, isolated, until};

/// Root folder, port and program of the agent that a test starts; only in that one's environment.
const AGENT: &str = "HELLO_ENGINE_AGENT";

/// Not a test: the process that stands in for an agent, when a test starts it. It does what its standard input says.
#[test]
fn agent() {
    #[expect(clippy::disallowed_methods, reason = "the test's own switch")]
    let Ok(place) = std::env::var(AGENT) else { return };
    let [folder, port, program] = place.split('|').collect::<Vec<_>>()[..] else { panic!("{place}") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    let processes = Processes::new().unwrap();
    let fence = Fence::start_with(processes.clone(), program).unwrap();
    let mut postmaster = None;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        match line.split_once(' ').unwrap_or((line.as_str(), "")) {
            ("arm", milliseconds) => fence.arm(boottime() + Duration::from_millis(milliseconds.parse().unwrap())),
            ("disarm", _) => fence.disarm(),
            ("start", _) => {
                let socket = Socket::new(format!("{folder}/run"), port.parse().unwrap());
                let pgdata = std::path::Path::new(folder).join("data/pgdata");
                postmaster = Some(Postmaster::start(&processes, &pgdata, &socket, || fence.open()).unwrap());
            }
            other => panic!("{other:?}"),
        }
        println!("answer: done");
    }
    drop(postmaster);
}

/// An agent in a process of its own.
struct Agent {
    child: Child,
    /// The agent itself, which may be below the child.
    pid: i32,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Agent {
    /// `contained`: as PID 1 of its own namespace, as in a container.
    fn start(world: &World, instance: &Instance, contained: bool) -> Self {
        let me = std::env::current_exe().unwrap();
        let mut command = if contained {
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-current-user", "--pid", "--fork", "--mount-proc", "--kill-child"]).arg(me);
            command
        } else {
            Command::new(me)
        };
        let folder = world.root.join(&instance.name);
        let place = format!("{}|{}|{}", folder.display(), instance.socket.port, world.program.display());
        let mut child = command
            .args(["killer::agent", "--exact", "--nocapture"])
            .env(AGENT, place)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let pid = i32::try_from(child.id()).unwrap();
        let mut agent = Self { child, pid, orders, answers };
        agent.say("disarm");
        if contained {
            agent.pid = process::children_of(agent.child.id()).first().expect("unshare is allowed").pid;
        }
        agent
    }

    fn say(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
        let mut line = String::new();
        while !line.starts_with("answer:") {
            line.clear();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "the agent ended at {order:?}");
        }
    }

    fn freeze(&self) {
        process::signal(self.pid, Signal::STOP);
    }

    /// Whoever lives below it, without its killer.
    fn left(&self) -> Vec<String> {
        let all = process::snapshot();
        let mut parents = vec![u32::try_from(self.pid).unwrap()];
        let mut found = Vec::new();
        while let Some(parent) = parents.pop() {
            for seen in all.iter().filter(|seen| seen.parent == parent) {
                parents.push(u32::try_from(seen.pid).unwrap());
                if !seen.zombie && !is_killer(seen) {
                    found.push(title(seen));
                }
            }
        }
        found
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        process::signal(self.pid, Signal::KILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn title(seen: &Seen) -> String {
    String::from_utf8_lossy(&std::fs::read(format!("/proc/{}/cmdline", seen.pid)).unwrap_or_default())
        .replace('\0', " ")
}

fn is_killer(seen: &Seen) -> bool {
    title(seen).starts_with("hello-operator killer")
}

/// The killer of this process.
fn killer() -> Option<i32> {
    process::children_of(std::process::id()).iter().find(|seen| !seen.zombie && is_killer(seen)).map(|seen| seen.pid)
}

fn alone() -> Role {
    Role::Primary { sync: String::new() }
}

async fn prepared(world: &World) -> Instance {
    let mut instance = world.instance("db-1");
    world.bootstrap(&mut instance).await;
    world.write_files(&instance, alone(), &[]);
    instance
}

/// Sessions that commit as quickly as they can; when the last one of them succeeded.
async fn writers(instance: &Instance) -> Arc<Mutex<Duration>> {
    let limit = Duration::from_secs(30);
    let session = first_session(&instance.layout.pgdata(), &instance.socket, limit).await.unwrap();
    session.run("a table", "CREATE TABLE t(i int)").await.unwrap();
    let last = Arc::new(Mutex::new(Duration::ZERO));
    for number in 0..8 {
        let session = instance.socket.open("postgres").await.unwrap();
        let last = last.clone();
        tokio::spawn(async move {
            // One of them always has something long under way.
            let rows = if number == 0 { 100_000 } else { 1 };
            let insert = format!("INSERT INTO t SELECT generate_series(1, {rows})");
            while session.run_within("a row", &insert, Duration::from_secs(20)).await.is_ok() {
                let mut last = last.lock().unwrap();
                *last = boottime().max(*last);
            }
        });
    }
    last
}

async fn sleep_until(moment: Duration) {
    tokio::time::sleep(moment.saturating_sub(boottime())).await;
}

/// No commit succeeds after deadline and stop budget, and nobody is left. When the last one did.
async fn ends_in_time(agent: &Agent, last: &Mutex<Duration>, deadline: Duration) -> Duration {
    sleep_until(deadline + STOP_BUDGET).await;
    assert_eq!(agent.left(), Vec::<String>::new());
    let at_budget = *last.lock().unwrap();
    sleep_until(deadline + STOP_BUDGET + Duration::from_secs(2)).await;
    let last = *last.lock().unwrap();
    assert_eq!(last, at_budget, "a commit succeeded after the stop budget");
    assert!(last <= deadline + STOP_BUDGET);
    println!(
        "the last commit: {} ms after the deadline",
        last.as_secs_f64().mul_add(1e3, -deadline.as_secs_f64() * 1e3)
    );
    last
}

async fn a_frozen_agent(world: World, contained: bool) {
    let instance = prepared(&world).await;
    let mut agent = Agent::start(&world, &instance, contained);
    agent.say("arm 20000");
    agent.say("start");
    let last = writers(&instance).await;
    // A session that somebody opened in the container is in the way of nothing, and a renewal counts.
    agent.say("arm 1500");
    tokio::time::sleep(Duration::from_millis(500)).await;
    agent.say("arm 3000");
    let deadline = boottime() + Duration::from_secs(3);
    agent.freeze();
    let end = ends_in_time(&agent, &last, deadline).await;
    assert!(end + Duration::from_millis(700) > deadline, "killed before the deadline");
    // It wakes to nothing, and can go on.
    process::signal(agent.pid, Signal::CONT);
    tokio::time::sleep(Duration::from_millis(300)).await;
    agent.say("arm 20000");
    agent.say("start");
    first_session(&instance.layout.pgdata(), &instance.socket, Duration::from_secs(30)).await.unwrap();
}

#[test]
fn a_frozen_agent_loses_its_postgres_at_the_deadline() {
    isolated("killer::a_frozen_agent_loses_its_postgres_at_the_deadline", async |world| {
        a_frozen_agent(world, false).await;
    });
}

#[test]
fn a_frozen_pid_1_loses_its_postgres_at_the_deadline() {
    isolated("killer::a_frozen_pid_1_loses_its_postgres_at_the_deadline", async |world| {
        a_frozen_agent(world, true).await;
    });
}

#[test]
fn an_earlier_deadline_counts_and_a_disarmed_killer_rests() {
    isolated("killer::an_earlier_deadline_counts_and_a_disarmed_killer_rests", async |world| {
        let instance = prepared(&world).await;
        let mut agent = Agent::start(&world, &instance, false);
        agent.say("arm 2000");
        agent.say("start");
        let last = writers(&instance).await;
        agent.say("disarm");
        agent.freeze();
        tokio::time::sleep(Duration::from_secs(3)).await;
        let late = boottime();
        until("a commit", async || *last.lock().unwrap() > late).await;
        process::signal(agent.pid, Signal::CONT);
        agent.say("arm 60000");
        agent.say("arm 1000");
        let deadline = boottime() + Duration::from_secs(1);
        agent.freeze();
        ends_in_time(&agent, &last, deadline).await;
    });
}

#[test]
fn a_dead_killer_is_replaced_once_and_a_second_death_ends_postgres() {
    isolated("killer::a_dead_killer_is_replaced_once_and_a_second_death_ends_postgres", async |world| {
        let instance = prepared(&world).await;
        let fence = Fence::start_with(world.processes.clone(), &world.program).unwrap();
        fence.arm(boottime() + Duration::from_mins(5));
        let start =
            || Postmaster::start(&world.processes, &instance.layout.pgdata(), &instance.socket, || fence.open());
        let postmaster = start().unwrap();
        let limit = Duration::from_secs(30);
        let session = first_session(&instance.layout.pgdata(), &instance.socket, limit).await.unwrap();
        let first = killer().unwrap();
        let status = std::fs::read_to_string(format!("/proc/{first}/status")).unwrap();
        println!(
            "{}",
            status.lines().filter(|line| line.starts_with("Rss") || line.starts_with("VmRSS")).collect::<String>()
        );
        // One that has shown that it can live is replaced at once, and nobody notices. Reaping takes none for an orphan.
        tokio::time::sleep(Duration::from_secs(6)).await;
        process::signal(first, Signal::KILL);
        world.processes.reap_orphans();
        until("another killer", async || killer().is_some_and(|pid| pid != first) && fence.open()).await;
        assert!(session.write_marker().await.is_ok() && !fence.fired());
        // One that dies at once is not trusted: nothing may be writable meanwhile, and nothing starts.
        process::signal(killer().unwrap(), Signal::KILL);
        postmaster.wait().await;
        until("it is told", async || fence.fired()).await;
        assert!(session.write_marker().await.is_err());
        until("a third killer", async || fence.open()).await;
        start().unwrap();
        first_session(&instance.layout.pgdata(), &instance.socket, limit).await.unwrap();
        // The kill of everything spares it.
        assert!(hello_operator::agent::postmaster::kill(&world.processes).await && killer().is_some() && fence.open());
    });
}

#[test]
fn a_killer_that_hangs_is_replaced_and_without_one_nothing_starts() {
    isolated("killer::a_killer_that_hangs_is_replaced_and_without_one_nothing_starts", async |world| {
        let instance = prepared(&world).await;
        let program = world.root.join("program");
        std::fs::copy(&world.program, &program).unwrap();
        let fence = Fence::start_with(world.processes.clone(), &program).unwrap();
        fence.arm(boottime() + Duration::from_mins(5));
        assert!(fence.open());
        let first = killer().unwrap();
        tokio::time::sleep(Duration::from_secs(6)).await;
        process::signal(first, Signal::STOP);
        assert!(fence.open(), "it has the deadline");
        fence.arm(boottime() + Duration::from_mins(4));
        assert!(!fence.open(), "it has an old one");
        until("another killer", async || killer().is_some_and(|pid| pid != first) && fence.open()).await;

        std::fs::remove_file(&program).unwrap();
        process::signal(killer().unwrap(), Signal::KILL);
        until("nothing is open", async || !fence.open()).await;
        let started = Postmaster::start(&world.processes, &instance.layout.pgdata(), &instance.socket, || fence.open());
        assert!(started.is_err());
        std::fs::copy(&world.program, &program).unwrap();
        until("another killer", async || fence.open()).await;
    });
}
