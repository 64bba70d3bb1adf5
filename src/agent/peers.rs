//! What the other agents say of their instances.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::{Api, Client};
use rustls::pki_types::ServerName;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;

use super::Error;
use super::lease::call;
use super::tls::Tls;
use crate::api::agent::{FreezeRequest, HoldAnswer, HoldRequest, Report};
use crate::api::names::{CONTAINER, PORT_AGENT};
use crate::core::election::Answer;

const ANSWER: Duration = Duration::from_secs(2);
/// How long it takes to close a segment of WAL, at most.
const SWITCH: Duration = Duration::from_secs(10);
const MOST: usize = 256 * 1024;

/// The other agents.
#[derive(Clone)]
pub struct Peers {
    pods: Api<Pod>,
    tls: Tls,
    /// By instance, and whether it answered there last.
    addresses: Arc<Mutex<BTreeMap<String, (IpAddr, bool)>>>,
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
                    self.distrust(&instance).await;
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

    /// The address of an instance's Pod. One that did not answer is asked for again; while the API server is away, the last
    /// known one has to do.
    async fn address(&self, instance: &str) -> Result<IpAddr, Error> {
        let known = self.addresses.lock().await.get(instance).copied();
        if let Some((address, true)) = known {
            return Ok(address);
        }
        let pod = match call("a Pod", self.pods.get(instance)).await {
            Ok(pod) => pod,
            Err(error) => return known.map(|(address, _)| address).ok_or(error),
        };
        let address = pod
            .status
            .and_then(|status| status.pod_ip)
            .and_then(|address| address.parse().ok())
            .ok_or_else(|| peer(instance, "its Pod has no address yet".into()))?;
        self.addresses.lock().await.insert(instance.to_owned(), (address, true));
        Ok(address)
    }

    async fn distrust(&self, instance: &str) {
        if let Some((_, trusted)) = self.addresses.lock().await.get_mut(instance) {
            *trusted = false;
        }
    }

    async fn report(&self, instance: &str, address: IpAddr) -> Result<Report, Error> {
        self.request(instance, address, http::Request::get("/v1/report"), Bytes::new()).await
    }

    /// Asks one to freeze on this version. None when it refuses or does not answer in time.
    pub async fn freeze(&self, instance: &str, version: &str, limit: Duration) -> Option<Answer> {
        let question = FreezeRequest { version: version.to_owned() };
        // The API server answers, else there were no election; and a Pod may have come back with another address.
        self.distrust(instance).await;
        let answer: Answer = self.post(instance, "/v1/freeze", &question, limit).await?;
        // The certificate says which cluster it is, the answer which instance.
        (answer.instance == instance).then_some(answer)
    }

    /// Asks one to promise a hold. None when it refuses or does not answer in time.
    pub async fn hold(&self, instance: &str, question: &HoldRequest) -> Option<HoldAnswer> {
        let answer: HoldAnswer = self.post(instance, "/v1/hold", question, ANSWER).await?;
        (answer.instance == instance).then_some(answer)
    }

    /// Has the primary close its segment of WAL, so that a backup that a replica took becomes complete.
    pub async fn switch_wal(&self, instance: &str) -> Result<(), Error> {
        let switched: Option<serde_json::Value> = self.post(instance, "/v1/switch-wal", &(), SWITCH).await;
        switched.map(drop).ok_or_else(|| peer(instance, "it did not close its segment of WAL".into()))
    }

    async fn post<T: DeserializeOwned>(
        &self,
        instance: &str,
        path: &str,
        question: &impl Serialize,
        limit: Duration,
    ) -> Option<T> {
        let work = async {
            let body = serde_json::to_vec(question).map_err(|error| peer(instance, error.to_string()))?;
            let post = http::Request::post(path).header(http::header::CONTENT_TYPE, "application/json");
            let address = self.address(instance).await?;
            self.request(instance, address, post, body.into()).await
        };
        let error = match tokio::time::timeout(limit, work).await {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => error,
            Err(_) => Error::Timeout(format!("the agent of {instance}")),
        };
        tracing::info!(%error, path, "a member gives no answer");
        if !matches!(error, Error::Refused { .. }) {
            self.distrust(instance).await;
        }
        None
    }

    async fn request<T: DeserializeOwned>(
        &self,
        instance: &str,
        address: IpAddr,
        request: http::request::Builder,
        body: Bytes,
    ) -> Result<T, Error> {
        let said = |error: &dyn std::fmt::Display| peer(instance, error.to_string());
        let stream = TcpStream::connect((address, PORT_AGENT)).await.map_err(|error| said(&error))?;
        // Dialled by address, verified by name.
        let name = ServerName::try_from(instance.to_owned()).map_err(|error| said(&error))?;
        let stream = TlsConnector::from(self.tls.client()).connect(name, stream).await.map_err(|error| said(&error))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| said(&error))?;
        let connection = tokio::spawn(connection);
        let request =
            request.header(http::header::HOST, instance).body(Full::new(body)).map_err(|error| said(&error))?;
        let answer = match sender.send_request(request).await.map_err(|error| said(&error)) {
            Ok(response) => {
                let status = response.status();
                let body = Limited::new(response.into_body(), MOST).collect().await.map_err(|error| said(&error))?;
                let bytes = body.to_bytes();
                if status.is_success() {
                    serde_json::from_slice(&bytes).map_err(|error| said(&error))
                } else {
                    Err(Error::Refused {
                        instance: instance.to_owned(),
                        message: format!("{status} {}", String::from_utf8_lossy(&bytes)),
                    })
                }
            }
            Err(error) => Err(error),
        };
        connection.abort();
        answer
    }

    /// The status of the database's container in an instance's Pod.
    pub async fn container(&self, instance: &str) -> Result<Option<ContainerStatus>, Error> {
        let pod = call("a Pod", self.pods.get_opt(instance)).await?;
        let statuses = pod.and_then(|pod| pod.status).and_then(|status| status.container_statuses).unwrap_or_default();
        Ok(statuses.into_iter().find(|status| status.name == CONTAINER))
    }
}

fn peer(instance: &str, message: String) -> Error {
    Error::Peer { instance: instance.to_owned(), message }
}
