//! Events: one recorder for the process. A failed event never fails a reconcile.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube_runtime::events::{Event, EventType, Recorder, Reporter};

use super::mirror::ClusterKey;
use crate::api::names::{FIELD_MANAGER, GROUP, KIND, VERSION};
use crate::api::status::HelloOperatorStatus;
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
    /// Generation of the object: what happens again because of another spec is another event.
    pub occasion: i64,
}

/// What a change of status is worth telling: warning, reason, note.
pub fn of_status(before: Option<&HelloOperatorStatus>, after: &HelloOperatorStatus) -> Vec<(bool, String, String)> {
    let find = |status: &HelloOperatorStatus, kind: &str| {
        status
            .conditions
            .iter()
            .find(|condition| condition.type_ == kind)
            .map(|c| (c.status == "True", c.reason.clone(), c.message.clone()))
    };
    let mut events = Vec::new();
    for (kind, bad) in [("Degraded", true), ("Ready", false)] {
        let old = before.and_then(|status| find(status, kind));
        let Some((holds, reason, message)) = find(after, kind) else { continue };
        let held = old.as_ref().is_some_and(|(held, ..)| *held);
        let same_reason = old.as_ref().is_some_and(|(_, before, _)| *before == reason);
        if holds && bad && !(held && same_reason) {
            events.push((true, reason, message));
        } else if bad && held && !holds {
            events.push((false, "Recovered".into(), message));
        } else if !bad && holds && !held {
            events.push((false, "Ready".into(), message));
        }
    }
    events
}
