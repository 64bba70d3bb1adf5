//! Networks that fail in one place, or in one direction.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{LONG, TAKEN, say};
use crate::harness::election::{Load, World};
use crate::harness::{Case, Result, Suite, alone_within};

/// Longer than the Lease, and than an election.
const CUT: Duration = Duration::from_secs(40);

#[tokio::test]
#[ignore = "long: make test-all"]
async fn asymmetric_cuts_lose_nothing() -> Result {
    alone_within(LONG, "cuts", cuts).await
}

async fn cuts(suite: &'static Suite, case: Case) -> Result {
    let world = World::start(suite, &case, json!({}), Load::LIGHT).await?;
    world.converged().await?;
    let network = |node: crate::cluster::Node| suite.cluster().network(node.number());

    // The primary reaches its replicas, and not the API server: they hold, and not one write is refused.
    let (term, primary) = (world.term().await?, world.primary().await?);
    let node = world.node_of(&primary)?;
    let began = Instant::now();
    network(node).cut_control_plane().await?;
    tokio::time::sleep(CUT).await;
    let cost = world.cost_since(began, world.term().await? - term);
    world.one_primary_with_every_row().await?;
    network(node).heal().await?;
    world.converged().await?;
    say(&format!(
        "primary without API server: gap {:.1?}, {} attempts failed, {} takes",
        cost.gap, cost.failures, cost.takes
    ));
    assert_eq!((cost.failures, cost.takes), (0, 0), "the replicas should have held");

    // It reaches the API server, and no replica: no commit can be acknowledged, and none is lost.
    let (primary, first, second) = world.roles().await?;
    let began = Instant::now();
    let node = world.node_of(&primary)?;
    for replica in [&first, &second] {
        network(node).cut_between(world.node_of(replica)?).await?;
    }
    tokio::time::sleep(CUT).await;
    network(node).heal().await?;
    world.writes_on(TAKEN).await?;
    world.one_primary_with_every_row().await?;
    world.converged().await?;
    say(&format!("primary without replicas for {CUT:?}: gap {:.1?}", world.cost_since(began, 0).gap));

    // It is heard by nobody and hears everybody, and the reverse.
    for hears in [true, false] {
        let (term, primary) = (world.term().await?, world.primary().await?);
        let node = world.node_of(&primary)?;
        let began = Instant::now();
        if hears {
            network(node).cut_from().await?
        } else {
            network(node).cut_to().await?
        }
        let recovery = world.taken(began, term, TAKEN).await?;
        world.one_primary_with_every_row().await?;
        network(node).heal().await?;
        world.converged().await?;
        say(&format!("primary cut in one direction (hears: {hears}): gap {:.1?}", recovery.gap));
    }

    // A replica that loses the API server, or the primary, disturbs nobody.
    let (term, (primary, replica, _)) = (world.term().await?, world.roles().await?);
    let began = Instant::now();
    let node = world.node_of(&replica)?;
    network(node).cut_control_plane().await?;
    network(node).cut_between(world.node_of(&primary)?).await?;
    tokio::time::sleep(CUT).await;
    let cost = world.cost_since(began, world.term().await? - term);
    network(node).heal().await?;
    world.converged().await?;
    say(&format!("replica cut off from API server and primary: gap {:.1?}", cost.gap));
    assert_eq!(cost.takes, 0, "a healthy primary was deposed because of what a replica cannot see");
    assert!(cost.gap < Duration::from_secs(8), "writes stood still for {:.1?}", cost.gap);
    Ok(())
}
