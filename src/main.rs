//! The command line: picks a subcommand; errors become exit codes.

use clap::Parser;
use hello_operator::api::crd;
use hello_operator::config::{Cli, Command};
use hello_operator::operator;

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    // One provider for all that speaks TLS; it fails only if there is one already.
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
                std::process::ExitCode::SUCCESS
            }
            Err(error) => finish(Err(error)),
        },
        Command::Agent(_) | Command::Inject(_) => std::process::ExitCode::FAILURE,
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

fn finish(outcome: Result<(), operator::Error>) -> std::process::ExitCode {
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "the reason for the exit code, also when logging never began")]
            {
                eprintln!("hello-operator: {error}");
            }
            std::process::ExitCode::FAILURE
        }
    }
}

fn print_crds() -> std::process::ExitCode {
    for crd in crd::all() {
        match serde_json::to_string_pretty(&crd) {
            Ok(text) => {
                #[expect(clippy::print_stdout, reason = "printing is what this subcommand is for")]
                {
                    println!("{text}");
                }
            }
            Err(_) => return std::process::ExitCode::FAILURE,
        }
    }
    std::process::ExitCode::SUCCESS
}
