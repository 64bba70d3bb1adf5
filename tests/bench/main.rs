//! The figures that we promise, measured: `make bench` prints them as a table and appends it to docs/figures.md.

#[path = "../cluster/mod.rs"]
mod cluster;
mod failover;
mod figures;
#[allow(unused_imports, reason = "what the cases use and the figures do not")]
#[path = "../e2e/harness/mod.rs"]
mod harness;
mod memory;
mod numbers;
mod objects;
mod ready;

use std::process::ExitCode;
use std::time::Duration;

use figures::Figures;
use harness::{Result, Suite, alone_within};

const HOUR: Duration = Duration::from_secs(3600);

fn main() -> ExitCode {
    let chosen = std::env::args().nth(1).unwrap_or_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return complain(&error.to_string()),
    };
    let mut figures = Figures::default();
    let outcome = runtime.block_on(measure(&chosen, &mut figures));
    // What was measured before something failed counts.
    if let Err(error) = figures.report() {
        return complain(&error.to_string());
    }
    match outcome {
        Ok(()) if figures.all_reached() => ExitCode::SUCCESS,
        Ok(()) => complain("a figure was not reached"),
        Err(error) => complain(&error.to_string()),
    }
}

async fn measure(chosen: &str, figures: &mut Figures) -> Result {
    if let Some(part) = chosen.strip_prefix("failover") {
        let part = part.trim_start_matches(':').trim().to_owned();
        return alone_within(6 * HOUR, "failover", async move |suite, case| {
            failover::measure(suite, &case, &part).await
        })
        .await;
    }
    let wanted = |name: &str| name.contains(chosen);
    if wanted("sizes") {
        figures.sizes(Suite::get().await?).await?;
    }
    if wanted("ready") {
        alone_within(HOUR, "ready", async |suite, case| ready::measure(suite, &case, figures).await).await?;
    }
    if wanted("idle") {
        alone_within(HOUR, "idle", async |_, case| ready::measure_idle(&case, figures).await).await?;
    }
    if wanted("contract") {
        alone_within(HOUR, "contract", async |suite, case| objects::measure_contract(suite, &case, figures).await)
            .await?;
    }
    if wanted("many") {
        alone_within(HOUR, "many", async |suite, case| objects::measure_many(suite, &case, figures).await).await?;
    }
    Ok(())
}

#[expect(clippy::print_stderr, reason = "a program's complaint")]
fn complain(text: &str) -> ExitCode {
    eprintln!("bench: {text}");
    ExitCode::FAILURE
}
