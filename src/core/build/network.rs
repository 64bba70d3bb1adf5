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

/// How many instances evictions leave ready: all but one, so that a drain takes one at a time and waits for the next only
/// until that one is back. A single instance may be evicted, since a drain must not wait for ever, unless failover is
/// disabled: then the user has asked that nothing moves by itself.
///
/// A number of Pods and not `maxUnavailable`: that is counted from the object's scale, which a bare CRD takes away (every
/// eviction would be refused), and which may ask for fewer than is accepted (all could be evicted together). `running` are
/// those that run: while some leave, the others are not evicted in their place.
pub fn pdb(scope: Scope<'_>, running: usize) -> Child {
    let name = scope.cluster.names.pdb();
    let least = match usize::from(scope.cluster.instances).max(running) {
        1 if !scope.cluster.failover.enabled => 1,
        instances => instances.saturating_sub(1),
    };
    let spec = json!({
        "minAvailable": least,
        "selector": {"matchLabels": {LABEL_CLUSTER: scope.cluster.names.cluster()}},
        // One that does not serve is missing already: evicting it takes nothing away.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    });
    child(Kind::PodDisruptionBudget, &name, json!({"metadata": scope.owned(&name), "spec": spec}))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;
    use k8s_openapi::api::discovery::v1::EndpointSlice;
    use k8s_openapi::api::policy::v1::PodDisruptionBudget;
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

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
    }

    #[test]
    fn a_drain_takes_one_instance_at_a_time_and_waits_for_ever_only_where_that_was_asked_for() {
        for (instances, running, failover, least) in [
            (9, 9, true, 8),
            (3, 3, true, 2),
            (3, 3, false, 2),
            (2, 5, true, 4),
            (2, 2, false, 1),
            (1, 1, true, 0),
            (1, 1, false, 1),
            (1, 0, true, 0),
        ] {
            let cluster = cluster(json!({"instances": instances, "failover": {"enabled": failover}}));
            let pdb: PodDisruptionBudget = exact(&pdb(scope(&cluster), running));
            let spec = pdb.spec.unwrap();
            assert_eq!((spec.max_unavailable, spec.min_available), (None, Some(IntOrString::Int(least))));
        }
    }
}
