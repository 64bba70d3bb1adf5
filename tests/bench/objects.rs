//! Many objects: none of them runs anything (Paused), so that what is measured is the operator.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use futures::{StreamExt, TryStreamExt};
use hello_operator::api::spec::HelloOperator;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use kube_runtime::{WatchStreamExt, watcher};
use serde_json::json;

use crate::cluster::eventually;
use crate::figures::Figures;
use crate::harness::{Case, Result, SOON, Suite, Terminal};
use crate::memory::resident;
use crate::numbers::show;

const TIMES: usize = 5;
const MANY: usize = 5000;
const CLIENTS: usize = 16;
const FEW: usize = 100;

fn paused(name: &str) -> Result<HelloOperator> {
    let object = json!({"apiVersion": "terry.com/v1", "kind": "HelloOperator", "metadata": {"name": name},
        "spec": {"state": "Paused"}});
    Ok(serde_json::from_value(object)?)
}

/// 5,000 objects from 16 clients: from the answer to the last create until the last status is settled, and the
/// operator's memory then.
pub async fn measure_many(suite: &'static Suite, case: &Case, figures: &mut Figures) -> Result {
    let (mut lags, mut memory) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        let settled = tokio::spawn(last_settled(case.api(), MANY));
        let began = Instant::now();
        let clients = (0..CLIENTS).map(|client| {
            let case = case.clone();
            async move {
                let objects: Api<HelloOperator> = Api::namespaced(suite.cluster().client().await?, case.namespace());
                for number in (client..MANY).step_by(CLIENTS) {
                    objects.create(&PostParams::default(), &paused(&format!("p-{number}"))?).await?;
                }
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(Instant::now())
            }
        });
        let answered = try_join_all(clients).await?.into_iter().max().ok_or("clients")?;
        let settled = tokio::time::timeout(SOON * 3, settled).await???;
        lags.push(settled.saturating_duration_since(answered).as_secs_f64());
        show(&format!("  {MANY} created in {:.1?}, settled {:.1?} later", answered - began, settled - answered));
        for pod in suite.operator_pods().await? {
            memory.push(resident(&pod.uid().ok_or("a uid")?, "hello-operator run")?);
        }
        remove(&case.api()).await?;
    }
    figures.add("5,000 objects from 16 clients: last create's answer to last status", "s", 3.0, lags);
    figures.add("operator (each replica), resident memory with 5,000 objects", "MB", 30.0, memory);
    Ok(())
}

/// When the last of so many objects had a status that says that it was seen.
async fn last_settled(objects: Api<HelloOperator>, count: usize) -> Result<Instant> {
    let mut events = watcher(objects, watcher::Config::default()).default_backoff().applied_objects().boxed();
    let mut seen = HashSet::new();
    while let Some(object) = events.try_next().await? {
        let observed = object.status.as_ref().and_then(|status| status.observed_generation);
        if observed == object.metadata.generation {
            seen.insert(object.name_any());
        }
        if seen.len() == count {
            return Ok(Instant::now());
        }
    }
    Err("the watch ended".into())
}

/// From a create's sending to its line in the log, with 100 objects.
pub async fn measure_contract(suite: &'static Suite, case: &Case, figures: &mut Figures) -> Result {
    suite.stop_operator().await?;
    let operator = Terminal::run(suite, &["--standalone"]).await?;
    let objects = case.api::<HelloOperator>();
    // The first line comes when the operator has started.
    objects.create(&PostParams::default(), &paused("first")?).await?;
    operator.line(SOON, "### A handler is called with body: ").await?;
    let mut medians = Vec::new();
    for round in 0..TIMES {
        let mut sent = HashMap::new();
        for number in 0..FEW {
            let name = format!("p-{round}-{number}");
            sent.insert(name.clone(), jiff::Timestamp::now());
            objects.create(&PostParams::default(), &paused(&name)?).await?;
        }
        let mut delays = Vec::new();
        for (name, sent) in sent {
            let mark = format!("{name}\\\"");
            let what = format!("the line of {name}");
            let lines = eventually(SOON, &what, || async {
                let lines = operator.lines_with(&mark).await;
                let found = lines.into_iter().find(|(_, line)| line.contains("### A handler is called with body: "));
                found.ok_or_else(|| "no line".to_owned())
            });
            delays.push((lines.await?.0 - sent).total(jiff::Unit::Millisecond)?);
        }
        delays.sort_by(f64::total_cmp);
        medians.push(delays.get(delays.len() / 2).copied().ok_or("delays")?);
        remove(&objects).await?;
    }
    figures.add("create to its line in the log, 100 objects, p50", "ms", 50.0, medians);
    operator.end(SOON).await?;
    Ok(())
}

async fn remove(objects: &Api<HelloOperator>) -> Result {
    objects.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    eventually(Duration::from_secs(180), "the objects to be gone", || async {
        let left = objects.list_metadata(&ListParams::default().limit(1)).await.map_err(|error| error.to_string())?;
        if left.items.is_empty() { Ok(()) } else { Err("some are there".to_owned()) }
    })
    .await?;
    Ok(())
}
