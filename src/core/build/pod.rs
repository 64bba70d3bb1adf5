//! Instance Pods, and what of them makes a new one necessary.

use serde_json::{Map, Value, json};

use super::{Child, Scope, annotate, child};
use crate::api::names::{
    AGENT_BINARY, ANNOTATION_RESTART, ANNOTATION_SECRETS, ANNOTATION_TEMPLATE, BACKUP_MOUNT, CONTAINER,
    CONTAINER_INJECT, DATA_MOUNT, LABEL_CLUSTER, LABEL_INSTANCE, PASSWD_KEY, PORT_AGENT, PORT_HEALTH, PORT_POSTGRES,
    RESTORE_MOUNT, SECRETS_MOUNT, SOCKET_DIR, WAL_MOUNT,
};
use crate::api::spec::Destination;
use crate::core::cluster::Cluster;
use crate::core::world::{Kind, SecretKind};

/// Seconds that the agent has to demote and release.
const GRACE: i64 = 60;

/// What a Pod is made from. Where it differs from what the Pod's annotation holds, the Pod is replaced, and the
/// difference is the reason. The image that brings the agent is not in it: upgrading the operator restarts no database.
pub fn template(scope: Scope<'_>) -> Value {
    let cluster = scope.cluster;
    let mut out = Map::new();
    out.insert("image".into(), json!(cluster.image));
    out.insert("uid".into(), json!(cluster.uid));
    out.insert("gid".into(), json!(cluster.gid));
    let mut optional = |key: &str, value: Value| {
        let empty = match &value {
            Value::Null => true,
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            _ => false,
        };
        if !empty {
            out.insert(key.into(), value);
        }
    };
    optional("imagePullPolicy", json!(cluster.image_pull_policy.map(crate::api::spec::ImagePullPolicy::as_str)));
    optional("imagePullSecrets", json!(cluster.image_pull_secrets));
    optional("resources", json!(cluster.resources));
    optional("backupVolume", json!(claim(cluster.backup.destination.as_ref())));
    optional("restoreVolume", json!(claim(cluster.source.as_ref())));
    optional("walVolume", if cluster.storage.wal_size.is_some() { json!(true) } else { Value::Null });
    let pod = &cluster.pod;
    optional("pod.labels", json!(pod.labels));
    optional("pod.annotations", json!(pod.annotations));
    optional("pod.nodeSelector", json!(pod.node_selector));
    optional("pod.tolerations", json!(pod.tolerations));
    optional("pod.affinity", json!(pod.affinity));
    optional("pod.topologySpreadConstraints", json!(pod.topology_spread_constraints));
    optional("pod.priorityClassName", json!(pod.priority_class_name));
    Value::Object(out)
}

/// The volume that a store is on, when it is on one.
pub(super) fn claim(store: Option<&Destination>) -> Option<&str> {
    store?.volume.as_ref().map(|volume| volume.claim.as_str())
}

/// Volumes of stores: name, claim, mount, and whether they are only read.
fn stores(cluster: &Cluster) -> Vec<(&'static str, &str, &'static str, bool)> {
    let backup = claim(cluster.backup.destination.as_ref()).map(|claim| ("backup", claim, BACKUP_MOUNT, false));
    let restore = claim(cluster.source.as_ref()).map(|claim| ("restore", claim, RESTORE_MOUNT, true));
    backup.into_iter().chain(restore).collect()
}

/// How two templates differ, in words; None when they do not.
pub fn difference(before: &Value, after: &Value) -> Option<String> {
    let empty = Map::new();
    let (old, new) = (before.as_object().unwrap_or(&empty), after.as_object().unwrap_or(&empty));
    let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
    keys.sort();
    keys.dedup();
    let changes: Vec<String> = keys
        .into_iter()
        .filter(|key| old.get(*key) != new.get(*key))
        .map(|key| {
            let show = |value: Option<&Value>| match value {
                None => "nothing".to_owned(),
                Some(Value::String(text)) => text.clone(),
                Some(value) => value.to_string(),
            };
            format!("{key} from {} to {}", show(old.get(key)), show(new.get(key)))
        })
        .collect();
    (!changes.is_empty()).then(|| changes.join(", "))
}

/// Facts of the moment that go into a new Pod without being a reason to replace it.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'a> {
    /// Image that brings the agent.
    pub agent_image: &'a str,
    /// Present hash of the mounted Secrets.
    pub secrets: &'a str,
    /// What the restart annotations ask of it now: a new Pod needs no restart for that.
    pub restart: Option<&'a str>,
}

/// The Pod of an instance.
pub fn pod(scope: Scope<'_>, ordinal: u8, moment: Moment<'_>) -> Child {
    let names = &scope.cluster.names;
    let name = names.instance(ordinal);
    let mut metadata = scope.owned(&name);
    if let Some(labels) = metadata.pointer_mut("/labels").and_then(Value::as_object_mut) {
        for (key, value) in &scope.cluster.pod.labels {
            labels.entry(key.clone()).or_insert_with(|| json!(value));
        }
        labels.insert(LABEL_INSTANCE.into(), json!(name));
    }
    let mut body = json!({"metadata": metadata, "spec": spec(scope, ordinal, &name, moment.agent_image)});
    for (key, value) in &scope.cluster.pod.annotations {
        annotate(&mut body, key, value);
    }
    annotate(&mut body, ANNOTATION_TEMPLATE, &template(scope).to_string());
    annotate(&mut body, ANNOTATION_SECRETS, moment.secrets);
    if let Some(restart) = moment.restart {
        annotate(&mut body, ANNOTATION_RESTART, restart);
    }
    child(Kind::Pod, name, body)
}

fn spec(scope: Scope<'_>, ordinal: u8, name: &str, agent_image: &str) -> Value {
    let cluster = scope.cluster;
    let names = &cluster.names;
    let mut spec = json!({
        "hostname": name,
        "subdomain": names.service_headless(),
        "serviceAccountName": names.agent_account(),
        "automountServiceAccountToken": true,
        "enableServiceLinks": false,
        "shareProcessNamespace": false,
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": GRACE,
        "securityContext": security(cluster),
        "initContainers": [inject(agent_image)],
        "containers": [database(scope)],
        "volumes": volumes(scope, ordinal),
        "affinity": affinity(scope),
    });
    place_on_a_node(cluster, &mut spec);
    if let (false, Some(fields)) = (cluster.pod.topology_spread_constraints.is_empty(), spec.as_object_mut()) {
        fields.insert("topologySpreadConstraints".into(), json!(cluster.pod.topology_spread_constraints));
    }
    spec
}

/// What every Pod of ours is.
pub(super) fn security(cluster: &Cluster) -> Value {
    json!({
        "runAsNonRoot": true,
        "runAsUser": cluster.uid,
        "runAsGroup": cluster.gid,
        "fsGroup": cluster.gid,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    })
}

/// On which nodes a Pod may run, and with which images.
pub(super) fn place_on_a_node(cluster: &Cluster, spec: &mut Value) {
    let Some(fields) = spec.as_object_mut() else { return };
    let pod = &cluster.pod;
    if !cluster.image_pull_secrets.is_empty() {
        fields.insert("imagePullSecrets".into(), json!(cluster.image_pull_secrets));
    }
    if !pod.node_selector.is_empty() {
        fields.insert("nodeSelector".into(), json!(pod.node_selector));
    }
    if !pod.tolerations.is_empty() {
        fields.insert("tolerations".into(), json!(pod.tolerations));
    }
    if let Some(class) = &pod.priority_class_name {
        fields.insert("priorityClassName".into(), json!(class));
    }
}

pub(super) fn restricted() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "privileged": false,
        "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"]},
    })
}

pub(super) fn inject(agent_image: &str) -> Value {
    json!({
        "name": CONTAINER_INJECT,
        "image": agent_image,
        "imagePullPolicy": "IfNotPresent",
        "args": ["inject", "--to", AGENT_BINARY],
        "securityContext": restricted(),
        "resources": {},
        "volumeMounts": [{"name": "bin", "mountPath": folder(AGENT_BINARY)}],
    })
}

fn database(scope: Scope<'_>) -> Value {
    let cluster = scope.cluster;
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}});
    let mut env = vec![
        json!({"name": "HELLO_CLUSTER", "value": cluster.names.cluster()}),
        field("POD_NAME", "metadata.name"),
        field("POD_NAMESPACE", "metadata.namespace"),
        field("POD_UID", "metadata.uid"),
        field("POD_IP", "status.podIP"),
    ];
    if cluster.memory_limit.is_some() {
        env.push(json!({
            "name": "HELLO_MEMORY_BYTES",
            "valueFrom": {"resourceFieldRef": {"containerName": CONTAINER, "resource": "limits.memory", "divisor": "0"}},
        }));
    }
    if cluster.storage.wal_size.is_some() {
        env.push(json!({"name": "HELLO_WAL_MOUNT", "value": WAL_MOUNT}));
    }
    let probe = |path: &str| json!({"path": path, "port": PORT_HEALTH, "scheme": "HTTP"});
    let mut container = json!({
        "name": CONTAINER,
        "image": cluster.image,
        "command": [AGENT_BINARY, "agent"],
        "env": env,
        "ports": [
            {"name": "postgres", "containerPort": PORT_POSTGRES, "protocol": "TCP"},
            {"name": "agent", "containerPort": PORT_AGENT, "protocol": "TCP"},
            {"name": "health", "containerPort": PORT_HEALTH, "protocol": "TCP"},
        ],
        "securityContext": restricted(),
        "resources": cluster.resources.as_ref().map_or_else(|| json!({}), |resources| json!(resources)),
        "volumeMounts": mounts(scope),
        // The agent's own health and nothing else. The short grace period: a frozen process is not graceful.
        "livenessProbe": {
            "httpGet": probe("/livez"), "initialDelaySeconds": 10, "periodSeconds": 5, "timeoutSeconds": 3, "failureThreshold": 3,
            "terminationGracePeriodSeconds": 5,
        },
        "readinessProbe": {"httpGet": probe("/readyz"), "periodSeconds": 1, "timeoutSeconds": 2, "failureThreshold": 2},
    });
    if let (Some(policy), Some(fields)) = (cluster.image_pull_policy, container.as_object_mut()) {
        fields.insert("imagePullPolicy".into(), json!(policy.as_str()));
    }
    container
}

/// What PostgreSQL and our program need wherever they run.
pub(super) fn usual_mounts() -> Vec<Value> {
    vec![
        json!({"name": "data", "mountPath": DATA_MOUNT}),
        json!({"name": "bin", "mountPath": folder(AGENT_BINARY), "readOnly": true}),
        json!({"name": "tmp", "mountPath": "/tmp"}),
        json!({"name": "run", "mountPath": SOCKET_DIR}),
        json!({"name": "shm", "mountPath": "/dev/shm"}),
        json!({"name": "config", "mountPath": "/etc/passwd", "subPath": PASSWD_KEY, "readOnly": true}),
    ]
}

fn mounts(scope: Scope<'_>) -> Value {
    let mut mounts = usual_mounts();
    if scope.cluster.storage.wal_size.is_some() {
        mounts.push(json!({"name": "wal", "mountPath": WAL_MOUNT}));
    }
    for (name, _, path, read_only) in stores(scope.cluster) {
        let mut mount = json!({"name": name, "mountPath": path});
        if let Some(fields) = mount.as_object_mut().filter(|_| read_only) {
            fields.insert("readOnly".into(), json!(true));
        }
        mounts.push(mount);
    }
    for secret in SecretKind::ALL.into_iter().filter(|secret| secret.mounted()) {
        let folder = mount_name(secret);
        mounts.push(json!({"name": folder, "mountPath": format!("{SECRETS_MOUNT}/{folder}"), "readOnly": true}));
    }
    Value::Array(mounts)
}

fn volumes(scope: Scope<'_>, ordinal: u8) -> Value {
    let names = &scope.cluster.names;
    let mut volumes = vec![
        json!({"name": "data", "persistentVolumeClaim": {"claimName": names.instance(ordinal)}}),
        json!({"name": "bin", "emptyDir": {}}),
        json!({"name": "tmp", "emptyDir": {}}),
        json!({"name": "run", "emptyDir": {}}),
        json!({"name": "shm", "emptyDir": {"medium": "Memory"}}),
        json!({"name": "config", "configMap": {
            "name": names.config_map(),
            "items": [{"key": PASSWD_KEY, "path": PASSWD_KEY}],
        }}),
    ];
    if scope.cluster.storage.wal_size.is_some() {
        volumes.push(json!({"name": "wal", "persistentVolumeClaim": {"claimName": names.wal_volume(ordinal)}}));
    }
    for (name, claim, ..) in stores(scope.cluster) {
        volumes.push(json!({"name": name, "persistentVolumeClaim": {"claimName": claim}}));
    }
    for secret in SecretKind::ALL.into_iter().filter(|secret| secret.mounted()) {
        volumes.push(json!({
            "name": mount_name(secret),
            "secret": {"secretName": secret.name(names), "defaultMode": 0o440},
        }));
    }
    Value::Array(volumes)
}

fn mount_name(secret: SecretKind) -> &'static str {
    match secret {
        SecretKind::Ca => "ca",
        SecretKind::App => "app",
        SecretKind::Superuser => "superuser",
        SecretKind::Server => "server",
        SecretKind::Replication => "replication",
    }
}

pub(super) fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(folder, _)| folder)
}

/// The user's affinity, or one instance per host where that can be.
fn affinity(scope: Scope<'_>) -> Value {
    if let Some(affinity) = &scope.cluster.pod.affinity {
        return json!(affinity);
    }
    json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
        "weight": 100,
        "podAffinityTerm": {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": {LABEL_CLUSTER: scope.cluster.names.cluster()}},
        },
    }]}})
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::super::testing::{cluster, exact, scope};
    use super::*;

    const MOMENT: Moment<'static> = Moment { agent_image: "agent:1", secrets: "s", restart: None };

    #[test]
    fn the_pod_of_an_empty_spec_and_of_a_full_one_is_what_kubernetes_knows() {
        let full = json!({
            "image": "x:1", "imagePullPolicy": "Always", "imagePullSecrets": [{"name": "pull"}],
            "resources": {"limits": {"memory": "1Gi"}}, "storage": {"walSize": "1Gi"},
            "backup": {"destination": {"volume": {"claim": "backups"}}},
            "pod": {"labels": {"a": "b", "terry.com/cluster": "not me"}, "annotations": {"c": "d"}, "nodeSelector": {"e": "f"},
                "tolerations": [{"key": "k", "operator": "Exists"}], "priorityClassName": "high",
                "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]},
        });
        for spec in [json!({}), full] {
            let mut cluster = cluster(spec);
            cluster.source = cluster.backup.destination.clone();
            let pod: Pod = exact(&pod(scope(&cluster), 2, MOMENT));
            assert_eq!(pod.metadata.labels.unwrap()["terry.com/cluster"], "db");
            let spec = pod.spec.unwrap();
            let container = &spec.containers[0];
            let mounted: Vec<&str> =
                container.volume_mounts.as_ref().unwrap().iter().map(|m| m.name.as_str()).collect();
            for volume in spec.volumes.unwrap() {
                assert!(mounted.contains(&volume.name.as_str()), "{} is mounted", volume.name);
            }
        }
    }

    #[test]
    fn the_agents_image_is_no_reason_to_replace_a_pod_and_the_databases_is() {
        let (a, b) = (cluster(json!({})), cluster(json!({"image": "postgres:17.1"})));
        let (before, after) = (template(scope(&a)), template(scope(&b)));
        assert_eq!(difference(&before, &after).as_deref(), Some("image from postgres:17 to postgres:17.1"));
        assert_eq!(difference(&before, &before.clone()), None);
        let bucket = cluster(json!({"backup": {"destination": {"s3": {"bucket": "b"}}, "schedule": "0 3 * * *"}}));
        assert_eq!(template(scope(&bucket)), before, "only a volume is mounted");
    }
}
