//! A bare CustomResourceDefinition over ours: nothing is lost, nothing is written to the objects, and the repair works.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use hello_operator::api::config::ClusterConfig;
use hello_operator::api::crd;
use hello_operator::api::names::{CONFIG_KEY, CRD_NAME, Names};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use libtest_mimic::Trial;
use serde_json::json;

use crate::alone;
use crate::definition::{installed, object, objects};
use crate::harness::{Plane, eventually};
use crate::processes::Operator;

const PATIENCE: Duration = Duration::from_mins(1);
/// How long nothing may happen.
const QUIET: Duration = Duration::from_secs(5);

pub fn trials(plane: &Arc<Plane>) -> Vec<Trial> {
    vec![
        alone(plane, "crd: a bare one over ours changes nothing that runs", |plane| restored(plane, bare_over_ours)),
        alone(plane, "crd: --manage-crds puts ours back", |plane| restored(plane, repair)),
    ]
}

/// Runs a test that replaces the definition, and puts ours back whatever becomes of it.
async fn restored<F: Future<Output = ()>>(plane: Arc<Plane>, test: impl FnOnce(Arc<Plane>) -> F) {
    let client = installed(&plane).await;
    let outcome = std::panic::AssertUnwindSafe(test(plane)).catch_unwind().await;
    replace(&client, &crd::hello_operator()).await;
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

/// Replaces the definition, as `kubectl replace` would. The API server's own controllers write the status of a definition just after
/// it changed: whoever lost to them reads again.
async fn replace(client: &Client, definition: &CustomResourceDefinition) {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut wanted = definition.clone();
    eventually("the definition to be replaced", PATIENCE, async || {
        wanted.metadata = definitions.get(CRD_NAME).await.unwrap().metadata;
        match definitions.replace(CRD_NAME, &PostParams::default(), &wanted).await {
            Err(kube::Error::Api(status)) if status.is_conflict() => None,
            other => Some(other.unwrap()),
        }
    })
    .await;
}

fn bare() -> CustomResourceDefinition {
    serde_saphyr::from_str(include_str!("../../examples/seed/crd.yaml")).unwrap()
}

async fn settled_without_spec(objects: &Api<DynamicObject>, name: &str) {
    eventually("the object to read without its spec", PATIENCE, async || {
        objects.get(name).await.unwrap().data.get("spec").is_none().then_some(())
    })
    .await;
}

/// The spec that the agents of a cluster go by.
async fn accepted(maps: &Api<ConfigMap>, cluster: &str) -> ClusterConfig {
    let name = Names::new(cluster).config_map();
    let map = eventually("the ConfigMap", PATIENCE, async || maps.get_opt(&name).await.unwrap()).await;
    serde_json::from_str(&map.data.unwrap()[CONFIG_KEY]).unwrap()
}

/// There is one line for each object; what other tests left is handled as well.
async fn greeted_once(operator: &Operator, objects: &Api<DynamicObject>) {
    let greetings = operator.greetings();
    for object in objects.list(&ListParams::default()).await.unwrap() {
        let uid = object.metadata.uid.unwrap();
        assert_eq!(
            greetings.iter().filter(|greeted| **greeted == uid).count(),
            1,
            "lines of {:?}",
            object.metadata.name
        );
    }
}

async fn bare_over_ours(plane: Arc<Plane>) {
    let client = installed(&plane).await;
    let namespace = plane.namespace().await;
    let objects = objects(client.clone(), &namespace);
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
    let operator = Operator::start(&plane, "bare", &namespace, &[]);
    let claim = async |name: &str| {
        eventually("a volume", PATIENCE, async || claims.get_opt(name).await.unwrap()).await;
    };

    objects
        .create(&PostParams::default(), &object("old", Some(&json!({"instances": 2, "version": 16}))))
        .await
        .unwrap();
    claim("old-1").await;
    let before = accepted(&maps, "old").await;
    assert_eq!(before.spec.instances, 2);

    replace(&client, &bare()).await;
    settled_without_spec(&objects, "old").await;
    eventually("the operator to say so", PATIENCE, async || {
        operator.log().contains("another CRD of the same name").then_some(())
    })
    .await;
    let at = Timestamp::now();
    // Any write erases the spec for good.
    let note = Patch::Merge(json!({"metadata": {"annotations": {"note": "written under the bare definition"}}}));
    objects.patch("old", &PatchParams::default(), &note).await.unwrap();
    // One that has no children yet gets the defaults.
    objects.create(&PostParams::default(), &object("new", None)).await.unwrap();
    claim("new-1").await;
    assert_eq!(accepted(&maps, "new").await.spec.instances, 3);
    tokio::time::sleep(QUIET).await;
    assert_eq!(accepted(&maps, "old").await.spec, before.spec, "the last accepted spec");
    let wrong: Vec<_> = plane
        .writes(&namespace)
        .into_iter()
        .filter(|write| write.user == "bare" && write.received > at)
        .filter(|write| write.resource.starts_with("helloopperators") || write.verb.starts_with("delete"))
        .collect();
    assert!(wrong.iter().all(|write| write.code == 404), "no object is written and nothing deleted: {wrong:?}");
    assert!(wrong.len() < 3, "a look under way may find the status gone, but none tries again: {wrong:?}");
    greeted_once(&operator, &objects).await;

    replace(&client, &crd::hello_operator()).await;
    eventually("a status", PATIENCE, async || {
        objects.get("new").await.ok()?.data["status"]["phase"].as_str().map(drop)
    })
    .await;
    tokio::time::sleep(QUIET).await;
    // The erased spec reads as the defaults now, at the same generation: nobody asked for a third instance.
    assert_eq!(objects.get("old").await.unwrap().data["spec"]["instances"], 3);
    assert!(claims.get_opt("old-3").await.unwrap().is_none());
    assert_eq!(accepted(&maps, "old").await.spec, before.spec);
    // Until somebody does.
    let again = Patch::Merge(json!({"spec": {"instances": 4}}));
    objects.patch("old", &PatchParams::default(), &again).await.unwrap();
    eventually("what was asked for to be accepted", PATIENCE, async || {
        (accepted(&maps, "old").await.spec.instances == 4).then_some(())
    })
    .await;
    greeted_once(&operator, &objects).await;
}

async fn repair(plane: Arc<Plane>) {
    let client = installed(&plane).await;
    let namespace = plane.namespace().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let ours = async || {
        let there = definitions.get(CRD_NAME).await.unwrap();
        (there.spec.versions == crd::hello_operator().spec.versions).then_some(())
    };
    let _operator = Operator::start(&plane, "manager", &namespace, &["--manage-crds"]);
    replace(&client, &bare()).await;
    eventually("our definition to be put back", PATIENCE, ours).await;
    // And again, once it has long been running.
    replace(&client, &bare()).await;
    eventually("our definition to be put back again", PATIENCE, ours).await;
    let api = objects(client, &namespace);
    // The API server serves a definition a moment after it has it.
    eventually("an object with its defaults", PATIENCE, async || {
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let created = api.create(&params, &object("db", None)).await.ok()?;
        (created.data["spec"]["instances"] == 3).then_some(())
    })
    .await;
}
