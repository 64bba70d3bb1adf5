//! A small model of Kubernetes and of agents, for tests: it carries a plan out in a [`World`].

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::Value;

use super::{Action, Plan, SecretContent, plan};
use crate::api::agent::{HandOver, HandOverReason, Lsn, Phase, ReplicaReport, Report};
use crate::api::config::ClusterConfig;
use crate::api::names::{ANNOTATION_RESTART, ANNOTATION_SECRETS, ANNOTATION_TEMPLATE, CONFIG_KEY, LABEL_ROLE, Names};
use crate::api::spec::{Durability, HelloOperatorSpec};
use crate::core::build::Child;
use crate::core::election::{Register, Rule};
use crate::core::status::status;
use crate::core::world::{
    CertificateFacts, ChildMeta, Kind, Known, LeaseFacts, ObjectFacts, Owner, PodFacts, SecretFacts, SecretKind,
    Volume, VolumeFacts, World,
};

pub const UID: &str = "uid-1";

pub fn spec(spec: Value) -> HelloOperatorSpec {
    serde_json::from_value(spec).unwrap()
}

/// A cluster of which nothing is there yet.
pub fn empty(wanted: Value) -> World {
    World {
        now: Timestamp::from_second(1_800_000_000).unwrap(),
        agent_image: "agent:1".into(),
        traces: None,
        object: ObjectFacts {
            names: Names::new("db"),
            namespace: "shop".into(),
            uid: UID.into(),
            generation: 1,
            spec: Some(spec(wanted)),
            unreadable: None,
            restart: None,
            restart_one: BTreeMap::new(),
            rotate_passwords: None,
            accept_loss: None,
            status: None,
        },
        crd_degraded: false,
        config: Known::Absent,
        greeted: None,
        children: Known::Present(BTreeMap::new()),
        secrets: SecretKind::ALL.into_iter().map(|kind| (kind, Known::Absent)).collect(),
        user_secrets: BTreeMap::new(),
        lease: Known::Absent,
        pods: Known::Present(BTreeMap::new()),
        volumes: Known::Present(BTreeMap::new()),
        reports: BTreeMap::new(),
        backups_degraded: false,
        backups: Known::Present(Vec::new()),
        restore_from: Known::Absent,
        verify: Known::Absent,
        failures: Vec::new(),
    }
}

pub fn change(world: &mut World, wanted: Value) {
    world.object.spec = Some(spec(wanted));
    world.object.generation += 1;
}

/// Plans, carries out, and lets the agents work, until nothing is left to do. Returns all plans.
pub fn settle(world: &mut World) -> Vec<Plan> {
    let mut plans = Vec::new();
    for _ in 0..120 {
        let next = plan(world);
        world.object.status = Some(status(world, &next, &[]));
        if next.settled() {
            assert_eq!(Some(status(world, &next, &[])), world.object.status, "a settled world keeps its status");
            plans.push(next);
            return plans;
        }
        apply_to(world, &next);
        agents_work(world);
        plans.push(next);
    }
    panic!("never settles: {:#?}", plans.last().map(|plan| (&plan.steps, &plan.doing, &plan.progress)));
}

fn meta(body: &Value, uid: &str) -> ChildMeta {
    let owner = match body.pointer("/metadata/ownerReferences/0/uid").and_then(Value::as_str) {
        Some(owner) => Owner::Object(owner.into()),
        None => Owner::Adoptable,
    };
    let hash = annotation(body, "terry.com/hash");
    ChildMeta { uid: uid.into(), version: "1".into(), owner, created: None, hash, deleting: false, edited: false }
}

fn annotation(body: &Value, name: &str) -> Option<String> {
    body.pointer("/metadata/annotations")?.get(name)?.as_str().map(Into::into)
}

pub fn present<T>(known: &mut Known<T>) -> &mut T {
    match known {
        Known::Present(value) => value,
        _ => panic!("it is not present"),
    }
}

fn put(world: &mut World, child: &Child) {
    let names = world.object.names.clone();
    let meta = meta(&child.body, &child.id.name);
    match child.id.kind {
        Kind::Lease => {
            let lease: Lease = serde_json::from_value(child.body.clone()).unwrap();
            let register = Known::Present(Register::from_lease(&lease).unwrap());
            world.lease = Known::Present(LeaseFacts { meta, register, since: None, hand_over: None });
        }
        Kind::PersistentVolumeClaim => {
            let (name, volume) = match child.id.name.strip_suffix("-wal") {
                Some(name) => (name, Volume::Wal),
                None => (child.id.name.as_str(), Volume::Data),
            };
            let ordinal = names.ordinal(name).unwrap();
            let size = child.body.pointer("/spec/resources/requests/storage").and_then(Value::as_str).unwrap();
            let requested = u64::try_from(crate::core::quantity::parse(size).unwrap()).unwrap();
            let facts = VolumeFacts { meta, ordinal, volume, requested, bound: true, class: None, trouble: None };
            assert!(present(&mut world.volumes).insert((ordinal, volume), facts).is_none(), "it was there");
        }
        Kind::Pod => {
            let ordinal = names.ordinal(&child.id.name).unwrap();
            let facts = PodFacts {
                meta,
                ordinal,
                node: Some("node1".into()),
                address: Some("10.0.0.1".into()),
                ready: false,
                running: false,
                ended: false,
                template: annotation(&child.body, ANNOTATION_TEMPLATE).map(|t| serde_json::from_str(&t).unwrap()),
                secrets: annotation(&child.body, ANNOTATION_SECRETS),
                restart: annotation(&child.body, ANNOTATION_RESTART),
                role: None,
                trouble: None,
            };
            assert!(present(&mut world.pods).insert(ordinal, facts).is_none(), "it was there");
        }
        _ => {
            if child.id.kind == Kind::ConfigMap {
                let text = child.body.pointer("/data").unwrap()[CONFIG_KEY].as_str().unwrap();
                world.config = Known::Present(serde_json::from_str::<ClusterConfig>(text).unwrap());
                world.greeted = Some(world.object.uid.clone());
            }
            present(&mut world.children).insert(child.id.clone(), meta);
        }
    }
}

/// Carries a plan out, as Kubernetes and willing agents would.
pub fn apply_to(world: &mut World, plan: &Plan) {
    let names = world.object.names.clone();
    for step in &plan.steps {
        match &step.action {
            Action::Create(child) | Action::Apply(child) => put(world, child),
            Action::MakeSecret { kind, inputs, .. } => {
                let certificate = match &inputs.content {
                    SecretContent::Login { .. } => None,
                    SecretContent::Authority { .. } => Some(Vec::new()),
                    SecretContent::Certificate { names, .. } => Some(names.clone()),
                };
                let body = serde_json::json!({"metadata": inputs.metadata});
                let mut meta = meta(&body, "secret");
                meta.hash = Some(inputs.hash.clone());
                let version = match world.secrets.get(kind) {
                    Some(Known::Present(before)) => format!("{}+", before.meta.version),
                    _ => "1".into(),
                };
                meta.version = version;
                let facts = SecretFacts {
                    meta,
                    wrong: None,
                    rotated_for: inputs.rotated_for.clone(),
                    certificate: certificate.map(|names| CertificateFacts {
                        from: world.now,
                        until: Timestamp::from_second(world.now.as_second() + 90 * 86_400).unwrap(),
                        names,
                        signed_by_ca: true,
                    }),
                };
                world.secrets.insert(*kind, Known::Present(facts));
            }
            Action::SetOwner { id, owner, .. } => {
                let owner = owner.as_ref().map_or(Owner::Adoptable, |_| Owner::Object(world.object.uid.clone()));
                for facts in present(&mut world.volumes).values_mut().filter(|v| v.meta.uid == id.name) {
                    facts.meta.owner = owner.clone();
                }
                for (kind, known) in &mut world.secrets {
                    if kind.name(&names) == id.name {
                        present(known).meta.owner = owner.clone();
                    }
                }
                if id.kind == Kind::Lease {
                    present(&mut world.lease).meta.owner = owner.clone();
                }
            }
            Action::Grow { id, size } => {
                let bytes = u64::try_from(crate::core::quantity::parse(size).unwrap()).unwrap();
                for facts in present(&mut world.volumes).values_mut().filter(|v| v.meta.uid == id.name) {
                    facts.requested = bytes;
                }
            }
            Action::Delete { id, .. } => {
                if id.kind == Kind::Pod {
                    let ordinal = names.ordinal(&id.name).unwrap();
                    present(&mut world.pods).remove(&ordinal).unwrap();
                    world.reports.remove(&ordinal);
                } else {
                    present(&mut world.volumes).retain(|_, volume| volume.meta.uid != id.name);
                }
            }
            Action::MarkPod { id, annotations, labels, .. } => {
                let pod = present(&mut world.pods).get_mut(&names.ordinal(&id.name).unwrap()).unwrap();
                for (key, value) in annotations {
                    assert_eq!(*key, ANNOTATION_SECRETS);
                    pod.secrets = Some(value.clone());
                }
                for (key, value) in labels {
                    assert_eq!(*key, LABEL_ROLE);
                    pod.role = Some(value.clone());
                }
            }
            Action::Restart { ordinal, command } => {
                let report = present(world.reports.get_mut(ordinal).unwrap());
                report.pending_restart.clear();
                report.restarted_for = Some(command.id.clone());
            }
            Action::Switchover { primary, command } => {
                let report = present(world.reports.get_mut(primary).unwrap());
                report.pending_restart.clear();
                report.restarted_for = Some(command.id.clone());
                let to = *present(&mut world.pods).keys().find(|ordinal| *ordinal != primary).unwrap();
                hand_over(world, to);
            }
            Action::Leave { .. } | Action::Backup { .. } | Action::CancelBackup { .. } => {}
        }
    }
}

/// Every instance starts, the first one takes the Lease, the others follow.
pub fn agents_work(world: &mut World) {
    let names = world.object.names.clone();
    let Known::Present(config) = &world.config else { return };
    let (generation, asked) = (config.generation, config.parameters.contains_key("max_connections"));
    let ordinals: Vec<u8> = present(&mut world.pods).keys().copied().collect();
    let Known::Present(lease) = &mut world.lease else { return };
    let register = present(&mut lease.register);
    let holder = register.holder_instance().and_then(|name| names.ordinal(name)).filter(|o| ordinals.contains(o));
    let Some(primary) = holder.or_else(|| ordinals.first().copied()) else {
        register.release = Some(crate::core::election::Release { timeline: 1, lsn: Some(Lsn(1)), wish: None });
        return;
    };
    if register.released() || holder.is_none() {
        register.term += 1;
        register.release = None;
        register.holder = format!("{}/uid/nonce", names.instance(primary));
        register.system_id = Some("7".into());
    }
    let member = |ordinal: &u8| format!("m{ordinal}");
    let followers = || ordinals.iter().filter(|ordinal| **ordinal != primary);
    register.rules = match config.durability {
        Durability::Quorum => vec![Rule::new(followers().map(member), u32::try_from(config.sync_replicas).unwrap())],
        Durability::Async => vec![Rule::none()],
    };
    let replicas: Vec<ReplicaReport> = followers()
        .map(|ordinal| ReplicaReport {
            member: member(ordinal),
            instance: Some(names.instance(*ordinal)),
            flushed: None,
            replayed: None,
            streaming: true,
        })
        .collect();
    // Who was ready is handed the role, when it should have it.
    let wished = config.spec.primary.as_deref().and_then(|name| names.ordinal(name));
    let ready = |ordinal: &u8| world.reports.get(ordinal).and_then(Known::present).is_some_and(|report| report.ready);
    if let Some(wished) = wished.filter(|wished| *wished != primary && ready(wished) && ready(&primary)) {
        return hand_over(world, wished);
    }
    let term = register.term;
    for ordinal in ordinals.clone() {
        let pod = present(&mut world.pods).get_mut(&ordinal).unwrap();
        (pod.running, pod.ready) = (true, true);
        let before = world.reports.get(&ordinal).and_then(Known::present).cloned();
        let fresh = before.is_none();
        let loaded = before.as_ref().is_some_and(|report| report.config_generation == generation);
        let mut pending = before.as_ref().map(|r| r.pending_restart.clone()).unwrap_or_default();
        if asked && !fresh && !loaded {
            pending = vec!["max_connections".into()];
        }
        let report = Report {
            phase: if ordinal == primary { Phase::Primary } else { Phase::Replica },
            member: Some(member(&ordinal)),
            system_id: Some("7".into()),
            term,
            timeline: Some(1),
            lsn: Some(Lsn(100)),
            streaming: ordinal != primary,
            ready: true,
            config_generation: generation,
            pending_restart: pending,
            restarted_for: before.and_then(|report| report.restarted_for),
            replicas: if ordinal == primary { replicas.clone() } else { Vec::new() },
            rules_confirmed: true,
            ..Report::new(&names.instance(ordinal), &pod.meta.uid)
        };
        world.reports.insert(ordinal, Known::Present(report));
    }
}

/// The agents elect another primary.
pub fn hand_over(world: &mut World, to: u8) {
    let name = world.object.names.instance(to);
    let lease = present(&mut world.lease);
    let register = present(&mut lease.register);
    let from = register.holder_instance().map(Into::into);
    register.term += 1;
    register.holder = format!("{name}/uid/nonce");
    register.release = None;
    lease.hand_over = Some(HandOver {
        term: register.term,
        from,
        to: name,
        reason: HandOverReason::Shutdown,
        started_at: "2027-01-15T08:00:00.5Z".into(),
        completed_at: Some("2027-01-15T08:00:01.75Z".into()),
    });
    agents_work(world);
}

pub fn ids(plan: &Plan) -> Vec<&str> {
    plan.steps.iter().map(|step| step.id.as_str()).collect()
}

pub fn deletions(plan: &Plan, kind: Kind) -> Vec<String> {
    plan.steps
        .iter()
        .filter_map(|step| match &step.action {
            Action::Delete { id, .. } if id.kind == kind => Some(id.name.clone()),
            _ => None,
        })
        .collect()
}

pub fn condition(world: &World, kind: &str) -> (String, String, String) {
    let found = world.object.status.as_ref().unwrap().conditions.iter().find(|c| c.type_ == kind).unwrap();
    (found.status.clone(), found.reason.clone(), found.message.clone())
}
