//! The Lease of the primary. Absent is not released: for a cluster with data it is made anew only from what every member
//! says of itself.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde_json::json;

use super::children::lasting;
use super::{Action, DATA_MISSING, Doing, Plan};
use crate::api::agent::Report;
use crate::api::config::ClusterConfig;
use crate::core::build::{Scope, child};
use crate::core::election::rules::with;
use crate::core::election::{Register, Release, Rule};
use crate::core::world::{ChildId, Kind, Known, Volume, World};

/// So many takes may have happened since the agents were asked.
const UNKNOWN_TAKES: u32 = 4;

/// Plans it.
pub fn plan(world: &World, scope: Scope<'_>, config: &ClusterConfig, plan: &mut Plan) {
    let id = ChildId::new(Kind::Lease, scope.cluster.names.lease());
    match &world.lease {
        Known::Unknown(why) => plan.does(Doing::Starting, format!("waits until the Lease is known: {why}")),
        Known::Present(lease) => {
            lasting(&lease.meta, &id, scope, plan);
            if let Some(why) = lease.register.unknown() {
                plan.notice("LeaseUnreadable", why);
            }
            if lease.register.present().is_some_and(|register| register.system_id.is_some()) && all_empty(world) {
                let (name, namespace) = (&id.name, &world.object.namespace);
                plan.notice(
                    DATA_MISSING,
                    format!(
                        "the Lease {name} says that this cluster has data, and no volume holds any: nobody begins anew over what may only be misplaced. Bring a volume back; or, if the data is lost for good, an empty cluster begins after: kubectl delete lease {name} -n {namespace}"
                    ),
                );
            }
        }
        Known::Absent => match register(world, scope, config) {
            Ok(register) => {
                let lease = register.into_lease(Lease::default(), config.lease.duration, MicroTime(world.now));
                let mut body = json!(lease);
                let mut metadata = scope.lasting(&id.name);
                if let (Some(fields), Some(annotations)) =
                    (metadata.as_object_mut(), body.pointer("/metadata/annotations").cloned())
                {
                    fields.insert("annotations".into(), annotations);
                }
                if let Some(fields) = body.as_object_mut() {
                    fields.insert("metadata".into(), metadata);
                }
                plan.does(Doing::Creating, format!("{id} is made"));
                let lease = child(Kind::Lease, &id.name, body);
                plan.push(id.to_string(), Action::Create(lease), "it is missing");
            }
            Err(missing) => {
                plan.does(Doing::Creating, "waits until it is safe to make the Lease of the primary anew");
                plan.notice("LeaseLost", missing);
            }
        },
    }
}

/// Whether there are data volumes, and every instance has looked at its own and found nothing.
fn all_empty(world: &World) -> bool {
    let Known::Present(volumes) = &world.volumes else { return false };
    let mut data = volumes.keys().filter(|(_, kind)| *kind == Volume::Data).peekable();
    let empty = |ordinal| world.reports.get(ordinal).and_then(Known::present).is_some_and(|report| report.empty);
    data.peek().is_some() && data.all(|(ordinal, _)| empty(ordinal))
}

/// The register to begin with, or who is missing to know it.
fn register(world: &World, scope: Scope<'_>, config: &ClusterConfig) -> Result<Register, String> {
    let (Known::Present(volumes), Known::Present(_)) = (&world.volumes, &world.pods) else {
        return Err("the Lease of the primary is gone, and it is not known which volumes there are".into());
    };
    let names = &scope.cluster.names;
    // Above every term that is known, also for a new beginning: what was written in a later one is not overwritten.
    let status = world.object.status.as_ref().and_then(|status| status.election.as_ref());
    let told = status.map_or(0, |election| election.term);
    let initial = |term| Register { term, ..Register::initial(config.instances.clone(), config.durability) };
    let ordinals = volumes.keys().filter(|(_, kind)| *kind == Volume::Data).map(|(ordinal, _)| *ordinal);
    let mut reports: Vec<&Report> = Vec::new();
    let mut silent = Vec::new();
    for ordinal in ordinals {
        match world.reports.get(&ordinal).and_then(Known::present) {
            // One that has neither data nor looked says nothing yet.
            Some(report) if report.system_id.is_some() || report.empty => reports.push(report),
            _ => silent.push(names.instance(ordinal)),
        }
    }
    if !silent.is_empty() {
        return Err(format!(
            "the Lease of the primary is gone while there are volumes: it is made anew once every instance says what it holds; {} did not answer yet",
            silent.join(", ")
        ));
    }
    let last = last_known(&reports);
    let told = told.max(last.as_ref().map_or(0, |register| register.term));
    reports.retain(|report| report.system_id.is_some());
    let Some(newest) = reports.iter().max_by_key(|report| (report.timeline, report.lsn)) else {
        return Ok(initial(told));
    };
    let others: Vec<&str> = reports
        .iter()
        .filter(|report| report.system_id != newest.system_id)
        .map(|report| report.instance.as_str())
        .collect();
    if !others.is_empty() {
        return Err(format!(
            "the Lease of the primary is gone, and the volumes hold data of different clusters ({} and {}): remove the volume that does not belong here",
            newest.instance,
            others.join(", ")
        ));
    }
    let timeline = newest.timeline.unwrap_or(1);
    let known = last_known(&reports).unwrap_or_else(|| initial(0));
    // The first election after this needs the answers of all: what the register said last may not be known to anybody. A primary
    // that still takes writes, by the promises of the others, answers when it has seen this and has stopped.
    let all = Rule::new(reports.iter().filter_map(|report| report.member.clone()), 1);
    Ok(Register {
        // The holder stays named: by it, and by nothing else, the last primary's data are known. No end is named: what an
        // instance that does not run reports may be less than it has.
        release: Some(Release { timeline, lsn: None, wish: None }),
        // Above every one that an agent still knows, so that none takes it for an older one.
        term: reports.iter().map(|report| report.term).max().unwrap_or(0).max(told).saturating_add(1),
        timeline: timeline.max(known.timeline),
        established: if known.established > 0 { known.established } else { timeline },
        // Timelines that were taken after what is known here was said stay unused.
        reserved: timeline.max(known.reserved).saturating_add(UNKNOWN_TAKES),
        system_id: newest.system_id.clone(),
        instances: config.instances.clone(),
        durability: config.durability,
        bounds: config.lease,
        rules: with(&known.rules, all),
        ..known
    })
}

/// The register as it was last read by anybody: of the highest term, and there the holder's own word before others'.
fn last_known(reports: &[&Report]) -> Option<Register> {
    reports
        .iter()
        .filter_map(|report| {
            let register: Register = serde_json::from_str(report.register.as_deref()?).ok()?;
            let own = register.holder_instance() == Some(report.instance.as_str());
            Some(((register.term, own, register.rules.len()), register))
        })
        .max_by_key(|(order, _)| *order)
        .map(|(_, register)| register)
}
