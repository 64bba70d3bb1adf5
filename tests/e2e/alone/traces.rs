//! A real OpenTelemetry Collector receives what the operator and the agents send, over HTTP and over gRPC.

#![allow(clippy::indexing_slicing, reason = "what has another shape fails the test")]

use std::collections::{BTreeMap, BTreeSet};

use hello_operator::api::names::CONTAINER;
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::cluster::{Process, Signal, eventually};
use crate::harness::suite::script;
use crate::harness::{Case, READY, Result, SOON, Suite, alone};

const NAME: &str = "collector";
const GRPC: u16 = 4317;
const HTTP: u16 = 4318;

/// The collector, in a namespace of its own: it is no Pod of the restricted profile, because its program is the machine's.
struct Collector {
    case: Case,
    namespace: String,
}

/// A span, and who sent it: `operator`, or the instance.
#[derive(Debug)]
struct Span {
    by: String,
    name: String,
    trace: String,
    id: String,
    parent: String,
    failed: bool,
}

impl Collector {
    async fn start(case: &Case) -> Result<Self> {
        let program = script("tests/cluster/build", &["--path", NAME]).await?;
        let namespace = case.new_namespace(NAME).await?;
        let all: Api<Namespace> = Api::all(case.client());
        let label = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}});
        all.patch(&namespace, &PatchParams::default(), &Patch::Merge(label)).await?;
        let listen = |port: u16| json!({"endpoint": format!("0.0.0.0:{port}")});
        let config = json!({
            "receivers": {"otlp": {"protocols": {"grpc": listen(GRPC), "http": listen(HTTP)}}},
            "exporters": {"lines": {"path": "/data/traces"}},
            "service": {"telemetry": {"metrics": {"level": "none"}},
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["lines"]}}},
        });
        let run = "printf '%s' \"$CONFIG\" >/data/config && exec /collector/collector --config /data/config";
        let pod = json!({"metadata": {"name": NAME, "labels": {"app": NAME}}, "spec": {
            "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
            "volumes": [{"name": "data", "emptyDir": {}},
                {"name": "program", "hostPath": {"path": program, "type": "Directory"}}],
            "containers": [{"name": NAME, "image": "postgres:17", "command": ["bash", "-c", run],
                "env": [{"name": "CONFIG", "value": config.to_string()}],
                "readinessProbe": {"tcpSocket": {"port": GRPC}, "periodSeconds": 1},
                "volumeMounts": [{"name": "data", "mountPath": "/data"},
                    {"name": "program", "mountPath": "/collector", "readOnly": true}]}]}});
        let here = case.within(&namespace);
        here.api::<Pod>().create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        let port = |port: u16| json!({"name": format!("p{port}"), "port": port});
        let service = json!({"metadata": {"name": NAME},
            "spec": {"selector": {"app": NAME}, "ports": [port(GRPC), port(HTTP)]}});
        here.api::<Service>().create(&PostParams::default(), &serde_json::from_value(service)?).await?;
        here.kubectl(&["wait", "pod", NAME, "--for=condition=Ready", "--timeout=60s"]).await?.ok()?;
        Ok(Self { case: here, namespace })
    }

    /// Has the operator, and by it the agents, send there.
    async fn listen(&self, suite: &Suite, protocol: &str, port: u16) -> Result {
        let endpoint = format!("tracing.endpoint=http://{NAME}.{}.svc:{port}", self.namespace);
        suite.install(&[&endpoint, &format!("tracing.protocol={protocol}")]).await
    }

    /// Everything that came in.
    async fn spans(&self) -> Result<Vec<Span>> {
        let pod = self.case.suite().cluster().pod(&self.namespace, NAME);
        let lines = pod.run(NAME, &["bash", "-c", "cat /data/traces 2>/dev/null || true"]).await?;
        let mut found = Vec::new();
        for line in lines.lines() {
            let line: Value = serde_json::from_str(line)?;
            for resource in line["resourceSpans"].as_array().into_iter().flatten() {
                let attributes = resource["resource"]["attributes"].as_array().into_iter().flatten();
                let attributes: BTreeMap<_, _> = attributes
                    .filter_map(|a| Some((a["key"].as_str()?, a["value"]["stringValue"].as_str()?)))
                    .collect();
                let by = match attributes["service.name"] {
                    "hello-operator-agent" => attributes["k8s.pod.name"],
                    _ => "operator",
                };
                let scopes = resource["scopeSpans"].as_array().into_iter().flatten();
                for span in scopes.flat_map(|scope| scope["spans"].as_array().into_iter().flatten()) {
                    let text = |key: &str| span[key].as_str().unwrap_or_default().to_owned();
                    found.push(Span {
                        by: by.to_owned(),
                        name: text("name"),
                        trace: text("traceId"),
                        id: text("spanId"),
                        parent: text("parentSpanId"),
                        failed: span["status"]["code"] == 2,
                    });
                }
            }
        }
        Ok(found)
    }

    /// Waits for the one trace of the hand-over to this instance, with these steps of it and of others; returns the trace's id.
    async fn hand_over(&self, known: &BTreeSet<String>, steps: &[(&str, &str)]) -> Result<String> {
        let what = format!("the trace of a hand-over with {steps:?}");
        let found = eventually(SOON, &what, || async {
            let spans = self.spans().await.map_err(|error| error.to_string())?;
            let mut roots = spans.iter().filter(|span| span.name == "hand-over" && !known.contains(&span.trace));
            let root = roots.next().ok_or("the operator has told of none")?;
            let told: BTreeSet<(&str, &str)> = spans
                .iter()
                .filter(|span| span.trace == root.trace && span.parent == root.id && !span.failed)
                .map(|span| (span.by.as_str(), span.name.as_str()))
                .collect();
            if root.by != "operator" || !root.parent.is_empty() || roots.next().is_some() {
                return Err(format!("{root:?} is not the one root"));
            }
            match steps.iter().find(|step| !told.contains(step)) {
                Some(missing) => Err(format!("{missing:?} is missing: {told:?}")),
                None => Ok(root.trace.clone()),
            }
        });
        Ok(found.await?)
    }

    /// Waits for a reconcile that an agent has continued over this many answers.
    async fn continued(&self, by: &str) -> Result {
        eventually(SOON, &format!("a reconcile that {by} continues"), || async {
            let spans = self.spans().await.map_err(|error| error.to_string())?;
            let by_id: BTreeMap<&str, &Span> = spans.iter().map(|span| (span.id.as_str(), span)).collect();
            let answers = spans.iter().filter(|span| span.by == by && span.name == "/v1/report");
            for answer in answers {
                let parent = by_id.get(answer.parent.as_str()).filter(|parent| parent.name == "observe");
                let root = parent.and_then(|parent| by_id.get(parent.parent.as_str()));
                if root.is_some_and(|root| root.name == "reconcile" && root.trace == answer.trace) {
                    return Ok(());
                }
            }
            Err(format!("{} spans", spans.len()))
        })
        .await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_hand_over_is_one_trace_across_operator_and_agents_and_turning_traces_on_restarts_nothing() -> Result {
    alone("traces", traces).await
}

async fn traces(suite: &'static Suite, case: Case) -> Result {
    // A cluster that was there before anybody asked for traces.
    let (collector, created) = tokio::join!(Collector::start(&case), case.running("db", json!({})));
    let collector = collector?;
    created?;
    let before = starts(&case).await?;
    collector.listen(suite, "http/protobuf", HTTP).await?;
    let (old, new) = (case.primary("db").await?, case.replicas("db").await?.remove(0));
    for instance in [&old, &new] {
        collector.continued(instance).await?;
    }

    case.change("db", json!({"primary": new})).await?;
    let steps =
        [(&old, "stop"), (&old, "release"), (&new, "ballot"), (&new, "take"), (&new, "promotion"), (&new, "publish")];
    let steps = steps.map(|(by, name)| (by.as_str(), name));
    let mut steps = steps.to_vec();
    steps.extend([(new.as_str(), "first commit"), ("operator", "elect"), ("operator", "promote")]);
    let first = collector.hand_over(&BTreeSet::new(), &steps).await?;
    let log = case.kubectl(&["logs", &new, "-c", CONTAINER]).await?.ok()?;
    let promoted = log.lines().find(|line| line.contains("\"is promoted\"")).ok_or("it was promoted")?;
    assert!(promoted.contains(&format!("\"trace_id\":\"{first}\"")), "{promoted}");
    case.ready("db").await?;
    assert_eq!(starts(&case).await?, before, "turning traces on is no reason to restart a database");

    // Over gRPC from here on, and the primary dies.
    collector.listen(suite, "grpc", GRPC).await?;
    for pod in case.pods("db").await? {
        let name = pod.name_any();
        eventually(SOON, &format!("{name} to follow"), || async {
            let log = case.kubectl(&["logs", &name, "-c", CONTAINER]).await.map_err(|error| error.to_string())?.stdout;
            let told = log.lines().any(|line| line.contains("\"sends traces\"") && line.contains(":4317"));
            if told { Ok(()) } else { Err("it does not say so".to_owned()) }
        })
        .await?;
    }
    assert_eq!(starts(&case).await?, before, "nor is another collector");
    suite.cluster().pod(case.namespace(), &new).signal(CONTAINER, Process::First, Signal::Kill).await?;
    case.until(READY, "db", "led by another", |object| {
        let primary = object.status.as_ref().and_then(|status| status.primary.as_ref()).map(|found| &found.instance);
        if primary.is_some_and(|primary| *primary != new) { Ok(()) } else { Err(format!("{primary:?}")) }
    })
    .await?;
    let heir = case.primary("db").await?;
    let steps = ["freeze", "ballot", "take", "promotion", "publish"].map(|name| (heir.as_str(), name));
    let second = collector.hand_over(&BTreeSet::from([first]), &steps).await?;
    let told = collector.spans().await?;
    let others: BTreeSet<&str> =
        told.iter().filter(|span| span.trace == second && span.by != heir).map(|span| span.by.as_str()).collect();
    assert!(others.len() >= 2 && others.contains("operator"), "{others:?} took part, too");
    Ok(())
}

/// Each Pod, and how often its database was started.
async fn starts(case: &Case) -> Result<BTreeMap<String, i32>> {
    let pods = case.pods("db").await?;
    Ok(pods
        .iter()
        .map(|pod| {
            let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.clone());
            let restarts = statuses.into_iter().flatten().map(|status| status.restart_count).sum();
            (format!("{}/{}", pod.name_any(), pod.uid().unwrap_or_default()), restarts)
        })
        .collect())
}
