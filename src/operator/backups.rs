//! HelloBackups: what the watch says of them, and their status.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::error::{Error, call};
use super::events::{self, Events, News, Told};
use super::facts::annotation;
use super::mirror::{ClusterKey, Facts};
use super::patch::merge_patch;
use super::streams::Mirrors;
use crate::api::backup::{BackupPhase, HelloBackupSpec, HelloBackupStatus};
use crate::api::names::{ANNOTATION_RUN, FIELD_MANAGER, GROUP, KIND_BACKUP, VERSION};
use crate::core::world::{BackupFacts, ChildId, Kind, Known};
use crate::telemetry::backups::BackupOutcome;
use crate::telemetry::metrics::OperatorMetrics;

/// Progress alone is written at most this often.
const PROGRESS: Duration = Duration::from_secs(5);

/// The resource of HelloBackup.
pub fn hello_backups() -> ApiResource {
    let (group, version, kind, plural) = Kind::HelloBackup.resource();
    ApiResource {
        group: group.into(),
        version: version.into(),
        api_version: format!("{group}/{version}"),
        kind: kind.into(),
        plural: plural.into(),
    }
}

impl Facts for BackupFacts {
    fn differs(&self, next: &Self) -> bool {
        let plain = |facts: &Self| Self { version: String::new(), ..facts.clone() };
        plain(self) != plain(next)
    }
}

/// From the watch; None for one that names no cluster, which only a bare CRD lets through.
pub fn read(object: DynamicObject) -> Option<(ClusterKey, String, BackupFacts)> {
    let spec: HelloBackupSpec = serde_json::from_value(object.data.get("spec")?.clone()).ok()?;
    let status = object.data.get("status").filter(|status| !status.is_null());
    let status: Option<HelloBackupStatus> = status.and_then(|status| serde_json::from_value(status.clone()).ok());
    let status = status.filter(HelloBackupStatus::written);
    let meta = object.metadata;
    let name = meta.name.clone()?;
    let facts = BackupFacts {
        name: name.clone(),
        uid: meta.uid.clone().unwrap_or_default(),
        version: meta.resource_version.clone().unwrap_or_default(),
        generation: meta.generation.unwrap_or(0),
        cluster: spec.cluster.clone(),
        created: meta.creation_timestamp.as_ref().map(|time| time.0),
        deleting: meta.deletion_timestamp.is_some(),
        run: annotation(&meta, ANNOTATION_RUN).map(Into::into),
        target: spec.target,
        reported: status.is_some(),
        status: status.unwrap_or_default(),
    };
    Some((ClusterKey::new(meta.namespace?, spec.cluster), name, facts))
}

/// Reads and reports them.
pub struct Backups {
    client: Client,
    mirrors: Arc<Mirrors>,
    events: Arc<Events>,
    metrics: Arc<OperatorMetrics>,
    /// When the status of each was written last, by uid.
    written: Mutex<HashMap<String, Instant>>,
}

impl Backups {
    /// With a client whose writes pass the gate.
    pub fn new(client: Client, mirrors: Arc<Mirrors>, events: Arc<Events>, metrics: Arc<OperatorMetrics>) -> Self {
        Self { client, mirrors, events, metrics, written: Mutex::default() }
    }

    /// Writes what is new, and tells of it; on the backup and, where there is one, on the object with this uid. True when
    /// something was written.
    pub async fn report(
        &self,
        cluster: &ClusterKey,
        uid: Option<&str>,
        known: &Known<Vec<BackupFacts>>,
        statuses: &BTreeMap<String, HelloBackupStatus>,
    ) -> Result<bool, Error> {
        let mut wrote = false;
        for facts in known.present().into_iter().flatten() {
            let Some(status) = statuses.get(&facts.name) else { continue };
            if self.too_soon(facts, status) {
                continue;
            }
            let written = self.write(cluster, facts, status).await?;
            if written
                && uid.is_some()
                && let Some(outcome) = ended(&facts.status, status)
            {
                self.metrics.backed_up(&cluster.namespace, &cluster.name, outcome);
            }
            wrote |= written;
            if let Some(told) = events::of_backup(&facts.name, &facts.status, status) {
                self.tell(cluster, uid, facts, &told).await;
            }
        }
        Ok(wrote)
    }

    fn too_soon(&self, facts: &BackupFacts, status: &HelloBackupStatus) -> bool {
        let news = HelloBackupStatus {
            progress: facts.status.progress.clone(),
            done_bytes: facts.status.done_bytes,
            total_bytes: facts.status.total_bytes,
            stored_bytes: facts.status.stored_bytes,
            bytes_per_second: facts.status.bytes_per_second,
            ..status.clone()
        };
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody asks for those that ended long ago.
        written.retain(|_, at| at.elapsed() < PROGRESS);
        facts.reported && news == facts.status && written.contains_key(&facts.uid)
    }

    async fn write(
        &self,
        cluster: &ClusterKey,
        facts: &BackupFacts,
        status: &HelloBackupStatus,
    ) -> Result<bool, Error> {
        let value = |status: &HelloBackupStatus| serde_json::to_value(status).unwrap_or(Value::Null);
        let old = if facts.reported { value(&facts.status) } else { json!({}) };
        let Some(patch) = merge_patch(&old, &value(status)) else { return Ok(false) };
        let body = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": KIND_BACKUP,
            // One of the same name that came later is not meant, nor one whose status was written since.
            "metadata": {"uid": facts.uid, "resourceVersion": facts.version},
            "status": patch,
        });
        let api = Api::<DynamicObject>::namespaced_with(self.client.clone(), &cluster.namespace, &hello_backups());
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
        let what = format!("status of HelloBackup {} cannot be written", facts.name);
        let written = match call(what, api.patch_status(&facts.name, &params, &Patch::Merge(&body))).await {
            Ok(written) => written,
            // It was deleted meanwhile.
            Err(error) if error.code() == Some(404) => return Ok(false),
            Err(error) => return Err(error),
        };
        self.written.lock().unwrap_or_else(PoisonError::into_inner).insert(facts.uid.clone(), Instant::now());
        self.mirrors.backups.update(cluster, &facts.name, |kept| {
            if kept.uid == facts.uid && kept.version == facts.version {
                kept.status = status.clone();
                kept.reported = true;
                kept.version = written.metadata.resource_version.clone().unwrap_or_default();
            }
        });
        Ok(true)
    }

    async fn tell(&self, cluster: &ClusterKey, uid: Option<&str>, facts: &BackupFacts, told: &Told) {
        let Told { warning, reason, note, .. } = told;
        if *warning {
            tracing::warn!(%cluster, backup = facts.name, reason, "{note}");
        } else {
            tracing::info!(%cluster, backup = facts.name, reason, "{note}");
        }
        let child = ChildId::new(Kind::HelloBackup, facts.name.clone());
        // The moment of its creation tells one backup from the next.
        let occasion = facts.created.map_or(0, jiff::Timestamp::as_second);
        let news = News { warning: *warning, reason, note, child: Some(&child), occasion };
        if let Some(uid) = uid {
            self.events.tell(cluster, uid, news).await;
        }
        let regarding = ObjectReference {
            api_version: Some(format!("{GROUP}/{VERSION}")),
            kind: Some(KIND_BACKUP.into()),
            name: Some(facts.name.clone()),
            namespace: Some(cluster.namespace.to_string()),
            uid: Some(facts.uid.clone()),
            ..ObjectReference::default()
        };
        self.events.publish(&regarding, None, News { child: None, ..news }).await;
    }
}

/// How a backup ended, at the moment at which it did.
fn ended(before: &HelloBackupStatus, after: &HelloBackupStatus) -> Option<BackupOutcome> {
    match after.phase {
        phase if phase == before.phase => None,
        BackupPhase::Completed => Some(BackupOutcome::Completed),
        BackupPhase::Failed => Some(BackupOutcome::Failed),
        BackupPhase::Pending | BackupPhase::Running => None,
    }
}

/// The HelloBackups of a cluster as the API server has them now: for what cannot be taken back, a watch may be behind.
pub async fn consistent(client: &Client, cluster: &ClusterKey) -> Result<Vec<BackupFacts>, Error> {
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), &cluster.namespace, &hello_backups());
    let all = call("HelloBackups cannot be listed", api.list(&ListParams::default())).await?;
    let of = all.items.into_iter().filter_map(|mut object| {
        object.metadata.namespace = Some(cluster.namespace.to_string());
        read(object)
    });
    Ok(of.filter(|(key, ..)| key == cluster).map(|(.., facts)| facts).collect())
}

/// One HelloBackup, by its name.
pub async fn named(client: &Client, namespace: &str, name: &str) -> Known<BackupFacts> {
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &hello_backups());
    match call(format!("HelloBackup {name} cannot be read"), api.get_opt(name)).await {
        Ok(found) => found.and_then(read).map(|(.., facts)| facts).into(),
        Err(error) => Known::Unknown(error.to_string()),
    }
}
