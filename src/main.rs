//! The command line: picks a subcommand; errors become exit codes.

use std::process::ExitCode;

use clap::Parser;
use hello_operator::api::crd;
use hello_operator::config::{AgentArgs, Cli, Command, InjectArgs, LogArgs, TelemetryEnv};
use hello_operator::{agent, operator, telemetry};

fn main() -> ExitCode {
    let cli = Cli::parse();
    // Several crates bring TLS; they share this one provider. It fails only if there is one already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match cli.command {
        Command::Crds => print_crds(),
        Command::Run(args) => finish(block_on(operator::run(args, cli.log))),
        Command::Plan(args) => match block_on(operator::show(args)) {
            Ok(text) => {
                #[expect(clippy::print_stdout, reason = "printing is what this subcommand is for")]
                {
                    print!("{text}");
                }
                ExitCode::SUCCESS
            }
            Err(error) => finish(Err(error)),
        },
        Command::Agent(args) => run_agent(args, &cli.log),
        Command::Inject(args) => inject(&args),
    }
}

fn block_on<T>(work: impl Future<Output = Result<T, operator::Error>>) -> Result<T, operator::Error> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(2)
        .build()
        .map_err(|error| operator::Error::Internal(error.to_string()))?
        .block_on(work)
}

fn finish(outcome: Result<(), operator::Error>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "the reason for the exit code, also when logging never began")]
            {
                eprintln!("hello-operator: {error}");
            }
            ExitCode::FAILURE
        }
    }
}

/// One thread: the agent waits nearly always, and must be small.
fn run_agent(args: AgentArgs, log: &LogArgs) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(4).build() {
        Ok(runtime) => runtime,
        Err(error) => return complain(&error),
    };
    let outcome = runtime.block_on(async {
        let telemetry = telemetry::init(log, &TelemetryEnv::read(), "hello-operator-agent");
        let outcome = agent::run(args).await;
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

fn inject(args: &InjectArgs) -> ExitCode {
    match agent::inject(&args.to) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&error),
    }
}

#[expect(clippy::print_stderr, reason = "before there are logs, this is where people look")]
fn complain(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("{error}");
    ExitCode::FAILURE
}

fn print_crds() -> ExitCode {
    for crd in crd::all() {
        match serde_json::to_string_pretty(&crd) {
            Ok(text) => {
                #[expect(clippy::print_stdout, reason = "printing is what this subcommand is for")]
                {
                    println!("{text}");
                }
            }
            Err(_) => return ExitCode::FAILURE,
        }
    }
    ExitCode::SUCCESS
}
