//! Builders of children: a cluster in, an object as JSON out. Each is tested to be exactly what its Kubernetes type holds.

pub mod access;
pub mod config;
pub mod network;
pub mod pod;
pub mod verify;
pub mod volume;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::cluster::Cluster;
use super::world::{ChildId, Kind};
use crate::api::names::{
    ANNOTATION_HASH, GROUP, KIND, LABEL_APP_INSTANCE, LABEL_CLUSTER, LABEL_MANAGED_BY, LABEL_NAME, MANAGED_BY, VERSION,
};
use crate::api::spec::OnDelete;

/// What every builder needs besides the cluster itself.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// Its namespace.
    pub namespace: &'a str,
    /// Uid of its object.
    pub uid: &'a str,
}

/// A child as it should be.
#[derive(Debug, Clone, PartialEq)]
pub struct Child {
    /// Which one.
    pub id: ChildId,
    /// The object, complete, with its hash in an annotation.
    pub body: Value,
    /// The hash.
    pub hash: String,
}

impl Scope<'_> {
    /// Labels of everything that belongs to the cluster.
    pub fn labels(&self) -> Value {
        let name = self.cluster.names.cluster();
        json!({
            LABEL_CLUSTER: name,
            LABEL_MANAGED_BY: MANAGED_BY,
            LABEL_NAME: "postgresql",
            LABEL_APP_INSTANCE: name,
        })
    }

    /// Selector of the instance Pods.
    pub fn selector(&self) -> Value {
        json!({LABEL_CLUSTER: self.cluster.names.cluster()})
    }

    /// Reference to the object as the controller of a child.
    pub fn owner(&self) -> Value {
        json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": KIND,
            "name": self.cluster.names.cluster(),
            "uid": self.uid,
            "controller": true,
            "blockOwnerDeletion": false,
        })
    }

    /// Metadata of a child that goes with the object.
    pub fn owned(&self, name: &str) -> Value {
        json!({
            "name": name,
            "namespace": self.namespace,
            "labels": self.labels(),
            "ownerReferences": [self.owner()],
        })
    }

    /// Metadata of a child that stays as long as the volumes: without an owner when they are retained.
    pub fn lasting(&self, name: &str) -> Value {
        let mut meta = self.owned(name);
        if self.cluster.storage.on_delete == OnDelete::Retain
            && let Some(fields) = meta.as_object_mut()
        {
            fields.remove("ownerReferences");
        }
        meta
    }

    /// Whether children that last are owned by the object.
    pub fn lasting_owned(&self) -> bool {
        self.cluster.storage.on_delete == OnDelete::Delete
    }
}

/// Finishes a child: type, and the hash of all that stands in it.
pub fn child(kind: Kind, name: impl Into<String>, mut body: Value) -> Child {
    let (group, version, spelled, _) = kind.resource();
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    if let Some(fields) = body.as_object_mut() {
        fields.insert("apiVersion".into(), Value::String(api_version));
        fields.insert("kind".into(), Value::String(spelled.into()));
    }
    let hash = hash(&body);
    annotate(&mut body, ANNOTATION_HASH, &hash);
    Child { id: ChildId::new(kind, name), body, hash }
}

/// Sets an annotation of an object.
pub fn annotate(body: &mut Value, key: &str, value: &str) {
    let Some(meta) = body.pointer_mut("/metadata").and_then(Value::as_object_mut) else { return };
    let annotations = meta.entry("annotations").or_insert_with(|| json!({}));
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.insert(key.into(), Value::String(value.into()));
    }
}

/// A short hash of a value; equal values have equal ones (serde_json keeps the keys of a map sorted).
pub fn hash(value: &Value) -> String {
    Sha256::digest(value.to_string().as_bytes()).iter().take(10).fold(String::new(), |mut out, byte| {
        use std::fmt::Write;
        let _ = write!(out, "{byte:02x}");
        out
    })
}

#[cfg(test)]
pub(crate) mod testing {
    use k8s_openapi::serde::Serialize;
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::api::spec::HelloOperatorSpec;

    pub fn cluster(spec: Value) -> Cluster {
        let spec: HelloOperatorSpec = serde_json::from_value(spec).unwrap();
        Cluster::parse("db", &spec).unwrap()
    }

    pub fn scope(cluster: &Cluster) -> Scope<'_> {
        Scope { cluster, namespace: "shop", uid: "uid-1" }
    }

    /// The child is exactly what its Kubernetes type holds: no field is misspelt, none is lost.
    pub fn exact<T: DeserializeOwned + Serialize>(child: &Child) -> T {
        let typed: T = serde_json::from_value(child.body.clone()).unwrap();
        let back = serde_json::to_value(&typed).unwrap();
        assert_eq!(back, child.body, "{}", child.id);
        typed
    }
}
