//! `hello-operator check`: whether an installation works. `helm test` runs it in a Pod of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client};

use super::crd::{Definition, same_schema};
use super::error::{Error, call};
use super::{LEASE, client};
use crate::api::names::{GROUP, VERSION};
use crate::config::CheckArgs;
use crate::telemetry::metrics::OperatorMetrics;

/// What we need of what is served.
const SERVED: [&str; 5] =
    ["helloopperators", "helloopperators/status", "helloopperators/scale", "hellobackups", "hellobackups/status"];
/// A leader renews more often than that; one that takes over needs longer.
const RENEWED: Duration = Duration::from_secs(60);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(500);

/// What was found to be well, as text.
pub async fn check(args: CheckArgs) -> Result<String, Error> {
    let (config, _) = client::configuration().await?;
    let reader = client::reader(&client::bounded(&config), Arc::new(OperatorMetrics::new()?))?;
    served(&reader).await?;
    let mut said = format!("{GROUP}/{VERSION} is served with what we need\n");
    if !args.served_only {
        definitions(&reader).await?;
        said.push_str("the definitions are those of this version\n");
    }
    let holder = leader(reader, &args.namespace).await?;
    Ok(format!("{said}the leader {holder} renews its Lease\n"))
}

async fn served(reader: &Client) -> Result<(), Error> {
    let version = format!("{GROUP}/{VERSION}");
    let list = call(format!("{version} is not served"), reader.list_api_group_resources(&version)).await?;
    let missing: Vec<&str> =
        SERVED.into_iter().filter(|wanted| list.resources.iter().all(|resource| resource.name != *wanted)).collect();
    if missing.is_empty() { Ok(()) } else { Err(failed(format!("{version} lacks {}", missing.join(", ")))) }
}

async fn definitions(reader: &Client) -> Result<(), Error> {
    let api = Api::<CustomResourceDefinition>::all(reader.clone());
    for definition in Definition::ALL {
        let name = definition.name();
        let there = call(format!("the CRD {name} cannot be read"), api.get(name)).await?;
        if !same_schema(definition, &there) {
            return Err(failed(format!("the CRD {name} is of another version: apply ours, or set crds.enabled")));
        }
    }
    Ok(())
}

/// Its times are another machine's: what counts is that it changes while we look.
async fn leader(reader: Client, namespace: &str) -> Result<String, Error> {
    let leases = Api::<Lease>::namespaced(reader, namespace);
    let began = Instant::now();
    let mut first = None;
    while began.elapsed() < RENEWED {
        let lease = call("the Lease of the leader cannot be read", leases.get_opt(LEASE)).await?;
        let held = lease.and_then(|lease| Some((lease.spec?.holder_identity?, lease.metadata.resource_version)));
        if let Some((holder, version)) = held.filter(|(holder, _)| !holder.is_empty()) {
            match &first {
                Some((before, old)) if *before == holder && *old != version => return Ok(holder),
                Some((before, _)) if *before == holder => {}
                _ => first = Some((holder, version)),
            }
        }
        tokio::time::sleep(LOOK).await;
    }
    Err(failed(format!(
        "nobody renewed the Lease {LEASE} in {namespace} for {} s: see the operator's log",
        RENEWED.as_secs()
    )))
}

fn failed(what: String) -> Error {
    Error::Check(what)
}
