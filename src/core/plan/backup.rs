//! Backups: made when a schedule says so, taken one at a time by an instance that can, followed to their end, and their objects
//! removed once the store holds them no more.
//!
//! HelloBackups have no owner: like the data and the archive they outlive the cluster, so that a new one can be restored by
//! their names.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::json;

use super::{Action, Plan};
use crate::api::agent::{Phase, Report};
use crate::api::archive::{BackupCommand, CancelBackupCommand};
use crate::api::backup::{BackupPhase, BackupTarget, HelloBackupStatus};
use crate::api::names::{ANNOTATION_RUN, LABEL_CLUSTER, LABEL_MANAGED_BY, MANAGED_BY};
use crate::api::spec::{Destination, State};
use crate::core::backup::conditions::with_conditions;
use crate::core::backup::follow::{catalog, failed, follow, second, unassigned};
use crate::core::backup::schedule::{Impossible, Schedule};
use crate::core::build::{Scope, child};
use crate::core::world::{BackupFacts, ChildId, Kind, Known, World};

/// Objects of failed backups that are kept.
const FAILED_KEPT: usize = 3;
/// Seconds after the end of a backup from which on a catalogue that does not hold it is believed.
const SETTLED: i64 = 600;

/// What is decided about backups beside the steps.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Backups {
    /// How each HelloBackup should read, by name; only those that read otherwise.
    pub statuses: BTreeMap<String, HelloBackupStatus>,
    /// When the schedule makes the next one. One that has passed is not made yet.
    pub next_run: Option<Timestamp>,
    /// When the newest one is proven next. A time that has passed waits for a backup.
    pub next_verification: Option<Timestamp>,
    /// Whether the next look should come soon: one is about to begin, or a proof has just ended.
    pub begins: bool,
    /// Whether one is being taken.
    pub runs: bool,
}

/// Plans them.
pub fn plan(world: &World, scope: Scope<'_>, plan: &mut Plan) {
    let Known::Present(known) = &world.backups else {
        plan.backups.next_run = next_run(world);
        return;
    };
    let running = scope.cluster.state == State::Running;
    let destination = scope.cluster.backup.destination.as_ref();
    schedule(world, scope, known, plan);
    let mut all: Vec<(&BackupFacts, HelloBackupStatus)> = ordered(known)
        .into_iter()
        .map(|facts| (facts, follow(world, catalog(world, plan.members.primary), facts)))
        .collect();
    cancel(world, &all, plan);
    let why = match (destination, running) {
        (None, _) => Some("the cluster has no backup.destination: say where backups go"),
        (_, false) => Some("state is Hibernated: it is taken once the cluster runs again"),
        (Some(_), true) => None,
    };
    match (destination, why) {
        (Some(destination), None) => turns(world, scope, destination, &mut all, plan),
        (_, why) => wait(&mut all, why.unwrap_or_default()),
    }
    tidy(world, scope, destination, &all, plan);
    plan.backups.runs = all.iter().any(|(_, status)| status.phase == BackupPhase::Running);
    keep(world, all, plan);
}

/// The backups of a cluster of which nothing may be decided: they are followed, and wait with this sentence.
pub fn idle(world: &World, why: &str, plan: &mut Plan) {
    plan.backups.next_run = next_run(world);
    let Known::Present(known) = &world.backups else { return };
    let catalog = catalog(world, plan.members.primary);
    let mut all: Vec<_> = ordered(known).into_iter().map(|facts| (facts, follow(world, catalog, facts))).collect();
    wait(&mut all, why);
    keep(world, all, plan);
}

/// How the backups of a cluster read that does not exist, by name; only those that read otherwise.
pub fn orphans(world: &World) -> BTreeMap<String, HelloBackupStatus> {
    let cluster = world.object.names.cluster();
    let mut plan = Plan::new();
    let Known::Present(known) = &world.backups else { return BTreeMap::new() };
    let gone = format!("there is no HelloOperator {cluster} in this namespace");
    let one = |facts: &BackupFacts| match facts.status.phase {
        BackupPhase::Running => failed(world, &facts.status, format!("HelloOperator {cluster} was deleted")),
        BackupPhase::Pending => unassigned(&facts.status, gone.clone()),
        BackupPhase::Completed | BackupPhase::Failed => facts.status.clone(),
    };
    let all = known.iter().map(|facts| (facts, one(facts))).collect();
    keep(world, all, &mut plan);
    plan.backups.statuses
}

fn keep(world: &World, all: Vec<(&BackupFacts, HelloBackupStatus)>, plan: &mut Plan) {
    let all = all.into_iter().map(|(facts, status)| (facts, with_conditions(status, facts.generation, world.now)));
    let news = all.filter(|(facts, status)| !facts.deleting && (facts.status != *status || !facts.reported));
    plan.backups.statuses = news.map(|(facts, status)| (facts.name.clone(), status)).collect();
}

/// In the order of their turns.
fn ordered(known: &[BackupFacts]) -> Vec<&BackupFacts> {
    let mut all: Vec<&BackupFacts> = known.iter().collect();
    all.sort_by_key(|facts| (facts.created, &facts.name));
    all
}

fn wait(all: &mut [(&BackupFacts, HelloBackupStatus)], why: &str) {
    for (_, status) in all.iter_mut().filter(|(_, status)| status.phase == BackupPhase::Pending) {
        *status = unassigned(status, why.to_owned());
    }
}

/// The run that was announced in the status.
fn next_run(world: &World) -> Option<Timestamp> {
    world.object.status.as_ref()?.backup.as_ref()?.next_run.as_deref()?.parse().ok()
}

/// What a schedule asks for: the newest run that is due, and the one after.
pub(super) fn due(
    schedule: Option<&Result<Schedule, Impossible>>,
    announced: Option<Timestamp>,
    now: Timestamp,
) -> (Option<Timestamp>, Option<Timestamp>) {
    let Some(Ok(schedule)) = schedule else { return (None, None) };
    // One that was announced and that the schedule does not know: the schedule is another one since, and begins now.
    let passed = announced.filter(|announced| *announced <= now && schedule.runs_at(*announced));
    let newest = passed.map(|passed| schedule.newest(passed, now).unwrap_or(passed));
    (newest, schedule.next(now))
}

/// Makes the HelloBackup of a run that is due.
fn schedule(world: &World, scope: Scope<'_>, known: &[BackupFacts], plan: &mut Plan) {
    let backup = &scope.cluster.backup;
    if backup.suspend || backup.destination.is_none() || scope.cluster.state != State::Running {
        return;
    }
    let (run, next) = due(backup.schedule.as_ref(), next_run(world), world.now);
    plan.backups.next_run = next;
    let Some(run) = run else { return };
    let name = scope.cluster.names.backup(run);
    if known.iter().any(|facts| facts.name == name) {
        return;
    }
    // Announced until it is made. While an earlier one is not finished it waits, and becomes the newest that was missed.
    plan.backups.next_run = Some(run);
    let unfinished = |facts: &&BackupFacts| {
        facts.run.is_some() && matches!(facts.status.phase, BackupPhase::Pending | BackupPhase::Running)
    };
    if known.iter().any(|facts| unfinished(&facts)) {
        return;
    }
    let body = json!({
        "metadata": {
            "name": name,
            "namespace": scope.namespace,
            "labels": {LABEL_CLUSTER: scope.cluster.names.cluster(), LABEL_MANAGED_BY: MANAGED_BY},
            "annotations": {ANNOTATION_RUN: run.to_string()},
        },
        "spec": {"cluster": scope.cluster.names.cluster(), "target": "PreferReplica"},
    });
    let made = child(Kind::HelloBackup, &name, body);
    let reason = format!("backup.schedule has a run at {run}");
    plan.push(made.id.to_string(), Action::Create(made), reason).event = Some("BackupScheduled");
    plan.backups.begins = true;
}

/// Ends what nobody wants any more: a backup whose HelloBackup was deleted, has failed, or was given to another instance.
fn cancel(world: &World, all: &[(&BackupFacts, HelloBackupStatus)], plan: &mut Plan) {
    for (report, id) in running(world) {
        let wanted = all.iter().any(|(facts, status)| {
            facts.uid == id
                && !facts.deleting
                && status.phase == BackupPhase::Running
                && status.instance.as_ref() == Some(&report.instance)
        });
        let Some(ordinal) = world.object.names.ordinal(&report.instance).filter(|_| !wanted) else { continue };
        let command = CancelBackupCommand { id: id.to_owned() };
        let step = plan.push(
            format!("end of the backup on {}", report.instance),
            Action::CancelBackup { ordinal, command },
            "its HelloBackup was deleted, has failed, or was given to another instance",
        );
        step.event = Some("BackupCancelled");
    }
}

/// Backups that are being taken, by what the agents say.
fn running(world: &World) -> impl Iterator<Item = (&Report, &str)> {
    world.reports.values().filter_map(Known::present).filter_map(|report| {
        let backup = report.store.as_ref()?.backup.as_ref()?;
        backup.end.is_none().then_some((report, backup.id.as_str()))
    })
}

/// One at a time: who takes the next one, and what the others wait for.
fn turns(
    world: &World,
    scope: Scope<'_>,
    destination: &Destination,
    all: &mut [(&BackupFacts, HelloBackupStatus)],
    plan: &mut Plan,
) {
    let open = |(facts, status): &(&BackupFacts, HelloBackupStatus)| {
        !facts.deleting && matches!(status.phase, BackupPhase::Pending | BackupPhase::Running)
    };
    let assigned = all.iter().position(|one| open(one) && one.1.instance.is_some());
    let Some(turn) = assigned.or_else(|| all.iter().position(open)) else { return };
    let ahead = all.get(turn).map(|(facts, _)| facts.name.clone()).unwrap_or_default();
    for (at, one) in all.iter_mut().enumerate() {
        if at != turn && open(one) && one.1.phase == BackupPhase::Pending {
            one.1 = unassigned(&one.1, format!("waits until {ahead} is done: one backup is taken at a time"));
        }
    }
    let Some((facts, status)) = all.get_mut(turn) else { return };
    if status.phase == BackupPhase::Running {
        return;
    }
    if let Some(name) = status.instance.clone() {
        begin(world, scope, facts, status, &name, plan);
        return;
    }
    if let Some((busy, _)) = running(world).next() {
        *status =
            unassigned(status, format!("waits until {} has cleaned up after a backup that was ended", busy.instance));
        return;
    }
    match choose(world, plan, facts.target) {
        None => *status = unassigned(status, nobody(facts.target).into()),
        // Written down before the command is given, so that nobody else is ever given the same one.
        Some(ordinal) => {
            status.instance = Some(scope.cluster.names.instance(ordinal));
            status.role = Some(if plan.members.primary == Some(ordinal) { "primary" } else { "replica" }.into());
            status.destination = Some(destination.clone());
            status.path = Some(destination.place(&destination.root(scope.namespace, scope.cluster.names.cluster())));
            status.message = None;
            plan.backups.begins = true;
        }
    }
}

fn nobody(target: BackupTarget) -> &'static str {
    match target {
        BackupTarget::PreferReplica => "waits for a replica that streams, or a primary that takes writes",
        BackupTarget::Primary => "waits for a primary that takes writes",
    }
}

/// Tells the instance that was chosen.
fn begin(
    world: &World,
    scope: Scope<'_>,
    facts: &BackupFacts,
    status: &mut HelloBackupStatus,
    instance: &str,
    plan: &mut Plan,
) {
    let ordinal = scope.cluster.names.ordinal(instance);
    let Some(ordinal) = ordinal.filter(|ordinal| able(world, *ordinal)) else {
        // Of one that does not answer, `follow` counts the time.
        let known = ordinal.and_then(|ordinal| world.reports.get(&ordinal)).and_then(Known::present);
        if known.is_some() || ordinal.is_none() {
            *status = unassigned(status, format!("{instance}, which was to take it, cannot any more"));
        }
        return;
    };
    let id = ChildId::new(Kind::HelloBackup, facts.name.clone());
    let refused = world.failures.iter().find(|failure| failure.child.as_ref() == Some(&id));
    status.message = refused.map(|failure| failure.trouble.sentence.clone());
    let command = BackupCommand { term: plan.members.term, id: facts.uid.clone() };
    let action = Action::Backup { ordinal, name: facts.name.clone(), command };
    plan.push(format!("backup {} by {instance}", facts.name), action, "it is its turn");
    plan.backups.begins = refused.is_none();
}

/// The instance that takes a backup.
fn choose(world: &World, plan: &Plan, target: BackupTarget) -> Option<u8> {
    let primary = plan.members.primary.filter(|ordinal| plan.members.settled && able(world, *ordinal));
    if target == BackupTarget::Primary {
        return primary;
    }
    let replicas = world.reports.iter().filter_map(|(ordinal, report)| Some((*ordinal, report.present()?)));
    let replicas = replicas.filter(|(ordinal, report)| {
        Some(*ordinal) != plan.members.primary
            && report.phase == Phase::Replica
            && report.streaming
            && able(world, *ordinal)
    });
    // The one that has replayed most; of equals the first.
    let best = replicas.max_by_key(|(ordinal, report)| (report.replayed.or(report.lsn), std::cmp::Reverse(*ordinal)));
    best.map(|(ordinal, _)| ordinal).or(primary)
}

/// Whether an instance can take one.
fn able(world: &World, ordinal: u8) -> bool {
    let pod = world.pods.present().and_then(|pods| pods.get(&ordinal));
    let report = world.reports.get(&ordinal).and_then(Known::present);
    pod.is_some_and(|pod| pod.running && !pod.meta.deleting)
        && report.is_some_and(|report| report.ready && !report.draining && report.store.is_some())
}

/// Removes the objects of backups that left the store, and of all but the newest that failed.
fn tidy(
    world: &World,
    scope: Scope<'_>,
    destination: Option<&Destination>,
    all: &[(&BackupFacts, HelloBackupStatus)],
    plan: &mut Plan,
) {
    let read = catalog(world, plan.members.primary)
        .filter(|catalog| catalog.error.is_none())
        .and_then(|catalog| Some((catalog, catalog.read_at.as_deref()?.parse::<Timestamp>().ok()?)));
    let here = destination
        .map(|destination| destination.place(&destination.root(scope.namespace, scope.cluster.names.cluster())));
    let left = |status: &HelloBackupStatus| {
        let ended = status.completed_at.as_deref().and_then(|ended| ended.parse::<Timestamp>().ok());
        let (Some((catalog, read)), Some(ended), Some(id)) = (read, ended, &status.backup_id) else { return false };
        status.phase == BackupPhase::Completed
            // Another destination's catalogue says nothing of it.
            && status.path.is_some()
            && status.path == here
            && read.as_second() > ended.as_second().saturating_add(SETTLED)
            && catalog.backups.iter().all(|entry| entry.backup_id != *id)
    };
    let failed: Vec<&str> = all
        .iter()
        .rev()
        .filter(|(_, status)| status.phase == BackupPhase::Failed)
        .skip(FAILED_KEPT)
        .map(|(facts, _)| facts.name.as_str())
        .collect();
    for (facts, status) in all.iter().filter(|(facts, _)| !facts.deleting) {
        let reason = if left(status) {
            "its backup is not in the destination any more: the retention removed it"
        } else if failed.contains(&facts.name.as_str()) {
            "it failed, and newer ones failed since"
        } else {
            continue;
        };
        let id = ChildId::new(Kind::HelloBackup, facts.name.clone());
        let action = Action::Delete { id: id.clone(), uid: facts.uid.clone(), version: facts.version.clone() };
        plan.push(format!("deletion of {id}"), action, reason);
    }
}

/// When the schedule makes the next one, as the status says it.
pub fn announced(plan: &Plan) -> Option<String> {
    plan.backups.next_run.map(second)
}
