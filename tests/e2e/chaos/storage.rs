//! Disks that are full: nobody can do it better, so nobody takes over, and growth is the way out. And one that hangs.

use std::time::{Duration, Instant};

use hello_operator::api::names::{CONTAINER, DATA_MOUNT};
use kube::ResourceExt;
use serde_json::json;

use super::{LONG, TAKEN, say};
use crate::harness::election::{Load, World};
use crate::harness::{Case, READY, Result, Suite, alone_within};

#[tokio::test]
#[ignore = "long: make test-all"]
async fn full_disks_cause_no_failover_and_growth_ends_it() -> Result {
    alone_within(LONG, "disk-full", disk_full).await
}

async fn disk_full(suite: &'static Suite, case: Case) -> Result {
    let spec = json!({"storage": {"size": "512Mi", "storageClassName": "local-sized"}});
    let world = World::start(suite, &case, spec, Load::LIGHT).await?;
    world.converged().await?;
    let (term, primary) = (world.term().await?, world.primary().await?);
    world.sql(&primary, "create table forced (n int); insert into forced values (-1)").await?;
    for pod in case.pods("db").await? {
        fill(&world, &pod.name_any()).await?;
    }
    let full = Instant::now();
    case.says("db", "Degraded", true, "db-1, db-2, db-3 is full: raise spec.storage.size").await?;
    case.says("db", "WriteAvailable", false, "raise spec.storage.size").await?;
    // Reads go on, and a write is told why not.
    assert_eq!(world.sql(&primary, "select 1").await?, "1");
    let refused = world.sql(&primary, "insert into acknowledged values (-1, 0)").await;
    assert!(refused.as_ref().is_err_and(|why| why.contains("read-only")), "{refused:?}");
    // What is written on purpose gets as far as the segments of WAL that are there, and PostgreSQL is not over with that.
    for row in 0..12 {
        let force =
            format!("set transaction_read_only = off; insert into forced values ({row}); select pg_switch_wal()");
        if let Err(why) = world.sql(&primary, &force).await {
            say(&format!("after {row} segments: {why}"));
            break;
        }
    }
    let settles = Instant::now();
    while settles.elapsed() < Duration::from_secs(30) {
        assert_eq!((world.primary().await?, world.term().await?), (primary.clone(), term), "a failover helps nobody");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    case.says("db", "WriteAvailable", false, "raise spec.storage.size").await?;
    case.change("db", json!({"storage": {"size": "1Gi"}})).await?;
    world.writes_on(2 * READY).await?;
    world.one_primary_with_every_row().await?;
    world.converged().await?;
    say(&format!("full, grown, and writing again after {:.0?}", full.elapsed()));
    Ok(())
}

/// A file of somebody else's on the volume, until nothing fits any more.
async fn fill(world: &World, instance: &str) -> Result {
    let fill = format!(
        "dd if=/dev/zero of={DATA_MOUNT}/filler bs=1M 2>/dev/null; dd if=/dev/zero of={DATA_MOUNT}/rest bs=4k 2>/dev/null; true"
    );
    world.pod(instance).run(CONTAINER, &["sh", "-c", &fill]).await?;
    Ok(())
}

#[tokio::test]
#[ignore = "long: make test-all"]
async fn a_full_primary_hands_over_to_one_with_room() -> Result {
    alone_within(LONG, "disk-one-full", one_full).await
}

async fn one_full(suite: &'static Suite, case: Case) -> Result {
    let spec = json!({"storage": {"size": "512Mi", "storageClassName": "local-sized"}});
    let world = World::start(suite, &case, spec, Load::LIGHT).await?;
    world.converged().await?;
    let (term, primary) = (world.term().await?, world.primary().await?);
    let began = Instant::now();
    fill(&world, &primary).await?;
    case.says("db", "Degraded", true, &format!("{primary} is full: raise spec.storage.size")).await?;
    // Not within a minute after it took the Lease.
    let recovery = world.taken(began, term, 2 * TAKEN).await?;
    say(&format!("the disk of {primary} is full: gap {:.1?}", recovery.gap));
    assert_eq!(recovery.takes, 1);
    case.event("db", "HandOverCompleted", "its volume was full").await?;
    world.one_primary_with_every_row().await?;
    // Who is full is no primary, also when the user wishes it to be.
    world.ask_for(&primary).await?;
    let settles = Instant::now();
    while settles.elapsed() < Duration::from_secs(15) {
        assert_eq!(world.term().await?, term + 1, "the role wanders");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    world.pod(&primary).run(CONTAINER, &["rm", &format!("{DATA_MOUNT}/filler"), &format!("{DATA_MOUNT}/rest")]).await?;
    world.taken(Instant::now(), term + 1, TAKEN).await?;
    assert_eq!(world.primary().await?, primary, "there is room, and the wish comes true");
    world.converged().await?;
    Ok(())
}

#[tokio::test]
#[ignore = "long: make test-all"]
async fn a_disk_that_hangs_costs_the_lease_and_no_row() -> Result {
    alone_within(LONG, "disk-hangs", disk_hangs).await
}

async fn disk_hangs(suite: &'static Suite, case: Case) -> Result {
    let spec = json!({"storage": {"size": "512Mi", "storageClassName": "local-sized"}});
    let world = World::start(suite, &case, spec, Load::LIGHT).await?;
    world.converged().await?;
    let (term, primary) = (world.term().await?, world.primary().await?);
    let began = Instant::now();
    // Neither PostgreSQL nor its killed processes can end meanwhile.
    world.pod(&primary).freeze_disk(CONTAINER, DATA_MOUNT, Duration::from_secs(45)).await?;
    let recovery = world.taken(began, term, TAKEN).await?;
    say(&format!("the disk of {primary} hangs: gap {:.1?}", recovery.gap));
    assert!(recovery.gap < Duration::from_secs(35), "no write for {:.1?}", recovery.gap);
    tokio::time::sleep(Duration::from_secs(48).saturating_sub(began.elapsed())).await;
    world.one_primary_with_every_row().await?;
    world.converged().await?;
    Ok(())
}
