//! How long clients of the Service cannot write, for each way in which a primary can be lost: `make bench-failover`.
//!
//! Each value is appended to docs/figures/failover.jsonl as soon as it is there, so that series can be continued, and
//! docs/figures-failover.md is written anew from that file.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::harness::election::{Fault, Load, OperatorIs, World, start_operator};
use crate::harness::{Case, Result, Suite, variable};
use crate::numbers::{machine, show};

const VALUES: &str = "docs/figures/failover.jsonl";
const TABLE: &str = "docs/figures-failover.md";
/// No figure is above this; who needs longer has failed.
const LIMIT: Duration = Duration::from_secs(90);

/// One measured value.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Value {
    what: String,
    operator: bool,
    /// Longest time between two acknowledged rows, in seconds.
    gap: f64,
    /// Attempts that failed.
    failures: usize,
    /// When, and on what.
    run: String,
}

/// What is measured, and what was promised.
#[derive(Debug, Clone, Copy)]
enum Figure {
    Fault(Fault, f64),
    Switchover,
    ApiServer,
}

const FIGURES: [Figure; 10] = [
    Figure::Fault(Fault::PodDeleted, 2.0),
    Figure::Fault(Fault::PostmasterKilled, 2.0),
    Figure::Fault(Fault::ContainerKilled, 4.0),
    Figure::Switchover,
    Figure::Fault(Fault::PostgresFrozen, 10.0),
    Figure::Fault(Fault::AgentFrozen, 20.0),
    Figure::Fault(Fault::ContainerFrozen, 20.0),
    Figure::Fault(Fault::PowerLoss, 20.0),
    Figure::Fault(Fault::Partition, 20.0),
    Figure::ApiServer,
];

impl Figure {
    fn name(self) -> &'static str {
        match self {
            Self::Fault(fault, _) => fault.name(),
            Self::Switchover => "planned switchover",
            Self::ApiServer => "API server away 3 min",
        }
    }

    /// In seconds: for the API server what a commit may take on a busy machine, as no write may be refused.
    fn promised(self) -> f64 {
        match self {
            Self::Fault(_, promised) => promised,
            Self::Switchover => 1.5,
            Self::ApiServer => 1.0,
        }
    }

    /// Agents learn the wish of a user from the operator.
    fn without_operator(self) -> bool {
        !matches!(self, Self::Switchover)
    }

    /// Does it once: the cost for the clients, and what is to be undone.
    async fn once(self, world: &World) -> Result<(f64, usize)> {
        let (primary, next, _) = world.roles().await?;
        let term = world.term().await?;
        let cost = match self {
            Self::Fault(fault, _) => {
                let began = fault.strike(world, &primary).await?;
                let cost = world.taken(began, term, LIMIT).await?;
                world.one_primary_with_every_row().await?;
                fault.undo(world, &primary).await?;
                cost
            }
            Self::Switchover => {
                let began = Instant::now();
                world.ask_for(&next).await?;
                world.taken(began, term, LIMIT).await?
            }
            Self::ApiServer => {
                let began = Instant::now();
                world.suite.cluster().api_server().stop().await?;
                tokio::time::sleep(Duration::from_secs(180)).await;
                world.suite.cluster().api_server().continue_().await?;
                tokio::time::sleep(Duration::from_secs(15)).await;
                world.cost_since(began, 0)
            }
        };
        Ok((cost.gap.as_secs_f64(), cost.failures))
    }
}

/// Runs what is chosen by a part of its name, N times each (10), with the operator or with OPERATOR=0.
pub async fn measure(suite: &'static Suite, case: &Case, chosen: &str) -> Result {
    let times: usize = variable("N").and_then(|text| text.parse().ok()).unwrap_or(10);
    let operator = if variable("OPERATOR").as_deref() == Some("0") { OperatorIs::Away } else { OperatorIs::Running };
    let mut world = World::start(suite, case, json!({}), Load::LIGHT).await?;
    world.converged().await?;
    operator.arrange(suite).await?;
    world.operated = operator == OperatorIs::Running;
    let mut failed = Vec::new();
    for figure in FIGURES.into_iter().filter(|figure| figure.name().contains(chosen)) {
        if operator == OperatorIs::Away && !figure.without_operator() {
            continue;
        }
        for _ in 0..times {
            match figure.once(&world).await {
                Ok((gap, failures)) => {
                    let value = Value {
                        what: figure.name().into(),
                        operator: operator == OperatorIs::Running,
                        gap,
                        failures,
                        run: machine(),
                    };
                    append(&value)?;
                    show(&format!("  {}: {gap:.2} s, {failures} attempts failed", figure.name()));
                }
                // One that fails is no reason to have no other figure, if the cluster finds back.
                Err(error) => failed.push(format!("{}: {error}", figure.name())),
            }
            let borrowed = operator == OperatorIs::Away
                && matches!(figure, Figure::Fault(fault, _) if fault.needs_operator() || fault.restarts());
            if borrowed {
                start_operator(suite).await?;
            }
            world.converged().await?;
            if borrowed || operator == OperatorIs::Running {
                world.forget_restarts().await?;
            }
            if borrowed {
                suite.stop_operator().await?;
            }
        }
    }
    show(&format!("{} rows acknowledged, none lost", world.ledger().count()));
    render()?;
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n").into()) }
}

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn append(value: &Value) -> Result {
    let path = root(VALUES);
    std::fs::create_dir_all(path.parent().ok_or("a folder")?)?;
    let mut file = std::fs::File::options().append(true).create(true).open(path)?;
    writeln!(file, "{}", serde_json::to_string(value)?)?;
    Ok(())
}

/// Writes the table of all values that there are.
fn render() -> Result {
    let text = std::fs::read_to_string(root(VALUES))?;
    let values: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let mut out = String::from(
        "# Figures of the election\n\n\
         Written by `make bench-failover` from docs/figures/failover.jsonl, which has every single value with the run that it is\n\
         from. Seconds between two acknowledged writes, as clients of the Service `-rw` see it; default lease 15/10/2, three\n\
         instances on the local cluster. Acknowledged rows that were lost: 0, checked after each.\n\n\
         | | operator | median | worst | n | promised, below | reached |\n|---|---|---|---|---|---|---|\n",
    );
    for figure in FIGURES {
        for operator in [true, false] {
            let mut gaps: Vec<f64> = values
                .iter()
                .filter(|value| value.what == figure.name() && value.operator == operator)
                .map(|value| value.gap)
                .collect();
            gaps.sort_by(f64::total_cmp);
            let (Some(median), Some(worst)) = (gaps.get(gaps.len() / 2), gaps.last()) else { continue };
            let reached = if *median < figure.promised() { "yes" } else { "**no**" };
            let (name, count, promised) = (figure.name(), gaps.len(), figure.promised());
            let operator = if operator { "runs" } else { "at 0" };
            writeln!(
                out,
                "| {name} | {operator} | {median:.2} s | {worst:.2} s | {count} | {promised} s | {reached} |"
            )?;
        }
    }
    std::fs::write(root(TABLE), out)?;
    Ok(())
}
