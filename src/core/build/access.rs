//! What the agents may do: no wider than their own cluster's objects.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Child, Scope, child};
use crate::api::names::MAX_INSTANCES;
use crate::core::world::Kind;

/// The agents' ServiceAccount.
pub fn service_account(scope: Scope<'_>) -> Child {
    let name = scope.cluster.names.agent_account();
    let mut metadata = scope.lasting(&name);
    if let Some(fields) = metadata.as_object_mut()
        && !scope.cluster.pod.service_account_annotations.is_empty()
    {
        fields.insert("annotations".into(), json!(scope.cluster.pod.service_account_annotations));
    }
    child(Kind::ServiceAccount, name, json!({"metadata": metadata}))
}

/// The agents' Role. Each rule has its reason.
pub fn role(scope: Scope<'_>) -> Child {
    let names = &scope.cluster.names;
    let instances: Vec<String> = (1..=MAX_INSTANCES).map(|ordinal| names.instance(ordinal)).collect();
    let rule = |group: &str, resource: &str, objects: Value, verbs: &[&str]| json!({"apiGroups": [group], "resources": [resource], "resourceNames": objects, "verbs": verbs});
    let mut rules = vec![
        // The register: agents take, renew and release it; only the operator creates it.
        rule("coordination.k8s.io", "leases", json!([names.lease()]), &["get", "list", "watch", "update"]),
        // The accepted spec.
        rule("", "configmaps", json!([names.config_map()]), &["get", "list", "watch"]),
        // Where applications are led.
        rule(
            "discovery.k8s.io",
            "endpointslices",
            json!([names.endpoints_rw(), names.endpoints_ro()]),
            &["get", "update"],
        ),
        // Addresses of the other instances; its own container's id, which goes into the register; and whether the kubelet says
        // that the holder's container ended: that proves it dead without waiting for its Lease to run out.
        rule("", "pods", json!(instances), &["get"]),
    ];
    // The credentials of the destination, and of the archive that it is restored from; read again and again, so that a rotation
    // needs no new Pod.
    let secrets = secrets(scope);
    if !secrets.is_empty() {
        rules.push(rule("", "secrets", json!(secrets), &["get"]));
    }
    let name = names.agent_account();
    child(Kind::Role, &name, json!({"metadata": scope.lasting(&name), "rules": rules}))
}

/// Secrets of stores, by name.
fn secrets(scope: Scope<'_>) -> BTreeSet<&str> {
    let stores = scope.cluster.backup.destination.iter().chain(&scope.cluster.source);
    stores.flat_map(crate::api::spec::Destination::secrets).collect()
}

/// That the agents' account has the agents' Role.
pub fn role_binding(scope: Scope<'_>) -> Child {
    let name = scope.cluster.names.agent_account();
    let body = json!({
        "metadata": scope.lasting(&name),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": scope.namespace}],
    });
    child(Kind::RoleBinding, name, body)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ServiceAccount;
    use k8s_openapi::api::rbac::v1::{Role, RoleBinding};

    use super::super::testing::{cluster, exact, scope};
    use super::*;

    fn role_of(cluster: &crate::core::cluster::Cluster) -> Role {
        exact(&role(scope(cluster)))
    }

    #[test]
    fn every_rule_names_its_objects_and_none_creates_or_deletes() {
        let cluster = cluster(json!({}));
        for rule in role_of(&cluster).rules.unwrap() {
            assert!(!rule.resource_names.unwrap().is_empty());
            for verb in rule.verbs {
                assert!(["get", "list", "watch", "update"].contains(&verb.as_str()), "{verb}");
            }
        }
        let pods = serde_json::to_value(role_of(&cluster)).unwrap();
        let pods = pods["rules"].as_array().unwrap().iter().find(|rule| rule["resources"][0] == "pods").unwrap();
        assert_eq!(
            pods["resourceNames"].as_array().unwrap().len(),
            usize::from(MAX_INSTANCES),
            "whoever may be holder"
        );
        let _: RoleBinding = exact(&role_binding(scope(&cluster)));
    }

    #[test]
    fn credentials_of_the_stores_are_read_by_name_and_no_others() {
        let key = |name: &str| json!({"name": name, "key": "k"});
        let mut cluster = cluster(json!({
            "backup": {"destination": {"s3": {"bucket": "b", "credentials": {"secret": "keys"}, "ca": key("ca")}}},
        }));
        cluster.source =
            Some(serde_json::from_value(json!({"gcs": {"bucket": "b", "credentials": key("old")}})).unwrap());
        let role = role_of(&cluster);
        let rules = role.rules.unwrap();
        let rule = rules.iter().find(|rule| rule.resources == Some(vec!["secrets".into()])).unwrap();
        assert_eq!(rule.resource_names.as_ref().unwrap(), &["ca", "keys", "old"]);
        assert_eq!(rule.verbs, ["get"]);
    }

    #[test]
    fn the_account_carries_the_annotations_of_workload_identity() {
        let cluster = cluster(json!({"pod": {"serviceAccountAnnotations": {"eks.amazonaws.com/role-arn": "arn:x"}}}));
        let account: ServiceAccount = exact(&service_account(scope(&cluster)));
        assert_eq!(account.metadata.annotations.unwrap()["eks.amazonaws.com/role-arn"], "arn:x");
    }
}
