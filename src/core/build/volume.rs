//! Volumes.

use serde_json::{Value, json};

use super::{Child, Scope, child};
use crate::api::names::{LABEL_INSTANCE, LABEL_VOLUME};
use crate::core::world::{Kind, Volume};

/// Name of an instance's volume.
pub fn name(scope: Scope<'_>, ordinal: u8, volume: Volume) -> String {
    match volume {
        Volume::Data => scope.cluster.names.instance(ordinal),
        Volume::Wal => scope.cluster.names.wal_volume(ordinal),
    }
}

/// A volume of an instance.
pub fn claim(scope: Scope<'_>, ordinal: u8, volume: Volume) -> Child {
    let storage = &scope.cluster.storage;
    let size = match volume {
        Volume::Data => &storage.size,
        Volume::Wal => storage.wal_size.as_ref().unwrap_or(&storage.size),
    };
    let name = name(scope, ordinal, volume);
    let mut metadata = scope.lasting(&name);
    if let Some(labels) = metadata.pointer_mut("/labels").and_then(Value::as_object_mut) {
        labels.insert(LABEL_INSTANCE.into(), json!(scope.cluster.names.instance(ordinal)));
        labels.insert(LABEL_VOLUME.into(), json!(volume.as_str()));
    }
    let mut spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}});
    if let (Some(class), Some(fields)) = (&storage.class, spec.as_object_mut()) {
        fields.insert("storageClassName".into(), json!(class));
    }
    child(Kind::PersistentVolumeClaim, name, json!({"metadata": metadata, "spec": spec}))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PersistentVolumeClaim;

    use super::super::testing::{cluster, exact, scope};
    use super::*;

    #[test]
    fn a_retained_volume_has_no_owner_and_one_that_goes_has() {
        for (policy, owned) in [("Retain", false), ("Delete", true)] {
            let cluster =
                cluster(json!({"storage": {"onDelete": policy, "walSize": "2Gi", "storageClassName": "fast"}}));
            let wal: PersistentVolumeClaim = exact(&claim(scope(&cluster), 2, Volume::Wal));
            assert_eq!(wal.metadata.name.as_deref(), Some("db-2-wal"));
            assert_eq!(wal.metadata.owner_references.is_some(), owned, "{policy}");
            assert_eq!(wal.spec.unwrap().resources.unwrap().requests.unwrap()["storage"].0, "2Gi");
        }
    }
}
