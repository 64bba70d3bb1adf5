//! Two and three processes of the operator: one acts, whatever happens to it, and nothing is handled twice.
//!
//! Who wrote what is read from the API server's audit log: each process has credentials of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::alone;
use crate::definition::{installed, object, objects};
use crate::harness::{Plane, Process, Write, eventually};

const LEASE: &str = "hello-operator";
const LEASE_DURATION: Duration = Duration::from_secs(15);
const CONTRACT: &str = "### A handler is called with body: ";
/// Long enough for anything on a busy machine.
const PATIENCE: Duration = Duration::from_mins(2);

pub fn trials(plane: &Arc<Plane>) -> Vec<Trial> {
    vec![
        alone(plane, "processes: SIGTERM hands over within a second, to one of one", |plane| terminate(plane, 2)),
        alone(plane, "processes: SIGTERM hands over within a second, to one of two", |plane| terminate(plane, 3)),
        alone(plane, "processes: SIGKILL is made up for within the lease", kill),
        alone(plane, "processes: a leader frozen for a minute comes back as a standby", freeze),
        alone(plane, "processes: a silent API server leaves no two actors", silence),
    ]
}

/// One process of the operator.
pub struct Operator {
    name: String,
    process: Process,
    log: PathBuf,
}

impl Operator {
    /// Starts one with its Lease in that namespace.
    pub fn start(plane: &Plane, name: &str, namespace: &str, flags: &[&str]) -> Self {
        Self::start_as(plane, &plane.kubeconfig(name, plane.port()), name, namespace, flags)
    }

    /// The same with the rights of that kubeconfig.
    pub fn start_as(plane: &Plane, rights: &Value, name: &str, namespace: &str, flags: &[&str]) -> Self {
        let kubeconfig = plane.directory().join(format!("{name}.kubeconfig"));
        std::fs::write(&kubeconfig, rights.to_string()).unwrap();
        let log = plane.directory().join(format!("{name}.log"));
        let mut command = Process::command(Path::new(env!("CARGO_BIN_EXE_hello-operator")));
        command
            .env("KUBECONFIG", kubeconfig)
            .env("HELLO_LOG_FORMAT", "json")
            .args(["run", "--identity", name, "--namespace", namespace])
            .args(["--listen", "127.0.0.1:0"])
            .args(flags);
        Self { name: name.into(), process: Process::start(command, &log), log }
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Uids of the objects of which it logged the line that is part of the contract.
    pub fn greetings(&self) -> Vec<String> {
        let uid = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap();
            let body = line["message"].as_str().unwrap().strip_prefix(CONTRACT).unwrap();
            let body: Value = serde_json::from_str(body).unwrap();
            body["metadata"]["uid"].as_str().unwrap().to_owned()
        };
        self.log().lines().filter(|line| line.contains(CONTRACT)).map(uid).collect()
    }
}

/// Objects that keep coming, so that there is always something to do.
struct Load {
    uids: Arc<Mutex<Vec<String>>>,
    resting: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Load {
    fn start(objects: Api<DynamicObject>) -> Self {
        let (uids, resting) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (made, rests) = (Arc::clone(&uids), Arc::clone(&resting));
        let task = tokio::spawn(async move {
            for number in 0.. {
                tokio::time::sleep(Duration::from_millis(400)).await;
                if rests.load(Ordering::SeqCst) {
                    continue;
                }
                let new = object(&format!("load-{number}"), Some(&json!({"instances": 1})));
                let params = PostParams::default();
                let create = tokio::time::timeout(Duration::from_secs(30), objects.create(&params, &new));
                if let Ok(Ok(created)) = create.await {
                    made.lock().await.extend(created.metadata.uid);
                }
            }
        });
        Self { uids, resting, task }
    }

    /// No new objects until [`Load::go_on`].
    fn rest(&self) {
        self.resting.store(true, Ordering::SeqCst);
    }

    fn go_on(&self) {
        self.resting.store(false, Ordering::SeqCst);
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Several operators, their objects, and what they did.
struct Scene {
    plane: Arc<Plane>,
    objects: Api<DynamicObject>,
    leases: Api<Lease>,
    operators: Vec<Operator>,
    load: Load,
    began: Timestamp,
}

impl Scene {
    async fn start(plane: Arc<Plane>, count: usize) -> Self {
        let client = installed(&plane).await;
        let namespace = plane.namespace().await;
        // The operators act on everything: what other tests left is not theirs.
        let everything: Api<DynamicObject> = Api::all_with(client.clone(), &crate::definition::resource());
        for left in everything.list(&ListParams::default()).await.unwrap() {
            let (name, namespace) = (left.metadata.name.unwrap(), left.metadata.namespace.unwrap());
            objects(client.clone(), &namespace).delete(&name, &DeleteParams::default()).await.unwrap();
        }
        let leases = Api::namespaced(client.clone(), &namespace);
        let objects = objects(client, &namespace);
        let began = Timestamp::now();
        let operators = (0..count)
            .map(|number| Operator::start(&plane, &format!("{namespace}-{number}"), &namespace, &[]))
            .collect();
        let load = Load::start(objects.clone());
        let scene = Self { plane, objects, leases, operators, load, began };
        scene.leader().await;
        eventually("something to do", PATIENCE, async || (scene.load.uids.lock().await.len() >= 5).then_some(())).await;
        scene.settled().await;
        // Every standby is warm.
        tokio::time::sleep(Duration::from_secs(2)).await;
        scene
    }

    /// Who holds the Lease, as a place among the operators.
    async fn leader(&self) -> usize {
        eventually("a holder of the Lease", PATIENCE, async || {
            let holder = self.leases.get_opt(LEASE).await.ok()??.spec?.holder_identity?;
            self.operators.iter().position(|operator| holder.starts_with(&format!("{}_", operator.name)))
        })
        .await
    }

    /// Waits until every object made so far was looked at.
    async fn settled(&self) {
        let uids = self.load.uids.lock().await.clone();
        eventually("a status in every object", PATIENCE, async || {
            let listed = self.objects.list(&ListParams::default()).await.ok()?;
            let done = |uid: &String| {
                listed.items.iter().any(|object| {
                    object.metadata.uid.as_ref() == Some(uid) && object.data["status"]["phase"].is_string()
                })
            };
            uids.iter().all(done).then_some(())
        })
        .await;
    }

    /// The writes of the operators, but for those of their own Lease, in the order in which they were received.
    fn acts(&self) -> Vec<Write> {
        self.writes().into_iter().filter(|write| !Self::of_election(write)).collect()
    }

    fn of_election(write: &Write) -> bool {
        write.resource == "leases" && write.name == LEASE
    }

    fn writes(&self) -> Vec<Write> {
        let mine = |write: &Write| self.operators.iter().any(|operator| operator.name == write.user);
        self.plane.all_writes().into_iter().filter(|write| write.received >= self.began && mine(write)).collect()
    }

    /// When an operator other than `before` got the Lease after that moment.
    async fn taken_over(&self, before: usize, after: Timestamp, limit: Duration) -> (usize, Duration) {
        let write = eventually("another leader", limit, async || {
            self.writes().into_iter().find(|write| {
                Self::of_election(write)
                    && write.answered > after
                    && write.code == 200
                    && write.user != self.operators[before].name
            })
        })
        .await;
        let next = self.operators.iter().position(|operator| operator.name == write.user).unwrap();
        (next, write.answered.duration_since(after).try_into().unwrap())
    }

    /// Waits until an operator acts after that moment.
    async fn acts_after(&self, operator: usize, after: Timestamp) {
        let name = &self.operators[operator].name;
        eventually("an act of the leader", PATIENCE, async || {
            self.acts().into_iter().find(|write| &write.user == name && write.received > after)
        })
        .await;
    }

    /// No operator wrote after its successor's first write, and nobody came back.
    fn assert_one_actor(&self) -> Vec<String> {
        let acts = self.acts();
        let mut reigns: Vec<(String, &Write)> = Vec::new();
        for write in &acts {
            match reigns.last_mut() {
                Some((user, last)) if *user == write.user => *last = write,
                Some((user, last)) => {
                    assert!(
                        last.answered <= write.received,
                        "{user} still wrote when {} did: {last:?} {write:?}",
                        write.user
                    );
                    reigns.push((write.user.clone(), write));
                }
                None => reigns.push((write.user.clone(), write)),
            }
        }
        let order: Vec<String> = reigns.into_iter().map(|(user, _)| user).collect();
        let mut once = order.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), order.len(), "somebody wrote after the first write of a later leader: {order:?}");
        order
    }

    /// Every object was handled, each once over all processes.
    async fn assert_handled_once(&self) {
        self.load.rest();
        tokio::time::sleep(Duration::from_millis(500)).await;
        self.settled().await;
        let mut seen: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for operator in &self.operators {
            for uid in operator.greetings() {
                seen.entry(uid).or_default().push(&operator.name);
            }
        }
        let uids = self.load.uids.lock().await;
        assert!(uids.len() >= 5, "there was something to do");
        for uid in uids.iter() {
            assert_eq!(seen.get(uid).map_or(0, Vec::len), 1, "{uid} was handled by {:?}", seen.get(uid));
        }
        println!("{} objects, each handled once", uids.len());
    }
}

async fn terminate(plane: Arc<Plane>, count: usize) {
    let scene = Scene::start(plane, count).await;
    let first = scene.leader().await;
    let at = Timestamp::now();
    scene.operators[first].process.signal(Signal::TERM);
    let (next, took) = scene.taken_over(first, at, Duration::from_secs(10)).await;
    println!("SIGTERM: the Lease was taken over after {took:?}");
    scene.acts_after(next, at).await;
    let status = scene.operators[first].process.ended(PATIENCE).await;
    assert!(status.success(), "{status}");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(scene.assert_one_actor(), [first, next].map(|place| scene.operators[place].name.clone()));
    scene.assert_handled_once().await;
    // Within a second where the machine is not busy (the line above tells); never by waiting for the Lease to run out.
    assert!(took < LEASE_DURATION / 3, "the take-over took {took:?}");
}

async fn kill(plane: Arc<Plane>) {
    let scene = Scene::start(plane, 2).await;
    let first = scene.leader().await;
    // An object whose line was written and whose marker was not would rightly be handled again.
    scene.load.rest();
    tokio::time::sleep(Duration::from_millis(500)).await;
    scene.settled().await;
    let at = Timestamp::now();
    scene.operators[first].process.kill();
    scene.load.go_on();
    let (next, took) = scene.taken_over(first, at, LEASE_DURATION * 2).await;
    println!("SIGKILL: the Lease was taken over after {took:?}");
    scene.acts_after(next, at).await;
    assert!(took < LEASE_DURATION + Duration::from_secs(2), "the take-over took {took:?}");
    assert_eq!(scene.assert_one_actor(), [first, next].map(|place| scene.operators[place].name.clone()));
    scene.assert_handled_once().await;
}

async fn freeze(plane: Arc<Plane>) {
    let scene = Scene::start(plane, 2).await;
    let first = scene.leader().await;
    scene.load.rest();
    tokio::time::sleep(Duration::from_millis(500)).await;
    scene.settled().await;
    let at = Timestamp::now();
    scene.operators[first].process.signal(Signal::STOP);
    scene.load.go_on();
    let (next, took) = scene.taken_over(first, at, LEASE_DURATION * 2).await;
    println!("SIGSTOP: the Lease was taken over after {took:?}");
    tokio::time::sleep(Duration::from_mins(1).saturating_sub(took)).await;
    let back = Timestamp::now();
    scene.operators[first].process.signal(Signal::CONT);
    scene.acts_after(next, back).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(scene.leader().await, next);
    assert_eq!(scene.assert_one_actor(), [first, next].map(|place| scene.operators[place].name.clone()));
    scene.assert_handled_once().await;
}

async fn silence(plane: Arc<Plane>) {
    let scene = Scene::start(Arc::clone(&plane), 2).await;
    let first = scene.leader().await;
    scene.load.rest();
    tokio::time::sleep(Duration::from_millis(500)).await;
    scene.settled().await;
    scene.load.go_on();
    let frozen = plane.api_server().freeze();
    // Longer than the deadline and the lease: both have given up meanwhile, and writes wait on the way.
    tokio::time::sleep(LEASE_DURATION + Duration::from_secs(5)).await;
    let back = Timestamp::now();
    drop(frozen);
    let next = eventually("a leader that acts again", PATIENCE, async || {
        let act = scene.acts().into_iter().find(|write| write.answered > back && write.code < 300)?;
        scene.operators.iter().position(|operator| operator.name == act.user)
    })
    .await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    println!(
        "the API server was silent: {} led before, {} after",
        scene.operators[first].name, scene.operators[next].name
    );
    scene.assert_one_actor();
    scene.assert_handled_once().await;
}
