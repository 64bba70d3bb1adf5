//! Flags of `hello-operator ctl`, which is `kubectl hello`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// The program when it is called as `kubectl-hello`.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-hello",
    bin_name = "kubectl hello",
    version,
    about = "Looks at, and after, clusters of Hello Operator"
)]
pub struct Plugin {
    /// What to do, and where.
    #[command(flatten)]
    pub ctl: CtlArgs,
}

/// What to do, and where.
#[derive(Debug, Clone, Args)]
pub struct CtlArgs {
    /// Where.
    #[command(flatten)]
    pub place: Place,
    /// What.
    #[command(subcommand)]
    pub verb: Verb,
}

/// Which cluster of Kubernetes, and which namespace.
#[derive(Debug, Clone, Default, Args)]
pub struct Place {
    /// Namespace; by default the kubeconfig's.
    #[arg(long, short, global = true)]
    pub namespace: Option<String>,
    /// Context of the kubeconfig; by default its current one.
    #[arg(long, global = true)]
    pub context: Option<String>,
}

/// What can be done.
#[derive(Debug, Clone, Subcommand)]
pub enum Verb {
    /// Shows one cluster on one screen.
    Status(LookArgs),
    /// Tells the last decisions and their reasons, in order of time.
    Why(LookArgs),
    /// Tells what the operator would do next, as it says itself.
    Plan(LookArgs),
    /// Makes another instance the primary, and waits for it.
    Promote(PromoteArgs),
    /// Takes a backup.
    Backup(BackupArgs),
    /// Restores the archive of a cluster into a new one.
    Restore(RestoreArgs),
    /// Opens psql in the primary's Pod, as the application's user.
    Psql(PsqlArgs),
    /// Shows the logs of all instances, merged by time.
    Logs(LogsArgs),
    /// Restarts PostgreSQL of all instances, or of one.
    Restart(RestartArgs),
    /// Stops the Pods and keeps the volumes.
    Hibernate(StateArgs),
    /// Starts the Pods again.
    Resume(StateArgs),
    /// Writes what helps others to help: objects, events and logs in one archive, without secrets.
    Report(ReportArgs),
    /// Prints a script that completes these commands in a shell.
    Completion(CompletionArgs),
}

/// Form of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Flags of the verbs that only look.
#[derive(Debug, Clone, Args)]
pub struct LookArgs {
    /// Name of the HelloOperator.
    pub name: String,
    /// Form of the answer.
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Form,
}

/// How long to wait for what was asked for.
#[derive(Debug, Clone, Args)]
pub struct Patience {
    /// Ask and do not wait for the result.
    #[arg(long)]
    pub no_wait: bool,
    /// Wait no longer than this, such as 90s or 5m; what was asked for goes on.
    #[arg(long, value_parser = duration, default_value = "5m")]
    pub timeout: Duration,
}

/// Flags of `promote`.
#[derive(Debug, Clone, Args)]
pub struct PromoteArgs {
    /// Name of the HelloOperator.
    pub name: String,
    /// The instance, such as my-helloworld-2, or its number.
    pub instance: String,
    /// How long to wait.
    #[command(flatten)]
    pub patience: Patience,
}

/// Flags of `backup`.
#[derive(Debug, Clone, Args)]
pub struct BackupArgs {
    /// Name of the HelloOperator.
    pub name: String,
    /// Name of the HelloBackup; by default the cluster's and the time.
    #[arg(long = "as", value_name = "NAME")]
    pub called: Option<String>,
    /// The primary takes it, and no replica.
    #[arg(long)]
    pub primary: bool,
    /// Show its progress until it is complete.
    #[arg(long)]
    pub wait: bool,
    /// Wait no longer than this; the backup goes on.
    #[arg(long, value_parser = duration, default_value = "24h")]
    pub timeout: Duration,
}

/// Flags of `restore`.
#[derive(Debug, Clone, Args)]
pub struct RestoreArgs {
    /// Name of the new HelloOperator.
    pub new: String,
    /// Name of the one whose archive is restored; its spec is taken over.
    #[arg(long)]
    pub from: String,
    /// The last moment that is restored, such as 2026-11-30T10:01:00Z. Default: all that was archived.
    #[arg(long, conflicts_with_all = ["lsn", "point"])]
    pub time: Option<String>,
    /// The last position that is restored, such as 0/3000148.
    #[arg(long, conflicts_with = "point")]
    pub lsn: Option<String>,
    /// The point that pg_create_restore_point named.
    #[arg(long = "name", value_name = "POINT")]
    pub point: Option<String>,
    /// Name of the HelloBackup to begin with. Default: the last one before the target.
    #[arg(long)]
    pub backup: Option<String>,
    /// Print the object and make nothing.
    #[arg(long)]
    pub dry_run: bool,
}

/// Flags of `psql`.
#[derive(Debug, Clone, Args)]
pub struct PsqlArgs {
    /// Name of the HelloOperator.
    pub name: String,
    /// As the superuser.
    #[arg(long)]
    pub superuser: bool,
    /// On a replica that is ready.
    #[arg(long)]
    pub replica: bool,
    /// Arguments for psql.
    #[arg(last = true)]
    pub arguments: Vec<String>,
}

/// Flags of `logs`.
#[derive(Debug, Clone, Args)]
pub struct LogsArgs {
    /// Name of the HelloOperator.
    pub name: String,
    /// Go on with what comes.
    #[arg(long, short)]
    pub follow: bool,
    /// Only what is younger than this, such as 10m.
    #[arg(long, value_parser = duration)]
    pub since: Option<Duration>,
    /// Lines of each instance to begin with; by default 200, or all where --since is said.
    #[arg(long)]
    pub tail: Option<u32>,
    /// The lines as they were written.
    #[arg(long)]
    pub raw: bool,
}

/// Flags of `restart`.
#[derive(Debug, Clone, Args)]
pub struct RestartArgs {
    /// Name of the HelloOperator.
    pub name: String,
    /// The instance, such as my-helloworld-2, or its number; by default all, replicas first.
    pub instance: Option<String>,
    /// How long to wait.
    #[command(flatten)]
    pub patience: Patience,
}

/// Flags of `hibernate` and `resume`.
#[derive(Debug, Clone, Args)]
pub struct StateArgs {
    /// Name of the HelloOperator.
    pub name: String,
    /// How long to wait.
    #[command(flatten)]
    pub patience: Patience,
}

/// Flags of `report`.
#[derive(Debug, Clone, Args)]
pub struct ReportArgs {
    /// Name of the HelloOperator.
    pub name: String,
    /// Where to write it; by default hello-<name>-<time>.tar.gz in this folder.
    #[arg(long, short)]
    pub output: Option<PathBuf>,
    /// Lines of each instance's log.
    #[arg(long, default_value_t = 5000)]
    pub tail: u32,
    /// Namespace of the operator, whose logs are part of it where you may read them.
    #[arg(long, default_value = "hello-system")]
    pub operator_namespace: String,
}

/// Flags of `completion`.
#[derive(Debug, Clone, Args)]
pub struct CompletionArgs {
    /// The shell; `kubectl` gives what kubectl itself calls for its own completion.
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Whose completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// Bash.
    Bash,
    /// Zsh.
    Zsh,
    /// Fish.
    Fish,
    /// A `kubectl_complete-hello`, to be put into the PATH.
    Kubectl,
}

/// What of the environment a terminal's programs look at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TerminalEnv {
    /// `NO_COLOR`: no colours, whatever it holds.
    pub plain: bool,
    /// `TERM`: the kind of terminal.
    pub kind: Option<String>,
}

impl TerminalEnv {
    /// Reads it.
    #[expect(clippy::disallowed_methods, reason = "this is the place where the environment is read")]
    pub fn read() -> Self {
        let get = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self { plain: get("NO_COLOR").is_some(), kind: get("TERM") }
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed: jiff::SignedDuration = text.parse().map_err(|_| "use a duration such as 90s, 10m or 1h30m")?;
    Duration::try_from(parsed).map_err(|_| "use a duration that is not negative".into())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_flags_do_not_contradict_each_other() {
        Plugin::command().debug_assert();
        crate::config::Cli::command().debug_assert();
    }

    #[test]
    fn flags_of_the_place_may_stand_anywhere() {
        let parse = |line: &str| Plugin::try_parse_from(line.split_whitespace());
        for line in ["kubectl-hello -n shop status db", "kubectl-hello status db -n shop"] {
            assert_eq!(parse(line).unwrap().ctl.place.namespace.as_deref(), Some("shop"), "{line}");
        }
        let Verb::Psql(args) = parse("kubectl-hello psql db --replica -- -c x").unwrap().ctl.verb else { panic!() };
        assert_eq!((args.replica, args.arguments), (true, vec!["-c".to_owned(), "x".to_owned()]));
        assert!(parse("kubectl-hello restore new --from db --lsn 0/1 --time 2026-11-30T10:01:00Z").is_err());
        assert!(parse("kubectl-hello logs db --since -5m").is_err());
        assert!(parse("kubectl-hello promote db 2 --timeout soon").is_err());
    }
}
