//! Hand-overs that somebody asked for, under full load.

use std::time::{Duration, Instant};

use kube::ResourceExt;
use serde_json::json;

use super::{LONG, TAKEN, say};
use crate::cluster::eventually;
use crate::harness::election::{Load, World};
use crate::harness::{Case, READY, Result, Suite, alone_within};

const TIMES: usize = 20;

#[tokio::test]
#[ignore = "long: make test-all"]
async fn switchover_under_full_load_again_and_again() -> Result {
    alone_within(LONG, "switchovers", switchovers).await
}

async fn switchovers(suite: &'static Suite, case: Case) -> Result {
    let world = World::start(suite, &case, json!({}), Load::FULL).await?;
    world.converged().await?;
    let mut gaps = Vec::new();
    for _ in 0..TIMES {
        let (_, next, _) = world.roles().await?;
        let (began, term) = (Instant::now(), world.term().await?);
        world.ask_for(&next).await?;
        let recovery = world.taken(began, term, TAKEN).await?;
        assert_eq!(world.primary().await?, next, "somebody else was asked for");
        world.one_primary_with_every_row().await?;
        world.converged().await?;
        gaps.push(recovery.gap);
    }
    gaps.sort();
    say(&format!("{TIMES} switchovers under full load, {} rows, gaps {gaps:.2?}", world.ledger().count()));
    assert!(gaps.last() < Some(&Duration::from_secs(8)), "{gaps:?}");
    Ok(())
}

#[tokio::test]
#[ignore = "long: make test-all"]
async fn rolling_restart_and_new_image_under_full_load() -> Result {
    alone_within(LONG, "rolling", rolling).await
}

async fn rolling(suite: &'static Suite, case: Case) -> Result {
    let world = World::start(suite, &case, json!({}), Load::FULL).await?;
    world.converged().await?;
    for change in [
        json!({"postgresql": {"parameters": {"max_connections": 130}}}),
        json!({"postgresql": {"parameters": {"max_connections": 90}}}),
        json!({"image": "registry.local/postgres:17-b"}),
    ] {
        let (began, term) = (Instant::now(), world.term().await?);
        case.change("db", change.clone()).await?;
        case.ready("db").await?;
        world.converged().await?;
        world.one_primary_with_every_row().await?;
        let cost = world.cost_since(began, world.term().await? - term);
        say(&format!("{change}: {:.0?}, longest gap {:.2?}, {} takes", began.elapsed(), cost.gap, cost.takes));
        assert!(cost.gap < Duration::from_secs(10), "no write for {:.1?}", cost.gap);
    }
    Ok(())
}

#[tokio::test]
#[ignore = "long: make test-all"]
async fn drain_of_each_node_in_turn() -> Result {
    alone_within(LONG, "drain", drain).await
}

async fn drain(suite: &'static Suite, case: Case) -> Result {
    let world = World::start(suite, &case, json!({}), Load::LIGHT).await?;
    world.converged().await?;
    for number in 1..=3 {
        let node = suite.cluster().node(number).name();
        let began = Instant::now();
        let drain = ["drain", &node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=100s"];
        suite.kubectl(&drain, "").await?.ok()?;
        let drained = began.elapsed();
        world.writes_on(TAKEN).await?;
        world.one_primary_with_every_row().await?;
        for pod in case.pods("db").await? {
            let runs_there = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node.as_str());
            assert!(!runs_there, "{} is on {node} after its drain", pod.name_any());
        }
        let gap = world.cost_since(began, 0).gap;
        suite.kubectl(&["uncordon", &node], "").await?.ok()?;
        world.converged().await?;
        say(&format!("{node} drained in {drained:.1?}, longest gap {gap:.2?}"));
        assert!(gap < Duration::from_secs(8), "no write for {gap:.1?}");
    }
    Ok(())
}

/// A budget that blocked a drain for ever would be somebody's night.
#[tokio::test]
#[ignore = "long: make test-all"]
async fn drain_works_with_one_and_with_two_instances() -> Result {
    alone_within(LONG, "drain-few", drain_few).await
}

async fn drain_few(suite: &'static Suite, case: Case) -> Result {
    case.running("one", json!({"instances": 1})).await?;
    case.running("two", json!({"instances": 2})).await?;
    for number in 1..=3 {
        let node = suite.cluster().node(number).name();
        let began = Instant::now();
        let drain = ["drain", &node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=100s"];
        let said = suite.kubectl(&drain, "").await?;
        suite.kubectl(&["uncordon", &node], "").await?.ok()?;
        said.ok()?;
        say(&format!("{node} drained in {:.1?}", began.elapsed()));
        eventually(READY, "both clusters to be ready", || async {
            for name in ["one", "two"] {
                case.ready(name).await.map_err(|error| error.to_string())?;
            }
            Ok::<_, String>(())
        })
        .await?;
    }
    Ok(())
}
