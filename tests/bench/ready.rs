//! From apply to Ready, what the agents hold, and what is written when nothing happens.

use std::time::{Duration, Instant};

use hello_operator::api::spec::HelloOperator;
use kube::ResourceExt;
use kube::api::PostParams;
use kube_runtime::wait::await_condition;
use serde_json::json;

use crate::figures::Figures;
use crate::harness::{Case, READY, Result, Suite, condition, writes_while_idle};
use crate::memory::resident;

const TIMES: usize = 5;

/// Each time in a namespace of its own, one after another.
pub async fn measure(_: &'static Suite, case: &Case, figures: &mut Figures) -> Result {
    let mut agents = Vec::new();
    for (instances, target, what) in [(1, 5.0, "apply to Ready, 1 instance"), (3, 15.0, "apply to Ready, 3 instances")]
    {
        let mut seconds = Vec::new();
        for _ in 0..TIMES {
            let namespace = case.new_namespace("ready").await?;
            let inner = case.within(&namespace);
            seconds.push(until_ready(&inner, instances).await?.as_secs_f64());
            inner.ready("db").await?;
            if instances == 3 {
                for pod in inner.pods("db").await? {
                    agents.push(resident(&pod.uid().ok_or("a uid")?, "hello-operator agent")?);
                }
            }
            inner.end().await?;
        }
        figures.add(what, "s", target, seconds);
    }
    figures.add("agent, resident memory", "MB", 15.0, agents);
    Ok(())
}

async fn until_ready(case: &Case, instances: u8) -> Result<Duration> {
    let objects = case.api::<HelloOperator>();
    let object = json!({"apiVersion": "terry.com/v1", "kind": "HelloOperator", "metadata": {"name": "db"},
        "spec": {"instances": instances}});
    let ready = |object: Option<&HelloOperator>| {
        object.and_then(|object| condition(object, "Ready")).is_some_and(|found| found.status == "True")
    };
    let began = Instant::now();
    objects.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    tokio::time::timeout(READY, await_condition(objects, "db", ready)).await??;
    Ok(began.elapsed())
}

/// Over 2 minutes with three settled clusters.
pub async fn measure_idle(case: &Case, figures: &mut Figures) -> Result {
    let writes = writes_while_idle(case, Duration::from_secs(120)).await?;
    let count: usize = writes.values().sum();
    figures.add("writes within 2 minutes, idle, but for Leases", "", 1.0, vec![count as f64]);
    Ok(())
}
