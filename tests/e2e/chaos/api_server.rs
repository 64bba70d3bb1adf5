//! The API server, which is the register of the election, is away.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{LONG, TAKEN, say};
use crate::harness::election::{Fault, Load, World};
use crate::harness::{Case, Result, Suite, alone_within, variable};

/// A commit that waits a moment, on a busy machine, is not refused.
const MOMENT: Duration = Duration::from_secs(3);

/// How long it is away: SECONDS of it, or 3 minutes.
fn away() -> Duration {
    Duration::from_secs(variable("SECONDS").and_then(|text| text.parse().ok()).unwrap_or(180))
}

#[tokio::test]
#[ignore = "long: make test-all"]
async fn api_server_away_and_all_are_well_no_write_is_refused() -> Result {
    alone_within(LONG, "api-away", |suite, case| no_write_refused(suite, case, false)).await
}

#[tokio::test]
#[ignore = "long: make test-all"]
async fn api_server_away_and_a_replica_dead_no_write_is_refused() -> Result {
    alone_within(LONG, "api-away-replica", |suite, case| no_write_refused(suite, case, true)).await
}

async fn no_write_refused(suite: &'static Suite, case: Case, replica_dead: bool) -> Result {
    let world = World::start(suite, &case, json!({}), Load::LIGHT).await?;
    world.converged().await?;
    let (term, (primary, replica, _)) = (world.term().await?, world.roles().await?);
    if replica_dead {
        Fault::PowerLoss.strike(&world, &replica).await?;
        world.writes_on(TAKEN).await?;
    }
    suite.cluster().api_server().stop().await?;
    let began = Instant::now();
    tokio::time::sleep(away()).await;
    let cost = world.cost_since(began, 0);
    let writable = world.writable().await;
    suite.cluster().api_server().continue_().await?;
    // Whoever renews too late, or takes it now, shows.
    tokio::time::sleep(Duration::from_secs(20)).await;
    let all = world.cost_since(began, 0);
    say(&format!("API server away for {:.0?}: longest gap {:.2?}, {} attempts failed", away(), all.gap, all.failures));
    assert_eq!(writable, std::slice::from_ref(&primary), "who is writable without the API server");
    assert!(cost.failures == 0 && all.failures == 0, "{:?}", world.ledger().failures_since(began));
    assert!(all.gap < MOMENT, "no row was acknowledged for {:.1?}", all.gap);
    assert_eq!((world.primary().await?, world.term().await?), (primary, term), "nobody else took the Lease");
    if replica_dead {
        Fault::PowerLoss.undo(&world, &replica).await?;
    }
    world.converged().await?;
    Ok(())
}

#[tokio::test]
#[ignore = "long: make test-all"]
async fn api_server_away_and_both_replicas_dead_the_primary_fences_itself() -> Result {
    alone_within(LONG, "api-away-both", fences_itself).await
}

async fn fences_itself(suite: &'static Suite, case: Case) -> Result {
    let world = World::start(suite, &case, json!({}), Load::LIGHT).await?;
    world.converged().await?;
    let (_, first, second) = world.roles().await?;
    Fault::PowerLoss.strike(&world, &first).await?;
    Fault::PowerLoss.strike(&world, &second).await?;
    suite.cluster().api_server().stop().await?;
    // Renew deadline and stop budget.
    tokio::time::sleep(Duration::from_secs(15)).await;
    world.nobody_writes_for(away().saturating_sub(Duration::from_secs(15))).await?;
    suite.cluster().api_server().continue_().await?;
    let back = Instant::now();
    // It comes back by itself: the Lease is still its own. Its commits wait for a replica.
    let primary = crate::cluster::eventually(TAKEN, "a writable instance", || async {
        world.writable().await.into_iter().next().ok_or_else(|| "none".to_owned())
    })
    .await?;
    say(&format!("{primary} is writable {:.1?} after the API server came back", back.elapsed()));
    Fault::PowerLoss.undo(&world, &first).await?;
    world.writes_on(TAKEN).await?;
    world.one_primary_with_every_row().await?;
    Fault::PowerLoss.undo(&world, &second).await?;
    world.converged().await?;
    Ok(())
}

#[tokio::test]
#[ignore = "long: make test-all"]
async fn api_server_goes_away_in_the_middle_of_an_election() -> Result {
    alone_within(LONG, "api-election", middle_of_an_election).await
}

async fn middle_of_an_election(suite: &'static Suite, case: Case) -> Result {
    let world = World::start(suite, &case, json!({}), Load::LIGHT).await?;
    world.converged().await?;
    // From just before the Lease can be taken to just after.
    for delay in [12_500, 13_500, 14_300] {
        let (term, primary) = (world.term().await?, world.primary().await?);
        let began = Fault::PowerLoss.strike(&world, &primary).await?;
        tokio::time::sleep(Duration::from_millis(delay).saturating_sub(began.elapsed())).await;
        suite.cluster().api_server().stop().await?;
        tokio::time::sleep(Duration::from_secs(30)).await;
        suite.cluster().api_server().continue_().await?;
        let recovery = world.taken(began, term, 2 * TAKEN).await?;
        world.one_primary_with_every_row().await?;
        Fault::PowerLoss.undo(&world, &primary).await?;
        world.converged().await?;
        say(&format!("API server away {delay} ms after the power loss, for 30 s: gap {:.1?}", recovery.gap));
    }
    Ok(())
}
