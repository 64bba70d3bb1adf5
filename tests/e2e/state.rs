//! Hibernated and Paused.

use std::time::Duration;

use hello_operator::api::names::Names;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::DeleteParams;
use serde_json::json;

use crate::harness::{Case, ClientPod, Result, SOON, Suite, case};

#[tokio::test]
async fn state_hibernated_keeps_the_data_and_resumes() -> Result {
    case("hibernated", hibernated).await
}

async fn hibernated(_: &'static Suite, case: Case) -> Result {
    let (client, running) = tokio::join!(ClientPod::start(&case), case.running("db", json!({})));
    running?;
    let client = client?;
    let uri = case.uri("db").await?;
    client.psql(&uri, "create table kept as select generate_series(1, 1000) as n").await?;

    case.change("db", json!({"state": "Hibernated"})).await?;
    for pod in ["db-1", "db-2", "db-3"] {
        case.gone::<Pod>(pod).await?;
    }
    case.until(SOON, "db", "Hibernated", |object| {
        let phase = object.status.as_ref().and_then(|status| status.phase.clone());
        if phase.as_deref() == Some("Hibernated") { Ok(()) } else { Err(format!("{phase:?}")) }
    })
    .await?;
    assert_eq!(case.volumes("db").await?, ["db-1", "db-2", "db-3"]);

    case.change("db", json!({"state": "Running"})).await?;
    case.ready("db").await?;
    client.psql_gives(&uri, "select count(*) from kept", "1000").await?;
    client.psql(&uri, "insert into kept values (1001)").await?;
    for pod in ["db-1", "db-2", "db-3"] {
        case.sql_gives(pod, "select count(*) from kept", "1001").await?;
    }
    Ok(())
}

#[tokio::test]
async fn state_paused_touches_nothing() -> Result {
    case("paused", paused).await
}

async fn paused(_: &'static Suite, case: Case) -> Result {
    case.running("db", json!({"instances": 1})).await?;
    let names = Names::new("db");
    case.change("db", json!({"state": "Paused"})).await?;
    case.until(SOON, "db", "Paused", |object| {
        let status = object.status.as_ref().ok_or("no status")?;
        let seen = status.observed_generation == object.metadata.generation;
        if seen && status.phase.as_deref() == Some("Paused") { Ok(()) } else { Err(format!("{:?}", status.phase)) }
    })
    .await?;
    assert_eq!(case.sql("db-1", "select 1").await?, "1", "the database goes on");

    let mut log = case.audit_log()?;
    case.api::<Service>().delete(&names.service_r(), &DeleteParams::default()).await?;
    case.change("db", json!({"instances": 3, "postgresql": {"parameters": {"work_mem": "7MB"}}})).await?;
    case.until(SOON, "db", "seen", |object| {
        let observed = object.status.as_ref().and_then(|status| status.observed_generation);
        if observed == object.metadata.generation { Ok(()) } else { Err(format!("{observed:?}")) }
    })
    .await?;
    // Nothing is to happen: it has to be given time not to happen.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let touched: Vec<_> = log
        .read()?
        .into_iter()
        .filter(|event| event.is_write() && event.user == "system:serviceaccount:hello-system:hello-operator")
        .filter(|event| event.object.as_ref().is_some_and(|object| object.namespace == case.namespace()))
        // That it has seen the change, it says.
        .filter(|event| !event.is_about("helloopperators") && !event.is_about("events"))
        .collect();
    assert!(touched.is_empty(), "{touched:#?}");
    assert_eq!(case.pods("db").await?.len(), 1);
    assert!(case.api::<Service>().get_opt(&names.service_r()).await?.is_none());

    case.change("db", json!({"state": "Running"})).await?;
    let status = case.ready("db").await?.status.ok_or("a status")?;
    assert_eq!(status.ready.as_deref(), Some("3/3"));
    case.api::<Service>().get(&names.service_r()).await?;
    case.sql_gives("db-1", "show work_mem", "7MB").await
}
