//! HelloBackups and schedules against a real API server. There are no agents here: what they do is in `core::plan` and `tests/e2e`.

use std::sync::Arc;
use std::time::Duration;

use hello_operator::api::HelloBackup;
use jiff::{Timestamp, ToSpan};
use kube::Api;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::definition::{installed, object, objects};
use crate::harness::{Plane, eventually};
use crate::processes::Operator;
use crate::{alone, together};

const PATIENCE: Duration = Duration::from_mins(1);
/// How long nothing more may come.
const QUIET: Duration = Duration::from_secs(5);

pub fn trials(plane: &Arc<Plane>) -> Vec<Trial> {
    vec![
        alone(plane, "backups: two operators make one of a run, and only of the newest that was missed", one_of_a_run),
        alone(
            plane,
            "backups: one without a cluster, and without a destination, says what is missing",
            says_what_is_missing,
        ),
        together(plane, "backups: the spec of one cannot be changed, and names a cluster", rules),
    ]
}

fn backup(name: &str, spec: &Value) -> HelloBackup {
    let object = json!({"apiVersion": "terry.com/v1", "kind": "HelloBackup", "metadata": {"name": name}, "spec": spec});
    serde_json::from_value(object).unwrap()
}

async fn one_of_a_run(plane: Arc<Plane>) {
    let client = installed(&plane).await;
    let namespace = plane.namespace().await;
    let (clusters, backups) = (objects(client.clone(), &namespace), Api::<HelloBackup>::namespaced(client, &namespace));
    let spec = json!({"backup": {"destination": {"s3": {"bucket": "b"}}, "schedule": "0 */2 * * *"}});
    clusters.create(&PostParams::default(), &object("db", Some(&spec))).await.unwrap();
    // Announced days ago; since then nobody looked.
    let today = Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).start_of_day().unwrap();
    let announced = today.checked_sub(3.days()).unwrap().timestamp().to_string();
    let patch = Patch::Merge(json!({"status": {"backup": {"nextRun": announced}}}));
    clusters.patch_status("db", &PatchParams::default(), &patch).await.unwrap();

    let began = Timestamp::now();
    let two = ["first", "second"].map(|name| Operator::start(&plane, name, &namespace, &["--standalone"]));
    let next = eventually("the next run to be announced", PATIENCE, async || {
        let status = next_run(&clusters).await?;
        (status > began).then_some(status)
    })
    .await;
    tokio::time::sleep(QUIET).await;
    let made: Vec<HelloBackup> = backups.list(&ListParams::default()).await.unwrap().items;
    let names: Vec<&str> = made.iter().filter_map(|backup| backup.metadata.name.as_deref()).collect();
    let run = next.to_zoned(jiff::tz::TimeZone::UTC).checked_sub(2.hours()).unwrap();
    assert_eq!(names, [format!("db-{}", run.strftime("%Y%m%d%H%M"))]);
    assert!(made[0].metadata.owner_references.is_none(), "it outlives the cluster");
    drop(two);
}

async fn next_run(clusters: &Api<DynamicObject>) -> Option<Timestamp> {
    clusters.get("db").await.unwrap().data["status"]["backup"]["nextRun"].as_str()?.parse().ok()
}

async fn says_what_is_missing(plane: Arc<Plane>) {
    let client = installed(&plane).await;
    let namespace = plane.namespace().await;
    let (clusters, backups) = (objects(client.clone(), &namespace), Api::<HelloBackup>::namespaced(client, &namespace));
    backups.create(&PostParams::default(), &backup("one", &json!({"cluster": "db"}))).await.unwrap();
    let operator = Operator::start(&plane, "keeper", &namespace, &["--standalone"]);
    let says = async |what: &str| {
        eventually(what, PATIENCE, async || {
            let status = backups.get("one").await.unwrap().status?;
            status.message.filter(|message| message.contains(what))
        })
        .await
    };
    says("there is no HelloOperator db").await;
    clusters.create(&PostParams::default(), &object("db", None)).await.unwrap();
    says("no backup.destination").await;
    // Another cluster cannot begin with it yet.
    let restore = json!({"bootstrap": {"restore": {"backup": "one"}}});
    clusters.create(&PostParams::default(), &object("new", Some(&restore))).await.unwrap();
    eventually("the refusal", PATIENCE, async || {
        let status = clusters.get("new").await.unwrap().data["status"].clone();
        status.to_string().contains("which is Pending: nothing begins").then_some(())
    })
    .await;
    // An idle operator writes nothing.
    tokio::time::sleep(QUIET / 2).await;
    let quiet = Timestamp::now();
    tokio::time::sleep(QUIET).await;
    let wrote: Vec<_> = plane
        .writes(&namespace)
        .into_iter()
        .filter(|write| write.received > quiet && write.resource.starts_with("hellobackups"))
        .collect();
    assert!(wrote.is_empty(), "{wrote:?}");
    drop(operator);
}

async fn rules(plane: Arc<Plane>) {
    let client = installed(&plane).await;
    let backups = Api::<HelloBackup>::namespaced(client, &plane.namespace().await);
    backups.create(&PostParams::default(), &backup("one", &json!({"cluster": "db"}))).await.unwrap();
    let change = Patch::Merge(json!({"spec": {"target": "Primary"}}));
    let refused = backups.patch("one", &PatchParams::default(), &change).await.unwrap_err().to_string();
    assert!(refused.contains("cannot be changed"), "{refused}");
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let refused = backups.create(&dry, &backup("two", &json!({"cluster": ""}))).await.unwrap_err().to_string();
    assert!(refused.contains("spec.cluster"), "{refused}");
}
