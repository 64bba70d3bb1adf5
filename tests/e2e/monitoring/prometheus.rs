//! A real Prometheus with our scrape configuration and our rules, a real Alertmanager, and who is told: this test.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::cluster::eventually;
use crate::harness::program::run;
use crate::harness::suite::{root, script};
use crate::harness::{Result, SOON, Suite};

/// How often everything is scraped and every rule looked at.
const PACE: &str = "2s";
/// What an alert waits for here, in place of minutes.
const PATIENCE: &str = "4s";
/// Once, until Alertmanager has told.
const TOLD: Duration = Duration::from_secs(90);

/// What Alertmanager said, in order.
type Messages = Arc<Mutex<Vec<Value>>>;

/// Both programs; they end with this.
pub struct Monitoring {
    prometheus: u16,
    messages: Messages,
    _programs: [Child; 2],
    _receiver: tokio::task::JoinHandle<()>,
}

impl Monitoring {
    /// Starts them for what runs in the cluster. `thresholds` are those of alerts that would otherwise need gigabytes or days.
    pub async fn start(suite: &Suite, name: &str, thresholds: &BTreeMap<&str, f64>) -> Result<Self> {
        let (prometheus, alertmanager) = (tool("prometheus").await?, tool("alertmanager").await?);
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("monitoring").join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)?;

        let messages = Messages::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let told = listener.local_addr()?.port();
        let router = Router::new().route("/", post(receive)).with_state(messages.clone());
        let receiver = tokio::spawn(async move {
            // It ends with the test.
            let _ = axum::serve(listener, router).await;
        });

        let (ours, theirs) = (free_port().await?, free_port().await?);
        std::fs::write(folder.join("rules.yaml"), rules(suite, thresholds).await?)?;
        std::fs::write(folder.join("prometheus.yaml"), scraping(suite, theirs)?)?;
        let route = json!({
            "route": {"receiver": "test", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s", "repeat_interval": "1h"},
            "receivers": [{"name": "test", "webhook_configs": [{"url": format!("http://127.0.0.1:{told}/"), "send_resolved": true}]}],
        });
        std::fs::write(folder.join("alertmanager.yaml"), route.to_string())?;
        let path = |file: &str| folder.join(file).to_string_lossy().into_owned();
        let programs = [
            start(
                &alertmanager.join("alertmanager"),
                &folder,
                &[
                    &format!("--config.file={}", path("alertmanager.yaml")),
                    &format!("--storage.path={}", path("alertmanager")),
                    &format!("--web.listen-address=127.0.0.1:{theirs}"),
                    "--cluster.listen-address=",
                ],
            )?,
            start(
                &prometheus.join("prometheus"),
                &folder,
                &[
                    &format!("--config.file={}", path("prometheus.yaml")),
                    &format!("--storage.tsdb.path={}", path("prometheus")),
                    &format!("--web.listen-address=127.0.0.1:{ours}"),
                ],
            )?,
        ];
        let monitoring = Self { prometheus: ours, messages, _programs: programs, _receiver: receiver };
        let what = format!("Prometheus to scrape the operator; its logs are in {}", folder.display());
        eventually(SOON, &what, || async {
            match monitoring.query("hello_operator_build_info").await {
                Ok(found) if !found.is_empty() => Ok(()),
                Ok(_) => Err("nothing was scraped".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await?;
        Ok(monitoring)
    }

    /// The samples that a query gives now.
    pub async fn query(&self, query: &str) -> Result<Vec<Value>> {
        let answer = self.get(&format!("/api/v1/query?query={}", utf8_percent_encode(query, NON_ALPHANUMERIC))).await?;
        let found = answer.pointer("/data/result").and_then(Value::as_array);
        Ok(found.cloned().ok_or_else(|| format!("{query}: {answer}"))?)
    }

    /// The values of a label among the series that a selector finds.
    pub async fn label_values(&self, selector: &str, label: &str) -> Result<Vec<String>> {
        let selector = utf8_percent_encode(selector, NON_ALPHANUMERIC);
        let answer = self.get(&format!("/api/v1/label/{label}/values?match[]={selector}")).await?;
        let found = answer.pointer("/data").and_then(Value::as_array).ok_or_else(|| answer.to_string())?;
        Ok(found.iter().filter_map(|value| value.as_str().map(str::to_owned)).collect())
    }

    async fn get(&self, path: &str) -> Result<Value> {
        let uri: http::Uri = format!("http://127.0.0.1:{}{path}", self.prometheus).parse()?;
        let client = Client::builder(TokioExecutor::new()).build_http::<Empty<axum::body::Bytes>>();
        let asked = async {
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(client.get(uri).await?.collect().await?.to_bytes())
        };
        let body =
            tokio::time::timeout(Duration::from_secs(10), asked).await.map_err(|_| "Prometheus does not answer")??;
        Ok(serde_json::from_slice(&body)?)
    }

    /// Waits until Alertmanager has told that an alert with these labels fires, and returns what it said.
    pub async fn fires(&self, alert: &str, labels: &[(&str, &str)]) -> Result<Value> {
        let found = self.until("be firing", alert, labels, |last| {
            let message = last.ok_or("nothing was told of it")?;
            if message["status"] == "firing" { Ok(message.clone()) } else { Err(message.to_string()) }
        });
        found.await
    }

    /// Waits until it has told that the same is over.
    pub async fn resolves(&self, alert: &str, labels: &[(&str, &str)]) -> Result {
        let found = self.until("be over", alert, labels, |last| {
            let message = last.ok_or("nothing was told of it")?;
            if message["status"] == "resolved" { Ok(()) } else { Err(message.to_string()) }
        });
        found.await
    }

    /// Waits until it does not fire, never did or does not any more: what fires afterwards has another cause.
    pub async fn is_quiet(&self, alert: &str, labels: &[(&str, &str)]) -> Result {
        let found = self.until("be quiet", alert, labels, |last| match last {
            Some(message) if message["status"] == "firing" => Err(message.to_string()),
            _ => Ok(()),
        });
        found.await
    }

    /// Waits until the last word about an alert is as wanted.
    async fn until<T>(
        &self,
        wish: &str,
        alert: &str,
        labels: &[(&str, &str)],
        check: impl Fn(Option<&Value>) -> Result<T, String>,
    ) -> Result<T> {
        let is = |message: &Value, key: &str, value: &str| message["labels"][key] == value;
        let about = |message: &&Value| {
            is(message, "alertname", alert) && labels.iter().all(|(key, value)| is(message, key, value))
        };
        let what = format!("{alert} of {labels:?} to {wish}");
        let found = eventually(TOLD, &what, || async {
            let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
            check(messages.iter().rev().find(about))
        });
        Ok(found.await?)
    }
}

async fn receive(State(messages): State<Messages>, Json(message): Json<Value>) {
    let alerts = message["alerts"].as_array().cloned().unwrap_or_default();
    messages.lock().unwrap_or_else(PoisonError::into_inner).extend(alerts);
}

/// The folder of something that `tests/cluster/build` makes once.
pub async fn tool(name: &str) -> Result<PathBuf> {
    Ok(PathBuf::from(script("tests/cluster/build", &["--path", name]).await?))
}

/// A port that nobody listens on now.
async fn free_port() -> Result<u16> {
    Ok(tokio::net::TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port())
}

fn start(program: &Path, folder: &Path, arguments: &[&str]) -> Result<Child> {
    let name = program.file_name().ok_or("a program")?;
    let log = std::fs::File::create(folder.join(name).with_extension("log"))?;
    // setpriv: also where this process is killed.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program).args(arguments).current_dir(folder);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).kill_on_drop(true);
    Ok(command.spawn()?)
}

/// The scrape configuration of docs/prometheus.yaml, from outside of the cluster.
fn scraping(suite: &Suite, alertmanager: u16) -> Result<String> {
    let documented = std::fs::read_to_string(root().join("docs/prometheus.yaml"))?;
    let mut config: Value = serde_saphyr::from_str(&documented)?;
    config["global"] = json!({"scrape_interval": PACE, "scrape_timeout": PACE, "evaluation_interval": PACE});
    config["rule_files"] = json!(["rules.yaml"]);
    config["alerting"] =
        json!({"alertmanagers": [{"static_configs": [{"targets": [format!("127.0.0.1:{alertmanager}")]}]}]});
    for job in config["scrape_configs"].as_array_mut().ok_or("jobs")? {
        job["kubernetes_sd_configs"][0]["kubeconfig_file"] = json!(suite.cluster().kubeconfig());
    }
    // JSON is YAML.
    Ok(config.to_string())
}

/// The rules as docs/observability.md tells to print them, with little patience.
async fn rules(suite: &Suite, thresholds: &BTreeMap<&str, f64>) -> Result<String> {
    let chart = root().join("charts/hello-operator");
    let alerts: Vec<Value> = serde_saphyr::from_str(&std::fs::read_to_string(chart.join("files/alerts.yaml"))?)?;
    let overrides: BTreeMap<&str, Value> = alerts
        .iter()
        .filter_map(|alert| alert["alert"].as_str())
        .map(|name| match thresholds.get(name) {
            Some(threshold) => (name, json!({"for": PATIENCE, "threshold": threshold})),
            None => (name, json!({"for": PATIENCE})),
        })
        .collect();
    let values = json!({"alerts": {"enabled": true, "overrides": overrides}}).to_string();
    let chart = chart.to_string_lossy();
    let print = "\"$1\" template hello \"$2\" --values - --show-only templates/prometheusrule.yaml | sed '1,/^spec:/d; s/^  //'";
    let helm = suite.helm().to_string_lossy();
    run(SOON, Path::new("bash"), ["-euo", "pipefail", "-c", print, "print", &helm, &chart], &values).await?.ok()
}
