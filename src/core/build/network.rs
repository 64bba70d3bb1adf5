//! Services, the EndpointSlices behind two of them, and the PodDisruptionBudget.

use serde_json::{Value, json};

use super::{Child, Scope, child};
use crate::api::names::{LABEL_CLUSTER, PORT_POSTGRES};
use crate::api::spec::{ServiceSpec, ServiceType};
use crate::core::world::Kind;

fn ports() -> Value {
    json!([{"name": "postgres", "port": PORT_POSTGRES, "protocol": "TCP", "targetPort": PORT_POSTGRES}])
}

/// A Service without a selector: the holder of the Lease writes its EndpointSlice.
fn led(scope: Scope<'_>, name: &str, wanted: &ServiceSpec) -> Child {
    let mut metadata = scope.owned(name);
    if let Some(fields) = metadata.as_object_mut()
        && !wanted.annotations.is_empty()
    {
        fields.insert("annotations".into(), json!(wanted.annotations));
    }
    let mut spec = json!({"type": wanted.type_.as_str(), "ports": ports()});
    if wanted.type_ == ServiceType::LoadBalancer
        && let Some(fields) = spec.as_object_mut()
    {
        if let Some(class) = &wanted.load_balancer_class {
            fields.insert("loadBalancerClass".into(), json!(class));
        }
        if !wanted.load_balancer_source_ranges.is_empty() {
            fields.insert("loadBalancerSourceRanges".into(), json!(wanted.load_balancer_source_ranges));
        }
    }
    child(Kind::Service, name, json!({"metadata": metadata, "spec": spec}))
}

/// `-rw`: the primary.
pub fn service_rw(scope: Scope<'_>) -> Child {
    led(scope, &scope.cluster.names.service_rw(), &scope.cluster.services.rw)
}

/// `-ro`: the replicas.
pub fn service_ro(scope: Scope<'_>) -> Child {
    led(scope, &scope.cluster.names.service_ro(), &scope.cluster.services.ro)
}

/// `-r`: any instance that is ready.
pub fn service_r(scope: Scope<'_>) -> Child {
    let name = scope.cluster.names.service_r();
    let spec = json!({"type": "ClusterIP", "selector": scope.selector(), "ports": ports()});
    child(Kind::Service, &name, json!({"metadata": scope.owned(&name), "spec": spec}))
}

/// The headless Service: the instances' own names, from their first moment.
pub fn service_headless(scope: Scope<'_>) -> Child {
    let name = scope.cluster.names.service_headless();
    let spec = json!({
        "type": "ClusterIP",
        "clusterIP": "None",
        "publishNotReadyAddresses": true,
        "selector": scope.selector(),
        "ports": ports(),
    });
    child(Kind::Service, &name, json!({"metadata": scope.owned(&name), "spec": spec}))
}

/// An EndpointSlice, empty: from then on only agents write it, and none is applied over what they wrote.
pub fn endpoint_slice(scope: Scope<'_>, name: &str) -> Child {
    let mut metadata = scope.owned(name);
    if let Some(labels) = metadata.pointer_mut("/labels").and_then(Value::as_object_mut) {
        labels.insert("kubernetes.io/service-name".into(), json!(name));
        labels.insert("endpointslice.kubernetes.io/managed-by".into(), json!("hello-operator.terry.com"));
    }
    child(Kind::EndpointSlice, name, json!({"metadata": metadata, "addressType": "IPv4", "endpoints": []}))
}

/// One instance at a time may be drained.
pub fn pdb(scope: Scope<'_>) -> Child {
    let name = scope.cluster.names.pdb();
    let spec = json!({
        "maxUnavailable": 1,
        "selector": {"matchLabels": {LABEL_CLUSTER: scope.cluster.names.cluster()}},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    });
    child(Kind::PodDisruptionBudget, &name, json!({"metadata": scope.owned(&name), "spec": spec}))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;
    use k8s_openapi::api::discovery::v1::EndpointSlice;
    use k8s_openapi::api::policy::v1::PodDisruptionBudget;

    use super::super::testing::{cluster, exact, scope};
    use super::*;

    #[test]
    fn services_are_what_kubernetes_knows() {
        let cluster = cluster(json!({"services": {"rw": {
            "type": "LoadBalancer", "loadBalancerClass": "x", "loadBalancerSourceRanges": ["192.0.2.0/24"], "annotations": {"a": "b"}}}}));
        let rw: Service = exact(&service_rw(scope(&cluster)));
        let spec = rw.spec.unwrap();
        assert_eq!((spec.selector, spec.type_.as_deref()), (None, Some("LoadBalancer")));
        for child in [service_ro(scope(&cluster)), service_r(scope(&cluster)), service_headless(scope(&cluster))] {
            let _: Service = exact(&child);
        }
        let _: EndpointSlice = exact(&endpoint_slice(scope(&cluster), "db-rw"));
        let _: PodDisruptionBudget = exact(&pdb(scope(&cluster)));
    }
}
