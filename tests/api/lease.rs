//! The elector and the gate.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hello_operator::leader::{Elector, Gate, Leadership, NotLeader, Settings, Timings, connect};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::harness::{Plane, Proxy, eventually};
use crate::{alone, together};

const LEASE: &str = "election";
const LEASE_DURATION: Duration = Duration::from_secs(3);
const RENEW_DEADLINE: Duration = Duration::from_secs(2);
/// What a busy machine may add to a wait.
const SLACK: Duration = Duration::from_millis(700);
const SOON: Duration = Duration::from_secs(10);

pub fn trials(plane: &Arc<Plane>) -> Vec<Trial> {
    vec![
        together(plane, "lease: after a release another leads within a second", release),
        together(plane, "lease: of three, one takes over after a release", release_to_one_of_two),
        together(plane, "lease: after a kill another leads within the lease duration", kill),
        together(plane, "lease: a stale renewal is refused and ends leadership", stale_renewal),
        together(plane, "lease: a stale release does not blank the new holder", stale_release),
        together(plane, "lease: who is not the holder releases nothing", release_by_another),
        together(plane, "lease: a clock 20 s behind loses nothing", skew_behind),
        together(plane, "lease: a clock 20 s ahead keeps nothing", skew_ahead),
        together(plane, "lease: absent fields are repaired", absent_fields),
        together(plane, "lease: a deleted Lease comes back to its holder", deleted),
        together(plane, "gate: only reads pass while it is closed", closed_gate),
        together(plane, "gate: what was stuck in a connection is not sent once it closed", late_write),
        together(plane, "gate: a release waits for a write under way", release_waits),
        alone(plane, "lease: the gate closes at the deadline when the API server is silent", silent_api_server),
    ]
}

/// One process of the operator, as far as leadership goes.
struct Replica {
    identity: String,
    gate: Gate,
    leadership: watch::Receiver<Leadership>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Replica {
    fn start(config: &kube::Config, namespace: &str, name: &str) -> Self {
        let settings = Settings {
            namespace: namespace.into(),
            lease: LEASE.into(),
            identity: name.into(),
            timings: Timings::new(LEASE_DURATION, RENEW_DEADLINE, Duration::from_millis(400)).unwrap(),
        };
        let elector = Elector::new(config, settings).unwrap();
        let (stop, stopped) = oneshot::channel();
        Self {
            identity: elector.identity(),
            gate: elector.gate(),
            leadership: elector.leadership(),
            stop: Some(stop),
            task: tokio::spawn(elector.run(async {
                let _ = stopped.await;
            })),
        }
    }

    async fn leads(&self, limit: Duration) {
        eventually("leadership", limit, async || self.gate.leading().then_some(())).await;
    }

    async fn sees(&self, holder: &str) {
        let mut leadership = self.leadership.clone();
        let sees = leadership.wait_for(|now| now.holder.as_deref() == Some(holder));
        tokio::time::timeout(SOON, sees).await.expect("sees the holder").unwrap();
    }

    fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    /// Stops it and waits until it has released the Lease.
    async fn stopped(&mut self) {
        self.stop();
        (&mut self.task).await.unwrap();
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Looks at several gates all the time: no two may be open.
struct Witness {
    broken: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Witness {
    fn of(replicas: &[&Replica]) -> Self {
        let gates: Vec<Gate> = replicas.iter().map(|replica| replica.gate.clone()).collect();
        let broken = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&broken);
        let task = tokio::spawn(async move {
            loop {
                if gates.iter().filter(|gate| gate.leading()).count() > 1 {
                    seen.store(true, Ordering::SeqCst);
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        Self { broken, task }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.task.abort();
        if !std::thread::panicking() {
            assert!(!self.broken.load(Ordering::SeqCst), "two replicas led at once");
        }
    }
}

async fn leases(plane: &Plane, namespace: &str) -> Api<Lease> {
    Api::namespaced(plane.client("somebody").await, namespace)
}

async fn holder(leases: &Api<Lease>) -> String {
    leases.get(LEASE).await.unwrap().spec.unwrap_or_default().holder_identity.unwrap_or_default()
}

async fn create(leases: &Api<Lease>, spec: Option<Value>) {
    let mut lease = json!({"metadata": {"name": LEASE}});
    if let Some(spec) = spec {
        lease["spec"] = spec;
    }
    leases.create(&PostParams::default(), &serde_json::from_value(lease).unwrap()).await.unwrap();
}

async fn patch(leases: &Api<Lease>, spec: Value) -> Result<Lease, kube::Error> {
    leases.patch(LEASE, &PatchParams::default(), &Patch::Merge(json!({"spec": spec}))).await
}

/// Now, by a clock that is wrong by so many seconds.
fn time(wrong_by: i64) -> String {
    let time = Timestamp::now() + jiff::SignedDuration::from_secs(wrong_by);
    format!("{time:.6}")
}

async fn release(plane: Arc<Plane>) {
    let namespace = plane.namespace().await;
    let config = plane.config("replica").await;
    let mut first = Replica::start(&config, &namespace, "first");
    first.leads(SOON).await;
    let second = Replica::start(&config, &namespace, "second");
    let _witness = Witness::of(&[&first, &second]);
    second.sees(&first.identity).await;
    assert!(!second.gate.leading());
    // It would not lead for other reasons either, if it still had to find its way.
    tokio::time::sleep(Duration::from_secs(1)).await;

    let began = Instant::now();
    first.stop();
    second.leads(Duration::from_secs(1)).await;
    println!("take-over after a release: {:?}", began.elapsed());
    assert!(!first.gate.leading());
    let leases = leases(&plane, &namespace).await;
    assert_eq!(holder(&leases).await, second.identity);
    assert_eq!(leases.get(LEASE).await.unwrap().spec.unwrap().lease_transitions, Some(1));
    (&mut first.task).await.unwrap();
}

async fn release_to_one_of_two(plane: Arc<Plane>) {
    let namespace = plane.namespace().await;
    let config = plane.config("replica").await;
    let mut first = Replica::start(&config, &namespace, "first");
    first.leads(SOON).await;
    let others = [Replica::start(&config, &namespace, "second"), Replica::start(&config, &namespace, "third")];
    let _witness = Witness::of(&[&first, &others[0], &others[1]]);
    for other in &others {
        other.sees(&first.identity).await;
    }
    first.stop();
    let limit = Duration::from_secs(1);
    let next = eventually("one of the others leads", limit, async || others.iter().find(|r| r.gate.leading())).await;
    for other in &others {
        other.sees(&next.identity).await;
    }
    assert_eq!(others.iter().filter(|other| other.gate.leading()).count(), 1);
}

async fn kill(plane: Arc<Plane>) {
    let namespace = plane.namespace().await;
    let config = plane.config("replica").await;
    let first = Replica::start(&config, &namespace, "first");
    first.leads(SOON).await;
    let second = Replica::start(&config, &namespace, "second");
    let _witness = Witness::of(&[&first, &second]);
    second.sees(&first.identity).await;
    first.task.abort();
    let began = Instant::now();
    second.leads(LEASE_DURATION + SLACK).await;
    println!("take-over after a kill: {:?} of {LEASE_DURATION:?}", began.elapsed());
    assert!(!first.gate.leading(), "its gate closed by itself");
}

/// Waits until the Lease was renewed twice: by then the watch is up, and only reads and writes of the Lease go out.
async fn settled(leases: &Api<Lease>) {
    for _ in 0..2 {
        let before = leases.get(LEASE).await.unwrap().metadata.resource_version;
        eventually("a renewal", SOON, async || {
            (leases.get(LEASE).await.unwrap().metadata.resource_version != before).then_some(())
        })
        .await;
    }
}

/// A write of the replica met a conflict.
async fn conflict(plane: &Plane, namespace: &str) {
    eventually("the conflict in the audit log", SOON, async || {
        plane.writes(namespace).into_iter().find(|write| write.user == "replica" && write.code == 409)
    })
    .await;
}

async fn stale_renewal(plane: Arc<Plane>) {
    let namespace = plane.namespace().await;
    let proxy = Proxy::start(plane.port()).await;
    let first = Replica::start(&plane.config_through("replica", proxy.port()).await, &namespace, "first");
    first.leads(SOON).await;
    let leases = leases(&plane, &namespace).await;
    settled(&leases).await;
    // Its next read passes; the write that follows waits on the way, while another takes the Lease.
    proxy.hold_after(1);
    proxy.holds().await;
    patch(&leases, json!({"holderIdentity": "another", "renewTime": time(0)})).await.unwrap();
    proxy.open();
    first.sees("another").await;
    assert!(!first.gate.leading());
    assert_eq!(holder(&leases).await, "another");
    conflict(&plane, &namespace).await;
}

async fn stale_release(plane: Arc<Plane>) {
    let namespace = plane.namespace().await;
    let proxy = Proxy::start(plane.port()).await;
    let mut first = Replica::start(&plane.config_through("replica", proxy.port()).await, &namespace, "first");
    first.leads(SOON).await;
    let leases = leases(&plane, &namespace).await;
    settled(&leases).await;
    // Only the read of the release passes. A renewal may be under way just now: then its read does, which is as good.
    proxy.hold_after(1);
    first.stop();
    proxy.holds().await;
    patch(&leases, json!({"holderIdentity": "another", "renewTime": time(0)})).await.unwrap();
    proxy.open();
    (&mut first.task).await.unwrap();
    assert_eq!(holder(&leases).await, "another");
    conflict(&plane, &namespace).await;
}

async fn release_by_another(plane: Arc<Plane>) {
    let namespace = plane.namespace().await;
    let config = plane.config("replica").await;
    let first = Replica::start(&config, &namespace, "first");
    first.leads(SOON).await;
    let mut second = Replica::start(&config, &namespace, "second");
    second.sees(&first.identity).await;
    second.stopped().await;
    assert_eq!(holder(&leases(&plane, &namespace).await).await, first.identity);
    assert!(first.gate.leading());
}

async fn skew_behind(plane: Arc<Plane>) {
    let namespace = plane.namespace().await;
    let leases = leases(&plane, &namespace).await;
    let spec = json!({"holderIdentity": "slow", "renewTime": time(-20), "acquireTime": time(-20), "leaseDurationSeconds": 3, "leaseTransitions": 0});
    create(&leases, Some(spec)).await;
    let replica = Replica::start(&plane.config("replica").await, &namespace, "replica");
    // Alive for longer than its lease, and every time it writes looks long expired.
    for _ in 0..10 {
        tokio::time::sleep(LEASE_DURATION / 6).await;
        patch(&leases, json!({"renewTime": time(-20)})).await.unwrap();
        assert!(!replica.gate.leading());
    }
    let began = Instant::now();
    replica.leads(LEASE_DURATION + SLACK).await;
    assert!(began.elapsed() + SLACK > LEASE_DURATION, "not before it was silent for its whole lease");
}

async fn skew_ahead(plane: Arc<Plane>) {
    let namespace = plane.namespace().await;
    let leases = leases(&plane, &namespace).await;
    let spec = json!({"holderIdentity": "fast", "renewTime": time(20), "acquireTime": time(20), "leaseDurationSeconds": 3, "leaseTransitions": 0});
    create(&leases, Some(spec)).await;
    let replica = Replica::start(&plane.config("replica").await, &namespace, "replica");
    replica.leads(LEASE_DURATION + SLACK).await;
}

async fn absent_fields(plane: Arc<Plane>) {
    for spec in [None, Some(json!({})), Some(json!({"holderIdentity": ""})), Some(json!({"leaseTransitions": 7}))] {
        let namespace = plane.namespace().await;
        let leases = leases(&plane, &namespace).await;
        create(&leases, spec.clone()).await;
        let replica = Replica::start(&plane.config("replica").await, &namespace, "replica");
        replica.leads(SOON).await;
        let spec = leases.get(LEASE).await.unwrap().spec.unwrap();
        assert_eq!(spec.holder_identity.as_deref(), Some(replica.identity.as_str()));
        assert!(spec.renew_time.is_some() && spec.acquire_time.is_some() && spec.lease_transitions.is_some());
        assert_eq!(spec.lease_duration_seconds, Some(3));
    }
    let namespace = plane.namespace().await;
    create(&leases(&plane, &namespace).await, Some(json!({"holderIdentity": "mute"}))).await;
    let replica = Replica::start(&plane.config("replica").await, &namespace, "replica");
    replica.sees("mute").await;
    replica.leads(LEASE_DURATION + SLACK).await;
}

async fn deleted(plane: Arc<Plane>) {
    let namespace = plane.namespace().await;
    let config = plane.config("replica").await;
    let first = Replica::start(&config, &namespace, "first");
    first.leads(SOON).await;
    let second = Replica::start(&config, &namespace, "second");
    let _witness = Witness::of(&[&first, &second]);
    second.sees(&first.identity).await;
    let leases = leases(&plane, &namespace).await;
    let before = leases.get(LEASE).await.unwrap().metadata.uid;
    leases.delete(LEASE, &DeleteParams::default()).await.unwrap();
    eventually("a new Lease", SOON, async || {
        leases.get_opt(LEASE).await.unwrap().filter(|lease| lease.metadata.uid != before)
    })
    .await;
    assert_eq!(holder(&leases).await, first.identity);
    first.leads(SOON).await;
}

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

async fn closed_gate(plane: Arc<Plane>) {
    let namespace = plane.namespace().await;
    let config = plane.config("replica").await;
    let mut leader = Replica::start(&config, &namespace, "leader");
    leader.leads(SOON).await;
    let standby = Replica::start(&config, &namespace, "standby");
    let write = async |gate: &Gate, name: &str| {
        let maps: Api<ConfigMap> = Api::namespaced(connect(&config, gate.clone()).unwrap(), &namespace);
        maps.create(&PostParams::default(), &config_map(name)).await
    };
    let refused = |result: Result<ConfigMap, kube::Error>| NotLeader::find(&result.unwrap_err());

    write(&leader.gate, "by-leader").await.unwrap();
    assert_eq!(refused(write(&standby.gate, "by-standby").await), Some(NotLeader::Refused));
    assert_eq!(standby.gate.refused(), 1);
    let client = connect(&config, standby.gate.clone()).unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    maps.get("by-leader").await.expect("reads pass");
    for result in [
        maps.patch("by-leader", &PatchParams::default(), &Patch::Merge(json!({"data": {"a": "b"}}))).await.map(drop),
        maps.delete("by-leader", &DeleteParams::default()).await.map(drop),
        maps.replace("by-leader", &PostParams::default(), &config_map("by-leader")).await.map(drop),
        Api::<Pod>::namespaced(client, &namespace)
            .exec("pod", ["true"], &kube::api::AttachParams::default())
            .await
            .map(drop),
    ] {
        assert_eq!(NotLeader::find(&result.unwrap_err()), Some(NotLeader::Refused));
    }
    assert_eq!(standby.gate.refused(), 5);

    leader.stopped().await;
    assert_eq!(refused(write(&leader.gate, "by-former-leader").await), Some(NotLeader::Refused));
    write(&Gate::always(), "standalone").await.unwrap();
    let written: Vec<String> = plane
        .writes(&namespace)
        .into_iter()
        .filter(|write| write.resource == "configmaps" && write.user == "replica")
        .map(|write| write.name)
        .collect();
    assert_eq!(written, ["by-leader", "standalone"]);
}

async fn late_write(plane: Arc<Plane>) {
    let namespace = plane.namespace().await;
    let leader = Replica::start(&plane.config("replica").await, &namespace, "leader");
    leader.leads(SOON).await;
    // The gate is passed, but the connection comes about only later.
    let proxy = Proxy::start(plane.port()).await;
    proxy.hold_after(0);
    let config = plane.config_through("replica", proxy.port()).await;
    let maps: Api<ConfigMap> = Api::namespaced(connect(&config, leader.gate.clone()).unwrap(), &namespace);
    let write = tokio::spawn(async move { maps.create(&PostParams::default(), &config_map("late")).await });
    proxy.holds().await;
    leader.task.abort();
    eventually("the gate to close", SOON, async || (!leader.gate.leading()).then_some(())).await;
    proxy.open();
    let error = write.await.unwrap().unwrap_err();
    assert_eq!(NotLeader::find(&error), Some(NotLeader::Refused), "{error:?}");
    let maps: Api<ConfigMap> = Api::namespaced(plane.client("somebody").await, &namespace);
    assert!(maps.get_opt("late").await.unwrap().is_none());
}

async fn release_waits(plane: Arc<Plane>) {
    let namespace = plane.namespace().await;
    let config = plane.config("replica").await;
    let mut leader = Replica::start(&config, &namespace, "leader");
    leader.leads(SOON).await;
    let leases = leases(&plane, &namespace).await;
    let permit = leader.gate.enter().unwrap();
    leader.stop();
    eventually("the gate to close", SOON, async || (!leader.gate.leading()).then_some(())).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(holder(&leases).await, leader.identity, "not before the answer");
    permit.answered();
    (&mut leader.task).await.unwrap();
    assert_eq!(holder(&leases).await, "");
}

async fn silent_api_server(plane: Arc<Plane>) {
    let namespace = plane.namespace().await;
    let config = plane.config("replica").await;
    let first = Replica::start(&config, &namespace, "first");
    first.leads(SOON).await;
    let second = Replica::start(&config, &namespace, "second");
    let _witness = Witness::of(&[&first, &second]);
    second.sees(&first.identity).await;

    let frozen = plane.api_server().freeze();
    let began = Instant::now();
    eventually("the gate to close", RENEW_DEADLINE + SLACK, async || (!first.gate.leading()).then_some(())).await;
    println!("closed {:?} after the API server fell silent, the deadline is {RENEW_DEADLINE:?}", began.elapsed());
    // The slack is this process's own: how late it may look.
    assert!(began.elapsed() <= RENEW_DEADLINE + SLACK, "validity counts from before the request");
    assert!(first.gate.check().is_err());
    let mut leadership = first.leadership.clone();
    tokio::time::timeout(SLACK, leadership.wait_for(|now| !now.leading)).await.expect("it says so").unwrap();
    tokio::time::sleep(LEASE_DURATION).await;
    assert!(!second.gate.leading());
    drop(frozen);
    eventually("one leads again", LEASE_DURATION + SOON, async || {
        [&first, &second].into_iter().find(|replica| replica.gate.leading())
    })
    .await;
}
