//! Nobody changes anything: who writes all the same?

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;

use super::{Case, READY, Result};
use crate::cluster::{AuditLog, eventually};

/// Counts the writes other than Leases by everybody but this test, and Kubernetes itself.
pub async fn writes_while_idle(case: &Case, watched: Duration) -> Result<BTreeMap<String, usize>> {
    let namespaces: Api<Namespace> = Api::all(case.client());
    eventually(READY, "the namespaces of earlier cases to be gone", || async {
        let ours = ListParams::default().labels("hello-operator/e2e");
        let there = namespaces.list(&ours).await.map_err(|error| error.to_string())?.items.len();
        if there == 1 { Ok(()) } else { Err(format!("{there} are there")) }
    })
    .await?;
    case.hello("one", json!({"instances": 1})).await?;
    case.hello("two", json!({"instances": 2})).await?;
    case.hello("three", json!({"instances": 3})).await?;
    for name in ["one", "two", "three"] {
        case.ready(name).await?;
    }
    // The last event of the last status may be on its way: quiet begins with the first second without a write.
    let mut log = case.audit_log()?;
    let mut quiet = false;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        quiet = writes(&mut log)?.is_empty();
        if quiet {
            break;
        }
    }
    if !quiet {
        return Err("20 seconds after all were settled there is still something written each second".into());
    }
    tokio::time::sleep(watched).await;
    writes(&mut log)
}

fn writes(log: &mut AuditLog) -> Result<BTreeMap<String, usize>> {
    let mut found = BTreeMap::new();
    for event in log.read()? {
        if event.is_write() && !event.is_about("leases") && event.user_agent != "hello-operator-tests" {
            *found.entry(format!("{} {} {} ({:?})", event.user, event.verb, event.uri, event.code)).or_default() += 1;
        }
    }
    Ok(found)
}
