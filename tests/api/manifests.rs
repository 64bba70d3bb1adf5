//! What we give people to apply, offered to a real API server, strictly and without keeping it.

use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams, ValidationDirective};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::definition::installed;
use crate::harness::Plane;
use crate::together;

/// The chart in several ways, as its tests hold it, what people without helm apply, and the examples.
const FILES: [&str; 9] = [
    "tests/golden/chart/default.yaml",
    "tests/golden/chart/full.yaml",
    "tests/golden/chart/namespaces.yaml",
    "deploy/operator.yaml",
    "examples/my-helloworld.yaml",
    "examples/development.yaml",
    "examples/production.yaml",
    "examples/client.yaml",
    "examples/kubectl-hello-role.yaml",
];

pub fn trials(plane: &Arc<Plane>) -> Vec<Trial> {
    vec![together(plane, "manifests: the API server takes every one, to the last field", offered)]
}

async fn offered(plane: Arc<Plane>) {
    let client = installed(&plane).await;
    let namespace = plane.namespace().await;
    // Nobody makes them here, and a Pod needs its own.
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &namespace);
    for name in ["default", "hello-operator"] {
        let account = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        accounts.create(&PostParams::default(), &account).await.unwrap();
    }
    let mut offered = 0;
    for file in FILES {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        for document in documents.into_iter().filter(Value::is_object) {
            // The Prometheus operator's kinds are not served here (tests/e2e/monitoring applies them), and the golden render
            // leaves the text of dashboards out.
            let of_prometheus = document["apiVersion"].as_str().is_some_and(|v| v.starts_with("monitoring.coreos.com"));
            if of_prometheus || document["data"].is_string() {
                continue;
            }
            offer(&client, &namespace, file, document).await;
            offered += 1;
        }
    }
    assert!(offered > 35, "{offered} objects");
}

async fn offer(client: &Client, namespace: &str, file: &str, document: Value) {
    let mut object: DynamicObject = serde_json::from_value(document).unwrap();
    let types = object.types.clone().unwrap();
    let what = format!("{file}: {} {}", types.kind, object.name_any());
    let kind = GroupVersionKind::try_from(&types).unwrap();
    let (resource, capabilities) =
        kube::discovery::pinned_kind(client, &kind).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    let api: Api<DynamicObject> = match capabilities.scope {
        kube::discovery::Scope::Cluster => Api::all_with(client.clone(), &resource),
        kube::discovery::Scope::Namespaced => {
            object.metadata.namespace = Some(namespace.to_owned());
            Api::namespaced_with(client.clone(), namespace, &resource)
        }
    };
    let mut params = PatchParams::apply("manifests").force();
    params.dry_run = true;
    params.field_validation = Some(ValidationDirective::Strict);
    let answer = api.patch(&object.name_any(), &params, &Patch::Apply(&object)).await;
    assert!(answer.is_ok(), "{what}: {answer:?}");
}
