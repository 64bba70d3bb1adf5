//! What all cases stand on: one local cluster with our chart for the whole run, one namespace for each case, and what is
//! left behind where one fails.

// Each test binary uses its own part of this.
#![allow(dead_code)]

mod case;
mod client;
mod dump;
pub mod election;
mod idle;
pub(crate) mod program;
mod store;
pub(crate) mod suite;
mod terminal;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;

pub use case::{Case, condition, json_at};
pub use client::ClientPod;
pub use idle::writes_while_idle;
pub use program::{Said, run};
pub use store::{KEY as STORE_KEY, Store};
pub use suite::{Suite, variable};
pub use terminal::Terminal;

/// What fails in a case, fails with any error; it is printed.
pub type Result<T = (), E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// What the first start of a database may take on a busy machine. The figures are measured by `make bench`, not here.
pub const READY: Duration = Duration::from_secs(120);
/// What anything else may take.
pub const SOON: Duration = Duration::from_secs(60);

/// Longest case; a hanging one must not hold up the run.
const LIMIT: Duration = Duration::from_secs(300);

/// Cases that touch what all share take the turn alone; the others take it together.
static TURN: tokio::sync::RwLock<()> = tokio::sync::RwLock::const_new(());

/// Runs a case beside others.
pub async fn case<F, R>(name: &str, body: F) -> Result
where
    F: FnOnce(&'static Suite, Case) -> R,
    R: Future<Output = Result>,
{
    let _turn = TURN.read().await;
    run_case(Suite::get().await?, name, LIMIT, false, body).await
}

/// Runs a case that nothing else may run beside: it changes the CRD, the operator's Deployment or the nodes. Afterwards,
/// whatever it did, nodes, CRD and operator are as before.
pub async fn alone<F, R>(name: &str, body: F) -> Result
where
    F: FnOnce(&'static Suite, Case) -> R,
    R: Future<Output = Result>,
{
    alone_within(LIMIT, name, body).await
}

/// The same for what takes longer.
pub async fn alone_within<F, R>(limit: Duration, name: &str, body: F) -> Result
where
    F: FnOnce(&'static Suite, Case) -> R,
    R: Future<Output = Result>,
{
    let _turn = TURN.write().await;
    let suite = Suite::get().await?;
    let outcome = run_case(suite, name, limit, true, body).await;
    let restored = suite.restore().await;
    outcome?;
    restored
}

async fn run_case<F, R>(suite: &'static Suite, name: &str, limit: Duration, alone: bool, body: F) -> Result
where
    F: FnOnce(&'static Suite, Case) -> R,
    R: Future<Output = Result>,
{
    let case = Case::begin(suite, name).await?;
    let namespaces = case.namespaces();
    let guarded = tokio::time::timeout(limit, AssertUnwindSafe(body(suite, case.clone())).catch_unwind());
    let outcome = match guarded.await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => Err(panic_text(panic.as_ref()).into()),
        Err(_) => Err(format!("the case did not end within {limit:?}").into()),
    };
    let outcome = match outcome {
        Ok(()) => Ok(()),
        Err(error) => {
            let folder = dump::write(suite, name, &namespaces.lock().await).await;
            Err(format!("{error}\nwhat was there at that moment: {}", folder.display()).into())
        }
    };
    if outcome.is_err() && suite.keeps() {
        return outcome;
    }
    if alone {
        // No Pod ends on a node without power.
        suite.heal().await?;
    }
    let ended = case.end().await;
    outcome?;
    ended
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panic").to_owned()
}
