//! Carries a plan out, and decides nothing. Steps that do not need each other run together; a step whose need failed is
//! left out, and the others go on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::StreamExt;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy,
};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::End;
use super::agents::Agents;
use super::error::{Error, call};
use super::mirror::ClusterKey;
use super::observe::target;
use super::secrets::{Secrets, may_write};
use crate::api::names::FIELD_MANAGER;
use crate::core::build::Child;
use crate::core::plan::{Action, Plan, Step};
use crate::core::world::{ChildId, Failure, Kind, Trouble, World};
use crate::leader::Gate;

/// How many steps run together.
const TOGETHER: usize = 8;

/// Carries plans out.
pub struct Applier {
    /// Its writes pass the gate.
    pub client: Client,
    /// For what does not go through the client.
    pub gate: Gate,
    /// Secrets.
    pub secrets: Arc<Secrets>,
    /// Agents.
    pub agents: Arc<Agents>,
    /// The process ends: what is under way is finished, nothing more is begun.
    pub end: End,
}

/// What became of a plan.
#[derive(Default)]
pub struct Applied {
    /// Steps that succeeded.
    pub done: Vec<Step>,
    /// Steps that failed, and why.
    pub failed: Vec<(Step, Error)>,
}

impl Applied {
    /// What people should hear of.
    pub fn failures(&self, world: &World) -> Vec<Failure> {
        self.failed
            .iter()
            .filter(|(_, error)| !error.passing())
            .map(|(step, error)| Failure {
                child: step.child(&world.object.names),
                trouble: Trouble { reason: error.reason().into(), sentence: error.to_string() },
            })
            .collect()
    }
}

impl Applier {
    /// Carries it out.
    #[tracing::instrument(skip_all)]
    pub async fn apply(&self, cluster: &ClusterKey, world: &World, plan: &Plan) -> Applied {
        let mut applied = Applied::default();
        let mut waiting: Vec<Step> = plan.steps.clone();
        let mut open: BTreeSet<String> = waiting.iter().map(|step| step.id.clone()).collect();
        let mut broken: BTreeSet<String> = BTreeSet::new();
        loop {
            // A step goes when none of its needs is open any more; one whose need broke is broken too.
            let (now, later): (Vec<Step>, Vec<Step>) =
                waiting.into_iter().partition(|step| !step.needs.iter().any(|need| open.contains(need)));
            waiting = later;
            // At the end the next leader does the rest. What goes first marks a new object as seen.
            if now.is_empty() || (self.end.came() && !applied.done.is_empty()) {
                return applied;
            }
            let (lost, able): (Vec<Step>, Vec<Step>) =
                now.into_iter().partition(|step| step.needs.iter().any(|need| broken.contains(need)));
            for step in lost {
                open.remove(&step.id);
                broken.insert(step.id);
            }
            let mut running = futures::stream::iter(able)
                .map(|step| async move {
                    let outcome = self.step(cluster, world, &step).await;
                    (step, outcome)
                })
                .buffer_unordered(TOGETHER);
            while let Some((step, outcome)) = running.next().await {
                open.remove(&step.id);
                match outcome {
                    Ok(()) => {
                        tracing::info!(%cluster, step = step.id, reason = step.reason, "done");
                        applied.done.push(step);
                    }
                    Err(error) => {
                        broken.insert(step.id.clone());
                        if error.passing() {
                            tracing::debug!(%cluster, step = step.id, %error, "not yet");
                        } else {
                            tracing::warn!(%cluster, step = step.id, reason = step.reason, %error, "failed");
                        }
                        applied.failed.push((step, error));
                    }
                }
            }
        }
    }

    fn api(&self, cluster: &ClusterKey, kind: Kind) -> Api<DynamicObject> {
        let (group, version, kind, plural) = kind.resource();
        let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        let resource = ApiResource {
            group: group.into(),
            version: version.into(),
            api_version,
            kind: kind.into(),
            plural: plural.into(),
        };
        Api::namespaced_with(self.client.clone(), &cluster.namespace, &resource)
    }

    #[tracing::instrument(skip_all, fields(step = %step.id, reason = %step.reason))]
    async fn step(&self, cluster: &ClusterKey, world: &World, step: &Step) -> Result<(), Error> {
        let uid = &world.object.uid;
        match &step.action {
            Action::Create(child) if applied(child.id.kind) => {
                let api = self.api(cluster, child.id.kind);
                let there = call(format!("{} cannot be read", child.id), api.get_opt(&child.id.name)).await?;
                if let Some(there) = there {
                    may_write(&there.metadata, &child.id.to_string(), uid)?;
                }
                self.server_side(cluster, child).await
            }
            Action::Create(child) => self.create(cluster, child, uid).await,
            Action::Apply(child) => self.server_side(cluster, child).await,
            Action::MakeSecret { kind, inputs, fresh_password } => {
                self.secrets.make(cluster, uid, *kind, inputs, *fresh_password).await
            }
            Action::SetOwner { id, uid, owner } => {
                let owners = owner.as_ref().map_or(Value::Null, |owner| json!([owner]));
                self.merge(cluster, id, json!({"metadata": {"uid": uid, "ownerReferences": owners}})).await
            }
            Action::Grow { id, size } => {
                self.merge(cluster, id, json!({"spec": {"resources": {"requests": {"storage": size}}}})).await
            }
            Action::Delete { id, uid, version } => self.delete(cluster, id, uid, version).await,
            Action::MarkPod { id, uid, annotations, labels } => {
                let map = |pairs: &[(&'static str, String)]| {
                    pairs
                        .iter()
                        .map(|(key, value)| ((*key).to_owned(), json!(value)))
                        .collect::<serde_json::Map<_, _>>()
                };
                let metadata = json!({"uid": uid, "annotations": map(annotations), "labels": map(labels)});
                self.merge(cluster, id, json!({"metadata": metadata})).await
            }
            Action::Restart { ordinal, command } => {
                self.command(cluster, world, *ordinal, "/v1/restart", command).await
            }
            Action::Switchover { primary, command } => {
                self.command(cluster, world, *primary, "/v1/switchover", command).await
            }
            Action::Leave { primary, command } => self.command(cluster, world, *primary, "/v1/leave", command).await,
            Action::Backup { ordinal, command, .. } => {
                self.command(cluster, world, *ordinal, "/v1/backup", command).await
            }
            Action::CancelBackup { ordinal, command } => {
                self.command(cluster, world, *ordinal, "/v1/backup/cancel", command).await
            }
        }
    }

    async fn create(&self, cluster: &ClusterKey, child: &Child, uid: &str) -> Result<(), Error> {
        let api = self.api(cluster, child.id.kind);
        let object: DynamicObject =
            serde_json::from_value(child.body.clone()).map_err(|error| Error::Internal(error.to_string()))?;
        let params = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() };
        let made = call(format!("{} cannot be created", child.id), api.create(&params, &object)).await;
        let Err(error) = made else { return Ok(()) };
        let exists = error.status().is_some_and(|status| status.reason == "AlreadyExists");
        if !exists {
            return Err(error);
        }
        // Names are deterministic, so this is our own of a moment ago, or somebody else's.
        let there = call(format!("{} cannot be read", child.id), api.get_opt(&child.id.name)).await?;
        let Some(there) = there else { return Err(error) };
        may_write(&there.metadata, &child.id.to_string(), uid)?;
        let labels = child.body.pointer("/metadata/labels").cloned().unwrap_or(Value::Null);
        let lost = labels.as_object().is_some_and(|wanted| {
            let have = there.metadata.labels.unwrap_or_default();
            wanted.iter().any(|(key, value)| have.get(key).map(String::as_str) != value.as_str())
        });
        if lost {
            return self.merge(cluster, &child.id, json!({"metadata": {"labels": labels}})).await;
        }
        Ok(())
    }

    async fn server_side(&self, cluster: &ClusterKey, child: &Child) -> Result<(), Error> {
        let api = self.api(cluster, child.id.kind);
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let patch = Patch::Apply(&child.body);
        call(format!("{} cannot be applied", child.id), api.patch_metadata(&child.id.name, &params, &patch)).await?;
        Ok(())
    }

    async fn merge(&self, cluster: &ClusterKey, id: &ChildId, patch: Value) -> Result<(), Error> {
        let api = self.api(cluster, id.kind);
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
        let patch = Patch::Merge(&patch);
        let outcome = call(format!("{id} cannot be changed"), api.patch_metadata(&id.name, &params, &patch)).await;
        match outcome {
            // It is gone, and with it what was to be changed.
            Err(error) if error.code() == Some(404) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    async fn delete(&self, cluster: &ClusterKey, id: &ChildId, uid: &str, version: &str) -> Result<(), Error> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: Some(version.to_owned()),
            }),
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        let outcome =
            call(format!("{id} cannot be deleted"), self.api(cluster, id.kind).delete(&id.name, &params)).await;
        match outcome {
            Err(error) if error.code() == Some(404) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    async fn command(
        &self,
        cluster: &ClusterKey,
        world: &World,
        ordinal: u8,
        path: &str,
        command: &impl serde::Serialize,
    ) -> Result<(), Error> {
        let instance = world.object.names.instance(ordinal);
        let pod = world.pods.present().and_then(|pods: &BTreeMap<_, _>| pods.get(&ordinal));
        let target = pod
            .and_then(|pod| target(cluster, instance.clone(), pod))
            .ok_or_else(|| Error::Agent { instance: instance.clone(), why: "its Pod has no address".into() })?;
        let permit = self.gate.enter().map_err(|refused| Error::Agent { instance, why: refused.to_string() })?;
        let answer = self.agents.command(&target, path, command).await?;
        permit.answered();
        if answer.done { Ok(()) } else { Err(Error::Pending(answer.message)) }
    }
}

/// Kinds that are written by server-side apply from the first, so that a field that the spec drops goes.
fn applied(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::ConfigMap
            | Kind::ServiceAccount
            | Kind::Role
            | Kind::RoleBinding
            | Kind::Service
            | Kind::PodDisruptionBudget
    )
}
