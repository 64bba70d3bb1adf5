//! Instance Pods: made, replaced one by one, removed in order.

use std::collections::BTreeMap;

use super::children::may_touch;
use super::secrets::mounted_hash;
use super::{Action, Doing, Plan};
use crate::api::agent::{LeaveCommand, Phase};
use crate::api::names::{ANNOTATION_SECRETS, LABEL_ROLE};
use crate::api::spec::State;
use crate::core::build::{Scope, pod, volume};
use crate::core::world::{ChildId, Kind, Known, PodFacts, SecretKind, Volume, World};

/// Plans them.
pub fn plan(world: &World, scope: Scope<'_>, plan: &mut Plan) {
    let (Known::Present(pods), Known::Present(_)) = (&world.pods, &world.volumes) else {
        plan.does(Doing::Starting, "waits until it is known which Pods and volumes there are");
        return;
    };
    if scope.cluster.state == State::Hibernated {
        hibernate(pods, scope, plan);
        return;
    }
    for ordinal in plan.members.run.clone() {
        match pods.get(&ordinal) {
            None => create(world, ordinal, scope, plan),
            Some(found) => {
                if may_touch(&found.meta, &id(scope, ordinal).to_string(), scope, plan) {
                    tend(world, ordinal, found, scope, plan);
                }
            }
        }
    }
    let quiet = plan.members.wanted.iter().all(|ordinal| serves(world, *ordinal));
    if quiet {
        if !scale_down(world, pods, scope, plan) {
            roll(pods, world, scope, plan);
        }
    } else {
        let waits = waits_for(world, scope, plan);
        let rolling = plan.members.wanted.iter().any(|ordinal| {
            pods.get(ordinal).is_some_and(|pod| pod.running && outdated(world, *ordinal, pod, scope).is_some())
        });
        plan.does(if rolling { Doing::Rolling } else { Doing::Starting }, waits);
    }
    replace_stuck(world, pods, scope, plan);
}

fn id(scope: Scope<'_>, ordinal: u8) -> ChildId {
    ChildId::new(Kind::Pod, scope.cluster.names.instance(ordinal))
}

/// Whether an instance serves its role, as the kubelet sees it and, where it answers, as its agent says.
pub fn serves(world: &World, ordinal: u8) -> bool {
    let pod = world.pods.present().and_then(|pods| pods.get(&ordinal));
    let agent = match world.reports.get(&ordinal) {
        Some(Known::Present(report)) => report.ready,
        _ => true,
    };
    pod.is_some_and(|pod| pod.ready && !pod.meta.deleting) && agent
}

/// A sentence that names who is not ready, and why, as far as it is known.
fn waits_for(world: &World, scope: Scope<'_>, plan: &Plan) -> String {
    let waiting: Vec<String> = plan
        .members
        .wanted
        .iter()
        .filter(|ordinal| !serves(world, **ordinal))
        .map(|ordinal| waits(world, scope, *ordinal))
        .collect();
    waiting.join("; ")
}

/// What an instance that does not serve waits for, as far as it is known.
pub fn waits(world: &World, scope: Scope<'_>, ordinal: u8) -> String {
    let name = scope.cluster.names.instance(ordinal);
    let report = world.reports.get(&ordinal).and_then(Known::present);
    match (world.pods.present().and_then(|pods| pods.get(&ordinal)), report) {
        (None, _) => format!("{name} is made"),
        (Some(pod), _) if pod.meta.deleting => format!("{name} stops"),
        (Some(PodFacts { trouble: Some(trouble), .. }), _) => trouble.sentence.clone(),
        (Some(_), Some(report)) => match (&report.message, report.phase) {
            (Some(message), _) => format!("{name}: {message}"),
            (None, phase) => format!("{name} {}", doing(phase)),
        },
        (Some(_), None) => format!("{name} starts"),
    }
}

fn doing(phase: Phase) -> &'static str {
    match phase {
        Phase::Waiting => "waits",
        Phase::Bootstrapping => "makes the first data directory",
        Phase::Cloning => "copies the primary",
        Phase::Starting => "starts PostgreSQL",
        Phase::Primary => "takes the primary's role",
        Phase::Replica => "catches up",
        Phase::Stopped => "is stopped",
        Phase::Failed => "failed",
    }
}

fn create(world: &World, ordinal: u8, scope: Scope<'_>, plan: &mut Plan) {
    let id = id(scope, ordinal);
    let names = &scope.cluster.names;
    if let Known::Present(volumes) = &world.volumes {
        let going = |kind| volumes.get(&(ordinal, kind)).is_some_and(|volume| volume.meta.deleting);
        if going(Volume::Data) || going(Volume::Wal) {
            plan.does(Doing::Creating, format!("waits until the old volume of {} is gone", id.name));
            return;
        }
    }
    // A Pod whose Secret cannot be made would wait in vain, and say so in words of the kubelet's.
    let lacking = |kind: &SecretKind| {
        !matches!(world.secrets.get(kind), Some(Known::Present(_)))
            && !plan
                .steps
                .iter()
                .any(|step| matches!(&step.action, Action::MakeSecret { kind: made, .. } if made == kind))
    };
    if SecretKind::ALL.iter().any(lacking) {
        plan.does(Doing::Creating, format!("waits with {id} for its Secrets"));
        return;
    }
    let secrets = mounted_hash(world).unwrap_or_default();
    let wish = super::restart::wish(&world.object, ordinal);
    let moment = pod::Moment { agent_image: &world.agent_image, secrets: &secrets, restart: wish.as_deref() };
    let child = pod::pod(scope, ordinal, moment);
    let mut needs: Vec<String> = SecretKind::ALL
        .iter()
        .map(|kind| ChildId::new(Kind::Secret, kind.name(names)).to_string())
        .chain([
            ChildId::new(Kind::ConfigMap, names.config_map()).to_string(),
            ChildId::new(Kind::ServiceAccount, names.agent_account()).to_string(),
        ])
        .collect();
    for kind in [Volume::Data, Volume::Wal] {
        needs.push(ChildId::new(Kind::PersistentVolumeClaim, volume::name(scope, ordinal, kind)).to_string());
    }
    let missing_before = plan.members.wanted.contains(&ordinal);
    plan.does(Doing::Creating, format!("{id} is made"));
    let reason = if missing_before { "it is missing" } else { "its volume may hold the newest copy" };
    let step = plan.push(id.to_string(), Action::Create(child), reason);
    step.needs = needs;
    step.event = Some("InstanceCreated");
}

/// Keeps annotations and the role label as they should be.
fn tend(world: &World, ordinal: u8, found: &PodFacts, scope: Scope<'_>, plan: &mut Plan) {
    let mut annotations = Vec::new();
    let mut labels = Vec::new();
    if let Some(hash) = mounted_hash(world)
        && found.secrets.as_deref() != Some(hash.as_str())
    {
        annotations.push((ANNOTATION_SECRETS, hash));
    }
    if let Some(primary) = plan.members.primary {
        let role = if primary == ordinal { "primary" } else { "replica" };
        if found.role.as_deref() != Some(role) {
            labels.push((LABEL_ROLE, role.to_owned()));
        }
    }
    if annotations.is_empty() && labels.is_empty() {
        return;
    }
    let id = id(scope, ordinal);
    let reason = if annotations.is_empty() { "its role is another" } else { "its Secrets changed" };
    plan.push(
        format!("marks of {id}"),
        Action::MarkPod { id, uid: found.meta.uid.clone(), annotations, labels },
        reason,
    );
}

/// Deletes a Pod; the next look makes it anew where it is wanted.
fn delete(found: &PodFacts, ordinal: u8, scope: Scope<'_>, event: &'static str, reason: &str, plan: &mut Plan) {
    let id = id(scope, ordinal);
    let key = format!("deletion of {id}");
    if plan.steps.iter().any(|step| step.id == key) {
        return;
    }
    let action = Action::Delete { id, uid: found.meta.uid.clone(), version: found.meta.version.clone() };
    plan.push(key, action, reason).event = Some(event);
}

/// Why a Pod has to be replaced.
fn outdated(world: &World, ordinal: u8, found: &PodFacts, scope: Scope<'_>) -> Option<String> {
    if let Some(before) = &found.template
        && let Some(difference) = pod::difference(before, &pod::template(scope))
    {
        return Some(difference);
    }
    if found.template.is_none() {
        return Some("it is not known what it was made from".into());
    }
    let going = world
        .volumes
        .present()
        .is_some_and(|volumes| volumes.iter().any(|((owner, _), v)| *owner == ordinal && v.meta.deleting));
    going.then(|| "its volume is being deleted: it is cloned anew".to_owned())
}

/// Pods that do not run, and would not by waiting: ended ones, and outdated ones that never came up. Their data, if any,
/// stays.
fn replace_stuck(world: &World, pods: &BTreeMap<u8, PodFacts>, scope: Scope<'_>, plan: &mut Plan) {
    for ordinal in plan.members.run.clone() {
        let Some(found) = pods.get(&ordinal).filter(|pod| !pod.meta.deleting) else { continue };
        if !super::children_ours(found, scope) {
            continue;
        }
        if found.ended {
            plan.does(Doing::Rolling, format!("{} ended and is made anew", scope.cluster.names.instance(ordinal)));
            delete(found, ordinal, scope, "InstanceReplaced", "it ended", plan);
        } else if void(world, found, scope) {
            // Neither renews nor follows: waiting for the others to serve would be waiting for ever.
            let why = "its ServiceAccount was made anew, and its token is void";
            plan.does(Doing::Rolling, format!("{} is replaced: {why}", scope.cluster.names.instance(ordinal)));
            delete(found, ordinal, scope, "InstanceReplaced", why, plan);
        } else if !found.running
            && let Some(why) = outdated(world, ordinal, found, scope)
        {
            plan.does(Doing::Rolling, format!("{} is replaced: {why}", scope.cluster.names.instance(ordinal)));
            delete(found, ordinal, scope, "InstanceReplaced", &why, plan);
        }
    }
}

/// Whether the token of a Pod is of an account that is gone: the API server refuses it.
fn void(world: &World, found: &PodFacts, scope: Scope<'_>) -> bool {
    let account = ChildId::new(Kind::ServiceAccount, scope.cluster.names.agent_account());
    let account = world.children.present().and_then(|children| children.get(&account));
    account.is_some_and(|account| account.created > found.meta.created && found.meta.created.is_some())
}

/// Why no instance may be stopped now although all serve: a hand-over is not complete, or commits could wait for an
/// instance that does not count for them yet. What the primary sees is asked, since the kubelet of a lost node says
/// nothing for a while.
pub fn unsettled(world: &World, scope: Scope<'_>, plan: &Plan) -> Option<String> {
    let lease = world.lease.present()?;
    let register = lease.register.present()?;
    let primary = plan.members.primary.filter(|_| plan.members.wanted.len() > 1)?;
    let told = lease.hand_over.as_ref().filter(|told| told.term == register.term && told.from.is_some());
    if let Some(told) = told.filter(|told| told.completed_at.is_none()) {
        return Some(format!("waits until {} has taken over", told.to));
    }
    let names = &scope.cluster.names;
    let Some(Known::Present(report)) = world.reports.get(&primary) else {
        return Some(format!("waits until the agent of {} answers", names.instance(primary)));
    };
    let rule = register.rule().filter(|rule| rule.k > 0);
    if rule.is_some() && !report.rules_confirmed {
        return Some(format!("waits until {} has proven that its sync rule is in force", names.instance(primary)));
    }
    let counts = |ordinal: u8| {
        let name = names.instance(ordinal);
        let own = world.reports.get(&ordinal).and_then(Known::present).and_then(|report| report.member.as_ref());
        report.replicas.iter().any(|replica| {
            let this = replica.instance.as_ref() == Some(&name) || Some(&replica.member) == own;
            this && replica.streaming && rule.is_none_or(|rule| rule.members.contains(&replica.member))
        })
    };
    let out = plan.members.wanted.iter().find(|ordinal| **ordinal != primary && !counts(**ordinal))?;
    Some(format!("waits until {} streams and counts for commits again", names.instance(*out)))
}

/// Replaces outdated Pods one at a time: replicas from the highest, then the primary, whose end is a planned hand-over to
/// one of them. Called only while all serve: so there is a replica that is made as wanted, and by [`unsettled`] it has what
/// is acknowledged. The roles are read anew each time, so a roll goes on after any interruption, and ends.
fn roll(pods: &BTreeMap<u8, PodFacts>, world: &World, scope: Scope<'_>, plan: &mut Plan) {
    let old: Vec<(u8, &PodFacts, String)> = plan
        .members
        .wanted
        .iter()
        .filter_map(|ordinal| pods.get(ordinal).map(|pod| (*ordinal, pod)))
        .filter_map(|(ordinal, pod)| outdated(world, ordinal, pod, scope).map(|why| (ordinal, pod, why)))
        .collect();
    let primary = plan.members.primary;
    let replica = old.iter().rev().find(|(ordinal, ..)| Some(*ordinal) != primary);
    let Some((ordinal, found, why)) = replica.or_else(|| old.last()) else { return };
    let name = scope.cluster.names.instance(*ordinal);
    if Some(*ordinal) == primary && why.starts_with("its volume") {
        plan.notice(
            "VolumeOfPrimary",
            format!("the volume of the primary {name} is being deleted: it stays until another instance is primary, since it holds the newest copy"),
        );
        return;
    }
    if let Some(waits) = unsettled(world, scope, plan) {
        plan.does(Doing::Rolling, format!("{waits}; then {name} is replaced: {why} ({} left)", old.len()));
        return;
    }
    plan.does(Doing::Rolling, format!("{name} is replaced: {why} ({} left)", old.len()));
    delete(found, *ordinal, scope, "Rolling", why, plan);
}

/// Removes the highest instance that is not wanted. Called only while all wanted ones serve; true when it does something.
fn scale_down(world: &World, pods: &BTreeMap<u8, PodFacts>, scope: Scope<'_>, plan: &mut Plan) -> bool {
    let (Some(volumes), Some(primary), true) = (world.volumes.present(), plan.members.primary, plan.members.settled)
    else {
        return false;
    };
    let extra = pods
        .iter()
        .filter(|(_, pod)| !pod.meta.deleting)
        .map(|(ordinal, _)| *ordinal)
        .chain(volumes.iter().filter(|(_, v)| !v.meta.deleting).map(|((ordinal, _), _)| *ordinal))
        .filter(|ordinal| !plan.members.wanted.contains(ordinal) && *ordinal != primary)
        .max();
    let Some(ordinal) = extra else {
        let going = pods.keys().filter(|ordinal| !plan.members.wanted.contains(ordinal)).max();
        if let Some(going) = going {
            plan.does(Doing::Scaling, format!("waits until {} is gone", scope.cluster.names.instance(*going)));
        }
        return going.is_some();
    };
    let name = scope.cluster.names.instance(ordinal);
    let reason = format!("{} instances are wanted", scope.cluster.instances);
    plan.does(Doing::Scaling, format!("{name} leaves: {reason}"));
    let leave = format!("leave of {name}");
    let command = LeaveCommand { term: plan.members.term, instance: name };
    plan.push(&leave, Action::Leave { primary, command }, &reason);
    for kind in [Volume::Data, Volume::Wal] {
        if let Some(facts) = volumes.get(&(ordinal, kind)).filter(|v| !v.meta.deleting)
            && may_touch(&facts.meta, &volume::name(scope, ordinal, kind), scope, plan)
        {
            let id = ChildId::new(Kind::PersistentVolumeClaim, volume::name(scope, ordinal, kind));
            let action =
                Action::Delete { id: id.clone(), uid: facts.meta.uid.clone(), version: facts.meta.version.clone() };
            plan.push(format!("deletion of {id}"), action, &reason).needs.push(leave.clone());
        }
    }
    if let Some(found) = pods.get(&ordinal).filter(|pod| super::children_ours(pod, scope) && !pod.meta.deleting) {
        delete(found, ordinal, scope, "ScalingDown", &reason, plan);
        if let Some(step) = plan.steps.last_mut() {
            step.needs.push(leave);
        }
    }
    true
}

/// Stops all Pods, the primary after the others are gone, so that it has everything.
fn hibernate(pods: &BTreeMap<u8, PodFacts>, scope: Scope<'_>, plan: &mut Plan) {
    let primary = plan.members.primary;
    let replicas = pods.keys().any(|ordinal| Some(*ordinal) != primary);
    for (ordinal, found) in pods {
        plan.does(Doing::Hibernating, "stops the Pods and keeps the volumes");
        if found.meta.deleting || (Some(*ordinal) == primary && replicas) || !super::children_ours(found, scope) {
            continue;
        }
        delete(found, *ordinal, scope, "Hibernating", "state is Hibernated", plan);
    }
}
