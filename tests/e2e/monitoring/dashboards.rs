//! Every query of every panel and variable finds something, and alerts about one cluster reach whoever is to be told.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::prometheus::Monitoring;
use super::{back_up, fires};
use crate::cluster::eventually;
use crate::harness::suite::root;
use crate::harness::{Case, READY, Result, Store, Suite, case};

/// Panels that may find nothing in a settled cluster, and why.
const MAY_BE_EMPTY: [(&str, &str); 2] =
    [("Backup under way", "none is"), ("Last proof", "tests/e2e/backup proves one; it takes a minute at least")];

#[tokio::test]
async fn dashboards_find_everything_they_ask_for_and_alerts_reach_a_receiver() -> Result {
    case("monitoring", look).await
}

async fn look(suite: &'static Suite, case: Case) -> Result {
    let store = Store::start(&case).await?;
    // MiB, and a share of the machine's disk.
    let thresholds = BTreeMap::from([("HelloReplicaLagging", 8.0), ("HelloSlotRetention", 0.000_01)]);
    let spec = json!({"storage": {"walSize": "1Gi"}, "backup": {"destination": store.destination("db")}});
    let (monitoring, running) = tokio::join!(Monitoring::start(suite, "look", &thresholds), case.running("db", spec));
    let monitoring = monitoring?;
    running?;
    let namespace = case.namespace();
    let db = [("namespace", namespace), ("cluster", "db")];

    fires(&monitoring, "HelloBackupTooOld", &db).await?;
    back_up(&case, "first").await?;
    let (primary, replica) =
        (case.primary("db").await?, case.replicas("db").await?.into_iter().next().ok_or("a replica")?);
    let lagging = [("namespace", namespace), ("cluster", "db"), ("instance", &replica)];
    let slot = [("namespace", namespace), ("pod", &primary), ("slot", "left_behind")];
    monitoring.is_quiet("HelloReplicaLagging", &lagging).await?;
    monitoring.is_quiet("HelloSlotRetention", &slot).await?;
    case.sql(&replica, "select pg_wal_replay_pause()").await?;
    case.sql(&primary, "select pg_create_physical_replication_slot('left_behind', true)").await?;
    case.sql(&primary, "create table big as select n, repeat('x', 100) from generate_series(1, 200000) n").await?;
    fires(&monitoring, "HelloReplicaLagging", &lagging).await?;
    fires(&monitoring, "HelloSlotRetention", &slot).await?;
    case.sql(&replica, "select pg_wal_replay_resume()").await?;
    case.sql(&primary, "select pg_drop_replication_slot('left_behind')").await?;
    monitoring.resolves("HelloReplicaLagging", &lagging).await?;
    monitoring.resolves("HelloSlotRetention", &slot).await?;
    monitoring.resolves("HelloBackupTooOld", &db).await?;

    for name in ["operator", "cluster"] {
        let dashboard: Value =
            serde_json::from_str(&std::fs::read_to_string(root().join(format!("dashboards/{name}.json")))?)?;
        variables(&monitoring, &dashboard, namespace).await?;
        eventually(READY, &format!("every panel of {name} to show something"), || async {
            let empty = empty(&monitoring, &dashboard, namespace).await.map_err(|error| error.to_string())?;
            if empty.is_empty() { Ok(()) } else { Err(format!("nothing is in {empty:#?}")) }
        })
        .await?;
    }
    Ok(())
}

/// As Grafana fills them in.
fn filled(text: &str, namespace: &str) -> String {
    text.replace("namespace=~\"$namespace\"", "namespace=~\".*\"")
        .replace("$namespace", namespace)
        .replace("$cluster", "db")
        .replace("$__rate_interval", "20s")
        .replace("$__range", "5m")
}

/// Each variable has values; those of the cluster's dashboard this cluster.
async fn variables(monitoring: &Monitoring, dashboard: &Value, namespace: &str) -> Result {
    for variable in dashboard["templating"]["list"].as_array().ok_or("variables")? {
        let Some(query) = variable["query"]["query"].as_str() else { continue };
        let query = filled(query, namespace);
        let inner =
            query.strip_prefix("label_values(").and_then(|query| query.strip_suffix(')')).ok_or("label_values")?;
        let (selector, label) = inner.rsplit_once(", ").ok_or("a label")?;
        let found = monitoring.label_values(selector, label).await?;
        let wanted = match (dashboard["uid"].as_str(), label) {
            (Some("hello-operator"), _) => "hello-system",
            (_, "cluster") => "db",
            _ => namespace,
        };
        assert!(found.iter().any(|value| value == wanted), "{query}: {found:?}");
    }
    Ok(())
}

/// Queries of panels that find nothing.
async fn empty(monitoring: &Monitoring, dashboard: &Value, namespace: &str) -> Result<Vec<String>> {
    let mut empty = Vec::new();
    for panel in dashboard["panels"].as_array().ok_or("panels")? {
        let title = panel["title"].as_str().unwrap_or_default();
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = filled(target["expr"].as_str().ok_or("a query")?, namespace);
            let allowed = MAY_BE_EMPTY.iter().any(|(panel, _)| *panel == title);
            if monitoring.query(&query).await?.is_empty() && !allowed {
                empty.push(format!("{title}: {query}"));
            }
        }
    }
    Ok(empty)
}
