//! What a new cluster begins with.

use kube::KubeSchema;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::Destination;
use super::schema::{Rule, checked_text};

/// What a new cluster begins with.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapSpec {
    /// The data of a backup. Default: an empty database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<RestoreSpec>,
}

/// Where the data comes from, and of which moment. Without a target: the latest that was archived.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RestoreSpec {
    /// Name of a HelloBackup in this namespace: its destination and, without a target, that backup and the WAL after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub backup: Option<String>,
    /// The destination of the cluster that is restored, with the path that belongs to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Destination>,
    /// Id of a base backup to begin with. Default: the last one before the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub backup_id: Option<String>,
    /// The last moment that is restored: a time with a zone, such as 2026-11-30T10:01:00Z.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time_schema")]
    pub target_time: Option<String>,
    /// The last position that is restored, such as 0/3000148.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "lsn_schema")]
    pub target_lsn: Option<String>,
    /// The point that pg_create_restore_point named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub target_name: Option<String>,
    /// The timeline to follow, where the archive has several. Default: the latest that has the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "timeline_schema")]
    pub target_timeline: Option<i32>,
}

/// A moment. Days that a month does not have are told by a condition.
pub const TIME: Rule = (
    "self.matches('^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])[T ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,6})?(Z|[+-](0[0-9]|1[0-4]):[0-5][0-9])$')",
    "use a time with its zone, such as 2026-11-30T10:01:00Z",
);
/// A position.
pub const LSN: Rule = ("self.matches('^[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}$')", "use a WAL position such as 0/3000148");
/// A timeline.
pub const TIMELINE: Rule = ("self >= 1", "use a timeline of at least 1");

fn time_schema(_: &mut SchemaGenerator) -> Schema {
    checked_text(64, TIME)
}

fn lsn_schema(_: &mut SchemaGenerator) -> Schema {
    checked_text(17, LSN)
}

fn timeline_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "integer",
        "format": "int32",
        "x-kubernetes-validations": [{"rule": TIMELINE.0, "message": TIMELINE.1}],
    })
}
