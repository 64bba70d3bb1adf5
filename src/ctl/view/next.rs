//! What the operator would do next, as it says itself: the planner's words stand in the conditions, and are not made here.

use std::fmt::Write as _;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Serialize;

use super::{Paint, moment_of, span};
use crate::api::spec::HelloOperator;
use crate::api::status::HelloOperatorStatus;

/// A condition of the object.
pub fn condition<'a>(object: &'a HelloOperator, kind: &str) -> Option<&'a Condition> {
    object.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == kind)
}

/// Whether the operator has seen what the spec says now.
pub fn current(object: &HelloOperator) -> bool {
    let observed = object.status.as_ref().and_then(|status| status.observed_generation);
    observed.is_some() && observed == object.metadata.generation
}

/// What is next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Next {
    /// Whether nothing is to be done now.
    pub settled: bool,
    /// Whether all this speaks of the spec as it is now.
    pub current: bool,
    /// What it does or waits for, in its own words.
    pub now: String,
    /// What keeps it, or the database, from being as it should.
    pub troubles: Vec<String>,
    /// What it will do by the clock.
    pub upcoming: Vec<Upcoming>,
}

/// Something that is due.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Upcoming {
    /// When (RFC 3339); None: with the next retention.
    pub at: Option<String>,
    /// What.
    pub what: String,
}

/// What is next for an object.
pub fn next(object: &HelloOperator) -> Next {
    let progressing = condition(object, "Progressing");
    let current = current(object);
    let now = match progressing {
        _ if !object.status.as_ref().is_some_and(HelloOperatorStatus::written) => {
            "no operator has looked at this object yet: is one running?".to_owned()
        }
        _ if !current => {
            "the operator has not looked at the last change of the spec yet; what follows is about the one before"
                .to_owned()
        }
        Some(condition) => condition.message.clone(),
        None => "the status says nothing of it".to_owned(),
    };
    let mut troubles: Vec<String> = Vec::new();
    for (kind, bad) in [("Degraded", "True"), ("WriteAvailable", "False"), ("BackupHealthy", "False")] {
        if let Some(found) = condition(object, kind).filter(|found| found.status == bad)
            && !troubles.iter().any(|told| told.ends_with(&found.message))
        {
            troubles.push(format!("{kind}: {}: {}", found.reason, found.message));
        }
    }
    let mut upcoming = Vec::new();
    if let Some(backup) = object.status.as_ref().and_then(|status| status.backup.as_ref()) {
        let mut due = |at: Option<&String>, what: &str| {
            upcoming.extend(at.map(|at| Upcoming { at: Some(at.clone()), what: what.to_owned() }));
        };
        due(backup.next_run.as_ref(), "a scheduled backup");
        due(backup.next_verification.as_ref(), "the newest backup is proven");
        upcoming.sort_by_key(|one| one.at.as_deref().and_then(|at| at.parse::<Timestamp>().ok()));
        upcoming.extend(backup.expiring.iter().map(|one| Upcoming {
            at: None,
            what: format!("the retention removes backup {}: {}", one.backup_id, one.reason),
        }));
    }
    let settled = current && progressing.is_some_and(|condition| condition.status == "False");
    Next { settled, current, now, troubles, upcoming }
}

/// The same for people.
pub fn text(object: &HelloOperator, now: Timestamp, paint: Paint) -> String {
    let next = next(object);
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
    let mut out = format!("{}\n", paint.bold(&format!("HelloOperator {namespace}/{name}")));
    let since = condition(object, "Progressing")
        .map(|condition| span(now.as_second() - condition.last_transition_time.0.as_second()));
    let mark = if next.settled { paint.good("settled") } else { paint.warn("at work") };
    let _ = writeln!(out, "  {mark}{}: {}", since.map(|s| format!(" (for {s})")).unwrap_or_default(), next.now);
    if !next.current
        && let Some(before) = condition(object, "Progressing")
    {
        let _ = writeln!(out, "  before: {}", before.message);
    }
    for trouble in &next.troubles {
        let _ = writeln!(out, "  {} {trouble}", paint.bad("trouble"));
    }
    for one in &next.upcoming {
        let when = match &one.at {
            Some(at) => format!("{} ({})", moment_of(at), until(now, at)),
            None => "with the next retention".to_owned(),
        };
        let _ = writeln!(out, "  {} {}: {}", paint.bold("due"), when, one.what);
    }
    out
}

/// How far away a moment is; one that has passed is due.
pub fn until(now: Timestamp, text: &str) -> String {
    match text.parse::<Timestamp>() {
        Ok(at) if at > now => format!("in {}", span(at.as_second() - now.as_second())),
        Ok(_) => "due now".to_owned(),
        Err(_) => "unknown".to_owned(),
    }
}
