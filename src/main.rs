//! The command line: picks a subcommand; errors become exit codes.

use std::process::ExitCode;

use clap::Parser;
use hello_operator::agent;
use hello_operator::api::crd;
use hello_operator::config::ctl::{CtlArgs, Plugin};
use hello_operator::config::{Cli, Command, LogArgs, TelemetryEnv, cloud_identity};
use hello_operator::ctl;
use hello_operator::operator;
use hello_operator::telemetry;

fn main() -> ExitCode {
    if ctl::called_as_plugin(std::env::args_os().next().as_deref()) {
        return run_ctl(Plugin::parse().ctl);
    }
    let cli = Cli::parse();
    // First, and with nothing of what the others need: they stay small.
    match cli.command {
        Command::Killer(args) => return finish(agent::killer::run(args.agent)),
        Command::Archive(args) => return agent::archive::client::archive(&args.socket, &args.path),
        Command::Fetch(args) => return agent::archive::client::fetch(&args.socket, &args.name, &args.to),
        Command::Ctl(args) => return run_ctl(args),
        _ => {}
    }
    provide_tls();
    match cli.command {
        Command::Run(args) => finish(block_on(operator::run(args, cli.log))),
        Command::Agent(args) => run_agent(&cli.log, agent::run(args, cloud_identity())),
        Command::Verify(args) => run_agent(&cli.log, agent::verify::run(args, cloud_identity())),
        Command::Killer(_) | Command::Archive(_) | Command::Fetch(_) | Command::Ctl(_) => ExitCode::FAILURE,
        Command::Inject(args) => finish(agent::inject(&args.to)),
        Command::Crds => finish(serde_saphyr::to_string_multiple(&crd::all()).map(print)),
        Command::Check(args) => finish(block_on(operator::check(args)).map(print)),
        Command::Plan(args) => finish(block_on(operator::show(args)).map(print)),
    }
}

/// Several crates bring TLS; they share this one provider. It fails only if there is one already.
fn provide_tls() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// The tool of users. What it says goes to a person: it logs nothing.
fn run_ctl(args: CtlArgs) -> ExitCode {
    provide_tls();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return finish(Err(error)),
    };
    let outcome = runtime.block_on(ctl::run(args));
    // A thread that reads from the terminal must not keep the process.
    runtime.shutdown_background();
    outcome.unwrap_or_else(|error| {
        tell(&format!("error: {error}"));
        ExitCode::FAILURE
    })
}

/// Two threads: the operator waits nearly always.
fn block_on<T>(work: impl Future<Output = Result<T, operator::Error>>) -> Result<T, operator::Error> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(2)
        .build()
        .map_err(|error| operator::Error::Internal(error.to_string()))?
        .block_on(work)
}

/// One thread: the agent waits nearly always, and must be small.
fn run_agent(log: &LogArgs, work: impl Future<Output = Result<(), agent::Error>>) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(8).build() {
        Ok(runtime) => runtime,
        Err(error) => return finish(Err(error)),
    };
    let outcome = runtime.block_on(async {
        // Where its traces go it learns from its configuration.
        let environment = TelemetryEnv { traces: None, refused: None, ..TelemetryEnv::read() };
        let telemetry = telemetry::init(log, &environment, "hello-operator-agent");
        let outcome = work.await;
        if let Err(error) = &outcome {
            tracing::error!(%error, category = error.category().as_str(), "the agent cannot go on");
        }
        if let Ok(telemetry) = telemetry {
            telemetry.shutdown().await;
        }
        outcome
    });
    // A blocked thread, for instance of a disk that hangs, must not keep the process.
    runtime.shutdown_background();
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[expect(clippy::needless_pass_by_value, reason = "it is the end of a chain")]
#[expect(clippy::print_stdout, reason = "printing is what these subcommands are for")]
fn print(text: String) {
    print!("{text}");
}

fn finish<E: std::fmt::Display>(outcome: Result<(), E>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&format!("hello-operator: {error}"));
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stderr, reason = "the reason for the exit code, also when logging never began")]
fn tell(text: &str) {
    eprintln!("{text}");
}
