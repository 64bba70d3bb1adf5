//! The register's Lease and the configuration, as the API server has them.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Client};
use kube_runtime::WatchStreamExt;
use kube_runtime::watcher::{self, watcher};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::Error;
use super::run::Event;
use crate::api::config::ClusterConfig;
use crate::api::names::{CONFIG_KEY, Names};

/// How long a request may take. Several fit between two deadlines of the Lease.
pub const REQUEST: Duration = Duration::from_secs(3);

/// How a write ended.
#[derive(Debug)]
pub enum Written {
    /// It is done, and this is the present version.
    Done(Box<Lease>),
    /// It is not done: another version is the present one, or there is none.
    Conflict,
    /// It is not done: the API server refused it.
    Refused(Error),
    /// Nobody knows.
    Unknown(Error),
}

/// The Lease `<name>-primary`.
#[derive(Clone)]
pub struct LeaseApi {
    api: Api<Lease>,
    name: String,
}

impl LeaseApi {
    /// The Lease of this cluster.
    pub fn new(client: Client, namespace: &str, names: &Names) -> Self {
        Self { api: Api::namespaced(client, namespace), name: names.lease() }
    }

    /// A consistent read; None when there is none.
    pub async fn get(&self) -> Result<Option<Lease>, Error> {
        call("the Lease", self.api.get_opt(&self.name)).await
    }

    /// Replaces it, if uid and resourceVersion are still the ones that were read.
    pub async fn replace(&self, lease: &Lease) -> Written {
        match call("a change of the Lease", self.api.replace(&self.name, &PostParams::default(), lease)).await {
            Ok(lease) => Written::Done(Box::new(lease)),
            Err(Error::Api { what, source }) => match source.as_ref() {
                kube::Error::Api(status) if matches!(status.code, 404 | 409) => Written::Conflict,
                // It was looked at and refused. Anything in the 500s may have been carried out.
                kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 408 => {
                    Written::Refused(Error::Api { what, source })
                }
                _ => Written::Unknown(Error::Api { what, source }),
            },
            Err(error) => Written::Unknown(error),
        }
    }
}

/// Waits for an answer of the API server, but not for ever.
pub async fn call<T>(what: &'static str, request: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
    tokio::time::timeout(REQUEST, request)
        .await
        .map_err(|_| Error::Timeout(format!("the API server, asked for {what},")))?
        .map_err(|source| Error::Api { what, source: Box::new(source) })
}

/// Watches Lease and configuration for the life of the agent.
pub fn watch(client: Client, namespace: &str, names: &Names, events: &mpsc::Sender<Event>) {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    tokio::spawn(follow(leases, names.lease(), events.clone(), |lease| Event::LeaseSeen(Box::new(lease))));
    let maps: Api<ConfigMap> = Api::namespaced(client, namespace);
    tokio::spawn(follow(maps, names.config_map(), events.clone(), |map| Event::Config(parse(&map).map(Box::new))));
}

/// The configuration in its ConfigMap.
pub fn parse(map: &ConfigMap) -> Result<ClusterConfig, Error> {
    let invalid = |message: String| Error::Invalid { what: "the configuration that the operator wrote", message };
    let text =
        map.data.as_ref().and_then(|data| data.get(CONFIG_KEY)).ok_or_else(|| invalid("it is missing".into()))?;
    serde_json::from_str(text).map_err(|error| invalid(error.to_string()))
}

async fn follow<K>(api: Api<K>, name: String, events: mpsc::Sender<Event>, event: impl Fn(K) -> Event)
where
    K: kube::Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    // Only one object by its name: that is what the agent may watch, and all that it needs.
    let config = watcher::Config::default().fields(&format!("metadata.name={name}")).timeout(200);
    let mut stream = watcher(api, config).default_backoff().applied_objects().boxed();
    loop {
        match stream.try_next().await {
            Ok(Some(object)) => {
                if events.send(event(object)).await.is_err() {
                    return;
                }
            }
            Ok(None) => return,
            // The stream backs off and begins anew by itself.
            Err(error) => tracing::debug!(%error, object = %name, "the watch was interrupted"),
        }
    }
}
