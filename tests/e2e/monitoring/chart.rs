//! What the chart makes for a Prometheus operator is what its definitions say.

use std::path::Path;

use super::prometheus::tool;
use crate::harness::program::run;
use crate::harness::suite::{OPERATOR_NAMESPACE, root};
use crate::harness::{Case, Result, SOON, Suite, alone};

const GROUP: &str = "monitoring.coreos.com";
const KINDS: [&str; 3] = ["prometheusrules", "servicemonitors", "podmonitors"];
const ON: [&str; 3] = ["alerts.enabled=true", "monitors.enabled=true", "dashboards.enabled=true"];

#[tokio::test]
async fn rules_monitors_and_dashboards_are_installed_where_their_definitions_are_and_go_again() -> Result {
    alone("monitoring-chart", objects).await
}

async fn objects(suite: &'static Suite, _: Case) -> Result {
    let definitions = tool("monitoring-crds").await?.to_string_lossy().into_owned();
    suite.kubectl(&["apply", "--server-side", "-f", &definitions], "").await?.ok()?;
    suite.kubectl(&["wait", "--for=condition=Established", "-f", &definitions, "--timeout=30s"], "").await?.ok()?;

    // No field that they do not know: the API server itself would drop it in silence.
    let chart = root().join("charts/hello-operator").to_string_lossy().into_owned();
    let mut template = vec!["template", "hello", &chart, "--namespace", OPERATOR_NAMESPACE];
    template.extend(["--show-only", "templates/monitors.yaml", "--show-only", "templates/prometheusrule.yaml"]);
    template.extend(ON.iter().flat_map(|setting| ["--set", setting]));
    let rendered = run(SOON, Path::new(suite.helm()), template, "").await?.ok()?;
    let strict = ["apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"];
    suite.kubectl(&strict, &rendered).await?.ok()?;

    suite.install(&ON).await?;
    for kind in KINDS {
        suite.kubectl(&["-n", OPERATOR_NAMESPACE, "get", kind, "hello-operator"], "").await?.ok()?;
    }
    let dashboards = ["-n", OPERATOR_NAMESPACE, "get", "configmaps", "-l", "grafana_dashboard=1", "-o", "name"];
    let found = suite.kubectl(&dashboards, "").await?.ok()?;
    assert_eq!(
        found.lines().collect::<Vec<_>>(),
        ["configmap/hello-operator-dashboard-cluster", "configmap/hello-operator-dashboard-operator"]
    );

    suite.install(&[]).await?;
    let kinds = KINDS.join(",");
    let left = suite.kubectl(&["get", &kinds, "-A", "-o", "name"], "").await?.ok()?;
    assert_eq!(left, "", "they go with the values that asked for them");
    assert_eq!(suite.kubectl(&dashboards, "").await?.ok()?, "");
    let names = KINDS.map(|kind| format!("{kind}.{GROUP}"));
    let delete: Vec<&str> = ["delete", "crd"].into_iter().chain(names.iter().map(String::as_str)).collect();
    suite.kubectl(&delete, "").await?.ok().map(drop)
}
