//! The table "What triggers a hand-over", row by row, on one cluster.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{LONG, bound, round, say, wanted};
use crate::harness::election::{Fault, Load, OperatorIs, World};
use crate::harness::{Case, Result, Suite, alone_within};

/// Each kind of loss once; the random faults have the others, too.
const EVERYDAY: [Fault; 6] = [
    Fault::PodDeleted,
    Fault::PostmasterKilled,
    Fault::ContainerKilled,
    Fault::PostgresFrozen,
    Fault::DataDeleted,
    Fault::PowerLoss,
];

/// The harder half: the operator is not in the path of a failover.
#[tokio::test]
async fn triggers_without_an_operator() -> Result {
    let faults: Vec<Fault> = wanted().into_iter().filter(|fault| EVERYDAY.contains(fault)).collect();
    alone_within(LONG, "triggers", |suite, case| triggers(suite, case, OperatorIs::Away, faults)).await
}

#[tokio::test]
#[ignore = "long: make test-all"]
async fn triggers_all_of_them_without_an_operator() -> Result {
    alone_within(LONG, "triggers-all", |suite, case| triggers(suite, case, OperatorIs::Away, wanted())).await
}

#[tokio::test]
#[ignore = "long: make test-all"]
async fn triggers_all_of_them_with_the_operator() -> Result {
    alone_within(LONG, "triggers-operated", |suite, case| triggers(suite, case, OperatorIs::Running, wanted())).await
}

async fn triggers(suite: &'static Suite, case: Case, operator: OperatorIs, faults: Vec<Fault>) -> Result {
    let mut world = World::start(suite, &case, json!({}), Load::LIGHT).await?;
    world.converged().await?;
    operator.arrange(suite).await?;
    world.operated = operator == OperatorIs::Running;
    let quiet = Instant::now();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (rows, gap) = (world.ledger().count_since(quiet), world.cost_since(quiet, 0).gap);
    say(&format!("3 s in which nothing happens: {rows} rows, longest gap {gap:.2?}"));
    let mut slow = Vec::new();
    for fault in faults {
        let recovery =
            round(&mut world, fault, operator).await.map_err(|error| format!("{}: {error}", fault.name()))?;
        if recovery.gap > bound(fault) {
            slow.push(format!("{}: {:.1?}", fault.name(), recovery.gap));
        }
    }
    say(&format!("{} rows acknowledged, none lost", world.ledger().count()));
    if slow.is_empty() { Ok(()) } else { Err(format!("no write for too long: {slow:?}").into()) }
}
