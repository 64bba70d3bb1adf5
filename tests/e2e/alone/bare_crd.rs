//! A bare CRD applied over ours, while a database runs, and the repair.

use hello_operator::api::names::CRD_NAME;
use hello_operator::api::spec::HelloOperator;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::cluster::eventually;
use crate::harness::{Case, Result, SOON, Suite, alone};

#[tokio::test]
async fn bare_crd_over_ours_changes_no_database_and_is_repaired() -> Result {
    alone("bare-crd", bare_crd).await
}

async fn bare_crd(suite: &'static Suite, case: Case) -> Result {
    // Nothing here is as the defaults would have it.
    let spec = json!({"instances": 2, "replication": {"durability": "Async"},
        "postgresql": {"database": "app", "parameters": {"work_mem": "7MB"}}});
    case.running("db", spec).await?;
    case.sql("db-1", "create table kept (n int); insert into kept values (7)").await?;
    let before = uids(&case).await?;
    let mut log = case.audit_log()?;

    suite.kubectl(&["apply", "-f", "examples/seed/crd.yaml"], "").await?.ok()?;
    case.event_of_the_crd().await?;
    // Who looks now finds an object without a spec; a Pod is missing, and must come back as the lost spec says.
    case.replaced::<Pod>("db-2").await?;
    let pods = eventually(SOON, "both instances to stream", || async {
        let streaming = case.sql("db-1", "select count(*) from pg_stat_replication where state = 'streaming'").await;
        match streaming {
            Ok(count) if count == "1" => case.pods("db").await.map_err(|error| error.to_string()),
            Ok(count) => Err(format!("{count} stream")),
            Err(error) => Err(error.to_string()),
        }
    })
    .await?;
    assert_eq!(pods.len(), 2, "the defaults say 3, the cluster's spec says 2");
    case.sql_gives("db-2", "show work_mem", "7MB").await?;
    case.sql_gives("db-2", "select n from kept", "7").await?;
    assert_eq!(uids(&case).await?.first(), before.first(), "the other instance was not touched");
    let written: Vec<_> = log
        .read()?
        .into_iter()
        .filter(|event| {
            event.is_write()
                && event.is_about("helloopperators")
                && event.user.starts_with("system:serviceaccount:hello-system")
        })
        .collect();
    assert!(written.is_empty(), "a write to the object would erase its spec for good: {written:?}");

    // The repair that the operator offers. helm itself would refuse to write over what kubectl wrote (--force-conflicts).
    let pod = uids(&case).await?;
    suite.install(&["crds.enabled=false", "crds.manage=true"]).await?;
    let crds: Api<CustomResourceDefinition> = Api::all(case.client());
    eventually(SOON, "the CRD to be ours again", || async {
        let crd = crds.get(CRD_NAME).await.map_err(|error| error.to_string())?;
        let version = crd.spec.versions.into_iter().next().ok_or("no version")?;
        if version.subresources.is_some() { Ok(()) } else { Err("it has no subresources".to_owned()) }
    })
    .await?;
    let object = case.ready("db").await?;
    assert_eq!(object.spec.instances, 2, "the spec was never lost");
    assert_eq!(uids(&case).await?, pod, "neither the repair nor a new operator restarts a database");
    case.api::<HelloOperator>().get_scale("db").await?;
    Ok(())
}

async fn uids(case: &Case) -> Result<Vec<Option<String>>> {
    Ok(case.pods("db").await?.iter().map(ResourceExt::uid).collect())
}

impl Case {
    /// The operator says that it has noticed.
    async fn event_of_the_crd(&self) -> Result {
        let everywhere: Api<k8s_openapi::api::core::v1::Event> = Api::all(self.client());
        eventually(SOON, "an event that says that the CRD was replaced", || async {
            let events = everywhere.list(&Default::default()).await.map_err(|error| error.to_string())?;
            let found = events.iter().any(|event| {
                event.message.as_deref().is_some_and(|note| note.contains("CRD"))
                    && event.type_.as_deref() == Some("Warning")
            });
            if found { Ok(()) } else { Err(format!("{} other events", events.items.len())) }
        })
        .await?;
        Ok(())
    }
}
