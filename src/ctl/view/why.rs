//! The last decisions and their reasons, in order of time: events, and conditions as they stand.

use std::fmt::Write as _;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use serde::Serialize;

use super::{Paint, moment};
use crate::api::spec::HelloOperator;

/// Something that happened, or that holds since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// When, or since when.
    #[serde(serialize_with = "as_text")]
    pub at: Timestamp,
    /// What tells of it: Event or Condition.
    pub source: &'static str,
    /// What it is about, such as HelloOperator/db.
    pub about: String,
    /// Whether it is bad.
    pub bad: bool,
    /// In CamelCase; a condition with its value.
    pub reason: String,
    /// In words.
    pub message: String,
    /// How often it happened.
    pub count: i32,
}

fn as_text<S: serde::Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(at)
}

/// When an event happened last. The fields are older than each other.
pub fn at(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref()).map(|at| at.0);
    series
        .or(event.last_timestamp.as_ref().map(|at| at.0))
        .or(event.event_time.as_ref().map(|at| at.0))
        .or(event.first_timestamp.as_ref().map(|at| at.0))
        .or(event.metadata.creation_timestamp.as_ref().map(|at| at.0))
}

/// All of it, the oldest first.
pub fn entries(object: &HelloOperator, events: &[Event]) -> Vec<Entry> {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let mut all: Vec<Entry> = events.iter().filter_map(happened).collect();
    // Reconciling is for tools: it says what Progressing and Degraded say.
    let conditions = object.status.iter().flat_map(|status| &status.conditions).filter(|c| c.type_ != "Reconciling");
    all.extend(conditions.map(|condition| {
        let wanted =
            if ["Degraded", "Progressing", "Stalled"].contains(&condition.type_.as_str()) { "False" } else { "True" };
        Entry {
            at: condition.last_transition_time.0,
            source: "Condition",
            about: format!("HelloOperator/{name}"),
            bad: condition.status != wanted && condition.type_ != "Progressing",
            reason: format!("{}={} {}", condition.type_, condition.status, condition.reason),
            message: condition.message.clone(),
            count: 1,
        }
    }));
    all.sort_by(|a, b| (a.at, &a.reason).cmp(&(b.at, &b.reason)));
    all
}

fn happened(event: &Event) -> Option<Entry> {
    let about = &event.involved_object;
    let counted = event.series.as_ref().and_then(|series| series.count).or(event.count);
    let related = event.related.as_ref().and_then(|related| Some((related.kind.as_deref()?, related.name.as_deref()?)));
    let (kind, name) =
        related.unwrap_or((about.kind.as_deref().unwrap_or_default(), about.name.as_deref().unwrap_or_default()));
    Some(Entry {
        at: at(event)?,
        source: "Event",
        about: format!("{kind}/{name}"),
        bad: event.type_.as_deref() == Some("Warning"),
        reason: event.reason.clone().unwrap_or_default(),
        message: event.message.clone().unwrap_or_default(),
        count: counted.unwrap_or(1).max(1),
    })
}

/// The same for people. `lacking` is why some of it could not be read.
pub fn text(entries: &[Entry], lacking: Option<&str>, paint: Paint) -> String {
    let mut out = String::new();
    for entry in entries {
        let reason = match (entry.bad, entry.source) {
            (true, _) => paint.bad(&entry.reason),
            (false, "Condition") => paint.good(&entry.reason),
            (false, _) => paint.bold(&entry.reason),
        };
        let times = if entry.count > 1 { format!(" ({} times)", entry.count) } else { String::new() };
        let since = if entry.source == "Condition" { "since " } else { "" };
        let at = paint.dim(&format!("{since}{}", moment(entry.at)));
        let _ = writeln!(out, "{at} {reason} {}{times}: {}", entry.about, entry.message);
    }
    if let Some(lacking) = lacking {
        let _ = writeln!(out, "{}", paint.warn(lacking));
    }
    if out.is_empty() {
        out.push_str("nothing is known: no operator has looked at this object yet\n");
    }
    out
}
