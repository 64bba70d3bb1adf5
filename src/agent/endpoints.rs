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
    /// The term has only begun: who was led to replicas before goes on reading there while they move to the new primary.
    pub gathers: bool,
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
        let rw = self.write_one(&self.names.endpoints_rw(), routes.term, |_| routes.primary.clone()).await;
        let ro = self.write_one(&self.names.endpoints_ro(), routes.term, |present| readable(present, routes)).await;
        rw.and(ro)
    }

    async fn write_one(
        &self,
        name: &str,
        term: i64,
        wanted: impl FnOnce(&EndpointSlice) -> Vec<(String, IpAddr)>,
    ) -> Result<(), Error> {
        let present = call("an EndpointSlice", self.api.get(name)).await?;
        let Some(next) = changed(&present, &wanted(&present), term, &self.namespace) else { return Ok(()) };
        // It carries uid and resourceVersion as they were read, so nobody else's later word is overwritten.
        call("a change of an EndpointSlice", self.api.replace(name, &PostParams::default(), &next)).await.map(drop)
    }
}

/// Where clients may read: the replicas that serve, and while a term begins those to which they were led before.
fn readable(present: &EndpointSlice, routes: &Routes) -> Vec<(String, IpAddr)> {
    let mut all = routes.replicas.clone();
    if routes.gathers {
        for endpoint in present.endpoints.iter().flatten() {
            let instance = endpoint.target_ref.as_ref().and_then(|pod| pod.name.clone());
            let address = endpoint.addresses.first().and_then(|address| address.parse().ok());
            let Some(known) = instance.zip(address) else { continue };
            // One that was heard of has said where it is now.
            let heard = |(instance, _): &(String, IpAddr)| *instance == known.0;
            if !routes.primary.iter().any(heard) && !all.iter().any(heard) {
                all.push(known);
            }
        }
        all.sort();
    }
    all
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
    fn readers_stay_where_they_were_while_a_term_begins() {
        let all = |list: &[(&str, &str)]| -> Vec<(String, IpAddr)> {
            list.iter().map(|(name, address)| ((*name).to_owned(), address.parse().unwrap())).collect()
        };
        let empty = EndpointSlice { address_type: "IPv4".into(), ..EndpointSlice::default() };
        let before = changed(&empty, &all(&[("db-2", "10.0.0.2"), ("db-3", "10.0.0.3")]), 3, "ns").unwrap();
        let mut routes = Routes { term: 4, primary: all(&[("db-2", "10.0.0.2")]), replicas: vec![], gathers: true };
        assert_eq!(readable(&before, &routes), all(&[("db-3", "10.0.0.3")]), "db-2 is the primary now");
        routes.replicas = all(&[("db-3", "10.0.0.33"), ("db-1", "10.0.0.1")]);
        assert_eq!(readable(&before, &routes), all(&[("db-1", "10.0.0.1"), ("db-3", "10.0.0.33")]));
        (routes.replicas, routes.gathers) = (vec![], false);
        assert_eq!(readable(&before, &routes), [], "it had its time");
    }

    #[test]
    fn the_api_server_leaves_empty_lists_out() {
        let empty = EndpointSlice { address_type: "IPv4".into(), ..EndpointSlice::default() };
        let mut written = changed(&empty, &[], 1, "ns").unwrap();
        written.endpoints = None;
        assert_eq!(changed(&written, &[], 1, "ns"), None);
    }
}
