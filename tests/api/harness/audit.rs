//! The API server's own record of who wrote what.

use std::path::Path;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

/// Every write, with its outcome; not the API server's own.
pub fn policy() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "rules": [
            {"level": "None", "users": ["system:apiserver"]},
            {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
            {"level": "None"},
        ],
    })
}

/// A write that was answered.
#[derive(Debug, Clone)]
pub struct Write {
    pub user: String,
    pub namespace: String,
    pub verb: String,
    pub resource: String,
    pub name: String,
    pub code: u16,
    pub received: Timestamp,
    pub answered: Timestamp,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    verb: String,
    user: User,
    object_ref: Option<Object>,
    response_status: Option<Status>,
    request_received_timestamp: Timestamp,
    stage_timestamp: Timestamp,
}
#[derive(Deserialize)]
struct User {
    username: String,
}
#[derive(Deserialize, Default)]
struct Object {
    #[serde(default)]
    resource: String,
    #[serde(default)]
    subresource: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
}
#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    code: u16,
}

/// Every write in a log, in the order in which they were received.
pub fn writes(log: &Path) -> Vec<Write> {
    let text = std::fs::read_to_string(log).unwrap();
    // The last line may be half written.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut writes: Vec<Write> = whole
        .lines()
        .map(|line| serde_json::from_str::<Event>(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .map(|event| {
            let object = event.object_ref.unwrap_or_default();
            Write {
                user: event.user.username,
                namespace: object.namespace,
                verb: event.verb,
                resource: [object.resource.as_str(), object.subresource.as_str()]
                    .join("/")
                    .trim_end_matches('/')
                    .into(),
                name: object.name,
                code: event.response_status.map_or(0, |status| status.code),
                received: event.request_received_timestamp,
                answered: event.stage_timestamp,
            }
        })
        .collect();
    writes.sort_by_key(|write| write.received);
    writes
}
