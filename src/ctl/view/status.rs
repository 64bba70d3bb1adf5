//! One cluster on one screen.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use serde::Serialize;

use super::next::{Next, condition, current, next, until};
use super::{Paint, ago_of, bytes, moment_of, span, table};
use crate::api::backup::{BackupPhase, HelloBackup};
use crate::api::spec::HelloOperator;
use crate::api::status::{InstanceStatus, LastFailover, ReplicationStatus};

/// What was read, and when. What could not be says why.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The time of this machine.
    pub now: Timestamp,
    /// The object.
    pub object: HelloOperator,
    /// The Lease of its primary.
    pub lease: Result<Option<Lease>, String>,
    /// HelloBackups of the cluster.
    pub backups: Result<Vec<HelloBackup>, String>,
    /// Bytes that replicas are behind by now, as their agents say; without those that could not be asked.
    pub lag: BTreeMap<String, i64>,
}

/// One cluster.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    namespace: String,
    name: String,
    phase: String,
    ready: String,
    /// Whether the status speaks of the spec as it is now.
    current: bool,
    writes: Option<Verdict>,
    primary: Option<Primary>,
    lease: Option<LeaseView>,
    replication: Option<ReplicationStatus>,
    instances: Vec<Instance>,
    last_hand_over: Option<LastFailover>,
    /// Whether the spec says where backups go.
    archives: bool,
    backup: Option<Backup>,
    degraded: Option<Verdict>,
    next: Next,
    /// What could not be read, and other things to know of this answer.
    notes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Verdict {
    holds: bool,
    reason: String,
    message: String,
    since: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Primary {
    instance: String,
    term: i64,
    timeline: Option<i64>,
    since: Option<String>,
    /// What the spec wants, where that is somebody else.
    wanted: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct LeaseView {
    name: String,
    holder: Option<String>,
    renewed_at: Option<String>,
    age_seconds: Option<i64>,
    duration_seconds: Option<i32>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Instance {
    #[serde(flatten)]
    status: InstanceStatus,
    /// Whether the lag is of now, and not of when the status was written.
    lag_is_live: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Backup {
    healthy: Option<Verdict>,
    last: Option<String>,
    last_completed_at: Option<String>,
    restorable_from: Option<String>,
    restorable_to: Option<String>,
    next_run: Option<String>,
    last_verified_at: Option<String>,
    /// Those that wait or run, with their progress.
    under_way: Vec<String>,
}

fn verdict(object: &HelloOperator, kind: &str) -> Option<Verdict> {
    condition(object, kind).map(|found| Verdict {
        holds: found.status == "True",
        reason: found.reason.clone(),
        message: found.message.clone(),
        since: found.last_transition_time.0.to_string(),
    })
}

/// From what was read.
pub fn view(seen: &Seen) -> View {
    let object = &seen.object;
    let status = object.status.clone().unwrap_or_default();
    let mut notes = Vec::new();
    let lease = match &seen.lease {
        Ok(lease) => lease.as_ref().map(|lease| lease_view(lease, seen.now)),
        Err(why) => {
            notes.push(format!("the Lease of the primary cannot be read: {why}"));
            None
        }
    };
    let held = lease.as_ref().and_then(|lease| lease.holder.clone());
    let primary = status.primary.as_ref().map(|primary| Primary {
        instance: primary.instance.clone(),
        term: primary.term,
        timeline: primary.timeline,
        since: primary.since.as_ref().map(|since| since.0.to_string()),
        wanted: object.spec.primary.clone().filter(|wanted| *wanted != primary.instance),
    });
    if let (Some(held), Some(primary)) = (&held, &primary)
        && *held != primary.instance
    {
        notes.push(format!(
            "the Lease says that {held} is primary, and the status still says {}: the operator has not looked since",
            primary.instance
        ));
    }
    let instances: Vec<Instance> = status.instances.iter().map(|one| instance(one, &seen.lag)).collect();
    if instances.iter().any(|one| shown_lag(one).is_some() && !one.lag_is_live) {
        notes.push("a lag with * is of when the status was written: the agent could not be asked".into());
    }
    if let Err(why) = &seen.backups {
        notes.push(format!("HelloBackups cannot be read: {why}"));
    }
    let under_way = seen.backups.as_ref().map(|backups| under_way(backups)).unwrap_or_default();
    let backup = status.backup.as_ref().map(|backup| Backup {
        healthy: verdict(object, "BackupHealthy"),
        last: backup.last_successful.as_ref().map(|last| last.name.clone().unwrap_or_else(|| last.backup_id.clone())),
        last_completed_at: backup.last_successful.as_ref().map(|last| last.completed_at.clone()),
        restorable_from: backup.first_recoverable.clone(),
        restorable_to: backup.last_archived_at.clone().filter(|_| backup.first_recoverable.is_some()),
        next_run: backup.next_run.clone(),
        last_verified_at: backup.last_verified.as_ref().map(|proof| proof.at.clone()),
        under_way,
    });
    View {
        namespace: object.metadata.namespace.clone().unwrap_or_default(),
        name: object.metadata.name.clone().unwrap_or_default(),
        phase: status.phase.unwrap_or_else(|| "Unknown".into()),
        ready: status.ready.unwrap_or_else(|| format!("0/{}", object.spec.instances)),
        current: current(object),
        writes: verdict(object, "WriteAvailable"),
        primary,
        lease,
        replication: status.replication,
        instances,
        last_hand_over: status.last_failover,
        archives: object.spec.backup.destination.is_some(),
        backup,
        degraded: verdict(object, "Degraded").filter(|degraded| degraded.holds),
        next: next(object),
        notes,
    }
}

fn lease_view(lease: &Lease, now: Timestamp) -> LeaseView {
    let spec = lease.spec.clone().unwrap_or_default();
    let renewed = spec.renew_time.map(|at| at.0);
    // The holder is `<pod>/<uid>/<nonce>`; one that was given up is empty.
    let holder = spec.holder_identity.filter(|holder| !holder.is_empty());
    LeaseView {
        name: lease.metadata.name.clone().unwrap_or_default(),
        holder: holder.map(|holder| holder.split('/').next().unwrap_or_default().to_owned()),
        renewed_at: renewed.map(|at| at.to_string()),
        age_seconds: renewed.map(|at| (now.as_second() - at.as_second()).max(0)),
        duration_seconds: spec.lease_duration_seconds,
    }
}

fn instance(status: &InstanceStatus, lag: &BTreeMap<String, i64>) -> Instance {
    let live = lag.get(&status.name).copied();
    let status = InstanceStatus { lag_bytes: live.or(status.lag_bytes), ..status.clone() };
    Instance { status, lag_is_live: live.is_some() }
}

/// A primary is behind nobody.
fn shown_lag(instance: &Instance) -> Option<i64> {
    instance.status.lag_bytes.filter(|_| instance.status.role != "primary")
}

fn under_way(backups: &[HelloBackup]) -> Vec<String> {
    backups
        .iter()
        .filter_map(|backup| {
            let status = backup.status.clone().unwrap_or_default();
            let name = backup.metadata.name.as_deref().unwrap_or_default();
            match status.phase {
                BackupPhase::Running => {
                    let by = status.instance.unwrap_or_default();
                    Some(format!("{name} is taken by {by}: {}", status.progress.unwrap_or_default()))
                }
                BackupPhase::Pending => Some(format!("{name} waits: {}", status.message.unwrap_or_default())),
                BackupPhase::Completed | BackupPhase::Failed => None,
            }
        })
        .collect()
}

/// The same for people.
pub fn text(seen: &Seen, paint: Paint) -> String {
    let (view, now) = (view(seen), seen.now);
    let phase = match view.phase.as_str() {
        "Ready" => paint.good("Ready"),
        "Degraded" | "Invalid" | "NotReady" => paint.bad(&view.phase),
        other => paint.warn(other),
    };
    let title = format!("HelloOperator {}/{}", view.namespace, view.name);
    let mut out = format!("{}: {phase}, {} instances ready\n", paint.bold(&title), view.ready);
    let mut line = |label: &str, text: String| {
        let _ = writeln!(out, "  {} {text}", paint.bold(&format!("{label:<10}")));
    };
    line("writes", writes(&view, now, paint));
    line("lease", lease(&view, paint));
    line("sync", sync(&view, paint));
    line("hand-over", hand_over(&view, now));
    for (number, text) in backup(&view, now, paint).into_iter().enumerate() {
        line(if number == 0 { "backups" } else { "" }, text);
    }
    if let Some(degraded) = &view.degraded {
        let text = format!("{}: {} ({})", degraded.reason, degraded.message, ago_of(now, &degraded.since));
        line("degraded", paint.bad(&text));
    }
    let next = if view.next.settled { view.next.now.clone() } else { paint.warn(&view.next.now) };
    line("next", next);
    if !view.instances.is_empty() {
        out.push('\n');
        out.push_str(&instances(&view, paint));
    }
    for note in &view.notes {
        let _ = writeln!(out, "  {}", paint.dim(note));
    }
    out
}

fn writes(view: &View, now: Timestamp, paint: Paint) -> String {
    let taken = view.primary.as_ref().map(|primary| {
        let since = primary.since.as_ref().map(|since| format!(", primary since {}", ago_of(now, since)));
        let timeline = primary.timeline.map(|timeline| format!(", timeline {timeline}")).unwrap_or_default();
        let wanted = primary.wanted.as_ref().map(|wanted| format!("; spec.primary names {wanted}"));
        let (since, wanted) = (since.unwrap_or_default(), wanted.unwrap_or_default());
        format!("{} (term {}{timeline}{since}){wanted}", primary.instance, primary.term)
    });
    match (&view.writes, taken) {
        (Some(writes), Some(taken)) if writes.holds => format!("{} by {taken}", paint.good("taken")),
        (Some(writes), taken) => {
            let last = taken.map(|taken| format!("; the last primary is {taken}")).unwrap_or_default();
            paint.bad(&format!("not taken: {}: {}{last}", writes.reason, writes.message))
        }
        (None, _) => "not known".to_owned(),
    }
}

fn lease(view: &View, paint: Paint) -> String {
    let Some(lease) = &view.lease else { return "not known".to_owned() };
    let age = match (lease.age_seconds, lease.duration_seconds) {
        (Some(age), Some(valid)) if lease.holder.is_some() && age > i64::from(valid) => {
            paint.bad(&format!(", not renewed for {} (valid for {valid} s)", span(age)))
        }
        (Some(age), Some(valid)) => format!(", renewed {} ago (valid for {valid} s)", span(age)),
        _ => String::new(),
    };
    match &lease.holder {
        Some(holder) => format!("{} is held by {holder}{age}", lease.name),
        None => paint.warn(&format!("{} is held by nobody", lease.name)),
    }
}

fn sync(view: &View, paint: Paint) -> String {
    let Some(replication) = &view.replication else { return "not known".to_owned() };
    let rules = if replication.rules.is_empty() { "no rule".to_owned() } else { replication.rules.join(", then ") };
    let confirmed = match replication.confirmed {
        Some(true) => paint.good("confirmed"),
        Some(false) => paint.warn("not confirmed yet"),
        None => "not known whether confirmed".to_owned(),
    };
    format!("{}: {rules}, {confirmed}", replication.durability)
}

fn hand_over(view: &View, now: Timestamp) -> String {
    let Some(last) = &view.last_hand_over else { return "none yet".to_owned() };
    let who = if last.from == last.to { last.to.clone() } else { format!("{} to {}", last.from, last.to) };
    let took = last.duration_seconds;
    format!(
        "{who}, {} ({}): {}, took {took} s",
        moment_of(&last.started_at),
        ago_of(now, &last.started_at),
        last.reason
    )
}

fn backup(view: &View, now: Timestamp, paint: Paint) -> Vec<String> {
    let Some(backup) = &view.backup else {
        let why = if view.archives { "not known" } else { "go nowhere: spec.backup.destination is not set" };
        return vec![why.to_owned()];
    };
    let mut first = match (&backup.last, &backup.last_completed_at) {
        (Some(last), Some(at)) => format!("last good: {last}, {}", ago_of(now, at)),
        _ => paint.warn("none yet"),
    };
    if let Some(next) = &backup.next_run {
        let _ = write!(first, "; next {}", until(now, next));
    }
    if let Some(proof) = &backup.last_verified_at {
        let _ = write!(first, "; proven {}", ago_of(now, proof));
    }
    let mut lines = vec![first];
    if let Some(from) = &backup.restorable_from {
        let to = backup.restorable_to.as_deref().map_or_else(|| "the last archived WAL".into(), moment_of);
        lines.push(format!("restorable from {} to {to}", moment_of(from)));
    }
    lines.extend(backup.under_way.iter().cloned());
    if let Some(bad) = backup.healthy.as_ref().filter(|healthy| !healthy.holds) {
        lines.push(paint.bad(&format!("{}: {}", bad.reason, bad.message)));
    }
    lines
}

fn instances(view: &View, paint: Paint) -> String {
    let dash = || "-".to_owned();
    let mut rows = vec![["INSTANCE", "ROLE", "READY", "TIMELINE", "LAG", "NODE", ""].map(str::to_owned).to_vec()];
    rows.extend(view.instances.iter().map(|one| {
        let status = &one.status;
        let mark = if one.lag_is_live { "" } else { "*" };
        let rejoined = status.rejoined.as_ref().map(|r| format!("{} at {}", r.how.to_lowercase(), moment_of(&r.at)));
        vec![
            status.name.clone(),
            if status.role.is_empty() { dash() } else { status.role.clone() },
            if status.ready { "yes" } else { "no" }.to_owned(),
            status.timeline.map_or_else(dash, |timeline| timeline.to_string()),
            shown_lag(one).map_or_else(dash, |lag| format!("{}{mark}", bytes(lag))),
            status.node.clone().unwrap_or_else(dash),
            status.message.clone().or(rejoined).unwrap_or_default(),
        ]
    }));
    table(&rows, "  ", |row, column, cell| match (row, column, cell) {
        (0, ..) => Some(paint.bold(cell)),
        (_, 2, "yes") => Some(paint.good(cell)),
        (_, 2, _) => Some(paint.bad(cell)),
        (_, 1, "primary") => Some(paint.bold(cell)),
        _ => None,
    })
}
