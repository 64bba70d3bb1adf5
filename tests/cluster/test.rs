//! The local cluster's own test: what the other tests take for granted.

#[path = "mod.rs"]
mod cluster;
mod fixture;
mod traces;

use std::time::{Duration, Instant};

use cluster::{Cluster, Process, Signal, eventually};
use fixture::Databases;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

type TestResult = Result<(), Box<dyn std::error::Error>>;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn three_databases_on_three_nodes_reach_each_other_by_name_and_through_a_service() -> TestResult {
    let cluster = Cluster::up().await?;
    let databases = Databases::create(&cluster, "reach").await?;

    let nodes = databases.nodes().await?;
    assert_eq!(nodes.len(), 3, "one Pod per node: {nodes:?}");

    // Through the API server, the cluster's DNS, and a Service's address.
    for host in ["pg-0.pg", "pg-1.pg", "pg-2.pg", "pg-any"] {
        let command = ["psql", "-h", host, "-U", "postgres", "-Atc", "select 'here'"];
        let output = cluster.exec(databases.namespace(), "pg-0", "postgres", &command).await?;
        assert!(output.success, "{host}: {}", output.stderr);
        assert_eq!(output.stdout.trim(), "here");
    }
    let failing = cluster.exec(databases.namespace(), "pg-0", "postgres", &["false"]).await?;
    assert!(!failing.success);

    databases.delete().await
}

#[tokio::test]
async fn a_volume_grows_and_its_directory_goes_with_the_claim() -> TestResult {
    let cluster = Cluster::up().await?;
    let databases = Databases::create(&cluster, "volumes").await?;
    let client = cluster.client().await?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), databases.namespace());
    let volumes: Api<PersistentVolume> = Api::all(client);

    let claim = claims.get("data-pg-0").await?;
    let volume = claim.spec.and_then(|spec| spec.volume_name).ok_or("the claim is bound")?;
    let directory = volumes
        .get(&volume)
        .await?
        .spec
        .and_then(|spec| spec.local)
        .map(|local| std::path::PathBuf::from(local.path))
        .ok_or("a local volume")?;
    assert!(directory.is_dir());

    let larger = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    claims.patch("data-pg-0", &PatchParams::default(), &Patch::Merge(larger)).await?;
    eventually(5 * SECOND, "the claim to have grown", || async {
        let claim = claims.get("data-pg-0").await.map_err(|error| error.to_string())?;
        let capacity = claim.status.and_then(|status| status.capacity).and_then(|mut all| all.remove("storage"));
        match capacity {
            Some(capacity) if capacity.0 == "2Gi" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;

    databases.delete().await?;
    eventually(30 * SECOND, "the volume to be gone", || async {
        match volumes.get_opt(&volume).await {
            Ok(None) if !directory.exists() => Ok(()),
            Ok(None) => Err("its directory is still there".to_owned()),
            Ok(Some(volume)) => Err(format!("{:?}", volume.status.and_then(|status| status.phase))),
            Err(error) => Err(error.to_string()),
        }
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_sized_volume_is_full_at_its_size_and_grows_while_mounted() -> TestResult {
    let cluster = Cluster::up().await?;
    let databases = Databases::create_in_class(&cluster, "sized", "local-sized", "320Mi").await?;
    let client = cluster.client().await?;
    let pod = cluster.pod(databases.namespace(), "pg-0");
    let write = ["dd", "if=/dev/zero", "of=/volume/ballast", "bs=1M", "count=400"];
    assert!(pod.run("postgres", &write).await.is_err(), "400 MB fit into 320");

    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), databases.namespace());
    let larger = json!({"spec": {"resources": {"requests": {"storage": "600Mi"}}}});
    claims.patch("data-pg-0", &PatchParams::default(), &Patch::Merge(larger)).await?;
    // The kubelet looks at a Pod's volumes when the Pod changes, or once a minute.
    eventually(10 * SECOND, "the kubelet to wait for its part", || async {
        let claim = claims.get("data-pg-0").await.map_err(|error| error.to_string())?;
        let conditions = claim.status.and_then(|status| status.conditions).unwrap_or_default();
        if conditions.is_empty() { Err("no condition") } else { Ok(()) }.map_err(str::to_owned)
    })
    .await?;
    let pods: Api<Pod> = Api::namespaced(client, databases.namespace());
    let change = json!({"metadata": {"annotations": {"cluster-test": "look at the volumes"}}});
    pods.patch("pg-0", &PatchParams::default(), &Patch::Merge(change)).await?;
    eventually(100 * SECOND, "400 MB to fit", || async {
        pod.run("postgres", &write).await.map_err(|error| error.to_string())
    })
    .await?;
    databases.delete().await
}

#[tokio::test]
async fn a_node_without_power_answers_nothing_and_comes_back_with_its_data() -> TestResult {
    let cluster = Cluster::up().await?;
    let databases = Databases::create(&cluster, "power").await?;
    let nodes: Api<Node> = Api::all(cluster.client().await?);
    let (near, far) = databases.pods_on(1, 2).await?;
    databases.sql(&far.name, "create table t as select 42 as n").await?;

    let lost = Instant::now();
    cluster.node(2).kill().await?;
    // Silence, not a refusal: that is what tells a dead machine from a dead process.
    let asked = Instant::now();
    let answer = databases.is_ready_from(&near.name, &far.address).await;
    assert!(answer.is_err(), "a database without power answered");
    assert!(asked.elapsed() >= SECOND, "refused after {:?}, which takes someone who refuses", asked.elapsed());

    eventually(90 * SECOND, "node2 to be NotReady", || async {
        match fixture::ready_condition(&nodes, "node2").await?.as_str() {
            "Unknown" => Ok(()),
            other => Err(format!("Ready={other}")),
        }
    })
    .await?;
    let noticed = lost.elapsed();
    assert!(noticed >= 30 * SECOND, "the grace period is 40 s, not {noticed:?}");

    cluster.node(2).revive().await?;
    eventually(60 * SECOND, "the database of node2 to answer again", || async {
        databases.sql(&far.name, "select n from t").await.map_err(|error| error.to_string())
    })
    .await
    .map(|rows| assert_eq!(rows, "42"))?;
    databases.delete().await
}

#[tokio::test]
async fn a_cut_in_one_direction_leaves_the_other() -> TestResult {
    let cluster = Cluster::up().await?;
    let databases = Databases::create(&cluster, "cut").await?;
    let (near, far) = databases.pods_on(1, 2).await?;
    databases.is_ready_from(&near.name, &far.address).await?;

    cluster.network(2).cut_from().await?;
    let before = databases.segments_received(&far.name).await?;
    assert!(databases.is_ready_from(&near.name, &far.address).await.is_err(), "nobody hears node2");
    assert!(databases.segments_received(&far.name).await? > before, "node2 hears");
    cluster.network(2).heal().await?;
    databases.is_ready_from(&near.name, &far.address).await?;

    cluster.network(2).cut_to().await?;
    let before = databases.segments_received(&far.name).await?;
    assert!(databases.is_ready_from(&near.name, &far.address).await.is_err(), "node2 hears nobody");
    assert_eq!(databases.segments_received(&far.name).await?, before);
    cluster.network(2).heal().await?;

    cluster.network(1).cut_between(cluster.node(2)).await?;
    let third = databases.pod_on(3).await?;
    assert!(databases.is_ready_from(&near.name, &far.address).await.is_err(), "node1 and node2 have lost each other");
    databases.is_ready_from(&near.name, &third.address).await?;
    databases.is_ready_from(&third.name, &far.address).await?;
    cluster.network(1).heal().await?;

    cluster.network(2).cut().await?;
    assert!(databases.is_ready_from(&near.name, &far.address).await.is_err(), "node2 is cut off");
    cluster.network(2).heal().await?;
    databases.is_ready_from(&near.name, &far.address).await?;
    databases.delete().await
}

#[tokio::test]
async fn signals_reach_the_chosen_process() -> TestResult {
    let cluster = Cluster::up().await?;
    let databases = Databases::create(&cluster, "signals").await?;
    let pod = cluster.pod(databases.namespace(), "pg-0");
    let checkpointer = "select pid from pg_stat_activity where backend_type = 'checkpointer'";

    let before = databases.sql("pg-0", checkpointer).await?;
    pod.signal("postgres", Process::Matching("checkpointer"), Signal::Kill).await?;
    eventually(20 * SECOND, "PostgreSQL to recover from the crash", || async {
        match databases.sql("pg-0", checkpointer).await {
            Ok(pid) if pid != before && !pid.is_empty() => Ok(()),
            Ok(pid) => Err(format!("checkpointer {pid}")),
            Err(error) => Err(error.to_string()),
        }
    })
    .await?;

    pod.signal("postgres", Process::First, Signal::Stop).await?;
    assert!(databases.is_ready_from("pg-1", "pg-0.pg").await.is_err(), "a stopped postmaster accepts nobody");
    pod.signal("postgres", Process::First, Signal::Continue).await?;
    databases.is_ready_from("pg-1", "pg-0.pg").await?;

    let absent = pod.signal("postgres", Process::Matching("no such process"), Signal::Kill).await;
    assert!(absent.is_err());
    databases.delete().await
}

#[tokio::test]
async fn the_api_server_stops_continues_dies_and_starts_while_databases_go_on() -> TestResult {
    let cluster = Cluster::up().await?;
    let databases = Databases::create(&cluster, "api").await?;
    let nodes: Api<Node> = Api::all(cluster.client().await?);
    let api_answers = || async {
        match tokio::time::timeout(SECOND, nodes.get("node1")).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("silence".to_owned()),
        }
    };

    cluster.api_server().stop().await?;
    assert_eq!(api_answers().await, Err("silence".to_owned()));
    assert_eq!(databases.sql("pg-0", "select 1").await?, "1");
    cluster.api_server().continue_().await?;
    eventually(20 * SECOND, "the API server to answer", api_answers).await?;

    cluster.api_server().kill().await?;
    assert!(api_answers().await.is_err());
    assert_eq!(databases.sql("pg-1", "select 1").await?, "1");
    cluster.api_server().start().await?;
    eventually(20 * SECOND, "the API server to answer", api_answers).await?;
    databases.delete().await
}

#[tokio::test]
async fn the_audit_log_tells_who_wrote_what() -> TestResult {
    let cluster = Cluster::up().await?;
    let mut log = cluster.audit_log()?;
    let client = cluster.client_as("audit-test/1").await?;
    let maps: Api<k8s_openapi::api::core::v1::ConfigMap> = Api::namespaced(client, "default");
    let map = serde_json::from_value(json!({"metadata": {"name": "audit-test"}}))?;
    let began = jiff::Timestamp::now();
    maps.create(&Default::default(), &map).await?;
    maps.get("audit-test").await?;
    maps.delete("audit-test", &Default::default()).await?;

    let events: Vec<_> = log.read()?.into_iter().filter(|event| event.user_agent == "audit-test/1").collect();
    let verbs: Vec<_> = events.iter().map(|event| event.verb.as_str()).collect();
    assert_eq!(verbs, ["create", "get", "delete"]);
    let writes: Vec<_> = events.iter().filter(|event| event.is_accepted_write()).collect();
    assert_eq!(writes.len(), 2);
    for event in &events {
        assert!(event.is_about("configmaps"));
        assert_eq!(event.user, "admin");
        assert!(event.received >= began && event.answered >= event.received);
        let object = event.object.as_ref().ok_or("an object")?;
        assert_eq!((object.namespace.as_str(), object.name.as_str()), ("default", "audit-test"));
    }
    assert!(log.read()?.iter().all(|event| event.user_agent != "audit-test/1"), "read once");
    Ok(())
}

#[tokio::test]
async fn a_node_can_be_added() -> TestResult {
    let cluster = Cluster::up().await?;
    let nodes: Api<Node> = Api::all(cluster.client().await?);
    let names = |list: kube::core::ObjectList<Node>| list.iter().map(ResourceExt::name_any).collect::<Vec<_>>();
    let before = names(nodes.list(&Default::default()).await?);
    let node = cluster.add_node().await?;
    let after = names(nodes.list(&Default::default()).await?);
    assert_eq!(after.len(), before.len() + 1);
    assert_eq!(fixture::ready_condition(&nodes, &node.name()).await?, "True");
    cluster.remove_node(node).await?;
    assert_eq!(names(nodes.list(&Default::default()).await?), before);
    Ok(())
}

#[test]
fn a_start_cleans_up_after_a_killed_one_and_the_end_leaves_no_trace() -> TestResult {
    traces::check()
}
