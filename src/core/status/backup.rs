//! Backups and the archive: what can be restored, and whether that is as it should be.

use jiff::Timestamp;

use super::Verdict;
use crate::api::agent::Report;
use crate::api::archive::{ArchiveReport, CatalogReport, StoreReport};
use crate::api::backup::BackupPhase;
use crate::api::spec::State;
use crate::api::status::{BackupStatus, ExpiringStatus, LastBackup};
use crate::core::backup::follow::{bytes, catalog};
use crate::core::cluster::Cluster;
use crate::core::plan::Plan;
use crate::core::world::{BackupFacts, Known, World};

/// The condition's type.
pub const BACKUP_HEALTHY: &str = "BackupHealthy";
/// Its reason while WAL cannot be archived.
pub const ARCHIVE_FAILING: &str = "ArchiveFailing";
/// Its reason while the destination cannot be read.
const UNREADABLE: &str = "CatalogUnreadable";
/// Seconds for which a backup may be late, or wait for its turn.
const LATE: i64 = 3600;
/// Most names that are told of backups on their way out.
const MOST_EXPIRING: usize = 20;

/// What is known of backups. None: they go nowhere.
pub(super) fn backup(world: &World, plan: &Plan) -> Option<BackupStatus> {
    let before = world.object.status.as_ref().and_then(|status| status.backup.clone());
    // Where nothing is acted upon nothing is news: the run that was announced is made up later.
    let Some(accepted) = &plan.accepted else { return before };
    accepted.cluster.backup.destination.as_ref()?;
    let before = before.unwrap_or_default();
    let was = before.clone();
    let catalog = catalog(world, plan.members.primary);
    let archive = primary(world, plan).and_then(|(_, store)| store.archive.last.as_ref().map(|_| &store.archive));
    let (first_recoverable, expiring) = match catalog {
        None => (before.first_recoverable, before.expiring),
        Some(catalog) => (catalog.recoverable_from.clone(), expiring(catalog)),
    };
    let (last_archived_wal, last_archived_at) = match archive {
        None => (before.last_archived_wal, before.last_archived_at),
        Some(archive) => (archive.last.clone(), archive.last_at.clone()),
    };
    let after = BackupStatus {
        last_successful: last_successful(world, catalog, before.last_successful),
        first_recoverable,
        last_archived_wal,
        last_archived_at,
        next_run: crate::core::plan::backup::announced(plan),
        expiring,
        ..BackupStatus::default()
    };
    Some(crate::core::plan::verify::record(world, plan, was, after))
}

fn expiring(catalog: &CatalogReport) -> Vec<ExpiringStatus> {
    let all = catalog.expiring.iter().take(MOST_EXPIRING);
    all.map(|one| ExpiringStatus { backup_id: one.backup_id.clone(), reason: one.reason.clone() }).collect()
}

/// The newest good backup: of the catalogue, or one that was completed since it was read.
fn last_successful(world: &World, catalog: Option<&CatalogReport>, before: Option<LastBackup>) -> Option<LastBackup> {
    let known = world.backups.present().map(Vec::as_slice).unwrap_or_default();
    let listed = catalog.into_iter().flat_map(|catalog| &catalog.backups).map(|entry| LastBackup {
        name: known.iter().find(|facts| facts.uid == entry.requested_by).map(|facts| facts.name.clone()),
        backup_id: entry.backup_id.clone(),
        completed_at: entry.stopped_at.clone(),
    });
    let read = catalog.and_then(|catalog| catalog.read_at.as_deref());
    let finished =
        known.iter().filter_map(completed).filter(|last| read.is_none_or(|read| at(&last.completed_at) > at(read)));
    let newest = listed.chain(finished).max_by_key(|last| at(&last.completed_at));
    // A catalogue that was read and is empty says that there is none.
    newest.or(before.filter(|_| catalog.is_none()))
}

fn completed(facts: &BackupFacts) -> Option<LastBackup> {
    let status = &facts.status;
    (status.phase == BackupPhase::Completed).then_some(())?;
    Some(LastBackup {
        name: Some(facts.name.clone()),
        backup_id: status.backup_id.clone()?,
        completed_at: status.completed_at.clone()?,
    })
}

fn at(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// What the primary's agent says of its store.
fn primary<'a>(world: &'a World, plan: &Plan) -> Option<(&'a Report, &'a StoreReport)> {
    let report = world.reports.get(&plan.members.primary?).and_then(Known::present)?;
    Some((report, report.store.as_ref()?))
}

/// The condition BackupHealthy; None where backups go nowhere.
pub(super) fn healthy(world: &World, plan: &Plan, status: Option<&BackupStatus>) -> Option<Verdict> {
    let status = status?;
    let Some(accepted) = &plan.accepted else { return kept(world) };
    let cluster = &accepted.cluster;
    let verdict = |holds, reason: &str, sentence: String| {
        Some(Verdict { kind: BACKUP_HEALTHY, holds, reason: reason.into(), sentence })
    };
    if let Some(impossible) = cluster.backup.impossible() {
        return verdict(false, "ScheduleImpossible", impossible.to_string());
    }
    if cluster.state == State::Hibernated {
        return verdict(true, "Hibernated", "state is Hibernated: nothing is written, and no backup begins".into());
    }
    if let Some(why) = world.backups.unknown() {
        // For a moment, at the start of an operator, it stays as it was.
        let before = kept(world).filter(|_| !world.backups_degraded);
        return before.or_else(|| verdict(false, "BackupsUnknown", format!("HelloBackups cannot be read: {why}")));
    }
    // Only the primary's agent can take back what it said.
    let said = kept(world).filter(|before| [ARCHIVE_FAILING, UNREADABLE].contains(&before.reason.as_str()));
    if let (None, Some(before)) = (primary(world, plan), said) {
        return Some(before);
    }
    if let Some(sentence) = archive_failing(world, plan) {
        return verdict(false, ARCHIVE_FAILING, sentence);
    }
    if let Some(error) = primary(world, plan).and_then(|(_, store)| store.catalog.as_ref()?.error.as_ref()) {
        let sentence = format!("the destination cannot be read, or the retention not be done: {}", error.message);
        return verdict(false, UNREADABLE, sentence);
    }
    let known = world.backups.present().map(Vec::as_slice).unwrap_or_default();
    if let Some((facts, why)) = last_failed(known, status) {
        return verdict(false, "BackupFailed", format!("{facts} failed: {why}"));
    }
    if let Some(error) = &status.verification_error {
        return verdict(false, "VerificationFailed", format!("the proof of the newest backup failed: {error}"));
    }
    let Some(last) = &status.last_successful else { return never(world, cluster, status, known) };
    if let Some(sentence) = too_old(world, cluster, last, known) {
        return verdict(false, "BackupTooOld", sentence);
    }
    let named = last.name.as_ref().unwrap_or(&last.backup_id);
    let mut sentence = format!("the last good backup is {named}, complete since {}", last.completed_at);
    if let Some(first) = &status.first_recoverable {
        sentence = format!("{sentence}; what was archived can be restored from {first} on");
    }
    if cluster.backup.suspend {
        return verdict(
            true,
            "Suspended",
            format!("backup.suspend is true, so no scheduled backup begins; {sentence}"),
        );
    }
    verdict(true, "Healthy", sentence)
}

/// The condition as it stands.
fn kept(world: &World) -> Option<Verdict> {
    let mut all = world.object.status.iter().flat_map(|status| &status.conditions);
    let before = all.find(|condition| condition.type_ == BACKUP_HEALTHY)?;
    Some(Verdict {
        kind: BACKUP_HEALTHY,
        holds: before.status == "True",
        reason: before.reason.clone(),
        sentence: before.message.clone(),
    })
}

/// Whose archive fails, since when, and what that means.
fn archive_failing(world: &World, plan: &Plan) -> Option<String> {
    let stores = world.reports.iter().filter_map(|(ordinal, report)| {
        let report = report.present()?;
        Some((*ordinal, report, &report.store.as_ref()?.archive))
    });
    let failing = stores.filter(|(_, _, archive)| archive.failing_since.is_some());
    // What the primary cannot archive is what would be lost.
    let (_, report, archive) =
        failing.min_by_key(|(ordinal, ..)| (Some(*ordinal) != plan.members.primary, *ordinal))?;
    let why = archive.error.as_ref().map_or("no reason was given", |error| error.message.as_str());
    let since = archive.failing_since.as_deref().unwrap_or_default();
    let room = room(world, report, archive).map_or_else(String::new, |room| format!(" ({room})"));
    let (name, disk) = (&report.instance, "its WAL waits on the disk");
    Some(format!("{name} cannot archive WAL since {since}: {why}; {disk} until it can{room}"))
}

/// How long the disk holds what cannot be archived, at the pace of now, in whole days: a sentence that changes with each segment
/// would be written again with each.
fn room(world: &World, report: &Report, archive: &ArchiveReport) -> Option<String> {
    let since = at(archive.failing_since.as_deref()?)?;
    let seconds = u64::try_from(world.now.as_second().saturating_sub(since.as_second())).ok().filter(|s| *s >= 60)?;
    let waiting = archive.waiting.checked_mul(SEGMENT).filter(|waiting| *waiting > 0)?;
    let disk = report.disk?;
    let left = u128::from(disk.free).checked_mul(u128::from(seconds))?.checked_div(u128::from(waiting))?;
    Some(match left / 86_400 {
        0 => "the disk is full in less than a day at this pace".to_owned(),
        1..=60 => format!("the disk is full in about {} days at this pace", left / 86_400),
        _ => format!("{} free", bytes(disk.free >> 30 << 30)),
    })
}

/// Size of a segment, as PostgreSQL has it unless it is told otherwise.
const SEGMENT: u64 = 16 << 20;

/// The newest backup that ended, when it failed and none was good since.
fn last_failed<'a>(known: &'a [BackupFacts], status: &BackupStatus) -> Option<(&'a str, &'a str)> {
    let ended = |facts: &&BackupFacts| matches!(facts.status.phase, BackupPhase::Completed | BackupPhase::Failed);
    let newest = known.iter().filter(ended).max_by_key(|facts| facts.status.completed_at.as_deref().and_then(at))?;
    let good = status.last_successful.as_ref().and_then(|last| at(&last.completed_at));
    let failed =
        newest.status.phase == BackupPhase::Failed && newest.status.completed_at.as_deref().and_then(at) >= good;
    failed.then(|| (newest.name.as_str(), newest.status.message.as_deref().unwrap_or("no reason was given")))
}

/// There is no good backup.
fn never(world: &World, cluster: &Cluster, status: &BackupStatus, known: &[BackupFacts]) -> Option<Verdict> {
    let verdict = |holds, sentence: String| {
        Some(Verdict { kind: BACKUP_HEALTHY, holds, reason: "NeverBackedUp".into(), sentence })
    };
    let created = |facts: &BackupFacts| facts.created.map_or(0, |created| world.now.as_second() - created.as_second());
    let open = |facts: &&BackupFacts| matches!(facts.status.phase, BackupPhase::Pending | BackupPhase::Running);
    if let Some(first) = known.iter().filter(open).max_by_key(|facts| created(facts)) {
        let late = first.status.phase == BackupPhase::Pending && created(first) > LATE;
        let why = first.status.message.as_deref().unwrap_or("it is being taken");
        return verdict(!late, format!("there is no backup yet; the first one is {}: {why}", first.name));
    }
    // What the user wants is done: that nothing can be restored yet is no failure of ours, but it is said.
    let none = "there is no backup, and until there is one nothing can be restored";
    match &status.next_run {
        Some(next) => verdict(true, format!("there is no backup yet; the first one is due at {next}")),
        None if cluster.backup.suspend => verdict(true, format!("{none}: backup.suspend is true")),
        None => verdict(true, format!("{none}: create a HelloBackup, or set backup.schedule")),
    }
}

/// A run of the schedule passed without a good backup since.
fn too_old(world: &World, cluster: &Cluster, last: &LastBackup, known: &[BackupFacts]) -> Option<String> {
    let schedule = cluster.backup.schedule.as_ref()?.as_ref().ok().filter(|_| !cluster.backup.suspend)?;
    if known.iter().any(|facts| facts.status.phase == BackupPhase::Running) {
        return None;
    }
    let completed = at(&last.completed_at)?;
    let late = Timestamp::from_second(world.now.as_second().saturating_sub(LATE)).ok()?;
    let missed = schedule.newest(completed, late)?;
    let waits = known.iter().find(|facts| facts.status.phase == BackupPhase::Pending);
    let why = waits
        .and_then(|facts| facts.status.message.as_deref())
        .map_or_else(String::new, |why| format!(": the next one {why}"));
    Some(format!("the last good backup is of {completed}, and one was due at {missed}{why}"))
}
