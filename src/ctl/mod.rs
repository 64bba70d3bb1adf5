//! `hello-operator ctl`, which is `kubectl hello`: a user's own tool, with the user's own rights.
//!
//! It shows what the operator publishes and asks for what the resource can be asked for; it decides nothing. What is shown,
//! and the objects that are made, come from [`view`], which is pure.

mod backup;
mod change;
mod completion;
mod error;
mod logs;
mod look;
mod psql;
mod report;
mod restore;
mod session;
mod terminal;
pub mod view;
mod wait;

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

pub use error::Error;

use crate::config::ctl::{CtlArgs, TerminalEnv, Verb};
use session::Session;

/// Name of the program as a plugin of kubectl.
pub const PLUGIN: &str = "kubectl-hello";

/// Whether the program was called by the plugin's name.
pub fn called_as_plugin(program: Option<&OsStr>) -> bool {
    program.map(Path::new).and_then(Path::file_stem).is_some_and(|name| name == PLUGIN)
}

/// Does what was asked for. The code is the program's own, or psql's.
pub async fn run(args: CtlArgs) -> Result<ExitCode, Error> {
    let terminal = TerminalEnv::read();
    if let Verb::Completion(args) = &args.verb {
        return completion::print(args.shell).map(|()| ExitCode::SUCCESS);
    }
    let session = Session::open(&args.place, &terminal).await?;
    let outcome = match args.verb {
        Verb::Status(args) => look::status(&session, &args).await,
        Verb::Why(args) => look::why(&session, &args).await,
        Verb::Plan(args) => look::plan(&session, &args).await,
        Verb::Promote(args) => change::promote(&session, &args).await,
        Verb::Restart(args) => change::restart(&session, &args).await,
        Verb::Hibernate(args) => change::hibernate(&session, &args).await,
        Verb::Resume(args) => change::resume(&session, &args).await,
        Verb::Backup(args) => backup::backup(&session, &args).await,
        Verb::Restore(args) => restore::restore(&session, args).await,
        Verb::Logs(args) => logs::logs(&session, &args).await,
        Verb::Report(args) => report::report(&session, &args).await,
        Verb::Psql(args) => return psql::psql(&session, &args, terminal.kind).await,
        Verb::Completion(_) => Ok(()),
    };
    match outcome {
        // Who reads has seen enough: `kubectl hello logs db | head`.
        Err(Error::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        outcome => outcome.map(|()| ExitCode::SUCCESS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plugin_is_known_by_its_name() {
        for (program, plugin) in [
            ("/usr/local/bin/kubectl-hello", true),
            ("kubectl-hello", true),
            ("kubectl-hello.exe", true),
            ("hello-operator", false),
            ("/kubectl-hello/hello-operator", false),
        ] {
            assert_eq!(called_as_plugin(Some(OsStr::new(program))), plugin, "{program}");
        }
        assert!(!called_as_plugin(None));
    }
}
