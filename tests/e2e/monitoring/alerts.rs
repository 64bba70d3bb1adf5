//! Faults make alerts fire, and their end ends them.

use std::collections::BTreeMap;
use std::time::Duration;

use hello_operator::api::names::{CONTAINER, DATA_MOUNT};
use kube::ResourceExt;
use serde_json::json;

use super::fires;
use super::prometheus::Monitoring;
use crate::cluster::{Node, Signal};
use crate::harness::election::start_operator;
use crate::harness::{Case, READY, Result, Store, Suite, alone_within};

const LIMIT: Duration = Duration::from_secs(15 * 60);

#[tokio::test]
#[ignore = "long: make test-all"]
async fn alerts_fire_for_real_faults_and_resolve_after_them() -> Result {
    alone_within(LIMIT, "alerts", faults).await
}

async fn faults(suite: &'static Suite, case: Case) -> Result {
    let store = Store::start(&case).await?;
    let backup = json!({"destination": store.destination("db"), "archiveTimeoutSeconds": 10});
    let spec = json!({"storage": {"size": "512Mi", "storageClassName": "local-sized"}, "backup": backup});
    let thresholds = BTreeMap::new();
    let (monitoring, running) = tokio::join!(Monitoring::start(suite, "faults", &thresholds), case.running("db", spec));
    let monitoring = monitoring?;
    running?;
    archive(&case, &store, &monitoring).await?;
    disk(&case, &monitoring).await?;
    nodes(suite, &case, &monitoring).await?;
    operator(suite, &monitoring).await
}

async fn archive(case: &Case, store: &Store, monitoring: &Monitoring) -> Result {
    let primary = case.primary("db").await?;
    let failing = [("namespace", case.namespace()), ("pod", primary.as_str())];
    monitoring.is_quiet("HelloArchiveFailing", &failing).await?;
    store.signal(Signal::Stop).await?;
    case.sql(&primary, "select pg_logical_emit_message(true, 'a', 'b'), pg_switch_wal()").await?;
    fires(monitoring, "HelloArchiveFailing", &failing).await?;
    store.signal(Signal::Continue).await?;
    monitoring.resolves("HelloArchiveFailing", &failing).await
}

async fn disk(case: &Case, monitoring: &Monitoring) -> Result {
    let replica = case.replicas("db").await?.into_iter().next().ok_or("a replica")?;
    let pod = case.suite().cluster().pod(case.namespace(), &replica);
    let fill = format!("dd if=/dev/zero of={DATA_MOUNT}/filler bs=1M 2>/dev/null; true");
    let full = [("namespace", case.namespace()), ("pod", replica.as_str())];
    monitoring.is_quiet("HelloDiskFull", &full).await?;
    pod.run(CONTAINER, &["sh", "-c", &fill]).await?;
    fires(monitoring, "HelloDiskFull", &full).await?;
    pod.run(CONTAINER, &["rm", &format!("{DATA_MOUNT}/filler")]).await?;
    monitoring.resolves("HelloDiskFull", &full).await
}

/// The nodes of the primary and of one replica lose their power; the operator is on the third.
async fn nodes(suite: &'static Suite, case: &Case, monitoring: &Monitoring) -> Result {
    let primary = case.primary("db").await?;
    let replica = case.replicas("db").await?.into_iter().next().ok_or("a replica")?;
    let (mut lost, mut stays) = (Vec::<Node>::new(), None);
    for pod in case.pods("db").await? {
        let name = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).ok_or("it is on a node")?;
        let node = suite.cluster().node(name.trim_start_matches("node").parse()?);
        if [&primary, &replica].contains(&&pod.name_any()) {
            lost.push(node);
        } else {
            stays = Some(node);
        }
    }
    let selector = format!("nodeSelector.kubernetes\\.io/hostname={}", stays.ok_or("a third node")?.name());
    suite.install(&[&selector]).await?;
    let db = [("namespace", case.namespace()), ("cluster", "db")];
    let all = ["HelloElectionBlocked", "HelloClusterWithoutPrimary", "HelloWritesUnavailable", "HelloReplicaDown"];
    for alert in all {
        monitoring.is_quiet(alert, &db).await?;
    }
    for node in &lost {
        node.kill().await?;
    }
    for alert in all {
        fires(monitoring, alert, &db).await?;
    }
    for node in &lost {
        node.revive().await?;
    }
    case.until(2 * READY, "db", "ready again", |object| {
        let ready = object.status.as_ref().map_or(0, |status| status.ready_instances);
        if ready == 3 { Ok(()) } else { Err(format!("{ready} are")) }
    })
    .await?;
    for alert in all {
        monitoring.resolves(alert, &db).await?;
    }
    Ok(())
}

/// It is gone; it may not write its Lease; its definition is another.
async fn operator(suite: &'static Suite, monitoring: &Monitoring) -> Result {
    for alert in ["HelloOperatorDown", "HelloOperatorNoLeader", "HelloOperatorCrdDegraded"] {
        monitoring.is_quiet(alert, &[]).await?;
    }
    suite.stop_operator().await?;
    fires(monitoring, "HelloOperatorDown", &[]).await?;
    start_operator(suite).await?;
    monitoring.resolves("HelloOperatorDown", &[]).await?;

    suite.kubectl(&["delete", "clusterrolebinding", "hello-operator"], "").await?.ok()?;
    fires(monitoring, "HelloOperatorNoLeader", &[]).await?;
    // The remedy of the runbook.
    suite.install(&[]).await?;
    monitoring.resolves("HelloOperatorNoLeader", &[]).await?;

    suite.kubectl(&["apply", "-f", "examples/seed/crd.yaml"], "").await?.ok()?;
    fires(monitoring, "HelloOperatorCrdDegraded", &[]).await?;
    // The repair that the operator offers. helm itself would refuse to write over what kubectl wrote.
    suite.install(&["crds.enabled=false", "crds.manage=true"]).await?;
    monitoring.resolves("HelloOperatorCrdDegraded", &[]).await
}
