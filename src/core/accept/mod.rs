//! From the spec as it is written to the spec that is acted upon: what a cluster cannot follow is held back, with a
//! sentence that says why and what to write.

mod restore;

use std::collections::BTreeMap;

use serde_json::json;

use crate::api::config::ClusterConfig;
use crate::api::spec::{Durability, HelloOperatorSpec};
use crate::core::cluster::{Cluster, Invalid, transition};
use crate::core::election::Register;
use crate::core::world::{Known, Trouble, Volume, World};

/// What is acted upon.
#[derive(Debug, Clone, PartialEq)]
pub struct Accepted {
    /// The validated cluster.
    pub cluster: Cluster,
    /// What the agents get, but for the wanted instances.
    pub config: ClusterConfig,
    /// What was held back.
    pub notices: Vec<Trouble>,
}

/// Why nothing can be acted upon.
#[derive(Debug, Clone, PartialEq)]
pub enum Refused {
    /// The user has to write something else.
    Invalid(String),
    /// Not known enough yet.
    Unknown(String),
}

/// Decides what is acted upon.
pub fn accept(world: &World) -> Result<Accepted, Refused> {
    let object = &world.object;
    let before = match &world.config {
        Known::Unknown(why) => return Err(Refused::Unknown(why.clone())),
        Known::Absent => None,
        Known::Present(config) => Some(config),
    };
    let name = object.names.cluster();
    let mut notices = Vec::new();
    let kept = before.filter(|before| erased(world, before));
    if kept.is_some() && !world.crd_degraded {
        notices.push(Trouble {
            reason: "SpecErased".into(),
            sentence: "the spec of this object was erased under another CRD: the cluster stays on the last one that was accepted until the object is written again, so apply its manifest once more".into(),
        });
    }
    let written = written(world, before, kept);
    let accepted = written.and_then(|(mut spec, generation)| {
        if let Some(before) = before {
            hold_back(before, &mut spec, &mut notices)?;
        }
        let cluster = Cluster::parse(name, &spec).map_err(|errors| sentences(&errors))?;
        Ok((spec, cluster, generation))
    });
    // What cannot be followed leaves an existing cluster on what it was; there is nothing to make a new one from.
    let (mut spec, mut cluster, generation) = match (accepted, before) {
        (Ok(accepted), _) => accepted,
        (Err(sentence), None) => return Err(Refused::Invalid(sentence)),
        (Err(sentence), Some(before)) => {
            notices.push(Trouble { reason: "Invalid".into(), sentence: sentence.clone() });
            let cluster = Cluster::parse(name, &before.spec).map_err(|_| Refused::Invalid(sentence))?;
            (before.spec.clone(), cluster, before.generation)
        }
    };
    let register = world.lease.present().and_then(|lease| lease.register.present());
    let durability = durability(&cluster, before, register);
    if durability == Durability::Quorum && cluster.instances <= cluster.sync_replicas {
        let (n, k) = (cluster.instances, cluster.sync_replicas);
        let sentence = format!(
            "{n} instances with syncReplicas {k} would leave every commit waiting under durability Quorum: keep more than {k} instances, lower replication.syncReplicas, or say replication.durability: Async"
        );
        let Some(before) = before else { return Err(Refused::Invalid(sentence)) };
        notices.push(Trouble { reason: "ScalingRefused".into(), sentence: sentence.clone() });
        spec.instances = before.spec.instances;
        spec.replication.sync_replicas = before.spec.replication.sync_replicas;
        cluster = Cluster::parse(name, &spec).map_err(|_| Refused::Invalid(sentence))?;
    }
    if let Some(before) = before
        && let Some(sentence) = leaves_out_the_wanted(world, &cluster, before, register)
    {
        notices.push(Trouble { reason: "ScalingRefused".into(), sentence: sentence.clone() });
        spec.instances = before.spec.instances;
        cluster = Cluster::parse(name, &spec).map_err(|_| Refused::Invalid(sentence))?;
    }
    let restore = match before {
        Some(before) => before.restore.clone(),
        None => restore::order(world, &cluster, register)?,
    };
    cluster.source = restore.as_ref().map(|order| order.source.clone());
    let config = ClusterConfig {
        generation,
        uid: object.uid.clone(),
        durability,
        sync_replicas: i32::from(cluster.sync_replicas),
        instances: Vec::new(),
        parameters: cluster.parameters.clone(),
        hba: cluster.hba.clone(),
        lease: cluster.failover.bounds,
        restore,
        accept_loss: accept_loss(world, before),
        traces: world.traces.clone(),
        spec,
    };
    Ok(Accepted { cluster, config, notices })
}

/// Whether the object reads as something that nobody wrote.
///
/// Ours fills in a spec always, so one that is missing tells of a bare CRD even before the watch of the CRD does. An
/// object that was written under a bare CRD has lost its spec, and reads as nothing but defaults wherever ours is in
/// force (once it stands again, and in watches that were begun under it), all at an unchanged generation.
fn erased(world: &World, before: &ClusterConfig) -> bool {
    let object = &world.object;
    let Some(spec) = &object.spec else { return object.unreadable.is_none() };
    // What is merely held back reads otherwise at the same generation too, but was wanted.
    let held_back = HelloOperatorSpec {
        version: before.spec.version.clone(),
        image: before.spec.image.clone(),
        ..HelloOperatorSpec::default()
    };
    before.uid == object.uid
        && before.generation == object.generation
        && *spec == HelloOperatorSpec::default()
        && before.spec != held_back
}

/// The spec as it is written, and the generation that it is of.
///
/// Under a bare CRD every object reads without its spec, and one that was written since has lost it for good. So a
/// cluster that exists stays on its last accepted spec for as long as its object says nothing else.
fn written(
    world: &World,
    before: Option<&ClusterConfig>,
    kept: Option<&ClusterConfig>,
) -> Result<(HelloOperatorSpec, i64), String> {
    let object = &world.object;
    let same = before.filter(|before| world.crd_degraded && before.generation == object.generation);
    if let Some(before) = kept.or(same) {
        return Ok((before.spec.clone(), before.generation));
    }
    if let Some(why) = &object.unreadable {
        return Err(format!("the spec cannot be read: {why}"));
    }
    match &object.spec {
        Some(spec) => Ok((spec.clone(), object.generation)),
        None => serde_json::from_value(json!({})).map(|spec| (spec, object.generation)).map_err(|e| e.to_string()),
    }
}

fn sentences(errors: &[Invalid]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Keeps what may not change.
fn hold_back(before: &ClusterConfig, spec: &mut HelloOperatorSpec, notices: &mut Vec<Trouble>) -> Result<(), String> {
    let errors = transition(&before.spec, spec);
    if !errors.is_empty() {
        return Err(sentences(&errors));
    }
    let (old, new) = (before.spec.version.to_string(), spec.version.to_string());
    if old != new {
        notices.push(Trouble {
            reason: "UpgradeUnsupported".into(),
            sentence: format!(
                "version {new} is wanted, but major upgrades are not implemented yet: the cluster keeps running {old}; for {new}, make a new object and move the data with pg_dump (docs/upgrade.md)"
            ),
        });
        spec.version = before.spec.version.clone();
        spec.image.clone_from(&before.spec.image);
    }
    Ok(())
}

/// Whether fewer instances would remove the very one that should be primary. The present primary stays, and the wanted one
/// next (`Members::of`), so this can only be where one instance is to be left.
fn leaves_out_the_wanted(
    world: &World,
    cluster: &Cluster,
    before: &ClusterConfig,
    register: Option<&Register>,
) -> Option<String> {
    let (wanted, primary) = (cluster.names.instance(cluster.primary?), register?.holder_instance()?);
    let there =
        |volumes: &BTreeMap<(u8, Volume), _>| cluster.primary.is_some_and(|o| volumes.contains_key(&(o, Volume::Data)));
    let removes = cluster.instances == 1
        && before.spec.instances > 1
        && primary != wanted
        && world.volumes.present().is_some_and(there);
    removes.then(|| {
        format!(
            "1 instance would leave {primary}, which is primary, and remove {wanted}, which spec.primary names: it goes on once {wanted} is primary; or name {primary} there"
        )
    })
}

/// The term at which a human accepts a loss: only the present one counts, so that an annotation that stays says nothing
/// once that term is over.
fn accept_loss(world: &World, before: Option<&ClusterConfig>) -> Option<i64> {
    let Known::Present(lease) = &world.lease else { return before.and_then(|config| config.accept_loss) };
    let term = world.object.accept_loss.as_deref()?.trim().parse().ok()?;
    (lease.register.present()?.term == term).then_some(term)
}

/// Decided at creation and kept, unless the user says another one.
fn durability(cluster: &Cluster, before: Option<&ClusterConfig>, register: Option<&Register>) -> Durability {
    cluster
        .durability
        .or(before.map(|config| config.durability))
        .or(register.map(|register| register.durability))
        .unwrap_or_else(|| cluster.durability_at_creation())
}
