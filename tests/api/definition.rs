//! The CustomResourceDefinition, as a real API server takes it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hello_operator::api::names::{CRD_NAME, MAX_NAME};
use hello_operator::api::{HelloBackup, HelloOperatorSpec, crd, owned};
use http::Request;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::harness::{Plane, eventually};
use crate::together;

pub fn trials(plane: &Arc<Plane>) -> Vec<Trial> {
    vec![
        together(plane, "crd: accepted without a warning", accepted),
        together(plane, "crd: an object without a spec gets every default", defaults),
        together(plane, "crd: each rule refuses with its sentence", sentences),
        together(plane, "crd: kubectl scale works, but not to 0", scale),
        together(plane, "crd: status is a subresource", status),
    ]
}

/// Objects of the API, of any content.
pub fn objects(client: Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client, namespace, &resource())
}

/// What the API is called.
pub fn resource() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("terry.com", "v1", "HelloOperator"), "helloopperators")
}

/// An object of that name; without a spec when there is none.
pub fn object(name: &str, spec: Option<&Value>) -> DynamicObject {
    let mut object = json!({"apiVersion": "terry.com/v1", "kind": "HelloOperator", "metadata": {"name": name}});
    if let Some(spec) = spec {
        object["spec"] = spec.clone();
    }
    serde_json::from_value(object).unwrap()
}

/// Installs the definition unless it is there, and waits until it is served.
pub async fn installed(plane: &Plane) -> Client {
    let client = plane.client("admin").await;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    plane
        .definition
        .get_or_init(async || {
            for definition in crd::all() {
                definitions.create(&PostParams::default(), &definition).await.unwrap();
            }
        })
        .await;
    eventually("the definition to be served", Duration::from_secs(30), async || {
        let all = kube::api::ListParams::default();
        Api::<HelloBackup>::namespaced(client.clone(), "default").list(&all).await.ok()?;
        objects(client.clone(), "default").list(&all).await.ok()
    })
    .await;
    client
}

async fn accepted(plane: Arc<Plane>) {
    let client = installed(&plane).await;
    for definition in crd::all() {
        let name = definition.metadata.name.as_deref().unwrap();
        let path = format!(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}?dryRun=All&fieldManager=test&fieldValidation=Strict&force=true"
        );
        let body = serde_json::to_vec(&definition).unwrap();
        let request = Request::patch(path).header("content-type", "application/apply-patch+yaml").body(body.into());
        let answer = client.send(request.unwrap()).await.unwrap();
        assert!(answer.status().is_success(), "{:?}", answer.into_body().collect_bytes().await);
        let warnings: Vec<_> = answer.headers().get_all("warning").iter().collect();
        assert!(warnings.is_empty(), "{warnings:?}");
    }
    let definitions: Api<CustomResourceDefinition> = Api::all(client);
    let conditions = definitions.get(CRD_NAME).await.unwrap().status.unwrap().conditions.unwrap();
    for condition in conditions {
        assert_ne!(
            (condition.type_.as_str(), condition.status.as_str()),
            ("NonStructuralSchema", "True"),
            "{condition:?}"
        );
    }
}

async fn defaults(plane: Arc<Plane>) {
    let client = installed(&plane).await;
    let api = objects(client, &plane.namespace().await);
    let everything = serde_json::to_value(HelloOperatorSpec::default()).unwrap();
    let specs = [
        None,
        Some(json!({})),
        Some(json!({"instances": null, "image": null, "storage": null, "replication": {"durability": null}})),
        Some(json!({"storage": {"size": null, "walSize": null}, "version": null, "postgresql": {"parameters": null}})),
    ];
    for (number, spec) in specs.iter().enumerate() {
        let name = format!("defaults-{number}");
        let stored = api.create(&PostParams::default(), &object(&name, spec.as_ref())).await.unwrap();
        assert_eq!(stored.data["spec"], everything, "{spec:?}: {} / {}", stored.data["spec"], everything);
        let read: HelloOperatorSpec = serde_json::from_value(stored.data["spec"].clone()).unwrap();
        assert_eq!(read, HelloOperatorSpec::default());
    }
}

/// Every sentence that a rule of the definition may answer with.
fn all_sentences() -> BTreeSet<String> {
    fn collect(value: &Value, sentences: &mut BTreeSet<String>) {
        if let Some(rules) = value.get("x-kubernetes-validations").and_then(Value::as_array) {
            sentences.extend(rules.iter().map(|rule| rule["message"].as_str().unwrap().to_owned()));
        }
        match value {
            Value::Object(fields) => fields.values().for_each(|field| collect(field, sentences)),
            Value::Array(items) => items.iter().for_each(|item| collect(item, sentences)),
            _ => {}
        }
    }
    let mut sentences = BTreeSet::new();
    for definition in crd::all() {
        collect(&serde_json::to_value(definition).unwrap(), &mut sentences);
    }
    sentences
}

async fn sentences(plane: Arc<Plane>) {
    let client = installed(&plane).await;
    let api = objects(client, &plane.namespace().await);
    let mut missing = all_sentences();
    let mut refused = |result: Result<DynamicObject, kube::Error>, what: &str, wanted: &str| {
        let Err(kube::Error::Api(status)) = result else { panic!("{what} was accepted") };
        assert!(status.message.contains(wanted), "{what}: {}", status.message);
        missing.retain(|sentence| !status.message.contains(sentence.as_str()));
    };

    for (name, wanted) in [
        ("a".repeat(MAX_NAME + 1), "at most 45 characters"),
        ("my.db".into(), "no dots"),
        ("1db".into(), "begins with a letter"),
    ] {
        refused(api.create(&PostParams::default(), &object(&name, None)).await, &name, wanted);
    }
    let wal = |size: Value| json!({"storage": {"walSize": size}});
    let backup = |fields: Value| {
        let mut backup = json!({"destination": {"s3": {"bucket": "b"}}});
        backup.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({"backup": backup})
    };
    let restore = |fields: Value| {
        let mut restore = json!({"backup": "nightly"});
        restore.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({"bootstrap": {"restore": restore}})
    };
    for (spec, wanted) in [
        (json!({"version": 14}), "use a version that is supported: 15, 16, 17 or 18"),
        (json!({"version": "17.2"}), "use a version that is supported: 15, 16, 17 or 18"),
        (json!({"instances": 0}), "say state: Hibernated"),
        (json!({"instances": -1}), "use 1 to 9 instances"),
        (json!({"instances": 10}), "use 1 to 9 instances"),
        (json!({"uid": 0}), "root is not allowed"),
        (json!({"replication": {"syncReplicas": 9}}), "use 1 to 8 syncReplicas"),
        (json!({"storage": {"size": "1Mi"}}), "use a size of at least 32Mi, such as 10Gi"),
        (json!({"storage": {"size": "much"}}), "use a size of at least 32Mi, such as 10Gi"),
        (wal(json!(5)), "use a size of at least 32Mi, such as 10Gi"),
        (
            json!({"instances": 2, "replication": {"durability": "Quorum", "syncReplicas": 2}}),
            "lower replication.syncReplicas",
        ),
        (json!({"primary": "db-0"}), "primary must be the name of an instance of this object"),
        (json!({"primary": "other-1"}), "primary must be the name of an instance of this object"),
        (json!({"failover": {"leaseDurationSeconds": 7}}), "use 8 to 300 leaseDurationSeconds"),
        (json!({"failover": {"renewDeadlineSeconds": 4}}), "use 5 to 297 renewDeadlineSeconds"),
        (json!({"failover": {"retryPeriodSeconds": 0}}), "use 1 to 60 retryPeriodSeconds"),
        (json!({"failover": {"leaseDurationSeconds": 12}}), "more than 2 less than leaseDurationSeconds"),
        (json!({"failover": {"retryPeriodSeconds": 5}}), "less than half of renewDeadlineSeconds"),
        (json!({"failover": {"maxLagBytes": "-1"}}), "use a number of bytes, such as 16Mi"),
        (json!({"postgresql": {"database": "My-App"}}), "use lower case letters, digits and underscores"),
        (json!({"postgresql": {"owner": "postgres"}}), "choose another, such as app"),
        (json!({"postgresql": {"owner": "pg_me"}}), "choose another, such as app"),
        (json!({"postgresql": {"hba": ["hostess all all"]}}), "write one line of pg_hba.conf"),
        (json!({"postgresql": {"hba": ["host all all all trust\nhost all"]}}), "write one line of pg_hba.conf"),
        (json!({"postgresql": {"parameters": {"Work_Mem": "1MB"}}}), "use names of settings as PostgreSQL writes them"),
        (
            json!({"services": {"rw": {"loadBalancerSourceRanges": ["10.0.0.0"]}}}),
            "use an address range, such as 192.0.2.0/24",
        ),
        (backup(json!({"destination": {}})), "backup.destination must name exactly one"),
        (json!({"backup": {"schedule": "0 3 * * *"}}), "need a backup.destination"),
        (backup(json!({"schedule": "daily"})), "use five fields of cron"),
        (backup(json!({"retention": {"keepLast": 0}})), "use 1 to 1000 keepLast"),
        (backup(json!({"retention": {"keepFor": "30"}})), "such as 30d"),
        (backup(json!({"archiveTimeoutSeconds": 5})), "use 10 to 3600 archiveTimeoutSeconds"),
        (backup(json!({"maxBytesPerSecond": "1k"})), "use at least 64Ki bytes per second"),
        (backup(json!({"destination": {"s3": {"bucket": "b", "path": "../a"}}})), "use a path of letters"),
        (backup(json!({"destination": {"s3": {"bucket": "b", "endpoint": "minio"}}})), "use an address such as"),
        (json!({"bootstrap": {"restore": {}}}), "must name exactly one of backup"),
        (json!({"bootstrap": {"restore": {"source": {}}}}), "source must name exactly one"),
        (restore(json!({"targetName": "a", "targetLsn": "0/1"})), "at most one of targetTime"),
        (restore(json!({"targetTime": "2026-11-30"})), "use a time with its zone"),
        (restore(json!({"targetLsn": "1"})), "use a WAL position"),
        (restore(json!({"targetTimeline": 0})), "use a timeline of at least 1"),
    ] {
        refused(api.create(&PostParams::default(), &object("db", Some(&spec))).await, &spec.to_string(), wanted);
    }
    for owned in owned::OWNED {
        let spec = json!({"postgresql": {"parameters": {owned.name: "x"}}});
        refused(api.create(&PostParams::default(), &object("db", Some(&spec))).await, owned.name, &owned.sentence());
    }

    let old = json!({"storage": {"size": "2Gi", "walSize": "1Gi", "storageClassName": "fast"}});
    api.create(&PostParams::default(), &object("db", Some(&old))).await.unwrap();
    for (spec, wanted) in [
        (json!({"version": 16}), "version never goes down"),
        (json!({"storage": {"size": "1Gi"}}), "storage.size may grow but never shrink"),
        (json!({"storage": {"walSize": "512Mi"}}), "storage.walSize may grow but never shrink"),
        (json!({"storage": {"walSize": null}}), "storage.walSize cannot be added or removed"),
        (json!({"storage": {"storageClassName": "slow"}}), "storage.storageClassName cannot be changed"),
        (json!({"storage": {"storageClassName": null}}), "storage.storageClassName cannot be changed"),
        (json!({"postgresql": {"database": "other"}}), "postgresql.database and postgresql.owner cannot be changed"),
        (json!({"bootstrap": {"restore": {"backup": "x"}}}), "bootstrap.restore cannot be added, changed or removed"),
    ] {
        let patch = Patch::Merge(json!({"spec": spec}));
        refused(api.patch("db", &PatchParams::default(), &patch).await, &spec.to_string(), wanted);
    }
    // The one engine that there is cannot be changed to another.
    missing.retain(|sentence| !sentence.starts_with("engine cannot be changed"));
    // That of backups is broken in their own tests.
    missing.remove(crd::BACKUP_STAYS);
    assert!(missing.is_empty(), "rules that nothing here breaks: {missing:#?}");

    for spec in [
        json!({"version": "18"}),
        json!({"storage": {"size": "3Gi", "walSize": 2_147_483_648_u64}}),
        json!({"instances": 9, "state": "Hibernated"}),
        json!({"primary": "db-3", "failover": {"maxLagBytes": 0, "leaseDurationSeconds": 13}}),
    ] {
        let patch = Patch::Merge(json!({"spec": spec}));
        api.patch("db", &PatchParams::default(), &patch).await.unwrap();
    }
}

async fn scale(plane: Arc<Plane>) {
    let client = installed(&plane).await;
    let api = objects(client, &plane.namespace().await);
    api.create(&PostParams::default(), &object("db", None)).await.unwrap();
    let to = |replicas: i32| Patch::Merge(json!({"spec": {"replicas": replicas}}));
    api.patch_scale("db", &PatchParams::default(), &to(5)).await.unwrap();
    assert_eq!(api.get("db").await.unwrap().data["spec"]["instances"], 5);
    let error = api.patch_scale("db", &PatchParams::default(), &to(0)).await.unwrap_err();
    assert!(error.to_string().contains("say state: Hibernated"), "{error}");
}

async fn status(plane: Arc<Plane>) {
    let client = installed(&plane).await;
    let api = objects(client, &plane.namespace().await);
    let stored = api.create(&PostParams::default(), &object("db", None)).await.unwrap();
    let patch = Patch::Merge(json!({"status": {"phase": "Running"}, "spec": {"instances": 9}}));
    let written = api.patch_status("db", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(written.data["status"]["phase"], "Running");
    assert_eq!(written.data["spec"]["instances"], 3, "a write to status changes nothing else");
    assert_eq!(written.metadata.generation, stored.metadata.generation);
    api.delete("db", &DeleteParams::default()).await.unwrap();
}
