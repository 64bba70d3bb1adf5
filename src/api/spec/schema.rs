//! Schemas that several parts of the spec share.

use schemars::{Schema, SchemaGenerator, json_schema};

pub(super) fn labels_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "maxProperties": 64, "additionalProperties": {"type": "string", "maxLength": 63}})
}
pub(super) fn annotations_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "maxProperties": 64, "additionalProperties": {"type": "string", "maxLength": 8192}})
}

/// Rule and message of a text, as the API server checks it; [`crate::core::cluster`] checks the same again.
pub type Rule = (&'static str, &'static str);

/// A text of at most so many characters that keeps a rule.
pub(super) fn checked_text(most: u32, (rule, message): Rule) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": most,
        "x-kubernetes-validations": [{"rule": rule, "message": message}],
    })
}

/// A number between two bounds of a field.
pub(super) fn integer(least: i32, most: i32, field: &str) -> Schema {
    json_schema!({
        "type": "integer",
        "format": "int32",
        "x-kubernetes-validations": [{
            "rule": format!("self >= {least} && self <= {most}"),
            "message": format!("use {least} to {most} {field}"),
        }],
    })
}
