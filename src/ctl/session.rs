//! The connection with the user's own rights, and where answers go.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::config::KubeConfigOptions;
use kube::{Api, Client, Config, Resource, ResourceExt as _};
use serde_json::{Value, json};

use super::error::{Error, call};
use super::view::Paint;
use crate::api::names::{LABEL_CLUSTER, LABEL_INSTANCE, Names};
use crate::api::spec::HelloOperator;
use crate::config::ctl::{Place, TerminalEnv};

const CONNECT: Duration = Duration::from_secs(5);

/// Field manager of what a person asks for with this tool.
const MANAGER: &str = "kubectl-hello";

/// A connection, and a namespace.
pub struct Session {
    /// The client.
    pub client: Client,
    /// The namespace.
    pub namespace: String,
    /// Colours of what goes to stdout.
    pub paint: Paint,
}

/// An object as it was read: whole, and as we know it.
pub struct Read {
    /// All that is there, also what a newer operator added.
    pub raw: DynamicObject,
    /// What we know.
    pub object: HelloOperator,
}

impl Session {
    /// With the kubeconfig, or with the Pod's own account where there is none.
    pub async fn open(place: &Place, terminal: &TerminalEnv) -> Result<Self, Error> {
        let options = KubeConfigOptions { context: place.context.clone(), ..KubeConfigOptions::default() };
        let mut config = match Config::from_kubeconfig(&options).await {
            Ok(config) => config,
            Err(error) if place.context.is_some() => return Err(Error::Config(error.to_string())),
            Err(error) => Config::incluster().map_err(|_| Error::Config(error.to_string()))?,
        };
        // Only that: a session of psql, and a log that is followed, may be silent for hours. Single calls are bounded.
        config.connect_timeout = Some(CONNECT);
        let namespace = place.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| Error::Config(error.to_string()))?;
        let paint = Paint::new(std::io::stdout().is_terminal() && !terminal.plain);
        Ok(Self { client, namespace, paint })
    }

    /// Objects of a kind in the namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The HelloOperator of this name.
    pub async fn read(&self, name: &str) -> Result<Read, Error> {
        let objects: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &self.namespace, &ApiResource::erase::<HelloOperator>(&()));
        let what = format!("HelloOperator {name} in namespace {} cannot be read", self.namespace);
        let raw = call(what, objects.get(name)).await?;
        understand(name, raw)
    }

    /// Changes an object that was read, if it is still the same one.
    pub async fn change(&self, object: &HelloOperator, mut patch: Value) -> Result<HelloOperator, Error> {
        if let Some(metadata) = patch
            .as_object_mut()
            .and_then(|fields| fields.entry("metadata").or_insert_with(|| json!({})).as_object_mut())
        {
            metadata.insert("uid".into(), json!(object.metadata.uid));
        }
        let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
        let name = object.name_any();
        let objects = self.api::<HelloOperator>();
        call(format!("HelloOperator {name} cannot be changed"), objects.patch(&name, &params, &Patch::Merge(&patch)))
            .await
    }

    /// The Lease of a cluster's primary.
    pub async fn lease(&self, cluster: &str) -> Result<Option<Lease>, Error> {
        let name = Names::new(cluster).lease();
        call(format!("Lease {name} cannot be read"), self.api::<Lease>().get_opt(&name)).await
    }

    /// The instances' Pods, in order.
    pub async fn pods(&self, cluster: &str) -> Result<Vec<Pod>, Error> {
        let selector = ListParams::default().labels(&format!("{LABEL_CLUSTER}={cluster},{LABEL_INSTANCE}"));
        let mut pods =
            call(format!("Pods of {cluster} cannot be listed"), self.api::<Pod>().list(&selector)).await?.items;
        pods.sort_by_key(kube::ResourceExt::name_any);
        Ok(pods)
    }
}

/// An object as we know it.
fn understand(name: &str, raw: DynamicObject) -> Result<Read, Error> {
    // Our definition always fills the spec. Without it another one stands over ours, and the next write of this object would
    // erase what only the store still has.
    if !raw.data.get("spec").is_some_and(Value::is_object) {
        return Err(Error::Refused(format!(
            "HelloOperator {name} reads without its spec: another definition of the same name stands over ours, and nothing is shown or written until ours is back (hello-operator crds | kubectl apply -f -)"
        )));
    }
    let object = raw.clone().try_parse::<HelloOperator>().map_err(|error| {
        Error::Refused(format!("HelloOperator {name} cannot be understood: is this tool older than it? {error}"))
    })?;
    Ok(Read { raw, object })
}

/// Writes an answer.
pub fn answer(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Tells what happens on the way to an answer.
pub fn tell(text: &str) {
    // That nobody hears it changes nothing of what is done.
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_under_a_bare_definition_is_neither_shown_nor_written() {
        let object = |extra: Value| {
            let mut object = json!({"apiVersion": "terry.com/v1", "kind": "HelloOperator", "metadata": {"name": "db"}});
            object.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            understand("db", serde_json::from_value(object).unwrap()).map_err(|error| error.to_string())
        };
        assert!(object(json!({"spec": {}})).is_ok());
        let refused = object(json!({})).err().unwrap();
        assert!(refused.contains("another definition of the same name"), "{refused}");
        let refused = object(json!({"spec": {"state": "Sleeping"}})).err().unwrap();
        assert!(refused.contains("is this tool older"), "{refused}");
    }
}
