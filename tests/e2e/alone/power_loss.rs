//! The node of a replica loses its power, and comes back.

use std::time::Instant;

use kube::ResourceExt;
use serde_json::json;

use crate::cluster::eventually;
use crate::harness::{Case, ClientPod, READY, Result, SOON, Suite, alone};

#[tokio::test]
async fn power_loss_of_a_replicas_node_stops_no_write_and_the_replica_returns() -> Result {
    alone("power-loss", power_loss).await
}

async fn power_loss(suite: &'static Suite, case: Case) -> Result {
    case.running("db", json!({})).await?;
    let primary = case.primary("db").await?;
    let pods = case.pods("db").await?;
    let node_of = |name: &str| -> Result<String> {
        let pod = pods.iter().find(|pod| pod.name_any() == name).ok_or("the Pod is there")?;
        Ok(pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).ok_or("it is on a node")?)
    };
    // The client's own node must not be the one that dies.
    let client = ClientPod::start_on(&case, Some(&node_of(&primary)?)).await?;
    let replica = case.replicas("db").await?.into_iter().next().ok_or("a replica")?;
    let node: u8 = node_of(&replica)?.trim_start_matches("node").parse()?;
    let uid = pods.iter().find(|pod| pod.name_any() == replica).and_then(|pod| pod.uid());
    let writer = client.write(&case.uri("db").await?).await?;

    let lost = Instant::now();
    suite.cluster().node(node).kill().await?;
    // Kubernetes itself takes 40 s to notice; writes must not wait for that.
    writer.writes_on().await?;
    let object = case
        .until(READY, "db", "Degraded or not Ready, with writes available", |object| {
            let status = object.status.as_ref().ok_or("no status")?;
            let ready = status.ready_instances;
            let writes =
                crate::harness::condition(object, "WriteAvailable").is_some_and(|found| found.status == "True");
            if ready == 2 && writes { Ok(()) } else { Err(format!("{ready} ready, writes: {writes}")) }
        })
        .await?;
    let noticed = lost.elapsed();
    assert_eq!(object.status.and_then(|status| status.primary).map(|found| found.instance), Some(primary.clone()));
    writer.writes_on().await?;

    suite.cluster().node(node).revive().await?;
    let returned = Instant::now();
    case.ready("db").await?;
    let healed = returned.elapsed();
    let after = case.pods("db").await?;
    assert_eq!(after.iter().find(|pod| pod.name_any() == replica).and_then(|pod| pod.uid()), uid, "the same Pod");
    let (rows, longest) = writer.end().await?;
    eventually(SOON, "the replica to have every row", || async {
        match case.sql(&replica, "select count(*) from acknowledged").await {
            Ok(count) if count.parse().is_ok_and(|count: usize| count >= rows) => Ok(()),
            Ok(count) => Err(format!("{count} of {rows}")),
            Err(error) => Err(error.to_string()),
        }
    })
    .await?;
    assert_eq!(case.primary("db").await?, primary);
    println!(
        "noticed after {noticed:.1?}, healed {healed:.1?} after the power, {rows} rows, longest wait {longest:.1?}"
    );
    Ok(())
}
