//! What the other agents say of their instances.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;

use super::Error;
use super::lease::call;
use super::tls::Tls;
use crate::api::agent::Report;
use crate::api::names::PORT_AGENT;

const ANSWER: Duration = Duration::from_secs(2);
const MOST: usize = 256 * 1024;

/// The other agents.
#[derive(Clone)]
pub struct Peers {
    pods: Api<Pod>,
    tls: Tls,
    addresses: Arc<Mutex<BTreeMap<String, IpAddr>>>,
}

/// What one of them said.
#[derive(Debug, Clone)]
pub struct Heard {
    /// Name of the instance.
    pub instance: String,
    /// Address of its Pod.
    pub address: IpAddr,
    /// What it said.
    pub report: Report,
}

impl Peers {
    /// The other agents in this namespace.
    pub fn new(client: Client, namespace: &str, tls: Tls) -> Self {
        Self { pods: Api::namespaced(client, namespace), tls, addresses: Arc::default() }
    }

    /// Asks all of them at once; who does not answer is not in the answer.
    pub async fn ask(&self, instances: Vec<String>) -> Vec<Heard> {
        let asked = instances.into_iter().map(|instance| async move {
            match self.ask_one(&instance).await {
                Ok(heard) => Some(heard),
                Err(error) => {
                    tracing::debug!(%error, %instance, "an agent did not answer");
                    self.addresses.lock().await.remove(&instance);
                    None
                }
            }
        });
        futures::future::join_all(asked).await.into_iter().flatten().collect()
    }

    async fn ask_one(&self, instance: &str) -> Result<Heard, Error> {
        let address = self.address(instance).await?;
        let report = tokio::time::timeout(ANSWER, self.report(instance, address))
            .await
            .map_err(|_| Error::Timeout(format!("the agent of {instance}")))??;
        // An address may have gone to another Pod; the certificate says which cluster it is, the report which instance.
        if report.instance != instance {
            return Err(peer(instance, format!("{} answered", report.instance)));
        }
        Ok(Heard { instance: instance.to_owned(), address, report })
    }

    async fn address(&self, instance: &str) -> Result<IpAddr, Error> {
        if let Some(address) = self.addresses.lock().await.get(instance) {
            return Ok(*address);
        }
        let pod = call("a Pod", self.pods.get(instance)).await?;
        let address = pod
            .status
            .and_then(|status| status.pod_ip)
            .and_then(|address| address.parse().ok())
            .ok_or_else(|| peer(instance, "its Pod has no address yet".into()))?;
        self.addresses.lock().await.insert(instance.to_owned(), address);
        Ok(address)
    }

    async fn report(&self, instance: &str, address: IpAddr) -> Result<Report, Error> {
        let said = |error: &dyn std::fmt::Display| peer(instance, error.to_string());
        let stream = TcpStream::connect((address, PORT_AGENT)).await.map_err(|error| said(&error))?;
        // Dialled by address, verified by name.
        let name = ServerName::try_from(instance.to_owned()).map_err(|error| said(&error))?;
        let stream = TlsConnector::from(self.tls.client()).connect(name, stream).await.map_err(|error| said(&error))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| said(&error))?;
        let connection = tokio::spawn(connection);
        let request = http::Request::get("/v1/report")
            .header(http::header::HOST, instance)
            .body(Empty::<Bytes>::new())
            .map_err(|error| said(&error))?;
        let response = sender.send_request(request).await.map_err(|error| said(&error));
        let answer = match response {
            Ok(response) if response.status().is_success() => {
                let body = Limited::new(response.into_body(), MOST).collect().await.map_err(|error| said(&error))?;
                serde_json::from_slice(&body.to_bytes()).map_err(|error| said(&error))
            }
            Ok(response) => Err(said(&response.status())),
            Err(error) => Err(error),
        };
        connection.abort();
        answer
    }
}

fn peer(instance: &str, message: String) -> Error {
    Error::Peer { instance: instance.to_owned(), message }
}
