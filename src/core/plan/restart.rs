//! Restarts of PostgreSQL: replicas one by one in place, then the primary, by handing over to one of them where there is one.

use super::pods::{serves, unsettled};
use super::{Action, Doing, Plan};
use crate::api::agent::{Report, RestartCommand, SwitchoverCommand};
use crate::api::config::ClusterConfig;
use crate::api::names::{ANNOTATION_RESTART, ANNOTATION_RESTART_ONE};
use crate::api::spec::State;
use crate::core::build::Scope;
use crate::core::world::{Known, ObjectFacts, World};

/// Between the parts of a command's id: what the annotations ask for, and generation of the settings.
const SEPARATOR: &str = "#";
/// Between what is asked of all instances and what of this one alone.
const ALONE: &str = "#@";

/// What the object's annotations ask of an instance: of all of them, and of this one alone.
pub fn wish(object: &ObjectFacts, ordinal: u8) -> Option<String> {
    match (object.restart.as_deref(), object.restart_one.get(&ordinal)) {
        (all, None) => all.map(str::to_owned),
        (all, Some(one)) => Some(format!("{}{ALONE}{one}", all.unwrap_or_default())),
    }
}

/// Whether one of these wishes, which were carried out, has what is asked for now. An annotation that is removed asks for
/// nothing; whatever a value holds, the wish that was made of it has it.
fn asked(object: &ObjectFacts, ordinal: u8, carried_out: &[&str]) -> Option<String> {
    let all = object.restart.as_deref().is_some_and(|all| {
        let has = |done: &&str| done.strip_prefix(all).is_some_and(|rest| rest.is_empty() || rest.starts_with(ALONE));
        !carried_out.iter().any(has)
    });
    let one = object.restart_one.get(&ordinal).is_some_and(|one| {
        let has = |done: &&str| done.strip_suffix(one.as_str()).is_some_and(|rest| rest.ends_with(ALONE));
        !carried_out.iter().any(has)
    });
    match (all, one) {
        (true, _) => Some(format!("the annotation {ANNOTATION_RESTART} asks for it")),
        (false, true) => Some(format!("the annotation {ANNOTATION_RESTART_ONE}{ordinal} asks for it")),
        (false, false) => None,
    }
}

/// Plans the next one, when nothing else is under way and all instances serve.
pub fn plan(world: &World, scope: Scope<'_>, config: &ClusterConfig, plan: &mut Plan) {
    if scope.cluster.state != State::Running || plan.doing >= Doing::Starting {
        return;
    }
    let behind: Vec<String> = plan
        .members
        .wanted
        .iter()
        .filter_map(|ordinal| world.reports.get(ordinal).and_then(Known::present))
        .filter(|report| report.config_generation < config.generation)
        .map(|report| report.instance.clone())
        .collect();
    if !behind.is_empty() {
        plan.does(Doing::Updating, format!("waits until {} took over the settings", behind.join(", ")));
    }
    let due: Vec<(u8, String)> = plan
        .members
        .wanted
        .iter()
        .filter_map(|ordinal| {
            let report = world.reports.get(ordinal).and_then(Known::present)?;
            why(world, *ordinal, report, config).map(|why| (*ordinal, why))
        })
        .collect();
    let primary = plan.members.primary;
    let Some((ordinal, why)) = due.iter().rev().find(|(o, _)| Some(*o) != primary).or_else(|| due.last()) else {
        return;
    };
    let name = scope.cluster.names.instance(*ordinal);
    plan.does(Doing::Rolling, format!("PostgreSQL of {name} restarts: {why} ({} left)", due.len()));
    if !plan.members.wanted.iter().all(|ordinal| serves(world, *ordinal)) || unsettled(world, scope, plan).is_some() {
        return;
    }
    let wish = wish(&world.object, *ordinal).unwrap_or_default();
    let (term, id) = (plan.members.term, format!("{wish}{SEPARATOR}{}", config.generation));
    // A replica is there sooner than the primary is back. Where the user wants this very one, it would be handed back at once.
    // A replica keeps its primary's value as a floor, so it would wait for the same restart.
    let in_place = world.reports.get(ordinal).and_then(Known::present).is_some_and(|report| report.restart_in_place);
    let hands_over = scope.cluster.failover.enabled && scope.cluster.primary != Some(*ordinal) && !in_place;
    let step = if Some(*ordinal) == primary && plan.members.wanted.len() > 1 && hands_over {
        let command = SwitchoverCommand { term, id, to: None, reason: why.clone() };
        plan.push(format!("switchover from {name}"), Action::Switchover { primary: *ordinal, command }, why)
    } else {
        let command = RestartCommand { term, id, reason: why.clone() };
        plan.push(format!("restart of {name}"), Action::Restart { ordinal: *ordinal, command }, why)
    };
    step.event = Some("Restarting");
}

/// Why an instance has to restart.
fn why(world: &World, ordinal: u8, report: &Report, config: &ClusterConfig) -> Option<String> {
    let obeyed = report.restarted_for.as_deref().and_then(|id| id.rsplit_once(SEPARATOR)).map(|(wish, _)| wish);
    let pod = world.pods.present().and_then(|pods| pods.get(&ordinal));
    let fresh = pod.and_then(|pod| pod.restart.as_deref());
    let carried_out: Vec<&str> = obeyed.into_iter().chain(fresh).collect();
    if let Some(why) = asked(&world.object, ordinal, &carried_out) {
        return Some(why);
    }
    let current = report.config_generation == config.generation;
    (current && !report.pending_restart.is_empty())
        .then(|| format!("{} can only change with a restart", report.pending_restart.join(", ")))
}
