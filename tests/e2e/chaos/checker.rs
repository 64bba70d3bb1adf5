//! The checker itself: a cluster that loses rows must be reported as one.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{LONG, TAKEN, say};
use crate::harness::election::{Fault, Load, World};
use crate::harness::{Case, Result, Suite, alone_within};

#[tokio::test]
async fn checker_reports_what_an_asynchronous_cluster_loses() -> Result {
    alone_within(LONG, "checker", checker).await
}

async fn checker(suite: &'static Suite, case: Case) -> Result {
    let spec = json!({"replication": {"durability": "Async"}});
    let world = World::start(suite, &case, spec, Load::LIGHT).await?;
    world.converged().await?;
    let (term, (primary, first, second)) = (world.term().await?, world.roles().await?);
    let node = world.node_of(&primary)?;
    let network = suite.cluster().network(node.number());
    for replica in [&first, &second] {
        network.cut_between(world.node_of(replica)?).await?;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let only_there = Instant::now();
    world.writes_on(TAKEN).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let doomed = world.ledger().count_since(only_there);
    let began = Fault::PowerLoss.strike(&world, &primary).await?;
    network.heal().await?;
    world.taken(began, term, TAKEN).await?;
    let found = world.one_primary_with_every_row().await.err().ok_or("rows were lost, and nobody noticed")?;
    let found = found.to_string();
    assert!(found.contains("lost acknowledged rows") || found.contains("was acknowledged and is not on"), "{found}");
    say(&format!(
        "{doomed} rows were acknowledged by {primary} alone; the checker says: {}",
        found.lines().next().unwrap_or_default()
    ));
    Ok(())
}

/// The same without an election: rows that somebody removed.
#[tokio::test]
async fn checker_reports_rows_that_were_removed() -> Result {
    alone_within(LONG, "checker-removed", removed).await
}

async fn removed(suite: &'static Suite, case: Case) -> Result {
    let world = World::start(suite, &case, json!({}), Load::LIGHT).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    world.converged().await?;
    let primary = world.primary().await?;
    world
        .sql(
            &primary,
            "delete from acknowledged where session = 1 and n = (select min(n) from acknowledged where session = 1)",
        )
        .await?;
    let found = world.nothing_lost_on(&primary).await.err().ok_or("one row was lost, and nobody noticed")?.to_string();
    assert!(found.contains("lost acknowledged rows") && found.trim_end().ends_with("|1"), "{found}");
    Ok(())
}
