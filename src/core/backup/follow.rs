//! How far a backup is: from what the agents and the catalogue say to the status of its HelloBackup.
//!
//! An agent that does not answer may well be at it, so nobody's word is taken for a failure at once. And a backup that stands in
//! the catalogue is a good one, whatever was thought of it before.

use jiff::Timestamp;

use crate::api::agent::Report;
use crate::api::archive::{BackupEnd, BackupReport, CatalogEntry, CatalogReport};
use crate::api::backup::{BackupPhase, HelloBackupStatus};
use crate::core::world::{BackupFacts, Known, World};

/// Seconds for which nobody may tell of a backup before it counts as failed.
const UNSEEN: i64 = 120;
/// The same, where nobody is left who could still be at it. One that was complete all the same is found in the catalogue later.
const GONE: i64 = 20;
/// Seconds by which clocks of two machines may differ.
const CLOCKS: i64 = 5;

/// What is known of the cluster's store.
pub fn catalog(world: &World, primary: Option<u8>) -> Option<&CatalogReport> {
    let report = world.reports.get(&primary?).and_then(Known::present)?;
    report.store.as_ref()?.catalog.as_ref().filter(|catalog| catalog.read_at.is_some())
}

/// How far it is now.
pub fn follow(world: &World, catalog: Option<&CatalogReport>, facts: &BackupFacts) -> HelloBackupStatus {
    let before = facts.status.clone();
    if before.phase == BackupPhase::Completed {
        return before;
    }
    match told(world, facts) {
        Some((report, BackupReport { end: Some(BackupEnd::Completed(entry)), .. })) => {
            return completed(&before, Some(&report.instance), entry);
        }
        Some((_, BackupReport { end: None, .. })) if before.phase == BackupPhase::Failed => return before,
        Some((report, backup @ BackupReport { end: None, .. })) => return running(world, &before, report, backup),
        Some((_, BackupReport { end: Some(BackupEnd::Failed(why)), .. })) => {
            return failed(world, &before, why.message.clone());
        }
        Some((_, BackupReport { end: Some(BackupEnd::Cancelled), .. })) => {
            return failed(world, &before, "it was cancelled".into());
        }
        None => {}
    }
    if let Some(entry) = catalog.and_then(|catalog| catalog.backups.iter().find(|e| e.requested_by == facts.uid)) {
        return completed(&before, None, entry);
    }
    match (&before.phase, &before.instance) {
        (BackupPhase::Pending | BackupPhase::Running, Some(instance)) => unseen(world, catalog, &before, instance),
        _ => before,
    }
}

/// What the agent that should take it says of it.
fn told<'a>(world: &'a World, facts: &BackupFacts) -> Option<(&'a Report, &'a BackupReport)> {
    world.reports.values().filter_map(Known::present).find_map(|report| {
        let backup = report.store.as_ref()?.backup.as_ref()?;
        let meant = facts.status.instance.as_ref().is_none_or(|instance| *instance == report.instance);
        (backup.id == facts.uid && meant).then_some((report, backup))
    })
}

fn running(world: &World, before: &HelloBackupStatus, report: &Report, backup: &BackupReport) -> HelloBackupStatus {
    let pace = backup.started_at.parse().ok().and_then(|since| pace(backup.done_bytes, since, world.now));
    HelloBackupStatus {
        phase: BackupPhase::Running,
        progress: Some(progress(backup, pace, world.now)),
        message: None,
        instance: Some(report.instance.clone()),
        backup_id: Some(backup.backup_id.clone()),
        started_at: Some(backup.started_at.clone()),
        done_bytes: signed(backup.done_bytes),
        total_bytes: signed(backup.total_bytes).filter(|total| *total > 0),
        stored_bytes: signed(backup.stored_bytes),
        bytes_per_second: pace.and_then(signed),
        unseen_since: None,
        ..before.clone()
    }
}

fn completed(before: &HelloBackupStatus, instance: Option<&String>, entry: &CatalogEntry) -> HelloBackupStatus {
    let took = seconds(&entry.started_at, &entry.stopped_at);
    let size = bytes(entry.bytes);
    let progress = match took {
        Some(took) => format!("{size} in {}, {} stored", duration(took), bytes(entry.stored_bytes)),
        None => format!("{size}, {} stored", bytes(entry.stored_bytes)),
    };
    HelloBackupStatus {
        observed_generation: before.observed_generation,
        conditions: before.conditions.clone(),
        phase: BackupPhase::Completed,
        progress: Some(progress),
        message: None,
        instance: Some(instance.unwrap_or(&entry.instance).clone()),
        role: Some(entry.role.clone()),
        backup_id: Some(entry.backup_id.clone()),
        path: before.path.clone(),
        destination: before.destination.clone(),
        started_at: Some(entry.started_at.clone()),
        completed_at: Some(entry.stopped_at.clone()),
        timeline: Some(i64::from(entry.timeline)),
        start_lsn: Some(entry.start_lsn.to_string()),
        stop_lsn: Some(entry.stop_lsn.to_string()),
        done_bytes: signed(entry.bytes),
        total_bytes: signed(entry.bytes),
        stored_bytes: signed(entry.stored_bytes),
        bytes_per_second: took.and_then(|took| entry.bytes.checked_div(u64::try_from(took).ok()?)).and_then(signed),
        unseen_since: None,
    }
}

/// It failed; what was known of it stays.
pub fn failed(world: &World, before: &HelloBackupStatus, message: String) -> HelloBackupStatus {
    if before.phase == BackupPhase::Failed {
        return before.clone();
    }
    HelloBackupStatus {
        phase: BackupPhase::Failed,
        message: Some(message),
        completed_at: Some(second(world.now)),
        progress: None,
        bytes_per_second: None,
        unseen_since: None,
        ..before.clone()
    }
}

/// Nobody tells of it: the agent was not asked yet, restarted, does not answer, or is gone.
fn unseen(
    world: &World,
    catalog: Option<&CatalogReport>,
    before: &HelloBackupStatus,
    instance: &str,
) -> HelloBackupStatus {
    let Some(pods) = world.pods.present() else { return before.clone() };
    let ordinal = world.object.names.ordinal(instance);
    let pod = ordinal.and_then(|ordinal| pods.get(&ordinal)).filter(|pod| !pod.meta.deleting);
    let report = ordinal.and_then(|ordinal| world.reports.get(&ordinal)).and_then(Known::present);
    let begun = before.phase == BackupPhase::Running;
    let why = match (pod, report) {
        (Some(_), Some(_)) if !begun => return HelloBackupStatus { unseen_since: None, ..before.clone() },
        (Some(_), Some(_)) => format!("the agent of {instance} restarted while it took the backup"),
        (Some(_), None) => format!("the agent of {instance} did not answer for {UNSEEN} s"),
        (None, _) if !begun => return unassigned(before, format!("{instance}, which was to take it, stopped")),
        (None, _) => format!("{instance} stopped while it took the backup"),
    };
    let since = before.unseen_since.as_deref().and_then(|since| since.parse::<Timestamp>().ok()).unwrap_or(world.now);
    let waited = world.now.as_second().saturating_sub(since.as_second());
    // The catalogue was read since then and does not hold it, and nobody is left who could still bring it.
    let read = catalog.and_then(|catalog| catalog.read_at.as_deref()?.parse::<Timestamp>().ok());
    let absent = read.is_some_and(|read| read.as_second() > since.as_second().saturating_add(CLOCKS));
    let nobody = pod.is_none() || report.is_some();
    let limit = if nobody { GONE } else { UNSEEN };
    if waited >= limit && !begun {
        return unassigned(before, why);
    }
    if waited >= limit || (absent && nobody) {
        return failed(world, before, format!("{why}: nothing of it counts as a backup"));
    }
    HelloBackupStatus { unseen_since: Some(second(since)), ..before.clone() }
}

/// Back to those who wait.
pub fn unassigned(before: &HelloBackupStatus, message: String) -> HelloBackupStatus {
    HelloBackupStatus { message: Some(message), instance: None, unseen_since: None, ..before.clone() }
}

/// To the second: people read it.
pub fn second(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

fn seconds(from: &str, to: &str) -> Option<i64> {
    let read = |text: &str| text.parse::<Timestamp>().ok().map(Timestamp::as_second);
    Some(read(to)?.saturating_sub(read(from)?).max(0))
}

fn pace(done: u64, since: Timestamp, now: Timestamp) -> Option<u64> {
    let took = u64::try_from(now.as_second().saturating_sub(since.as_second())).ok()?;
    done.checked_div(took).filter(|pace| *pace > 0)
}

fn signed(value: u64) -> Option<i64> {
    i64::try_from(value).ok()
}

/// One line for people.
fn progress(backup: &BackupReport, pace: Option<u64>, now: Timestamp) -> String {
    let (done, total) = (backup.done_bytes, backup.total_bytes);
    let mut line = match done.saturating_mul(100).checked_div(total) {
        Some(percent) => format!("{}% of {}", percent.min(100), bytes(total)),
        None => bytes(done),
    };
    if let Some(pace) = pace {
        line = format!("{line}, {}/s", bytes(pace));
        let left = total.saturating_sub(done).checked_div(pace).and_then(|left| i64::try_from(left).ok());
        let end = left
            .filter(|_| total > 0)
            .and_then(|left| Timestamp::from_second(now.as_second().saturating_add(left)).ok());
        if let Some(end) = end {
            line = format!("{line}, done about {}", end.strftime("%H:%M:%SZ"));
        }
    }
    line
}

/// `1.5 GiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut shift = 0_u32;
    let mut unit = None;
    for name in UNITS {
        if count >> (shift + 10) == 0 {
            break;
        }
        shift += 10;
        unit = Some(name);
    }
    let Some(unit) = unit else { return format!("{count} B") };
    let tenths = (u128::from(count) * 10) >> shift;
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

fn duration(seconds: i64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}
