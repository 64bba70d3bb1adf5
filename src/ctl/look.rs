//! `status`, `why` and `plan`: what is read for them.

use std::collections::BTreeMap;

use http::Request;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};

use super::error::{Error, call};
use super::session::{Session, answer};
use super::view::{next, status, why};
use crate::api::backup::HelloBackup;
use crate::api::names::{KIND, KIND_BACKUP, PORT_HEALTH};
use crate::api::spec::HelloOperator;
use crate::config::ctl::{Form, LookArgs};

/// The metric of the primary's agent that says how far replicas are behind.
const LAG: &str = "hello_pg_replication_lag_bytes{instance=\"";

/// One cluster on one screen.
pub async fn status(session: &Session, args: &LookArgs) -> Result<(), Error> {
    let object = session.read(&args.name).await?.object;
    let seen = see(session, object).await;
    match args.output {
        Form::Text => answer(&status::text(&seen, session.paint)),
        Form::Json => json(&status::view(&seen)),
    }
}

/// What a screen shows of an object that was read.
pub async fn see(session: &Session, object: HelloOperator) -> status::Seen {
    let name = object.name_any();
    let primary = object.status.as_ref().and_then(|status| status.primary.as_ref()).map(|p| p.instance.clone());
    let (lease, backups, lag) = tokio::join!(session.lease(&name), backups(session, &name), async {
        match &primary {
            Some(primary) => lag(session, primary).await.unwrap_or_default(),
            None => BTreeMap::new(),
        }
    });
    status::Seen {
        now: Timestamp::now(),
        object,
        lease: lease.map_err(|error| error.to_string()),
        backups: backups.map_err(|error| error.to_string()),
        lag,
    }
}

/// HelloBackups of a cluster.
pub async fn backups(session: &Session, cluster: &str) -> Result<Vec<HelloBackup>, Error> {
    let all = call("HelloBackups cannot be listed", session.api::<HelloBackup>().list(&ListParams::default())).await?;
    Ok(all.items.into_iter().filter(|backup| backup.spec.cluster == cluster).collect())
}

/// How far replicas are behind now, from the primary's metrics by way of the API server. Who may not, or cannot reach it, goes
/// on with what the status says.
async fn lag(session: &Session, primary: &str) -> Option<BTreeMap<String, i64>> {
    let path = format!("/api/v1/namespaces/{}/pods/{primary}:{PORT_HEALTH}/proxy/metrics", session.namespace);
    let request = Request::get(path).body(Vec::new()).ok()?;
    let metrics = call("metrics", session.client.request_text(request)).await.ok()?;
    Some(lag_of(&metrics))
}

fn lag_of(metrics: &str) -> BTreeMap<String, i64> {
    metrics
        .lines()
        .filter_map(|line| {
            let (instance, value) = line.strip_prefix(LAG)?.split_once("\"} ")?;
            Some((instance.to_owned(), value.trim().parse().ok()?))
        })
        .collect()
}

/// What happened, and why.
pub async fn why(session: &Session, args: &LookArgs) -> Result<(), Error> {
    let object = session.read(&args.name).await?.object;
    let events = events(session, &args.name).await;
    let lacking = events.as_ref().err().map(ToString::to_string);
    let entries = why::entries(&object, &events.unwrap_or_default());
    match args.output {
        Form::Text => answer(&why::text(&entries, lacking.as_deref(), session.paint)),
        Form::Json => json(&entries),
    }
}

/// Events of a cluster and of its backups.
pub async fn events(session: &Session, cluster: &str) -> Result<Vec<Event>, Error> {
    let events: Api<Event> = session.api();
    let of = |kind: &str| ListParams::default().fields(&format!("involvedObject.kind={kind}"));
    let what = "events cannot be listed";
    let (operators, backups) = (of(KIND), of(KIND_BACKUP));
    let (own, of_backups, known) = tokio::join!(
        call(what, events.list(&operators)),
        call(what, events.list(&backups)),
        self::backups(session, cluster)
    );
    let names: Vec<String> = known.unwrap_or_default().iter().map(kube::ResourceExt::name_any).collect();
    let about = |event: &Event| event.involved_object.name.clone().unwrap_or_default();
    let mut all: Vec<Event> = own?.items.into_iter().filter(|event| about(event) == cluster).collect();
    all.extend(of_backups?.items.into_iter().filter(|event| names.contains(&about(event))));
    Ok(all)
}

/// What the operator would do next.
pub async fn plan(session: &Session, args: &LookArgs) -> Result<(), Error> {
    let object = session.read(&args.name).await?.object;
    match args.output {
        Form::Text => answer(&next::text(&object, Timestamp::now(), session.paint)),
        Form::Json => json(&next::next(&object)),
    }
}

fn json(value: &impl serde::Serialize) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Error::Refused(error.to_string()))?;
    answer(&format!("{text}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_is_read_from_the_metrics() {
        let metrics = "# HELP x\nhello_pg_up 1\nhello_pg_replication_lag_bytes{instance=\"db-2\"} 100\n";
        assert_eq!(lag_of(metrics), [("db-2".to_owned(), 100)].into());
    }
}
