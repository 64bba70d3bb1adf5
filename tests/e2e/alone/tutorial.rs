//! The tutorial's sequence: its bare crd.yaml, the operator on a terminal, its obj.yaml, the log line, a database.

use hello_operator::api::names::{CRD_NAME, LABEL_ROLE};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::Value;

use crate::cluster::eventually;
use crate::harness::{Case, READY, Result, SOON, Suite, Terminal, alone, json_at};

/// What users wait for, to the letter.
const CONTRACT: &str = "### A handler is called with body: ";

#[tokio::test]
async fn tutorial_from_a_terminal() -> Result {
    alone("tutorial", tutorial).await
}

async fn tutorial(suite: &'static Suite, case: Case) -> Result {
    suite.stop_operator().await?;
    suite.kubectl(&["delete", "crd", CRD_NAME, "--timeout=60s"], "").await?.ok()?;
    suite.kubectl(&["apply", "-f", "examples/seed/crd.yaml"], "").await?.ok()?;
    suite
        .kubectl(&["wait", "--for=condition=Established", &format!("crd/{CRD_NAME}"), "--timeout=30s"], "")
        .await?
        .ok()?;

    let operator = Terminal::run(suite, &["--verbose", "--standalone", "--log-format", "text"]).await?;
    case.kubectl(&["apply", "-f", "examples/seed/obj.yaml"]).await?.ok()?;
    let line = operator.line(SOON, CONTRACT).await?;
    let (_, body) = line.split_once(CONTRACT).ok_or("the line has the text")?;
    // Text may follow the JSON.
    let body: Value = serde_json::Deserializer::from_str(body).into_iter().next().ok_or("a body follows")??;
    assert_eq!(json_at(&body, "/kind"), "HelloOperator");
    assert_eq!(json_at(&body, "/metadata/name"), "my-helloworld");
    assert_eq!(json_at(&body, "/metadata/namespace"), case.namespace());
    assert!(body.pointer("/metadata/managedFields").is_none(), "managedFields are noise: {body}");

    let primary = running(&case, &operator).await?;
    case.sql(&primary, "create table said (what text); insert into said values ('hello, world')").await?;
    for pod in case.pods("my-helloworld").await? {
        case.sql_gives(&pod.name_any(), "select what from said", "hello, world").await?;
    }
    let again = operator.lines_with(CONTRACT).await;
    assert_eq!(again.len(), 1, "one object, one line");

    // The next reconcile is the one that would see it gone.
    case.kubectl(&["delete", "-f", "examples/seed/obj.yaml"]).await?.ok()?;
    for ordinal in 1..=3 {
        case.gone::<Pod>(&format!("my-helloworld-{ordinal}")).await?;
    }
    assert_eq!(operator.end(SOON).await?, Some(0), "SIGTERM is no error");
    Ok(())
}

/// Waits for three instances to be ready, under a CRD that has no status to ask, and returns the primary.
async fn running(case: &Case, operator: &Terminal) -> Result<String> {
    let found = eventually(READY, "three instances and a primary", || async {
        let pods = case.pods("my-helloworld").await.map_err(|error| error.to_string())?;
        let ready = pods.iter().filter(|pod| is_ready(pod)).count();
        let primary = pods.iter().find(|pod| pod.labels().get(LABEL_ROLE).is_some_and(|role| role == "primary"));
        match primary {
            Some(primary) if ready == 3 => Ok(primary.name_any()),
            _ => Err(format!("{ready} of {} Pods are ready; the operator says:{}", pods.len(), operator.tail().await)),
        }
    });
    Ok(found.await?)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
