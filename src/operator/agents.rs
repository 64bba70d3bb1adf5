//! The client of the agents: mutual TLS to the Pod's address, verified against the instance's name. Outside of the
//! cluster, where Pods have no address for us, the bytes go through the API server's port-forward.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::error::Error;
use super::keys::{self, Pair};
use super::mirror::ClusterKey;
use crate::api::agent::{CommandAnswer, Report};
use crate::api::names::{OPERATOR_CN, PORT_AGENT};
use crate::telemetry::traces::context::{TRACEPARENT, traceparent};

/// A whole request, from dialling to the last byte of the answer.
const CALL: Duration = Duration::from_secs(2);
/// Through the port-forward there are three more connections to make.
const CALL_FORWARDED: Duration = Duration::from_secs(5);
/// Longest answer.
const MOST_BYTES: usize = 1 << 20;

/// An agent, and how to reach it.
#[derive(Debug, Clone)]
pub struct Target {
    /// Its cluster.
    pub cluster: ClusterKey,
    /// Its instance.
    pub instance: String,
    /// Address of its Pod.
    pub address: std::net::IpAddr,
}

/// The client.
pub struct Agents {
    /// For the port-forward; None inside the cluster.
    forward: Option<Client>,
    connectors: Mutex<HashMap<ClusterKey, (String, TlsConnector)>>,
}

impl Agents {
    /// A client; with `forward` through the API server.
    pub fn new(forward: Option<Client>) -> Self {
        Self { forward, connectors: Mutex::default() }
    }

    /// Remembers the authority of a cluster, and makes us a certificate of it. `version` changes with the authority.
    pub fn trust(&self, cluster: &ClusterKey, version: &str, authority: &Pair, now: Timestamp) -> Result<(), Error> {
        let connector = connector(authority, now)?;
        self.connectors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(cluster.clone(), (version.to_owned(), connector));
        Ok(())
    }

    /// Whether the authority of this version is known.
    pub fn trusts(&self, cluster: &ClusterKey, version: &str) -> bool {
        self.connectors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(cluster)
            .is_some_and(|(known, _)| known == version)
    }

    /// The cluster is gone.
    pub fn forget(&self, cluster: &ClusterKey) {
        self.connectors.lock().unwrap_or_else(PoisonError::into_inner).remove(cluster);
    }

    /// What it says of its instance.
    pub async fn report(&self, target: &Target) -> Result<Report, Error> {
        let (status, body) = self.call(target, Method::GET, "/v1/report", Bytes::new()).await?;
        if status != StatusCode::OK {
            return Err(failed(target, format!("answered {status}")));
        }
        parse(target, &body)
    }

    /// Commands it. An answer that refuses is an error; one that is still at it says so.
    pub async fn command(&self, target: &Target, path: &str, command: &impl Serialize) -> Result<CommandAnswer, Error> {
        let body = serde_json::to_vec(command).map_err(|error| Error::Internal(error.to_string()))?;
        let (status, body) = self.call(target, Method::POST, path, body.into()).await?;
        if status.is_success() {
            return parse(target, &body);
        }
        let why = serde_json::from_slice::<CommandAnswer>(&body)
            .map_or_else(|_| format!("answered {status}"), |answer| answer.message);
        Err(failed(target, why))
    }

    async fn call(
        &self,
        target: &Target,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), Error> {
        let limit = if self.forward.is_some() { CALL_FORWARDED } else { CALL };
        tokio::time::timeout(limit, self.dial(target, method, path, body))
            .await
            .map_err(|_| failed(target, format!("no answer within {} s", limit.as_secs())))?
    }

    async fn dial(
        &self,
        target: &Target,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), Error> {
        let connector = {
            let connectors = self.connectors.lock().unwrap_or_else(PoisonError::into_inner);
            connectors.get(&target.cluster).map(|(_, connector)| connector.clone())
        };
        let Some(connector) = connector else {
            return Err(failed(target, "the cluster's certificate authority is not known yet"));
        };
        match &self.forward {
            None => {
                let stream = TcpStream::connect((target.address, PORT_AGENT)).await.map_err(|e| failed(target, e))?;
                request(target, &connector, stream, method, path, body).await
            }
            Some(client) => {
                let pods = Api::<Pod>::namespaced(client.clone(), &target.cluster.namespace);
                let mut forwarder = pods
                    .portforward(&target.instance, &[PORT_AGENT])
                    .await
                    .map_err(|error| failed(target, format!("port-forward: {error}")))?;
                let stream =
                    forwarder.take_stream(PORT_AGENT).ok_or_else(|| failed(target, "port-forward: no stream"))?;
                let answer = request(target, &connector, stream, method, path, body).await;
                forwarder.abort();
                answer
            }
        }
    }
}

fn failed(target: &Target, why: impl std::fmt::Display) -> Error {
    Error::Agent { instance: target.instance.clone(), why: why.to_string() }
}

fn parse<T: DeserializeOwned>(target: &Target, body: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|error| failed(target, format!("its answer cannot be read: {error}")))
}

async fn request(
    target: &Target,
    connector: &TlsConnector,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<(StatusCode, Bytes), Error> {
    let name = ServerName::try_from(target.instance.clone()).map_err(|error| failed(target, error))?;
    let stream = connector.connect(name, stream).await.map_err(|error| failed(target, error))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(target, error))?;
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::HOST, &target.instance)
        .header(http::header::CONTENT_TYPE, "application/json");
    if let Some(parent) = traceparent() {
        request = request.header(TRACEPARENT, parent);
    }
    let request = request.body(Full::new(body)).map_err(|error| failed(target, error))?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(|error| failed(target, error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MOST_BYTES)
            .collect()
            .await
            .map_err(|error| failed(target, error))?
            .to_bytes();
        Ok((status, body))
    };
    let exchange = std::pin::pin!(exchange);
    let connection = std::pin::pin!(connection);
    match futures::future::select(exchange, connection).await {
        futures::future::Either::Left((answer, _)) => answer,
        // The connection may end right after the answer arrived.
        futures::future::Either::Right((_, exchange)) => exchange.await,
    }
}

fn connector(authority: &Pair, now: Timestamp) -> Result<TlsConnector, Error> {
    let tls = |why: String| Error::Tls { what: "certificate of the operator towards the agents".into(), why };
    let own = keys::certificate(authority, OPERATOR_CN, &[OPERATOR_CN.to_owned()], true, now)?;
    let mut roots = RootCertStore::empty();
    let root =
        CertificateDer::from_pem_slice(authority.certificate.as_bytes()).map_err(|error| tls(error.to_string()))?;
    roots.add(root).map_err(|error| tls(error.to_string()))?;
    let chain =
        vec![CertificateDer::from_pem_slice(own.certificate.as_bytes()).map_err(|error| tls(error.to_string()))?];
    let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).map_err(|error| tls(error.to_string()))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| tls(error.to_string()))?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|error| tls(error.to_string()))?;
    Ok(TlsConnector::from(Arc::new(config)))
}
