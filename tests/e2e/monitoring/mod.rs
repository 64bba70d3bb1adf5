//! A real Prometheus looks at the operator and at databases: what dashboards ask it, and what it tells whom.

#![allow(clippy::indexing_slicing, reason = "what has another shape fails the test")]

mod alerts;
mod chart;
mod dashboards;
mod prometheus;

use std::path::Path;

use serde_json::Value;

use crate::harness::suite::root;
use crate::harness::{Case, Result};
use prometheus::Monitoring;

/// An alert of a case's cluster is told in whole sentences, and its runbook exists.
async fn fires(monitoring: &Monitoring, alert: &str, labels: &[(&str, &str)]) -> Result {
    let message = monitoring.fires(alert, labels).await?;
    for part in ["summary", "description"] {
        let text = message["annotations"][part].as_str().unwrap_or_default();
        let broken = ["{{", "<no value>", "error"].into_iter().find(|broken| text.contains(broken));
        assert!(!text.is_empty() && broken.is_none(), "{alert}: {part}: {text:?}");
    }
    let runbook = message["annotations"]["runbook_url"].as_str().unwrap_or_default();
    assert!(root().join(Path::new(runbook)).is_file(), "{alert}: {runbook}");
    assert!(
        message["annotations"]["dashboard"].as_str().is_some_and(|link| link.starts_with("/d/hello-")),
        "{message}"
    );
    Ok(())
}

/// Makes a backup by hand and waits for nothing.
async fn back_up(case: &Case, name: &str) -> Result {
    let object: Value = serde_json::json!({"apiVersion": "terry.com/v1", "kind": "HelloBackup",
        "metadata": {"name": name}, "spec": {"cluster": "db"}});
    case.apply(&object).await?.ok().map(drop)
}
