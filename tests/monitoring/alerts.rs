//! Every alert has a runbook, cases for promtool, and a place in the values' schema; and nothing else has.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use super::{all_exist, metrics, path, text, yaml};

const HEADINGS: [&str; 4] = ["## Meaning", "## Impact", "## Diagnosis", "## Remedy"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Alert {
    alert: String,
    severity: String,
    r#for: String,
    threshold: Option<f64>,
    expr: String,
    summary: String,
    description: String,
}

fn alerts() -> BTreeMap<String, Alert> {
    let all: Vec<Alert> = yaml("charts/hello-operator/files/alerts.yaml");
    let count = all.len();
    let alerts: BTreeMap<_, _> = all.into_iter().map(|alert| (alert.alert.clone(), alert)).collect();
    assert_eq!(alerts.len(), count, "two alerts of one name");
    alerts
}

fn names() -> BTreeSet<String> {
    alerts().into_keys().collect()
}

#[test]
fn alerts_are_whole_and_ask_for_metrics_that_exist() {
    for (name, alert) in alerts() {
        assert!(name.starts_with("Hello"), "{name}");
        assert!(["critical", "warning"].contains(&alert.severity.as_str()), "{name}: {}", alert.severity);
        assert!(!alert.r#for.is_empty());
        assert_eq!(alert.threshold.is_some(), alert.expr.contains("$threshold"), "{name}: a threshold without effect");
        all_exist(&alert.expr, &name);
        assert!(!metrics(&alert.expr).is_empty(), "{name}");
        // Of what it speaks, in both sentences; these two speak of the whole installation.
        let whole = ["HelloOperatorDown", "HelloOperatorCrdDegraded"].contains(&name.as_str());
        assert!(whole || alert.summary.contains("{{ $labels.namespace }}"), "{name}: {}", alert.summary);
        assert!(
            alert.description.contains("{{ $") && alert.description.ends_with('.'),
            "{name}: {}",
            alert.description
        );
    }
}

#[test]
fn the_schema_of_the_values_knows_every_alert() {
    let schema: Value = serde_json::from_str(&text("charts/hello-operator/values.schema.json")).unwrap();
    let known = schema.pointer("/definitions/alert/enum").unwrap().as_array().unwrap();
    assert_eq!(known.iter().map(|name| name.as_str().unwrap().to_owned()).collect::<BTreeSet<_>>(), names());
}

#[test]
fn every_alert_has_a_runbook_and_every_runbook_an_alert() {
    let files = std::fs::read_dir(path("docs/runbooks")).unwrap();
    let found: BTreeSet<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(found, names().iter().map(|name| format!("{name}.md")).collect());
    for name in names() {
        let page = text(&format!("docs/runbooks/{name}.md"));
        assert!(page.starts_with(&format!("# {name}\n")), "{name}: the title");
        let headings: Vec<_> = page.lines().filter(|line| line.starts_with("## ")).collect();
        assert_eq!(headings, HEADINGS, "{name}");
        let diagnosis = page.split("## Diagnosis").nth(1).unwrap().split("## Remedy").next().unwrap();
        assert!(diagnosis.contains("```\n"), "{name}: a diagnosis has commands");
        for part in page.split("\n## ").skip(1) {
            assert!(part.lines().skip(1).any(|line| !line.trim().is_empty()), "{name}: an empty part");
        }
    }
}

#[derive(Deserialize)]
struct Cases {
    tests: Vec<Test>,
}

#[derive(Deserialize)]
struct Test {
    name: String,
    input_series: Vec<Series>,
    promql_expr_test: Vec<Expectation>,
}

#[derive(Deserialize)]
struct Series {
    series: String,
}

#[derive(Deserialize)]
struct Expectation {
    #[serde(default)]
    exp_samples: Vec<Sample>,
}

#[derive(Deserialize)]
struct Sample {
    labels: String,
}

#[test]
fn every_alert_has_a_case_in_which_it_fires_and_the_case_in_which_all_is_well_has_what_it_looks_at() {
    let cases: Cases = yaml("tests/alerts/cases.yaml");
    let (well, fires): (Vec<_>, Vec<_>) = cases.tests.iter().partition(|test| test.name == "all is well");
    let seen: BTreeSet<_> =
        well.iter().flat_map(|test| &test.input_series).flat_map(|series| metrics(&series.series)).collect();
    for (name, alert) in alerts() {
        for metric in metrics(&alert.expr) {
            assert!(seen.contains(&metric), "{name} looks at {metric}, which is missing where all is well");
        }
    }
    assert!(well.iter().flat_map(|test| &test.promql_expr_test).all(|expected| expected.exp_samples.is_empty()));

    let mut firing = BTreeSet::new();
    for test in fires {
        let name = test.name.split(',').next().unwrap();
        let (before, after) = test.promql_expr_test.split_at(1);
        assert!(before[0].exp_samples.is_empty(), "{name}: silent at first");
        assert!(after[0].exp_samples[0].labels.contains(&format!("alertname=\"{name}\"")), "{name}");
        firing.insert(name.to_owned());
    }
    assert_eq!(firing, names());
}
