//! Events: one recorder for the process. A failed event never fails a reconcile.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube_runtime::events::{Event, EventType, Recorder, Reporter};

use super::mirror::ClusterKey;
use crate::api::backup::{BackupPhase, HelloBackupStatus};
use crate::api::names::{FIELD_MANAGER, GROUP, KIND, VERSION};
use crate::api::status::{ElectionStatus, HelloOperatorStatus, LastFailover};
use crate::core::status::{BACKUP_HEALTHY, ELECTION_BLOCKED, completed, hand_over_reason, started};
use crate::core::world::ChildId;

/// An event's note holds 1 kB.
const MOST_NOTE: usize = 1000;

/// Writes events.
pub struct Events {
    recorder: Recorder,
}

impl Events {
    /// With a client whose writes pass the gate.
    pub fn new(client: Client, identity: String) -> Self {
        let reporter = Reporter { controller: FIELD_MANAGER.into(), instance: Some(identity) };
        Self { recorder: Recorder::new(client, reporter) }
    }

    /// Tells of something that happened to a cluster.
    pub async fn tell(&self, cluster: &ClusterKey, uid: &str, news: News<'_>) {
        let regarding = ObjectReference {
            api_version: Some(format!("{GROUP}/{VERSION}")),
            kind: Some(KIND.into()),
            name: Some(cluster.name.to_string()),
            namespace: Some(cluster.namespace.to_string()),
            uid: Some(uid.into()),
            ..ObjectReference::default()
        };
        let related = news.child.map(|child| ObjectReference {
            kind: Some(child.kind.as_str().into()),
            name: Some(child.name.clone()),
            namespace: Some(cluster.namespace.to_string()),
            ..ObjectReference::default()
        });
        self.publish(&regarding, related, news).await;
    }

    /// Tells of something that happened to any object.
    pub async fn publish(&self, regarding: &ObjectReference, related: Option<ObjectReference>, news: News<'_>) {
        let News { warning, reason, note, occasion, .. } = news;
        let end = (0..=MOST_NOTE.min(note.len())).rev().find(|at| note.is_char_boundary(*at)).unwrap_or(0);
        let event = Event {
            type_: if warning { EventType::Warning } else { EventType::Normal },
            reason: reason.into(),
            note: Some(note.get(..end).unwrap_or_default().into()),
            // The recorder takes events for repeated that differ in the note alone, and shows the first one's.
            action: format!("{reason}-{occasion}"),
            secondary: related,
        };
        let publish = self.recorder.publish(&event, regarding);
        match tokio::time::timeout(super::error::CALL, publish).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, reason, "event not written"),
            Err(_) => tracing::debug!(reason, "event not written in time"),
        }
    }
}

/// Something worth an event.
#[derive(Debug, Clone, Copy)]
pub struct News<'a> {
    /// Whether it is bad.
    pub warning: bool,
    /// The reason, in CamelCase.
    pub reason: &'a str,
    /// A sentence.
    pub note: &'a str,
    /// What it is about, beside the object.
    pub child: Option<&'a ChildId>,
    /// Generation of the object, or a term: what happens again because of another spec or another primary is another event.
    pub occasion: i64,
}

/// Something that a change of status is worth telling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Whether it is bad.
    pub warning: bool,
    /// The reason, in CamelCase.
    pub reason: String,
    /// A sentence.
    pub note: String,
    /// The term that it belongs to; None: it belongs to the generation.
    pub term: Option<i64>,
}

/// What a change of status is worth telling.
pub fn of_status(before: Option<&HelloOperatorStatus>, after: &HelloOperatorStatus) -> Vec<Told> {
    let find = |status: &HelloOperatorStatus, kind: &str| {
        status
            .conditions
            .iter()
            .find(|condition| condition.type_ == kind)
            .map(|c| (c.status == "True", c.reason.clone(), c.message.clone()))
    };
    let mut events = hand_overs(before, after);
    let told = |warning, reason: String, note| Told { warning, reason, note, term: None };
    events.extend(verified(before, after));
    events.extend(backups(find(after, BACKUP_HEALTHY), before.and_then(|before| find(before, BACKUP_HEALTHY))));
    for (kind, bad) in [("Degraded", true), ("Ready", false)] {
        let old = before.and_then(|status| find(status, kind));
        let Some((holds, reason, message)) = find(after, kind) else { continue };
        let held = old.as_ref().is_some_and(|(held, ..)| *held);
        let same_reason = old.as_ref().is_some_and(|(_, before, _)| *before == reason);
        if holds && bad && !(held && same_reason) {
            events.push(told(true, reason, message));
        } else if bad && held && !holds {
            events.push(told(false, "Recovered".into(), message));
        } else if !bad && holds && !held {
            events.push(told(false, "Ready".into(), message));
        }
    }
    let writes = find(after, "WriteAvailable").filter(|(_, reason, _)| reason == ELECTION_BLOCKED);
    let blocked = |status: &HelloOperatorStatus| {
        find(status, "WriteAvailable").is_some_and(|(_, reason, _)| reason == ELECTION_BLOCKED)
    };
    if let Some((_, reason, note)) = writes.filter(|_| !before.is_some_and(blocked)) {
        let term = after.election.as_ref().map(|election| election.term);
        events.push(Told { warning: true, reason, note, term });
    }
    events.extend(rejoined(before, after));
    events
}

/// A condition as it is compared: whether it holds, its reason, its sentence.
type Found = (bool, String, String);

/// Backups stopped being as they should, for another reason than before, or are again. Those of which nothing is known yet
/// are no news.
fn backups(after: Option<Found>, before: Option<Found>) -> Option<Told> {
    // These have events of their own.
    let own = |reason: &String| ["BackupFailed", "VerificationFailed"].contains(&reason.as_str());
    let (holds, reason, note) = after.filter(|(_, reason, _)| !own(reason))?;
    let same = before.as_ref().is_some_and(|(held, was, _)| *held == holds && *was == reason);
    if !holds && !same {
        return Some(Told { warning: true, reason, note, term: None });
    }
    let recovered = holds && before.is_some_and(|(held, ..)| !held);
    recovered.then(|| Told { warning: false, reason: BACKUP_HEALTHY.into(), note, term: None })
}

/// A proof ended.
fn verified(before: Option<&HelloOperatorStatus>, after: &HelloOperatorStatus) -> Option<Told> {
    let told = |status: &HelloOperatorStatus| status.backup.as_ref()?.verification_pod.clone();
    let backup = after.backup.as_ref().filter(|_| told(after).is_some() && told(after) != before.and_then(told))?;
    let (warning, reason, note) = match (&backup.verification_error, &backup.last_verified) {
        (Some(error), _) => (true, "VerificationFailed", error.clone()),
        (None, Some(last)) => (false, "BackupVerified", format!("{}: {}", last.backup_id, last.message)),
        (None, None) => return None,
    };
    Some(Told { warning, reason: reason.into(), note, term: None })
}

/// What a change of a backup is worth telling.
pub fn of_backup(name: &str, before: &HelloBackupStatus, after: &HelloBackupStatus) -> Option<Told> {
    if before.phase == after.phase {
        return None;
    }
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (warning, reason, note) = match after.phase {
        BackupPhase::Pending => return None,
        BackupPhase::Running => {
            let (role, instance) = (text(&after.role), text(&after.instance));
            (false, "BackupStarted", format!("{name}: the {role} {instance} takes it, to {}", text(&after.path)))
        }
        BackupPhase::Completed => {
            let (id, progress) = (text(&after.backup_id), text(&after.progress));
            (false, "BackupCompleted", format!("{name}: {progress}, as {id} by {}", text(&after.instance)))
        }
        BackupPhase::Failed => (true, "BackupFailed", format!("{name}: {}", text(&after.message))),
    };
    Some(Told { warning, reason: reason.into(), note, term: None })
}

/// The start and the end of a hand-over, each once.
fn hand_overs(before: Option<&HelloOperatorStatus>, after: &HelloOperatorStatus) -> Vec<Told> {
    let told = |reason: &str, note, term| Told { warning: false, reason: reason.into(), note, term: Some(term) };
    let mut events = Vec::new();
    if let Some(ElectionStatus { term, from, to, reason, .. }) = started(before, after) {
        let (from, why) = (from.as_deref().unwrap_or("the primary"), hand_over_reason(reason.as_deref()));
        let note = match to.filter(|to| to != from) {
            Some(to) => format!("{to} takes over from {from} (term {term}): {why}"),
            None => format!("{from} stopped as primary (term {term}): {why}"),
        };
        events.push(told("HandOverStarted", note, term));
    }
    if let Some(LastFailover { term, from, to, reason, duration_seconds, .. }) = completed(before, after) {
        let why = hand_over_reason(Some(reason));
        let note = if from == to {
            format!("{to} is primary again (term {term}), after {duration_seconds} s: {why}")
        } else {
            format!("{to} is primary in place of {from} (term {term}), after {duration_seconds} s: {why}")
        };
        events.push(told("HandOverCompleted", note, *term));
    }
    events
}

/// Copies that could not follow, and can again.
fn rejoined(before: Option<&HelloOperatorStatus>, after: &HelloOperatorStatus) -> Vec<Told> {
    let Some(before) = before else { return Vec::new() };
    after
        .instances
        .iter()
        .filter_map(|instance| {
            let now = instance.rejoined.as_ref()?;
            let known = before.instances.iter().find(|known| known.name == instance.name);
            if known.and_then(|known| known.rejoined.as_ref()) == Some(now) {
                return None;
            }
            let note = format!("{}: {} (done at {})", instance.name, now.reason, now.at);
            let term = after.election.as_ref().map(|election| election.term);
            Some(Told { warning: false, reason: format!("Replica{}", now.how), note, term })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::status::{ElectionPhase, InstanceStatus, RejoinedStatus};

    fn held(term: i64) -> HelloOperatorStatus {
        let election = ElectionStatus { term, phase: ElectionPhase::Held, ..ElectionStatus::default() };
        HelloOperatorStatus { election: Some(election), ..HelloOperatorStatus::default() }
    }

    fn reasons(before: &HelloOperatorStatus, after: &HelloOperatorStatus) -> Vec<String> {
        of_status(Some(before), after).into_iter().map(|told| told.reason).collect()
    }

    #[test]
    fn a_hand_over_is_told_when_it_begins_and_when_it_ends_and_by_an_operator_that_was_away_once() {
        let mut begins = held(5);
        begins.election = Some(ElectionStatus {
            term: 5,
            phase: ElectionPhase::HandOver,
            from: Some("db-1".into()),
            to: None,
            reason: Some("shutdown".into()),
        });
        let mut ends = held(6);
        ends.last_failover = Some(LastFailover {
            term: 6,
            from: "db-1".into(),
            to: "db-2".into(),
            reason: "shutdown".into(),
            started_at: "2026-11-30T15:00:00Z".into(),
            duration_seconds: 1.25,
        });
        assert_eq!(reasons(&held(5), &begins), ["HandOverStarted"]);
        let told = of_status(Some(&begins), &ends);
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].note, "db-2 is primary in place of db-1 (term 6), after 1.25 s: its Pod was told to end");
        assert!(reasons(&ends, &ends.clone()).is_empty());
        assert_eq!(reasons(&held(3), &ends), ["HandOverStarted", "HandOverCompleted"], "it was away");
        assert!(of_status(None, &ends).iter().all(|told| told.reason != "HandOverStarted"), "nobody was here before");
    }

    #[test]
    fn a_copy_that_was_made_fit_again_is_told_once() {
        let with = |rejoined| HelloOperatorStatus {
            instances: vec![InstanceStatus { name: "db-2".into(), rejoined, ..InstanceStatus::default() }],
            ..HelloOperatorStatus::default()
        };
        let done = with(Some(RejoinedStatus {
            how: "Rewound".into(),
            at: "2026-11-30T15:00:00Z".into(),
            reason: "its history left the primary's".into(),
        }));
        assert_eq!(reasons(&with(None), &done), ["ReplicaRewound"]);
        assert!(reasons(&done, &done.clone()).is_empty());
    }
}
