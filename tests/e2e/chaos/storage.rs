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
    // A file of somebody else's on every volume, until nothing fits any more.
    for pod in case.pods("db").await? {
        let fill = format!(
            "dd if=/dev/zero of={DATA_MOUNT}/filler bs=1M 2>/dev/null; dd if=/dev/zero of={DATA_MOUNT}/rest bs=4k 2>/dev/null; true"
        );
        world.pod(&pod.name_any()).run(CONTAINER, &["sh", "-c", &fill]).await?;
    }
    let full = Instant::now();
    // Until the WAL needs a new segment: those that are there are used up first.
    for _ in 0..12 {
        let _ = world
            .sql(&primary, "insert into acknowledged values (-1, 0) on conflict do nothing; select pg_switch_wal()")
            .await;
    }
    case.says("db", "Degraded", true, "space").await?;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!((world.primary().await?, world.term().await?), (primary.clone(), term), "a failover that helps nobody");
    case.change("db", json!({"storage": {"size": "1Gi"}})).await?;
    world.writes_on(2 * READY).await?;
    world.one_primary_with_every_row().await?;
    world.converged().await?;
    say(&format!("full, grown, and writing again after {:.0?}", full.elapsed()));
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
