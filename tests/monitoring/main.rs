//! Alerts, runbooks and dashboards agree with each other, with the metrics that exist and with what is generated from
//! them. promtool runs the rules themselves (`make alerts`), a real Prometheus the queries (`tests/e2e/monitoring`).

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "clippy.toml allows these in tests, but does not see that helpers here are tests too"
)]

mod alerts;
mod dashboards;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

fn text(relative: &str) -> String {
    std::fs::read_to_string(path(relative)).unwrap_or_else(|error| panic!("{relative}: {error}"))
}

fn yaml<T: DeserializeOwned>(relative: &str) -> T {
    serde_saphyr::from_str(&text(relative)).unwrap_or_else(|error| panic!("{relative}: {error}"))
}

/// Our metrics in an expression, histograms by their family.
fn metrics(expression: &str) -> BTreeSet<String> {
    expression
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("hello_") || word.starts_with("process_"))
        .map(|word| word.trim_end_matches("_bucket").to_owned())
        .collect()
}

/// Fails for a metric that docs/observability.md does not name: unit tests hold that table against the sources.
fn all_exist(expression: &str, whose: &str) {
    let documented = text("docs/observability.md");
    for metric in metrics(expression) {
        assert!(documented.contains(&format!("`{metric}`")), "{whose} asks for {metric}, which does not exist");
    }
}
