//! Volumes of the instances.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Volumes of each instance.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StorageSpec {
    /// Size of the data volume. May grow, never shrink.
    #[serde(default = "default_size")]
    #[schemars(schema_with = "quantity_schema")]
    pub size: Quantity,
    /// Storage class of the volumes. Default: the cluster's default class. Cannot be changed after creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
    /// Size of a volume of its own for WAL. May grow, never shrink; cannot be added or removed after creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity_schema")]
    pub wal_size: Option<Quantity>,
    /// What happens to the volumes when the object is deleted: Retain keeps them, and a new object of the same name
    /// adopts them; Delete removes them.
    #[serde(default)]
    pub on_delete: OnDelete,
}

impl Default for StorageSpec {
    fn default() -> Self {
        Self { size: default_size(), storage_class_name: None, wal_size: None, on_delete: OnDelete::default() }
    }
}

/// What happens to the volumes when the object is deleted.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDelete {
    /// They stay.
    #[default]
    Retain,
    /// They go.
    Delete,
}

fn default_size() -> Quantity {
    Quantity("1Gi".into())
}

fn quantity_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "maxLength": 32,
        "x-kubernetes-validations": [{
            "rule": "type(self) == int ? self >= 33554432 : isQuantity(self) && quantity(self).compareTo(quantity('32Mi')) >= 0",
            "message": "use a size of at least 32Mi, such as 10Gi",
        }],
    })
}
