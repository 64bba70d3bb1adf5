//! What people are told of a hand-over that happened among the agents: the status, and each event once, also by an operator
//! that was away. There are no agents here: the test writes the Lease as they would.

use std::sync::Arc;
use std::time::Duration;

use hello_operator::api::agent::{HandOver, HandOverReason};
use hello_operator::api::names::{ANNOTATION_HAND_OVER, Names};
use hello_operator::core::election::Register;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Api;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::alone;
use crate::definition::{installed, object, objects};
use crate::harness::{Plane, eventually};
use crate::processes::Operator;

const PATIENCE: Duration = Duration::from_mins(1);
/// How long nothing may be written.
const QUIET: Duration = Duration::from_secs(5);

pub fn trials(plane: &Arc<Plane>) -> Vec<Trial> {
    vec![alone(plane, "hand-over: told once, also by an operator that was away", told_once)]
}

/// The cluster `db`, as far as there is one without nodes.
struct Scene {
    objects: Api<DynamicObject>,
    leases: Api<Lease>,
    events: Api<Event>,
}

impl Scene {
    /// An instance takes the Lease; `from` has a name when it takes over.
    async fn take(&self, to: &str, from: Option<&str>) -> i64 {
        let name = Names::new("db").lease();
        let lease = eventually("the Lease", PATIENCE, async || self.leases.get_opt(&name).await.unwrap()).await;
        let mut register = Register::from_lease(&lease).unwrap();
        register.term += 1;
        register.release = None;
        register.holder = format!("{to}/uid/nonce");
        let term = register.term;
        let mut lease = register.into_lease(lease, 15, MicroTime(Timestamp::now()));
        let hand_over = HandOver {
            term,
            from: from.map(Into::into),
            to: to.into(),
            reason: HandOverReason::LeaseRanOut,
            started_at: "2026-11-30T15:00:00.25Z".into(),
            completed_at: Some("2026-11-30T15:00:16.5Z".into()),
        };
        let text = serde_json::to_string(&hand_over).unwrap();
        lease.metadata.annotations.get_or_insert_default().insert(ANNOTATION_HAND_OVER.into(), text);
        self.leases.replace(&name, &PostParams::default(), &lease).await.unwrap();
        term
    }

    async fn status(&self) -> Value {
        self.objects.get("db").await.unwrap().data["status"].clone()
    }

    async fn sees_term(&self, term: i64) -> Value {
        eventually("the status to show the term", PATIENCE, async || {
            let status = self.status().await;
            (status["election"]["term"] == term).then_some(status)
        })
        .await
    }

    /// The notes of the events of a hand-over, in their order of terms.
    async fn told(&self, reason: &str) -> Vec<String> {
        let events = self.events.list(&ListParams::default()).await.unwrap().items;
        let mut notes: Vec<String> =
            events.into_iter().filter(|e| e.reason.as_deref() == Some(reason)).filter_map(|e| e.note).collect();
        notes.sort();
        notes
    }

    async fn tells(&self, count: usize) {
        eventually("the events", PATIENCE, async || {
            (self.told("HandOverCompleted").await.len() == count).then_some(())
        })
        .await;
    }
}

async fn told_once(plane: Arc<Plane>) {
    let client = installed(&plane).await;
    let namespace = plane.namespace().await;
    let scene = Scene {
        objects: objects(client.clone(), &namespace),
        leases: Api::namespaced(client.clone(), &namespace),
        events: Api::namespaced(client, &namespace),
    };
    let operator = Operator::start(&plane, "teller", &namespace, &["--standalone"]);
    scene.objects.create(&PostParams::default(), &object("db", None)).await.unwrap();
    let term = scene.take("db-1", None).await;
    let status = scene.sees_term(term).await;
    assert_eq!((&status["election"]["phase"], &status["lastFailover"]), (&json!("Held"), &Value::Null));

    let term = scene.take("db-2", Some("db-1")).await;
    scene.tells(1).await;
    let last = scene.sees_term(term).await["lastFailover"].clone();
    assert_eq!((&last["from"], &last["to"]), (&json!("db-1"), &json!("db-2")));
    assert_eq!((&last["reason"], &last["durationSeconds"]), (&json!("leaseRanOut"), &json!(16.25)));
    let note = "db-2 is primary in place of db-1 (term 2), after 16.25 s: it did not renew its Lease any more";
    assert_eq!(scene.told("HandOverCompleted").await, [note]);

    // Two hand-overs while nobody looks: the last one is told.
    drop(operator);
    scene.take("db-3", Some("db-2")).await;
    let term = scene.take("db-1", Some("db-3")).await;
    let operator = Operator::start(&plane, "teller", &namespace, &["--standalone"]);
    scene.tells(2).await;
    scene.sees_term(term).await;

    // Renewals and another look are no news.
    let quiet = Timestamp::now();
    let name = Names::new("db").lease();
    for _ in 0..3 {
        let patch = Patch::Merge(json!({"spec": {"renewTime": MicroTime(Timestamp::now())}}));
        scene.leases.patch(&name, &PatchParams::default(), &patch).await.unwrap();
        tokio::time::sleep(QUIET / 3).await;
    }
    let wrote: Vec<_> = plane
        .writes(&namespace)
        .into_iter()
        .filter(|write| {
            write.user == "teller" && write.received > quiet && write.resource.starts_with("helloopperators")
        })
        .collect();
    assert!(wrote.is_empty(), "{wrote:?}");
    assert_eq!((scene.told("HandOverStarted").await.len(), scene.told("HandOverCompleted").await.len()), (2, 2));
    drop(operator);
}
