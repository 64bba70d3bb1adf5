//! Who comes back, and when.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{LONG, TAKEN, bound, say};
use crate::harness::election::{Fault, Load, World};
use crate::harness::{Case, Result, Suite, alone_within};

#[tokio::test]
#[ignore = "long: make test-all"]
async fn old_primary_returns_after_a_long_absence() -> Result {
    alone_within(LONG, "long-absence", long_absence).await
}

async fn long_absence(suite: &'static Suite, case: Case) -> Result {
    let world = World::start(suite, &case, json!({}), Load::LIGHT).await?;
    world.converged().await?;
    let (term, primary) = (world.term().await?, world.primary().await?);
    let began = Fault::PowerLoss.strike(&world, &primary).await?;
    world.taken(began, term, TAKEN).await?;
    // More WAL than anybody keeps for it.
    let now = world.primary().await?;
    world.sql(&now, "create table bulk (n int, filler text)").await?;
    for _ in 0..8 {
        let fill = "insert into bulk select n, repeat(md5(n::text), 30) from generate_series(1, 40000) n";
        world.sql(&now, fill).await?;
        world.sql(&now, "checkpoint").await?;
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    Fault::PowerLoss.undo(&world, &primary).await?;
    let healed = world.converged().await?;
    say(&format!("{primary} was away for {:.0?} and streams {healed:.1?} after its return", began.elapsed()));
    Ok(())
}

#[tokio::test]
#[ignore = "long: make test-all"]
async fn all_without_power_and_the_stalest_returns_first() -> Result {
    alone_within(LONG, "stalest-first", stalest_first).await
}

async fn stalest_first(suite: &'static Suite, case: Case) -> Result {
    let world = World::start(suite, &case, json!({}), Load::LIGHT).await?;
    world.converged().await?;
    let (primary, stalest, other) = world.roles().await?;
    Fault::PowerLoss.strike(&world, &stalest).await?;
    world.writes_on(TAKEN).await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    Fault::PowerLoss.strike(&world, &primary).await?;
    Fault::PowerLoss.strike(&world, &other).await?;
    // It lacks what was acknowledged without it.
    Fault::PowerLoss.undo(&world, &stalest).await?;
    world.nobody_writes_for(Duration::from_secs(30)).await?;
    Fault::PowerLoss.undo(&world, &other).await?;
    world.writes_on(TAKEN).await?;
    world.one_primary_with_every_row().await?;
    assert_ne!(world.primary().await?, stalest, "the stalest was elected");
    Fault::PowerLoss.undo(&world, &primary).await?;
    world.converged().await?;
    Ok(())
}

#[tokio::test]
#[ignore = "long: make test-all"]
async fn a_second_failover_right_after_the_first() -> Result {
    alone_within(LONG, "second-failover", second_failover).await
}

async fn second_failover(suite: &'static Suite, case: Case) -> Result {
    let world = World::start(suite, &case, json!({}), Load::FULL).await?;
    world.converged().await?;
    for second in [Fault::PostmasterKilled, Fault::PodDeleted, Fault::ContainerKilled] {
        let (since, term, primary) = (Instant::now(), world.term().await?, world.primary().await?);
        Fault::PostmasterKilled.strike(&world, &primary).await?;
        world.taken(since, term, TAKEN).await?;
        // Before anyone has caught up.
        let (term, primary) = (world.term().await?, world.primary().await?);
        let since = second.strike(&world, &primary).await?;
        let recovery = world.taken(since, term, TAKEN).await?;
        world.one_primary_with_every_row().await?;
        let healed = world.converged().await?;
        say(&format!(
            "{} right after a failover: gap {:.1?}, all stream after {healed:.1?}",
            second.name(),
            recovery.gap
        ));
        assert!(recovery.gap < 2 * bound(second), "{:?}", recovery.gap);
    }
    Ok(())
}

#[tokio::test]
#[ignore = "long: make test-all"]
async fn a_replica_frozen_while_the_primary_dies_and_thawed_later() -> Result {
    alone_within(LONG, "thawed", thawed).await
}

async fn thawed(suite: &'static Suite, case: Case) -> Result {
    use hello_operator::api::names::CONTAINER;

    use crate::cluster::{Process, Signal};
    let world = World::start(suite, &case, json!({}), Load::LIGHT).await?;
    world.converged().await?;
    // Its PostgreSQL alone is frozen, so that its agent goes on and must notice; then all of it, for less than the
    // kubelet's patience.
    for what in ["^postgres( -D |: )", "."] {
        let (primary, replica, _) = world.roles().await?;
        let pod = world.pod(&replica);
        pod.signal(CONTAINER, Process::Matching(what), Signal::Stop).await?;
        let (term, began) = (world.term().await?, Instant::now());
        Fault::PodDeleted.strike(&world, &primary).await?;
        tokio::time::sleep(Duration::from_secs(8)).await;
        // One that was ended meanwhile is not there to be thawed.
        let _ = pod.signal(CONTAINER, Process::Matching(what), Signal::Continue).await;
        let recovery = world.taken(began, term, 2 * TAKEN).await?;
        world.one_primary_with_every_row().await?;
        world.converged().await?;
        say(&format!("{replica} frozen ({what}) while {primary} was deleted: gap {:.1?}", recovery.gap));
    }
    Ok(())
}
