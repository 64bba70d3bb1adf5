//! Changes of settings and of the image, while an application writes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;

use crate::cluster::eventually;
use crate::harness::{Case, ClientPod, READY, Result, Suite, case};

#[tokio::test]
async fn rolls_of_settings_and_image_lose_no_row() -> Result {
    case("rolls", rolls).await
}

async fn rolls(_: &'static Suite, case: Case) -> Result {
    let (client, running) = tokio::join!(ClientPod::start(&case), case.running("db", json!({})));
    running?;
    let client = client?;
    let writer = client.write(&case.uri("db").await?).await?;
    let pods = uids(&case).await?;

    // One that is reloaded: nothing restarts.
    let started = starts(&case).await?;
    case.change("db", json!({"postgresql": {"parameters": {"work_mem": "7MB"}}})).await?;
    shown(&case, "work_mem", "7MB").await?;
    case.ready("db").await?;
    assert_eq!(starts(&case).await?, started, "work_mem needs no restart");

    // One that needs a restart: replicas first, and the primary hands over to one of them. Where it shrinks, the primary first and in
    // place, because a replica refuses to start with less than its primary has.
    for (connections, primary_is_last) in [("120", true), ("80", false)] {
        // A restart that ends with a switchover leaves another primary.
        let primary = case.primary("db").await?;
        let before = starts(&case).await?;
        case.change("db", json!({"postgresql": {"parameters": {"max_connections": connections}}})).await?;
        shown(&case, "max_connections", connections).await?;
        case.ready("db").await?;
        let after = starts(&case).await?;
        for (instance, start) in &after {
            assert_ne!(before.get(instance), Some(start), "{instance} has the new value without a restart?");
        }
        let by_time = |entry: &(&String, &u64)| *entry.1;
        let odd = if primary_is_last { after.iter().max_by_key(by_time) } else { after.iter().min_by_key(by_time) };
        assert_eq!(odd.map(|(instance, _)| instance), Some(&primary), "the order of {connections}: {after:?}");
        writer.writes_on().await?;
    }
    assert_eq!(uids(&case).await?, pods, "settings replace no Pod");
    case.event("db", "Restarting", "max_connections").await?;

    // The image: Pods are replaced, replicas first.
    let primary = case.primary("db").await?;
    case.change("db", json!({"image": "registry.local/postgres:17-b"})).await?;
    eventually(READY, "every Pod to have the new image", || async {
        let pods = case.pods("db").await.map_err(|error| error.to_string())?;
        let images: Vec<_> = pods.iter().filter_map(image).collect();
        let new = images.iter().filter(|image| image.as_str() == "registry.local/postgres:17-b").count();
        if new == 3 { Ok(()) } else { Err(format!("{images:?}")) }
    })
    .await?;
    case.ready("db").await?;
    let after = case.pods("db").await?;
    for pod in &after {
        assert_ne!(pods.get(&pod.name_any()), pod.uid().as_ref(), "{} was not replaced", pod.name_any());
    }
    let last = after.iter().max_by_key(|pod| pod.creation_timestamp().map(|time| time.0)).map(ResourceExt::name_any);
    assert_eq!(last, Some(primary), "the primary is last");
    shown(&case, "max_connections", "80").await?;
    case.event("db", "", "registry.local/postgres:17-b").await?;

    writer.writes_on().await?;
    let (rows, longest) = writer.end().await?;
    println!("{rows} rows over two restarts and a roll, longest wait {longest:.1?}");
    Ok(())
}

async fn uids(case: &Case) -> Result<BTreeMap<String, String>> {
    let pods = case.pods("db").await?;
    Ok(pods.iter().filter_map(|pod| Some((pod.name_any(), pod.uid()?))).collect())
}

/// When PostgreSQL of each instance was started, in microseconds.
async fn starts(case: &Case) -> Result<BTreeMap<String, u64>> {
    let mut found = BTreeMap::new();
    for pod in case.pods("db").await? {
        let asked = "select (extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint";
        found.insert(pod.name_any(), case.sql(&pod.name_any(), asked).await?.parse()?);
    }
    Ok(found)
}

/// Waits until every instance has a setting.
async fn shown(case: &Case, setting: &str, value: &str) -> Result {
    eventually(READY, &format!("{setting} to be {value} everywhere"), || async {
        let pods = case.pods("db").await.map_err(|error| error.to_string())?;
        for pod in &pods {
            let name = pod.name_any();
            let found = case.sql(&name, &format!("show {setting}")).await.map_err(|error| error.to_string())?;
            if found != value {
                return Err(format!("{name}: {found}"));
            }
        }
        Ok(())
    })
    .await?;
    Ok(())
}

fn image(pod: &Pod) -> Option<String> {
    let container = pod.spec.as_ref()?.containers.iter().find(|container| container.name == "postgres")?;
    container.image.clone()
}
