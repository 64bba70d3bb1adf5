//! Two faults at once.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::{LONG, TAKEN, say};
use crate::harness::election::{Fault, Load, World};
use crate::harness::{Case, Result, SOON, Suite, alone_within};

/// Longer than an election would take.
const BLOCKED: Duration = Duration::from_secs(25);

#[tokio::test]
#[ignore = "long: make test-all"]
async fn two_faults_at_once_lose_nothing() -> Result {
    alone_within(LONG, "two-faults", two_faults).await
}

async fn two_faults(suite: &'static Suite, case: Case) -> Result {
    let world = World::start(suite, &case, json!({}), Load::LIGHT).await?;
    world.converged().await?;

    // The one that is left may lack a row that only the other has: blocked, until that one is back.
    let (primary, first, second) = world.roles().await?;
    Fault::Partition.strike(&world, &first).await?;
    Fault::PowerLoss.strike(&world, &primary).await?;
    world.nobody_writes_for(BLOCKED).await?;
    Fault::Partition.undo(&world, &first).await?;
    world.writes_on(TAKEN).await?;
    world.one_primary_with_every_row().await?;
    Fault::PowerLoss.undo(&world, &primary).await?;
    world.converged().await?;
    say(&format!("blocked with {second} alone, over with {first}"));

    // The same, and the old primary is the one that comes back.
    let (primary, first, second) = world.roles().await?;
    Fault::PowerLoss.strike(&world, &second).await?;
    Fault::PowerLoss.strike(&world, &primary).await?;
    world.nobody_writes_for(BLOCKED).await?;
    Fault::PowerLoss.undo(&world, &primary).await?;
    world.writes_on(TAKEN).await?;
    world.one_primary_with_every_row().await?;
    Fault::PowerLoss.undo(&world, &second).await?;
    world.converged().await?;
    say(&format!("blocked with {first} alone, over with {primary}"));

    // A replica that is frozen while the primary dies: the kubelet ends it, and then it is over by itself.
    let (primary, first, _) = world.roles().await?;
    Fault::ContainerFrozen.strike(&world, &first).await?;
    let began = Fault::PowerLoss.strike(&world, &primary).await?;
    world.writes_on(2 * TAKEN).await?;
    say(&format!("one frozen, one without power: over after {:.1?}", began.elapsed()));
    world.one_primary_with_every_row().await?;
    Fault::PowerLoss.undo(&world, &primary).await?;
    world.converged().await?;
    Ok(())
}

#[tokio::test]
#[ignore = "long: make test-all"]
async fn operators_leader_and_primary_on_the_same_lost_node() -> Result {
    alone_within(LONG, "leader-and-primary", leader_and_primary).await
}

async fn leader_and_primary(suite: &'static Suite, case: Case) -> Result {
    let world = World::start(suite, &case, json!({}), Load::LIGHT).await?;
    world.converged().await?;
    let node = leaders_node(suite).await?;
    let mut beside = None;
    for pod in case.pods("db").await? {
        if pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&node) {
            beside = Some(pod.name_any());
        }
    }
    let beside = beside.ok_or("an instance beside the operator's leader")?;
    if world.primary().await? != beside {
        let (since, term) = (Instant::now(), world.term().await?);
        world.ask_for(&beside).await?;
        world.taken(since, term, TAKEN).await?;
        // Else it would be handed back.
        case.change("db", json!({"primary": null})).await?;
        world.converged().await?;
    }
    let term = world.term().await?;
    let began = Fault::PowerLoss.strike(&world, &beside).await?;
    let recovery = world.taken(began, term, TAKEN).await?;
    world.one_primary_with_every_row().await?;
    // Another replica of the operator leads, and reports.
    let reported = case.until(SOON, "db", "reported by another operator", |object| {
        let primary = object.status.as_ref().and_then(|status| status.primary.as_ref());
        match primary {
            Some(primary) if primary.instance != beside => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    reported.await?;
    say(&format!("leader and primary lost: gap {:.1?}, reported after {:.1?}", recovery.gap, began.elapsed()));
    Fault::PowerLoss.undo(&world, &beside).await?;
    world.converged().await?;
    Ok(())
}

/// Where the operator's leader runs.
async fn leaders_node(suite: &Suite) -> Result<String> {
    let leases: Api<Lease> =
        Api::namespaced(suite.cluster().client().await?, crate::harness::suite::OPERATOR_NAMESPACE);
    let all = leases.list(&Default::default()).await?;
    let holders: Vec<_> = all.iter().filter_map(|lease| lease.spec.as_ref()?.holder_identity.clone()).collect();
    for pod in suite.operator_pods().await? {
        if holders.iter().any(|holder| holder.contains(&pod.name_any())) {
            return Ok(pod.spec.and_then(|spec| spec.node_name).ok_or("it is on a node")?);
        }
    }
    Err(format!("none of the operator's Pods is among {holders:?}").into())
}
