//! When another instance takes over.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::schema::integer;

/// Seconds that a complete stop of PostgreSQL may take, between the holder's deadline and the end of its Lease.
pub const STOP_SECONDS: i32 = 2;

/// When another instance takes over.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct FailoverSpec {
    /// Whether another instance takes over by itself when the primary is lost. False: the cluster waits for the lost one to
    /// come back; planned hand-overs (a drain, a roll, `primary`) go on.
    #[serde(default = "default_enabled")]
    pub enabled: bool,
    /// Seconds without a sign of the primary after which another instance may take over: 8 to 300.
    #[serde(default = "default_lease_duration")]
    #[schemars(schema_with = "lease_duration_schema")]
    pub lease_duration_seconds: i32,
    /// Seconds without a successful renewal after which the primary stops by itself: 5 to 297, and more than 2 less than
    /// leaseDurationSeconds, because the stop takes up to 2 seconds.
    #[serde(default = "default_renew_deadline")]
    #[schemars(schema_with = "renew_deadline_schema")]
    pub renew_deadline_seconds: i32,
    /// Seconds between two renewals: 1 to 60, and less than half of renewDeadlineSeconds, so that one may fail.
    #[serde(default = "default_retry_period")]
    #[schemars(schema_with = "retry_period_schema")]
    pub retry_period_seconds: i32,
    /// With durability Async: how many bytes of WAL a new primary may lack of the last known position.
    #[serde(default = "default_max_lag")]
    #[schemars(schema_with = "max_lag_schema")]
    pub max_lag_bytes: Quantity,
}

impl Default for FailoverSpec {
    fn default() -> Self {
        Self {
            enabled: default_enabled(),
            lease_duration_seconds: default_lease_duration(),
            renew_deadline_seconds: default_renew_deadline(),
            retry_period_seconds: default_retry_period(),
            max_lag_bytes: default_max_lag(),
        }
    }
}

fn default_enabled() -> bool {
    true
}

fn default_lease_duration() -> i32 {
    15
}

fn default_renew_deadline() -> i32 {
    10
}

fn default_retry_period() -> i32 {
    2
}

fn default_max_lag() -> Quantity {
    Quantity("16Mi".into())
}

fn lease_duration_schema(_: &mut SchemaGenerator) -> Schema {
    integer(8, 300, "leaseDurationSeconds")
}

fn renew_deadline_schema(_: &mut SchemaGenerator) -> Schema {
    integer(5, 297, "renewDeadlineSeconds")
}

fn retry_period_schema(_: &mut SchemaGenerator) -> Schema {
    integer(1, 60, "retryPeriodSeconds")
}

fn max_lag_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "maxLength": 32,
        "x-kubernetes-validations": [{
            "rule": "type(self) == int ? self >= 0 : isQuantity(self) && quantity(self).compareTo(quantity('0')) >= 0",
            "message": "use a number of bytes, such as 16Mi; 0 lets only a replica that has everything take over",
        }],
    })
}
