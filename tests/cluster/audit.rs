//! The API server's audit log: who asked for what, when, and how it was answered. The cluster's own machinery
//! (nodes, controllers, scheduler, and the helpers of the local cluster) is left out; see manifests/audit-policy.yaml.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};

use super::{Error, Result};

/// Reads the log from a point in time on.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
    offset: u64,
}

impl AuditLog {
    /// Leaves out what happened before.
    pub fn from_now(path: &Path) -> Result<Self> {
        Ok(Self { path: path.to_owned(), offset: std::fs::metadata(path)?.len() })
    }

    /// The events since the last call, in the order in which they were answered. A request is in the log before its
    /// client has the answer.
    pub fn read(&mut self) -> Result<Vec<AuditEvent>> {
        let mut file = std::fs::File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.offset))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        // The last line may still be in the writing.
        let complete = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        text.truncate(complete);
        self.offset += complete as u64;
        text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(parse).collect()
    }
}

fn parse(line: &[u8]) -> Result<AuditEvent> {
    let raw: RawEvent = serde_json::from_slice(line)
        .map_err(|source| Error::AuditLine { line: String::from_utf8_lossy(line).into_owned(), source })?;
    Ok(AuditEvent {
        stage: raw.stage,
        verb: raw.verb,
        user: raw.user.username,
        user_agent: raw.user_agent,
        uri: raw.request_uri,
        object: raw.object_ref,
        code: raw.response_status.and_then(|status| status.code),
        received: raw.request_received_timestamp,
        answered: raw.stage_timestamp,
    })
}

/// How far a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Stage {
    /// A watch or another long answer has begun.
    ResponseStarted,
    ResponseComplete,
    Panic,
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEvent {
    pub stage: Stage,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    pub user: String,
    pub user_agent: String,
    pub uri: String,
    pub object: Option<ObjectReference>,
    pub code: Option<u16>,
    pub received: Timestamp,
    pub answered: Timestamp,
}

impl AuditEvent {
    /// A request that changed something, or would have: not those that only look like it (exec, reviews of access).
    pub fn is_write(&self) -> bool {
        let changes = matches!(self.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection");
        let only_asks = self.object.as_ref().is_some_and(|object| {
            matches!(object.subresource.as_str(), "exec" | "attach" | "portforward" | "proxy" | "token")
                || object.resource.ends_with("reviews")
        });
        changes && !only_asks && self.stage != Stage::ResponseStarted
    }

    /// A write that the API server carried out.
    pub fn is_accepted_write(&self) -> bool {
        self.is_write() && self.code.is_some_and(|code| (200..300).contains(&code))
    }

    /// About an object, or the objects, of this kind: `pods`, `leases`.
    pub fn is_about(&self, resource: &str) -> bool {
        self.object.as_ref().is_some_and(|object| object.resource == resource)
    }
}

/// What a request was about; empty where it named none.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ObjectReference {
    pub api_group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    /// Empty for a create with a name in its body: the log at this level has no bodies.
    pub name: String,
    pub uid: String,
    pub resource_version: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawEvent {
    stage: Stage,
    verb: String,
    user: RawUser,
    #[serde(default)]
    user_agent: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    object_ref: Option<ObjectReference>,
    response_status: Option<RawStatus>,
    #[serde(deserialize_with = "timestamp")]
    request_received_timestamp: Timestamp,
    #[serde(deserialize_with = "timestamp")]
    stage_timestamp: Timestamp,
}

#[derive(Deserialize)]
struct RawUser {
    username: String,
}

#[derive(Deserialize)]
struct RawStatus {
    code: Option<u16>,
}

fn timestamp<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}
