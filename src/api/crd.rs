//! The CustomResourceDefinitions as they are installed: what the derive makes of the types, and what it cannot say.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Value, json};

use super::backup::HelloBackup;
use super::names::{MAX_INSTANCES, MAX_NAME};
use super::spec::HelloOperator;
use super::status::UNSEEN;

/// Rules on the whole object: (rule, message).
pub fn root_rules() -> Vec<(String, String)> {
    let ordinals = (1..=MAX_INSTANCES).map(|ordinal| format!("'{ordinal}'")).collect::<Vec<_>>().join(", ");
    vec![
        (
            format!("self.metadata.name.size() <= {MAX_NAME}"),
            format!("use a name of at most {MAX_NAME} characters, so that the names made from it stay valid"),
        ),
        (
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')".into(),
            "use a name that begins with a letter and has only lower case letters, digits and hyphens (no dots), such as my-helloworld"
                .into(),
        ),
        (
            format!("!has(self.spec) || !has(self.spec.primary) || [{ordinals}].exists(n, self.spec.primary == self.metadata.name + '-' + n)"),
            PRIMARY.into(),
        ),
    ]
}

/// What `spec.primary` must be.
pub const PRIMARY: &str = "primary must be the name of an instance of this object: its own name, a hyphen and 1 to 9, such as my-helloworld-2";

/// Rules on the spec: (rule, message). `oldSelf` rules hold on updates only.
pub fn spec_rules() -> Vec<(&'static str, &'static str)> {
    vec![
        (
            "!has(self.replication) || !has(self.replication.durability) || self.replication.durability != 'Quorum' || self.replication.syncReplicas < self.instances",
            "with durability Quorum, syncReplicas must be smaller than instances: lower replication.syncReplicas, raise instances, or say replication.durability: Async",
        ),
        (
            "!has(self.failover) || self.failover.renewDeadlineSeconds + 2 < self.failover.leaseDurationSeconds",
            RENEW_DEADLINE,
        ),
        (
            "!has(self.failover) || self.failover.retryPeriodSeconds * 2 < self.failover.renewDeadlineSeconds",
            RETRY_PERIOD,
        ),
        (
            "!has(self.backup) || !has(self.backup.destination) || [has(self.backup.destination.s3), has(self.backup.destination.gcs), has(self.backup.destination.azure), has(self.backup.destination.volume)].filter(x, x).size() == 1",
            ONE_DESTINATION,
        ),
        (
            "!has(self.backup) || has(self.backup.destination) || (!has(self.backup.schedule) && !has(self.backup.verify))",
            NO_DESTINATION,
        ),
        (
            "!has(self.bootstrap) || !has(self.bootstrap.restore) || has(self.bootstrap.restore.backup) != has(self.bootstrap.restore.source)",
            ONE_SOURCE,
        ),
        (
            "!has(self.bootstrap) || !has(self.bootstrap.restore) || !has(self.bootstrap.restore.source) || [has(self.bootstrap.restore.source.s3), has(self.bootstrap.restore.source.gcs), has(self.bootstrap.restore.source.azure), has(self.bootstrap.restore.source.volume)].filter(x, x).size() == 1",
            ONE_SOURCE_STORE,
        ),
        (
            "!has(self.bootstrap) || !has(self.bootstrap.restore) || [has(self.bootstrap.restore.targetTime), has(self.bootstrap.restore.targetLsn), has(self.bootstrap.restore.targetName)].filter(x, x).size() <= 1",
            ONE_TARGET,
        ),
        (
            "has(oldSelf.bootstrap) && has(oldSelf.bootstrap.restore) ? has(self.bootstrap) && has(self.bootstrap.restore) && self.bootstrap.restore == oldSelf.bootstrap.restore : !has(self.bootstrap) || !has(self.bootstrap.restore)",
            RESTORE_STAYS,
        ),
        (
            "!has(oldSelf.engine) || !has(self.engine) || self.engine == oldSelf.engine",
            "engine cannot be changed: make a new object for another engine",
        ),
        (
            "!has(oldSelf.version) || !has(self.version) || int(self.version) >= int(oldSelf.version)",
            "version never goes down: restore a backup into a new object of the older version instead",
        ),
        (
            "!has(oldSelf.storage) || !has(self.storage) || (has(oldSelf.storage.storageClassName) == has(self.storage.storageClassName) && (!has(self.storage.storageClassName) || self.storage.storageClassName == oldSelf.storage.storageClassName))",
            "storage.storageClassName cannot be changed: make a new object with the other class",
        ),
        (
            "!has(oldSelf.storage) || !has(self.storage) || has(self.storage.walSize) == has(oldSelf.storage.walSize)",
            "storage.walSize cannot be added or removed: make a new object for that",
        ),
        (
            "!has(oldSelf.postgresql) || !has(self.postgresql) || (self.postgresql.database == oldSelf.postgresql.database && self.postgresql.owner == oldSelf.postgresql.owner)",
            "postgresql.database and postgresql.owner cannot be changed: create the other database with SQL",
        ),
    ]
}

/// What a destination must be.
pub const ONE_DESTINATION: &str = "backup.destination must name exactly one of s3, gcs, azure and volume";

/// What schedules need.
pub const NO_DESTINATION: &str = "backup.schedule and backup.verify need a backup.destination: say where backups go";

/// What a restore needs.
pub const ONE_SOURCE: &str =
    "bootstrap.restore must name exactly one of backup (a HelloBackup in this namespace) and source (a destination)";

/// What a restore's source must be.
pub const ONE_SOURCE_STORE: &str = "bootstrap.restore.source must name exactly one of s3, gcs, azure and volume";

/// What a restore can aim at.
pub const ONE_TARGET: &str = "bootstrap.restore takes at most one of targetTime, targetLsn and targetName";

/// That a restore is a beginning.
pub const RESTORE_STAYS: &str =
    "bootstrap.restore cannot be added, changed or removed: it says how this cluster began; restore into a new object";

/// What relates deadline and duration of the Lease.
pub const RENEW_DEADLINE: &str = "failover.renewDeadlineSeconds must be more than 2 less than leaseDurationSeconds, because the stop of PostgreSQL takes up to 2 seconds: lower the one or raise the other";

/// What relates pace and deadline of renewals.
pub const RETRY_PERIOD: &str = "failover.retryPeriodSeconds must be less than half of renewDeadlineSeconds, so that one renewal may fail: lower the one or raise the other";

/// Rule and message that keep a quantity from going down.
pub const NEVER_SHRINKS: (&str, &str) = (
    "!has(oldSelf.FIELD) || !has(self.FIELD) || quantity(string(self.FIELD)).compareTo(quantity(string(oldSelf.FIELD))) >= 0",
    "storage.FIELD may grow but never shrink: write the old size or a larger one",
);

/// Takes `nullable` out of a schema: without it the API server drops a null before it fills the defaults, so that
/// `instances: null` (a template that was given nothing) means the default, and no null is ever stored.
fn without_nullable(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if fields.get("nullable").is_some_and(Value::is_boolean) {
                fields.remove("nullable");
            }
            fields.values_mut().for_each(without_nullable);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nullable),
        _ => {}
    }
}

/// The CRD of HelloOperator.
///
/// The derive makes `spec` required, so that one object without it would fail every list; here it gets a default
/// instead, which fills every nested one.
pub fn hello_operator() -> CustomResourceDefinition {
    let crd = HelloOperator::crd();
    let mut value = serde_json::to_value(&crd).unwrap_or(Value::Null);
    without_nullable(&mut value);
    unseen(&mut value);
    if let Some(root) = value.pointer_mut("/spec/versions/0/schema/openAPIV3Schema").and_then(Value::as_object_mut) {
        root.remove("required");
        root.insert(
            "x-kubernetes-validations".into(),
            Value::Array(
                root_rules().iter().map(|(rule, message)| json!({"rule": rule, "message": message})).collect(),
            ),
        );
    }
    if let Some(spec) =
        value.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec").and_then(Value::as_object_mut)
    {
        spec.insert("default".into(), json!({}));
        spec.insert(
            "x-kubernetes-validations".into(),
            Value::Array(
                spec_rules().iter().map(|(rule, message)| json!({"rule": rule, "message": message})).collect(),
            ),
        );
    }
    if let Some(storage) = value
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/storage")
        .and_then(Value::as_object_mut)
    {
        let rules = ["size", "walSize"]
            .iter()
            .map(|field| {
                json!({
                    "rule": NEVER_SHRINKS.0.replace("FIELD", field),
                    "message": NEVER_SHRINKS.1.replace("FIELD", field),
                })
            })
            .collect();
        storage.insert("x-kubernetes-validations".into(), Value::Array(rules));
    }
    // The value came from a CRD and only keys that a CRD has were added, so it reads back; were it ever not to, the
    // golden test of crds/ shows it at once.
    serde_json::from_value(value).unwrap_or(crd)
}

/// A status that nobody wrote says so.
fn unseen(crd: &mut Value) {
    if let Some(status) =
        crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/status").and_then(Value::as_object_mut)
    {
        status.insert("default".into(), json!({"observedGeneration": UNSEEN}));
    }
}

/// The CRD of HelloBackup.
pub fn hello_backup() -> CustomResourceDefinition {
    let crd = HelloBackup::crd();
    let mut value = serde_json::to_value(&crd).unwrap_or(Value::Null);
    without_nullable(&mut value);
    unseen(&mut value);
    if let Some(spec) =
        value.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec").and_then(Value::as_object_mut)
    {
        spec.insert("x-kubernetes-validations".into(), json!([{"rule": "self == oldSelf", "message": BACKUP_STAYS}]));
    }
    serde_json::from_value(value).unwrap_or(crd)
}

/// That a backup is what it is.
pub const BACKUP_STAYS: &str = "the spec of a HelloBackup cannot be changed: make another one";

/// All CRDs, in the order in which to install them.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![hello_operator(), hello_backup()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the fields are Kubernetes' own.
    const FOREIGN: [&str; 4] =
        ["spec.pod.affinity", "spec.pod.tolerations", "spec.pod.topologySpreadConstraints", "spec.resources"];

    fn of(crd: &CustomResourceDefinition) -> Value {
        let crd = serde_json::to_value(crd).unwrap();
        crd.pointer("/spec/versions/0/schema/openAPIV3Schema").unwrap().clone()
    }

    fn schema() -> Value {
        of(&hello_operator())
    }

    fn schemas() -> Vec<Value> {
        all().iter().map(of).collect()
    }

    fn fields(schema: &Value, path: &str, visit: &mut impl FnMut(&str, &Value)) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            visit(&path, field);
            if !FOREIGN.contains(&path.as_str()) {
                fields(field, &path, visit);
                fields(&field["items"], &path, visit);
            }
        }
    }

    #[test]
    fn every_field_has_a_description_of_its_own() {
        for schema in schemas() {
            fields(&schema, "", &mut |path, field| {
                assert!(field["description"].as_str().is_some_and(|text| text.len() > 5), "{path} has no description");
            });
        }
        let schema = schema();
        let description = |path: &str| schema.pointer(path).and_then(|field| field["description"].as_str()).unwrap();
        // The field's words, not the type's.
        assert!(description("/properties/spec/properties/replication/properties/durability").contains("Default:"));
        assert!(description("/properties/spec/properties/imagePullPolicy").contains("Default:"));
    }

    #[test]
    fn every_list_map_and_string_of_the_spec_is_bounded() {
        let mut bounded = |path: &str, field: &Value| {
            if FOREIGN.contains(&path) && field["type"] == "object" {
                return;
            }
            let bounded = match field["type"].as_str() {
                Some("string") => field.get("enum").is_some() || field.get("maxLength").is_some(),
                Some("array") => field.get("maxItems").is_some(),
                Some("object") => field.get("additionalProperties").is_none() || field.get("maxProperties").is_some(),
                Some("integer") => field.get("x-kubernetes-validations").is_some(),
                Some("boolean") => true,
                _ => field.get("maxLength").is_some() || path == "spec.version",
            };
            assert!(bounded || path == "spec.imagePullSecrets.name", "{path} has no bound: {field}");
        };
        for schema in schemas() {
            fields(&schema["properties"]["spec"], "spec", &mut bounded);
        }
    }

    #[test]
    fn no_null_is_ever_stored() {
        assert!(schemas().iter().all(|schema| !schema.to_string().contains("nullable")));
    }

    #[test]
    fn an_object_without_a_spec_is_valid() {
        assert!(schema().get("required").is_none());
        assert_eq!(schema()["properties"]["spec"]["default"], json!({}));
    }
}
