//! The operator's own CRDs: whether ours stand, and their installation and repair when that is asked for.

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
use crate::api::names::{ANNOTATION_HASH, CRD_NAME, CRD_NAME_BACKUP, FIELD_MANAGER, VERSION};
use crate::core::build::hash;
use crate::leader::Gate;
use crate::telemetry::metrics::OperatorMetrics;

const WHY: &str = "another CRD of the same name stands over ours, without its schema and status: existing clusters stay on their last accepted spec, and no object is written";
const WHY_BACKUPS: &str = "another CRD of the same name stands over ours, without its schema and status: no backup begins or is reported until ours is applied again";

/// One of our definitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Definition {
    /// Of HelloOperator.
    Operators,
    /// Of HelloBackup.
    Backups,
}

impl Definition {
    /// All of them, in the order in which to install them.
    pub const ALL: [Self; 2] = [Self::Operators, Self::Backups];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Operators => CRD_NAME,
            Self::Backups => CRD_NAME_BACKUP,
        }
    }
    fn bare(self, degraded: &Degraded) -> &AtomicBool {
        match self {
            Self::Operators => &degraded.operators,
            Self::Backups => &degraded.backups,
        }
    }
    fn why(self) -> &'static str {
        match self {
            Self::Operators => WHY,
            Self::Backups => WHY_BACKUPS,
        }
    }
    /// As it should be.
    fn ours(self) -> CustomResourceDefinition {
        let mut crd = match self {
            Self::Operators => crd::hello_operator(),
            Self::Backups => crd::hello_backup(),
        };
        let hash = hash(&json!(crd.spec));
        crd.metadata.annotations.get_or_insert_default().insert(ANNOTATION_HASH.into(), hash);
        crd
    }
}

/// Whether bare CRDs stand over ours. Shared; cheap to ask.
#[derive(Clone)]
pub struct Degraded {
    operators: Arc<AtomicBool>,
    backups: Arc<AtomicBool>,
    gauge: IntGauge,
}

impl Degraded {
    /// Not so, until seen otherwise.
    pub fn new(metrics: &OperatorMetrics) -> Result<Self, Error> {
        let metric = |error: prometheus::Error| Error::Telemetry(error.into());
        let gauge = IntGauge::new(
            "hello_operator_crd_degraded",
            "1 while another CRD of the same name stands over one of ours, without schema and status.",
        )
        .map_err(metric)?;
        metrics.registry().register(Box::new(gauge.clone())).map_err(metric)?;
        Ok(Self { operators: Arc::default(), backups: Arc::default(), gauge })
    }

    /// Whether it is so now for HelloOperator.
    pub fn get(&self) -> bool {
        self.operators.load(Ordering::Acquire)
    }

    /// Whether it is so now for HelloBackup; why that matters.
    pub fn backups(&self) -> Option<&'static str> {
        self.backups.load(Ordering::Acquire).then_some(WHY_BACKUPS)
    }

    /// Returns whether that is news.
    fn set(&self, definition: Definition, bare: bool) -> bool {
        let before = definition.bare(self).swap(bare, Ordering::AcqRel);
        self.gauge.set(i64::from(self.get() || self.backups().is_some()));
        before != bare
    }
}

/// Whether a CRD lacks what ours of its name has: the schema of the spec, the status or the scale.
pub fn is_bare(definition: Definition, crd: &CustomResourceDefinition) -> bool {
    let version = |crd: &CustomResourceDefinition| {
        let version = crd.spec.versions.iter().find(|version| version.name == VERSION)?;
        let schema = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
        let spec = schema.and_then(|schema| schema.properties.as_ref()?.get("spec"));
        let sub = version.subresources.as_ref();
        Some([
            sub.is_some_and(|sub| sub.status.is_some()),
            sub.is_some_and(|sub| sub.scale.is_some()),
            spec.is_some_and(|spec| spec.default.is_some()),
            spec.is_some_and(|spec| spec.properties.is_some()),
        ])
    };
    let (Some(there), Some(ours)) = (version(crd), version(&definition.ours())) else { return true };
    ours.iter().zip(there).any(|(ours, there)| *ours && !there)
}

/// Whether a CRD has the schema and the subresources of ours.
pub fn same_schema(definition: Definition, crd: &CustomResourceDefinition) -> bool {
    let version = |crd: &CustomResourceDefinition| {
        let version = crd.spec.versions.iter().find(|version| version.name == VERSION)?;
        Some((version.schema.clone(), version.subresources.clone()))
    };
    version(crd).is_some_and(|there| Some(there) == version(&definition.ours()))
}

/// Installs ours where there are none, and puts them back where others or older ones stand.
pub async fn ensure(client: &Client) -> Result<(), Error> {
    for definition in Definition::ALL {
        ensure_one(client, definition).await?;
    }
    Ok(())
}

async fn ensure_one(client: &Client, definition: Definition) -> Result<(), Error> {
    let name = definition.name();
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    let params = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() };
    let mut wanted = definition.ours();
    match call(format!("the CRD {name} cannot be read"), api.get_opt(name)).await? {
        None => {
            call(format!("the CRD {name} cannot be created"), api.create(&params, &wanted)).await?;
            tracing::info!(crd = name, "installed");
        }
        Some(there) => {
            let hash = |crd: &CustomResourceDefinition| {
                crd.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION_HASH)).cloned()
            };
            if !is_bare(definition, &there) && hash(&there) == hash(&wanted) {
                return Ok(());
            }
            let annotations = wanted.metadata.annotations.take().unwrap_or_default();
            wanted.metadata = there.metadata;
            wanted.metadata.managed_fields = None;
            wanted.metadata.annotations.get_or_insert_default().extend(annotations);
            call(format!("the CRD {name} cannot be replaced"), api.replace(name, &params, &wanted)).await?;
            tracing::warn!(crd = name, "put back: another or an older one stood in its place");
        }
    }
    Ok(())
}

/// What the watches of the CRDs need.
#[derive(Clone)]
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

/// Watches one of our CRDs for as long as the process lives; `changed` is called when the state changes.
pub async fn watch(watch: Watch, definition: Definition, changed: impl Fn() + Send) {
    const RESOURCE: &str = "customresourcedefinitions";
    watch.metrics.watch_progressed(RESOURCE);
    let name = definition.name();
    let config = watcher::Config::default().timeout(195).fields(&format!("metadata.name={name}"));
    let mut stream = pin!(watcher(Api::<CustomResourceDefinition>::all(watch.reader.clone()), config));
    while let Some(event) = stream.next().await {
        match event {
            Ok(watcher::Event::InitApply(crd) | watcher::Event::Apply(crd)) => {
                watch.metrics.watch_progressed(RESOURCE);
                let bare = is_bare(definition, &crd);
                if watch.degraded.set(definition, bare) {
                    changed();
                    if bare && watch.gate.leading() {
                        let why = definition.why();
                        tracing::error!(crd = name, "{why}");
                        let reference = reference(&crd);
                        let occasion = crd.metadata.generation.unwrap_or(0);
                        let news = News { warning: true, reason: "CrdReplaced", note: why, child: None, occasion };
                        watch.events.publish(&reference, None, news).await;
                    } else if !bare {
                        tracing::info!(crd = name, "ours stands again");
                    }
                }
                if watch.manage
                    && watch.gate.leading()
                    && bare
                    && let Err(error) = ensure_one(&watch.writer, definition).await
                {
                    watch.metrics.failed(error.category());
                    tracing::error!(crd = name, %error, "the CRD cannot be repaired");
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
    fn ours_are_not_bare_and_the_tutorials_is() {
        for definition in Definition::ALL {
            assert!(!is_bare(definition, &definition.ours()));
            assert!(same_schema(definition, &definition.ours()));
            let bare = json!({"metadata": {"name": definition.name()}, "spec": {"group": "terry.com", "scope": "Namespaced",
                "names": {"kind": "X", "plural": "xs"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
            let bare = serde_json::from_value(bare).unwrap();
            assert!(is_bare(definition, &bare) && !same_schema(definition, &bare));
        }
    }
}
