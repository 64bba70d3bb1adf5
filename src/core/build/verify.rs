//! The scratch Pod that proves a backup: a volume of its own that goes with it, the cluster's image, our binary, and an order.
//!
//! It has no label of the cluster: Services would lead clients to it, and a drain would count it.

use serde_json::{Value, json};

use super::pod::{claim, inject, place_on_a_node, restricted, security, usual_mounts};
use super::{Child, Scope, child};
use crate::api::names::{
    AGENT_BINARY, BACKUP_MOUNT, CONTAINER, LABEL_MANAGED_BY, LABEL_VERIFIES, MANAGED_BY, PASSWD_KEY,
};
use crate::api::spec::Destination;
use crate::api::verify::VerifyOrder;
use crate::core::world::Kind;

/// Seconds after which the kubelet ends it.
pub const LONGEST: i64 = 6 * 3600;

/// The Pod.
pub fn pod(scope: Scope<'_>, destination: &Destination, query: Option<&str>, agent_image: &str) -> Child {
    let cluster = scope.cluster;
    let names = &cluster.names;
    let name = names.verify_pod();
    let order = VerifyOrder {
        source: destination.clone(),
        root: destination.root(scope.namespace, names.cluster()),
        database: cluster.database.clone(),
        owner: cluster.owner.clone(),
        query: query.map(ToOwned::to_owned),
    };
    let mut spec = json!({
        "serviceAccountName": names.agent_account(),
        "automountServiceAccountToken": true,
        "enableServiceLinks": false,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": LONGEST,
        "terminationGracePeriodSeconds": 5,
        "securityContext": security(cluster),
        "initContainers": [inject(agent_image)],
        "containers": [container(scope, &serde_json::to_string(&order).unwrap_or_default())],
        "volumes": volumes(scope, destination),
    });
    place_on_a_node(cluster, &mut spec);
    let body = json!({
        "metadata": {
            "name": name,
            "namespace": scope.namespace,
            "labels": {LABEL_VERIFIES: names.cluster(), LABEL_MANAGED_BY: MANAGED_BY},
            "ownerReferences": [scope.owner()],
        },
        "spec": spec,
    });
    child(Kind::Pod, name, body)
}

fn container(scope: Scope<'_>, order: &str) -> Value {
    let cluster = scope.cluster;
    let mut mounts = usual_mounts();
    if claim(cluster.backup.destination.as_ref()).is_some() {
        mounts.push(json!({"name": "backup", "mountPath": BACKUP_MOUNT, "readOnly": true}));
    }
    let mut container = json!({
        "name": CONTAINER,
        "image": cluster.image,
        "command": [AGENT_BINARY, "verify"],
        "env": [
            {"name": "HELLO_VERIFY", "value": order},
            {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}},
        ],
        "securityContext": restricted(),
        "resources": cluster.resources.as_ref().map_or_else(|| json!({}), |resources| json!(resources)),
        "volumeMounts": mounts,
    });
    if let (Some(policy), Some(fields)) = (cluster.image_pull_policy, container.as_object_mut()) {
        fields.insert("imagePullPolicy".into(), json!(policy.as_str()));
    }
    container
}

fn volumes(scope: Scope<'_>, destination: &Destination) -> Value {
    let storage = &scope.cluster.storage;
    let mut scratch = json!({
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": storage.size}},
    });
    if let (Some(class), Some(fields)) = (&storage.class, scratch.as_object_mut()) {
        fields.insert("storageClassName".into(), json!(class));
    }
    let mut volumes = vec![
        json!({"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": scratch}}}),
        json!({"name": "bin", "emptyDir": {}}),
        json!({"name": "tmp", "emptyDir": {}}),
        json!({"name": "run", "emptyDir": {}}),
        json!({"name": "shm", "emptyDir": {"medium": "Memory"}}),
        json!({"name": "config", "configMap": {
            "name": scope.cluster.names.config_map(),
            "items": [{"key": PASSWD_KEY, "path": PASSWD_KEY}],
        }}),
    ];
    if let Some(claim) = claim(Some(destination)) {
        volumes.push(json!({"name": "backup", "persistentVolumeClaim": {"claimName": claim, "readOnly": true}}));
    }
    Value::Array(volumes)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::super::testing::{cluster, exact, scope};
    use super::*;
    use crate::api::names::LABEL_CLUSTER;

    #[test]
    fn it_is_what_kubernetes_knows_and_no_service_finds_it() {
        for destination in [json!({"s3": {"bucket": "b"}}), json!({"volume": {"claim": "c"}})] {
            let cluster = cluster(json!({
                "backup": {"destination": destination, "verify": {"schedule": "0 6 * * 0", "query": "select 1"}},
                "storage": {"size": "7Gi", "storageClassName": "fast"}, "imagePullPolicy": "Always",
                "pod": {"nodeSelector": {"a": "b"}},
            }));
            let child = pod(scope(&cluster), cluster.backup.destination.as_ref().unwrap(), Some("select 1"), "agent:1");
            let pod: Pod = exact(&child);
            assert!(!pod.metadata.labels.unwrap().contains_key(LABEL_CLUSTER));
            let spec = pod.spec.unwrap();
            let mounted: Vec<&str> =
                spec.containers[0].volume_mounts.as_ref().unwrap().iter().map(|mount| mount.name.as_str()).collect();
            for volume in spec.volumes.as_ref().unwrap() {
                assert!(mounted.contains(&volume.name.as_str()), "{} is mounted", volume.name);
            }
            let order = spec.containers[0].env.as_ref().unwrap()[0].value.as_ref().unwrap();
            let order: VerifyOrder = serde_json::from_str(order).unwrap();
            assert_eq!((order.root.as_str(), order.query.as_deref()), ("shop/db", Some("select 1")));
            assert_eq!(spec.node_selector.unwrap()["a"], "b");
        }
    }
}
