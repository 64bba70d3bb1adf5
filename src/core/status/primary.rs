//! Who takes writes, and whose copies a commit waits for: mirrors of the Lease.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::names::MAX_INSTANCES;
use crate::api::status::{PrimaryStatus, ReplicationStatus};
use crate::core::election::Register;
use crate::core::plan::Plan;
use crate::core::world::{Known, World};

/// The holder of the Lease.
pub(super) fn primary(world: &World, plan: &Plan) -> Option<PrimaryStatus> {
    let register = match &world.lease {
        Known::Present(lease) => lease.register.present()?,
        Known::Absent => return None,
        Known::Unknown(_) => return world.object.status.as_ref().and_then(|status| status.primary.clone()),
    };
    let instance = register.holder_instance()?;
    if register.released() {
        return None;
    }
    let before = world.object.status.as_ref().and_then(|status| status.primary.as_ref());
    let since = match before {
        Some(before) if before.term == register.term && before.since.is_some() => before.since.clone(),
        _ => Some(Time(world.lease.present().and_then(|lease| lease.since).unwrap_or(world.now))),
    };
    let timeline = plan
        .members
        .primary
        .and_then(|ordinal| world.reports.get(&ordinal))
        .and_then(Known::present)
        .and_then(|report| report.timeline)
        .map(i64::from)
        .or_else(|| before.filter(|before| before.term == register.term).and_then(|before| before.timeline));
    Some(PrimaryStatus { instance: instance.to_owned(), term: register.term, timeline, since })
}

/// The sync rules, in words.
pub(super) fn replication(world: &World, plan: &Plan) -> Option<ReplicationStatus> {
    let register = match &world.lease {
        Known::Present(lease) => lease.register.present()?,
        Known::Absent => return None,
        Known::Unknown(_) => return world.object.status.as_ref().and_then(|status| status.replication.clone()),
    };
    let rules = register
        .rules
        .iter()
        .filter(|rule| rule.k > 0)
        .map(|rule| {
            let mut names: Vec<String> =
                rule.members.iter().map(|member| instance_of(world, register, member)).collect();
            names.sort();
            names.dedup();
            format!("ANY {} ({})", rule.k, names.join(", "))
        })
        .collect();
    let report = plan.members.primary.and_then(|primary| world.reports.get(&primary)).and_then(Known::present);
    let before = world.object.status.as_ref().and_then(|status| status.replication.as_ref());
    let confirmed = report.map_or_else(|| before.and_then(|before| before.confirmed), |r| Some(r.rules_confirmed));
    Some(ReplicationStatus { durability: format!("{:?}", register.durability), rules, confirmed })
}

/// The instance of a member: rules name members, and people know instances.
pub(super) fn instance_of(world: &World, register: &Register, member: &str) -> String {
    let planned = register.planned.iter().find(|(_, planned)| *planned == member).map(|(instance, _)| instance.clone());
    let reports = || world.reports.values().filter_map(Known::present);
    let own = || reports().find(|r| r.member.as_deref() == Some(member)).map(|r| r.instance.clone());
    let seen = || {
        let mut replicas = reports().flat_map(|report| &report.replicas);
        replicas.find(|replica| replica.member == member).and_then(|replica| replica.instance.clone())
    };
    // Of a member that nobody knows any more, the id begins with the name of its instance.
    let named = || {
        let names = &world.object.names;
        (1..=MAX_INSTANCES).map(|o| names.instance(o)).find(|name| member.starts_with(&format!("{name}-")))
    };
    planned.or_else(own).or_else(seen).or_else(named).unwrap_or_else(|| member.to_owned())
}
