//! What keeps a database from running is said, in a condition and an event that name the cause, and is over when it is
//! corrected. Another cluster does not notice.

use k8s_openapi::api::core::v1::ResourceQuota;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::harness::{Case, Result, Suite, case};

#[tokio::test]
async fn trouble_is_named_and_heals_when_it_is_corrected() -> Result {
    case("trouble", trouble).await
}

async fn trouble(_: &'static Suite, case: Case) -> Result {
    case.running("bystander", json!({"instances": 1})).await?;
    let before = case.pods("bystander").await?;
    let quota = case.new_namespace("quota").await?;
    let quota = case.within(&quota);

    // All at once: one does not hide another.
    let outcome = tokio::try_join!(
        named(&case, "image", json!({"image": "registry.local/postgres:nope"}), "registry.local/postgres:nope"),
        named(&case, "cpu", json!({"resources": {"requests": {"cpu": "1000"}}}), "Insufficient cpu"),
        storage_class(&case),
        no_pods(&quota),
    );
    outcome?;
    tokio::try_join!(
        healed(&case, "image", json!({"image": null})),
        healed(&case, "cpu", json!({"resources": {"requests": {"cpu": "10m"}}})),
    )?;

    let after = case.pods("bystander").await?;
    assert_eq!(before.len(), after.len());
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.metadata.uid, after.metadata.uid);
        let restarts = |pod: &k8s_openapi::api::core::v1::Pod| {
            let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.clone());
            statuses.into_iter().flatten().map(|status| status.restart_count).sum::<i32>()
        };
        assert_eq!(restarts(after), 0);
    }
    case.ready("bystander").await?;
    Ok(())
}

/// Makes a cluster of one instance that cannot run, and waits until it says so.
async fn named(case: &Case, name: &str, spec: Value, cause: &str) -> Result {
    let mut spec = spec;
    if let Some(fields) = spec.as_object_mut() {
        fields.insert("instances".into(), json!(1));
    }
    case.hello(name, spec).await?;
    let sentence = case.says(name, "Ready", false, cause).await?;
    case.says(name, "Degraded", true, cause).await?;
    let note = case.event(name, "", cause).await?;
    println!("{name}: {sentence}\n  event: {note}");
    Ok(())
}

async fn healed(case: &Case, name: &str, change: Value) -> Result {
    case.change(name, change).await?;
    case.ready(name).await?;
    assert_eq!(case.sql(&format!("{name}-1"), "select 1").await?, "1");
    Ok(())
}

async fn storage_class(case: &Case) -> Result {
    let class = format!("{}-fast", case.namespace());
    named(case, "class", json!({"storage": {"storageClassName": class}}), &class).await?;
    let classes: Api<StorageClass> = Api::all(case.client());
    let mut object = classes.get("local").await?;
    object.metadata = serde_json::from_value(json!({"name": class}))?;
    classes.create(&PostParams::default(), &object).await?;
    let outcome = async {
        case.ready("class").await?;
        case.sql("class-1", "select 1").await
    };
    let outcome = outcome.await;
    classes.delete(&class, &DeleteParams::default()).await?;
    assert_eq!(outcome?, "1");
    Ok(())
}

async fn no_pods(case: &Case) -> Result {
    let quota = json!({"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}});
    let quotas = case.api::<ResourceQuota>();
    quotas.create(&PostParams::default(), &serde_json::from_value(quota)?).await?;
    // It counts once its controller has seen it.
    crate::cluster::eventually(crate::harness::SOON, "the quota to be in force", || async {
        let status = quotas.get("none").await.map_err(|error| error.to_string())?.status;
        status.and_then(|status| status.hard).map(drop).ok_or("not yet".to_owned())
    })
    .await?;
    named(case, "quota", json!({}), "exceeded quota").await?;
    quotas.delete("none", &DeleteParams::default()).await?;
    case.ready("quota").await?;
    assert_eq!(case.sql("quota-1", "select 1").await?, "1");
    Ok(())
}
