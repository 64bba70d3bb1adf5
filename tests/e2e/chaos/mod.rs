//! The election on a real cluster: what breaks, and what holds all the same.
//!
//! `FAULT=power make e2e CASE=triggers` runs one fault of a table. What is too long for `make test` is ignored there, and
//! runs in `make test-all`.

mod api_server;
mod checker;
mod cuts;
mod planned;
mod random;
mod returns;
mod storage;
mod triggers;
mod two_at_once;

use std::time::Duration;

use crate::harness::election::{Fault, OperatorIs, Recovery, World, start_operator};
use crate::harness::{Result, variable};

/// Longest wait for a primary after a fault that leaves enough members.
const TAKEN: Duration = Duration::from_secs(60);
/// Longest case.
const LONG: Duration = Duration::from_secs(40 * 60);

/// A machine that also compiles is no place for figures: `make bench-failover` measures them, here a multiple is right.
fn bound(fault: Fault) -> Duration {
    fault.budget() * 2 + Duration::from_secs(2)
}

/// One fault of the primary, its repair, and what must hold before and after the repair.
async fn round(world: &mut World, fault: Fault, operator: OperatorIs) -> Result<Recovery> {
    let (primary, term) = (world.primary().await?, world.term().await?);
    let began = fault.strike(world, &primary).await?;
    let recovery = world.taken(began, term, TAKEN).await?;
    world.one_primary_with_every_row().await?;
    fault.undo(world, &primary).await?;
    let borrowed = operator == OperatorIs::Away && fault.needs_operator();
    if borrowed {
        start_operator(world.suite).await?;
    }
    let healed = world.converged().await?;
    if borrowed {
        operator.arrange(world.suite).await?;
    }
    let Recovery { gap, failures, takes } = recovery;
    say(&format!(
        "{}: {primary} -> {}, gap {gap:.2?}, {failures} attempts failed, {takes} takes, all stream again after {healed:.1?}",
        fault.name(),
        world.primary().await?
    ));
    for reason in world.ledger().reasons_since(began) {
        say(&format!("  {reason}"));
    }
    Ok(recovery)
}

/// The faults that are wanted: all, or those whose name contains a part of FAULT (`power|cut off`).
fn wanted() -> Vec<Fault> {
    let parts = variable("FAULT").unwrap_or_default();
    Fault::ALL.into_iter().filter(|fault| parts.split('|').any(|part| fault.name().contains(part))).collect()
}

/// The history of a run, at once: a case that hangs has said how far it came.
fn say(text: &str) {
    use std::io::Write as _;
    // Past the capture of the test harness.
    let _ = writeln!(std::io::stderr(), "{} {text}", jiff::Timestamp::now().strftime("%H:%M:%S"));
}
