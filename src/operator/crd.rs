//! The operator's own CRD: whether ours stands, and its installation and repair when that is asked for.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
use kube::{Api, Client};
use kube_runtime::watcher;
use prometheus::IntGauge;
use serde_json::json;

use super::error::{Error, call};
use super::events::{Events, News};
use super::random::jitter;
use crate::api::crd;
use crate::api::names::{ANNOTATION_HASH, CRD_NAME, FIELD_MANAGER, VERSION};
use crate::core::build::hash;
use crate::leader::Gate;
use crate::telemetry::metrics::OperatorMetrics;

const WHY: &str = "another CRD of the same name stands over ours, without its schema and status: existing clusters stay on their last accepted spec, and no object is written";

/// Whether a bare CRD stands over ours. Shared; cheap to ask.
#[derive(Clone)]
pub struct Degraded {
    bare: Arc<AtomicBool>,
    gauge: IntGauge,
}

impl Degraded {
    /// Not so, until seen otherwise.
    pub fn new(metrics: &OperatorMetrics) -> Result<Self, Error> {
        let metric = |error: prometheus::Error| Error::Telemetry(error.into());
        let gauge = IntGauge::new(
            "hello_operator_crd_degraded",
            "1 while another CRD of the same name stands over ours, without schema and status.",
        )
        .map_err(metric)?;
        metrics.registry().register(Box::new(gauge.clone())).map_err(metric)?;
        Ok(Self { bare: Arc::default(), gauge })
    }

    /// Whether it is so now.
    pub fn get(&self) -> bool {
        self.bare.load(Ordering::Acquire)
    }

    /// Returns whether that is news.
    fn set(&self, bare: bool) -> bool {
        self.gauge.set(i64::from(bare));
        self.bare.swap(bare, Ordering::AcqRel) != bare
    }
}

/// Whether a CRD lacks what ours has: the schema of the spec, the status or the scale.
pub fn is_bare(crd: &CustomResourceDefinition) -> bool {
    let Some(version) = crd.spec.versions.iter().find(|version| version.name == VERSION) else { return true };
    let subresources = version.subresources.as_ref().is_some_and(|sub| sub.status.is_some() && sub.scale.is_some());
    let spec = version
        .schema
        .as_ref()
        .and_then(|schema| schema.open_api_v3_schema.as_ref()?.properties.as_ref()?.get("spec"))
        .is_some_and(|spec| spec.default.is_some() && spec.properties.is_some());
    !(subresources && spec)
}

fn ours() -> CustomResourceDefinition {
    let mut crd = crd::hello_operator();
    let hash = hash(&json!(crd.spec));
    crd.metadata.annotations.get_or_insert_default().insert(ANNOTATION_HASH.into(), hash);
    crd
}

/// Installs ours where there is none, and puts it back where another or an older one stands.
pub async fn ensure(client: &Client) -> Result<(), Error> {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    let params = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() };
    let mut wanted = ours();
    match call(format!("the CRD {CRD_NAME} cannot be read"), api.get_opt(CRD_NAME)).await? {
        None => {
            call(format!("the CRD {CRD_NAME} cannot be created"), api.create(&params, &wanted)).await?;
            tracing::info!(crd = CRD_NAME, "installed");
        }
        Some(there) => {
            let hash = |crd: &CustomResourceDefinition| {
                crd.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION_HASH)).cloned()
            };
            if !is_bare(&there) && hash(&there) == hash(&wanted) {
                return Ok(());
            }
            let annotations = wanted.metadata.annotations.take().unwrap_or_default();
            wanted.metadata = there.metadata;
            wanted.metadata.managed_fields = None;
            wanted.metadata.annotations.get_or_insert_default().extend(annotations);
            call(format!("the CRD {CRD_NAME} cannot be replaced"), api.replace(CRD_NAME, &params, &wanted)).await?;
            tracing::warn!(crd = CRD_NAME, "put back: another or an older one stood in its place");
        }
    }
    Ok(())
}

/// What the watch of the CRD needs.
pub struct Watch {
    /// For reading.
    pub reader: Client,
    /// For the repair; its writes pass the gate.
    pub writer: Client,
    /// Who acts.
    pub gate: Gate,
    /// Whether to repair.
    pub manage: bool,
    /// Where it tells.
    pub events: Arc<Events>,
    /// Where it counts.
    pub metrics: Arc<OperatorMetrics>,
    /// What it sets.
    pub degraded: Degraded,
}

/// Watches our CRD for as long as the process lives; `changed` is called when the state changes.
pub async fn watch(watch: Watch, changed: impl Fn() + Send) {
    const RESOURCE: &str = "customresourcedefinitions";
    watch.metrics.watch_progressed(RESOURCE);
    let config = watcher::Config::default().timeout(195).fields(&format!("metadata.name={CRD_NAME}"));
    let mut stream = pin!(watcher(Api::<CustomResourceDefinition>::all(watch.reader.clone()), config));
    while let Some(event) = stream.next().await {
        match event {
            Ok(watcher::Event::InitApply(crd) | watcher::Event::Apply(crd)) => {
                watch.metrics.watch_progressed(RESOURCE);
                let bare = is_bare(&crd);
                if watch.degraded.set(bare) {
                    changed();
                    if bare && watch.gate.leading() {
                        tracing::error!(crd = CRD_NAME, "{WHY}");
                        let reference = reference(&crd);
                        let occasion = crd.metadata.generation.unwrap_or(0);
                        let news = News { warning: true, reason: "CrdReplaced", note: WHY, child: None, occasion };
                        watch.events.publish(&reference, None, news).await;
                    } else if !bare {
                        tracing::info!(crd = CRD_NAME, "ours stands again");
                    }
                }
                if watch.manage
                    && watch.gate.leading()
                    && bare
                    && let Err(error) = ensure(&watch.writer).await
                {
                    watch.metrics.failed(error.category());
                    tracing::error!(%error, "the CRD cannot be repaired");
                }
            }
            Ok(_) => watch.metrics.watch_progressed(RESOURCE),
            Err(error) => {
                watch.metrics.failed(crate::api::Category::Api);
                tracing::warn!(resource = RESOURCE, %error, "watch failed");
                tokio::time::sleep(jitter(Duration::from_secs(5))).await;
            }
        }
    }
}

fn reference(crd: &CustomResourceDefinition) -> ObjectReference {
    ObjectReference {
        api_version: Some("apiextensions.k8s.io/v1".into()),
        kind: Some("CustomResourceDefinition".into()),
        name: crd.metadata.name.clone(),
        uid: crd.metadata.uid.clone(),
        // Events about what has no namespace live in this one.
        namespace: Some("default".into()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_is_not_bare_and_the_tutorials_is() {
        assert!(!is_bare(&ours()));
        let bare = json!({"metadata": {"name": CRD_NAME}, "spec": {"group": "terry.com", "scope": "Namespaced",
            "names": {"kind": "HelloOperator", "plural": "helloopperators"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
        assert!(is_bare(&serde_json::from_value(bare).unwrap()));
    }
}
