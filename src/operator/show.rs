//! `hello-operator plan`: what a reconcile would do, and nothing else.

use std::fmt::Write as _;
use std::sync::Arc;

use kube::Api;
use kube::api::DynamicObject;

use super::agents::Agents;
use super::client;
use super::error::{Error, call};
use super::mirror::ClusterKey;
use super::object::Entry;
use super::observe::{Observer, ToAgents};
use super::queue::Queue;
use super::secrets::Secrets;
use super::streams::{self, Mirrors, Watching, hello_operators};
use crate::api::status::HelloOperatorStatus;
use crate::config::PlanArgs;
use crate::core::accept::Refused;
use crate::core::plan::{Plan, plan};
use crate::core::status::status;
use crate::telemetry::metrics::OperatorMetrics;

/// How long it waits for the listings.
const SYNC: std::time::Duration = std::time::Duration::from_secs(20);

/// What a reconcile of the object would do now, as text.
pub async fn show(args: PlanArgs) -> Result<String, Error> {
    let (config, inside) = client::configuration().await?;
    let config = client::bounded(&config);
    let namespace = args.namespace.unwrap_or_else(|| config.default_namespace.clone());
    let metrics = Arc::new(OperatorMetrics::new()?);
    let reader = client::reader(&config, Arc::clone(&metrics))?;
    let objects = Api::<DynamicObject>::namespaced_with(reader.clone(), &namespace, &hello_operators());
    let object = call(format!("HelloOperator {} cannot be read", args.name), objects.get(&args.name)).await?;
    let (key, entry) = Entry::read(object).ok_or_else(|| Error::Internal("the object has no name".into()))?;

    let mirrors = Arc::new(Mirrors::default());
    let watching = Watching {
        client: reader.clone(),
        mirrors: Arc::clone(&mirrors),
        queue: Arc::new(Queue::default()),
        metrics,
        // A person may have rights in this namespace only.
        scope: Some(key.namespace.clone()),
    };
    streams::start(&watching, |_, _| {});
    let synced = async {
        while mirrors.unsynced().is_some() || !mirrors.backups.synced() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    // What is not there by then is Unknown in the world, and the plan says so.
    let _ = tokio::time::timeout(SYNC, synced).await;
    let degraded = bare(&reader).await?;
    let secrets = Arc::new(Secrets::new(reader.clone()));
    let agents = Arc::new(Agents::new((!inside).then(|| reader.clone())));
    let to_agents = ToAgents { image: "the operator's own".into(), traces: None };
    let observer = Observer::new(reader, mirrors, secrets, agents, to_agents);
    let mut world = Box::pin(observer.observe(&key, entry.facts(&key), (degraded, None), Vec::new())).await;
    // Where traces go is said in the operator's own environment.
    world.traces = world.config.present().and_then(|config| config.traces.clone());
    let plan = plan(&world);
    let status = status(&world, &plan, &[]);
    Ok(describe(&key, &plan, &status))
}

async fn bare(client: &kube::Client) -> Result<bool, Error> {
    let crds = Api::all(client.clone());
    match call("the CRD cannot be read", crds.get(crate::api::names::CRD_NAME)).await {
        Ok(crd) => Ok(super::crd::is_bare(super::crd::Definition::Operators, &crd)),
        // It belongs to the whole cluster, and a person may have rights in this namespace only.
        Err(error) if error.code() == Some(403) => Ok(false),
        Err(error) => Err(error),
    }
}

fn describe(key: &ClusterKey, plan: &Plan, status: &HelloOperatorStatus) -> String {
    let mut out = format!("HelloOperator {key}\n");
    for condition in &status.conditions {
        let _ = writeln!(out, "  {}={}: {}", condition.type_, condition.status, condition.message);
    }
    if let Some(backup) = &status.backup {
        if let Some(next) = &backup.next_run {
            let _ = writeln!(out, "  the next scheduled backup is due at {next}");
        }
        for expiring in &backup.expiring {
            let _ = writeln!(out, "  the retention will remove backup {}: {}", expiring.backup_id, expiring.reason);
        }
    }
    match &plan.refused {
        Some(Refused::Invalid(why)) => {
            let _ = writeln!(out, "refused: {why}");
        }
        Some(Refused::Unknown(why)) => {
            let _ = writeln!(out, "not known enough: {why}");
        }
        None if plan.steps.is_empty() => out.push_str("nothing would be done\n"),
        None => {
            for step in &plan.steps {
                let _ = writeln!(out, "- {} {}: {}", verb(&step.action), step.id, step.reason);
            }
        }
    }
    out
}

fn verb(action: &crate::core::plan::Action) -> &'static str {
    use crate::core::plan::Action;
    match action {
        Action::Create(_) => "create",
        Action::Apply(_) => "apply",
        Action::MakeSecret { .. } => "make",
        Action::SetOwner { .. } => "set",
        Action::Grow { .. } | Action::MarkPod { .. } => "change",
        Action::Delete { .. }
        | Action::Restart { .. }
        | Action::Switchover { .. }
        | Action::Leave { .. }
        | Action::Backup { .. }
        | Action::CancelBackup { .. } => "carry out",
    }
}
