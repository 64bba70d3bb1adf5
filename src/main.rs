//! The command line: picks a subcommand; errors become exit codes.

use clap::Parser;
use hello_operator::api::crd;
use hello_operator::config::{Cli, Command};

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    match cli.command {
        Command::Crds => print_crds(),
        Command::Run(_) | Command::Agent(_) | Command::Inject(_) | Command::Plan(_) => std::process::ExitCode::FAILURE,
    }
}

fn print_crds() -> std::process::ExitCode {
    match serde_saphyr::to_string_multiple(&crd::all()) {
        Ok(text) => {
            #[expect(clippy::print_stdout, reason = "printing is what this subcommand is for")]
            {
                print!("{text}");
            }
            std::process::ExitCode::SUCCESS
        }
        Err(_) => std::process::ExitCode::FAILURE,
    }
}
