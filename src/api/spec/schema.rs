//! Schemas that several parts of the spec share.

use schemars::{Schema, SchemaGenerator, json_schema};

pub(super) fn labels_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "maxProperties": 64, "additionalProperties": {"type": "string", "maxLength": 63}})
}
pub(super) fn annotations_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "maxProperties": 64, "additionalProperties": {"type": "string", "maxLength": 8192}})
}
