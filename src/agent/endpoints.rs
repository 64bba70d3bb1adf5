//! The EndpointSlices behind the Services `-rw` and `-ro`: clients move with the Lease and wait for no probe.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use kube::api::PostParams;
use kube::{Api, Client};

use super::Error;
use super::lease::call;
use crate::api::names::{ANNOTATION_TERM, Names, PORT_POSTGRES};

/// Where clients are led.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routes {
    /// Term of the holder who says so.
    pub term: i64,
    /// The primary.
    pub primary: Vec<(String, IpAddr)>,
    /// The replicas that serve.
    pub replicas: Vec<(String, IpAddr)>,
}

/// The two EndpointSlices.
#[derive(Clone)]
pub struct Endpoints {
    api: Api<EndpointSlice>,
    namespace: String,
    names: Names,
}

impl Endpoints {
    /// Those of this cluster.
    pub fn new(client: Client, namespace: &str, names: &Names) -> Self {
        Self { api: Api::namespaced(client, namespace), namespace: namespace.to_owned(), names: names.clone() }
    }

    /// Makes both slices say this; what says it already is not written.
    pub async fn write(&self, routes: &Routes) -> Result<(), Error> {
        let rw = self.write_one(&self.names.endpoints_rw(), &routes.primary, routes.term).await;
        let ro = self.write_one(&self.names.endpoints_ro(), &routes.replicas, routes.term).await;
        rw.and(ro)
    }

    async fn write_one(&self, name: &str, wanted: &[(String, IpAddr)], term: i64) -> Result<(), Error> {
        let present = call("an EndpointSlice", self.api.get(name)).await?;
        let Some(next) = changed(&present, wanted, term, &self.namespace) else { return Ok(()) };
        // It carries uid and resourceVersion as they were read, so nobody else's later word is overwritten.
        call("a change of an EndpointSlice", self.api.replace(name, &PostParams::default(), &next)).await.map(drop)
    }
}

/// The slice as it should be, or None if it is so already or belongs to a later term.
fn changed(present: &EndpointSlice, wanted: &[(String, IpAddr)], term: i64, namespace: &str) -> Option<EndpointSlice> {
    let written: Option<i64> = present
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(ANNOTATION_TERM))
        .and_then(|term| term.parse().ok());
    if written.is_some_and(|written| written > term) {
        return None;
    }
    let mut next = present.clone();
    let wanted = wanted.iter().filter(|(_, address)| match present.address_type.as_str() {
        "IPv6" => address.is_ipv6(),
        _ => address.is_ipv4(),
    });
    next.endpoints = Some(
        wanted
            .map(|(instance, address)| Endpoint {
                addresses: vec![address.to_string()],
                conditions: Some(EndpointConditions {
                    ready: Some(true),
                    serving: Some(true),
                    terminating: Some(false),
                }),
                target_ref: Some(ObjectReference {
                    kind: Some("Pod".into()),
                    name: Some(instance.clone()),
                    namespace: Some(namespace.to_owned()),
                    ..ObjectReference::default()
                }),
                ..Endpoint::default()
            })
            .collect(),
    );
    next.ports = Some(vec![EndpointPort {
        name: Some("postgres".into()),
        port: Some(i32::from(PORT_POSTGRES)),
        protocol: Some("TCP".into()),
        app_protocol: None,
    }]);
    next.metadata.annotations.get_or_insert_default().insert(ANNOTATION_TERM.into(), term.to_string());
    let same_endpoints = next.endpoints == present.endpoints
        || next.endpoints.as_ref().is_some_and(Vec::is_empty) && present.endpoints.is_none();
    (!same_endpoints || next.ports != present.ports || written != Some(term)).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> Vec<(String, IpAddr)> {
        vec![("db-1".into(), address.parse().unwrap())]
    }

    #[test]
    fn a_slice_is_written_once_and_never_over_a_later_term() {
        let empty = EndpointSlice { address_type: "IPv4".into(), ..EndpointSlice::default() };
        let first = changed(&empty, &at("10.0.0.1"), 3, "ns").unwrap();
        assert_eq!(changed(&first, &at("10.0.0.1"), 3, "ns"), None);
        assert_eq!(changed(&first, &at("10.0.0.2"), 2, "ns"), None, "an older term is silent");
        let second = changed(&first, &at("10.0.0.2"), 4, "ns").unwrap();
        assert_eq!(second.endpoints.unwrap()[0].addresses, ["10.0.0.2"]);
        assert_eq!(second.metadata.annotations.unwrap()[ANNOTATION_TERM], "4");
    }

    #[test]
    fn the_api_server_leaves_empty_lists_out() {
        let empty = EndpointSlice { address_type: "IPv4".into(), ..EndpointSlice::default() };
        let mut written = changed(&empty, &[], 1, "ns").unwrap();
        written.endpoints = None;
        assert_eq!(changed(&written, &[], 1, "ns"), None);
    }
}
