//! An operator with rights in some namespaces, and none on the whole cluster: those that the chart gives it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, ResourceExt};
use libtest_mimic::Trial;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::alone;
use crate::definition::{installed, object, objects};
use crate::harness::{Plane, eventually};
use crate::processes::Operator;

const PATIENCE: Duration = Duration::from_mins(1);
/// As the chart's golden render has them.
const RELEASE: &str = "hello-system";
const WATCHED: [&str; 2] = ["shop", "bank"];
const USER: &str = "system:serviceaccount:hello-system:hello-operator";

pub fn trials(plane: &Arc<Plane>) -> Vec<Trial> {
    vec![alone(plane, "namespaces: the chart's Roles are enough, and nothing else is looked at", roles)]
}

async fn roles(plane: Arc<Plane>) {
    let client = installed(&plane).await;
    let elsewhere = plane.namespace().await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for name in WATCHED.into_iter().chain([RELEASE]) {
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    }
    grant(&client).await;

    let flags = ["--watch-namespaces", &WATCHED.join(",")];
    let operator = Operator::start_as(&plane, &plane.kubeconfig_of(USER), "in-namespaces", RELEASE, &flags);
    for namespace in WATCHED.into_iter().chain([elsewhere.as_str()]) {
        let new = object("db", Some(&json!({"instances": 1})));
        objects(client.clone(), namespace).create(&PostParams::default(), &new).await.unwrap();
    }
    for namespace in WATCHED {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        eventually("the children", PATIENCE, async || maps.get_opt("db-config").await.unwrap()).await;
        let status = objects(client.clone(), namespace);
        eventually("the status", PATIENCE, async || {
            status.get("db").await.unwrap().data.pointer("/status/phase").cloned()
        })
        .await;
    }
    // What is deleted is noticed, in each of them.
    for namespace in WATCHED {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let before = maps.get("db-config").await.unwrap().uid();
        maps.delete("db-config", &DeleteParams::default()).await.unwrap();
        eventually("the ConfigMap to come back", PATIENCE, async || {
            maps.get_opt("db-config").await.unwrap().filter(|map| map.uid() != before)
        })
        .await;
    }

    let log = operator.log();
    for (number, line) in log.lines().enumerate() {
        let line: Value = serde_json::from_str(line).unwrap();
        let level = line["level"].as_str().unwrap();
        assert!(!line.to_string().contains("forbidden"), "line {number}: {line}");
        assert!(level != "ERROR", "line {number}: {line}");
    }
    let touched: Vec<_> = plane.writes(&elsewhere).into_iter().filter(|write| write.user == USER).collect();
    assert!(touched.is_empty(), "{touched:?}");
    for namespace in WATCHED {
        objects(client.clone(), namespace).delete("db", &DeleteParams::default()).await.unwrap();
    }
    objects(client, &elsewhere).delete("db", &DeleteParams::default()).await.unwrap();
}

/// Gives the rights of the chart with `watchNamespaces={shop,bank}`: of its golden render, which a test of the chart keeps true.
async fn grant(client: &Client) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chart/namespaces.yaml");
    for document in std::fs::read_to_string(path).unwrap().split("\n---\n") {
        let document: Value = serde_saphyr::from_str(document).unwrap();
        match document["kind"].as_str() {
            Some("Role") => create::<Role>(client, document).await,
            Some("RoleBinding") => create::<RoleBinding>(client, document).await,
            _ => {}
        }
    }
}

async fn create<K>(client: &Client, object: Value)
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + serde::Serialize
        + std::fmt::Debug,
{
    let object: K = serde_json::from_value(object).unwrap();
    let namespace = object.namespace().unwrap();
    Api::<K>::namespaced(client.clone(), &namespace).create(&PostParams::default(), &object).await.unwrap();
}
