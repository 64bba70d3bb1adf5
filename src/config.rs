//! Flags and environment, typed, read in this one place.

pub mod ctl;
pub mod traces;

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::backup::target::{AwsIdentity, AzureIdentity, CloudIdentity};
use clap::{Args, Parser, Subcommand, ValueEnum};
use traces::Destination;

/// Hello Operator: PostgreSQL on Kubernetes, highly available.
#[derive(Debug, Parser)]
#[command(name = "hello-operator", version = version(), about)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// How to log.
    #[command(flatten)]
    pub log: LogArgs,
}

fn version() -> &'static str {
    static LINE: std::sync::LazyLock<String> = std::sync::LazyLock::new(crate::api::build::line);
    &LINE
}

/// The programs in this one binary.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs the operator: in the cluster, or from a terminal with a kubeconfig.
    Run(RunArgs),
    /// Runs the agent: PID 1 of the database container of each instance.
    Agent(AgentArgs),
    /// Ends PostgreSQL at the deadline when the agent cannot. The agent starts it; it is of no use to anybody else.
    #[command(hide = true)]
    Killer(KillerArgs),
    /// Hands a segment of WAL to the agent: PostgreSQL's archive_command.
    #[command(hide = true)]
    Archive(ArchiveArgs),
    /// Has the agent fetch a file of the archive: PostgreSQL's restore_command.
    #[command(hide = true)]
    Fetch(FetchArgs),
    /// Proves in a scratch Pod that the newest backup can be restored. The operator starts it.
    #[command(hide = true)]
    Verify(VerifyArgs),
    /// Copies this binary into a shared volume, so that any database image can run the agent.
    Inject(InjectArgs),
    /// Prints the CustomResourceDefinitions as YAML.
    Crds,
    /// Looks whether an installation works: its definitions are of this version, and a leader renews its Lease.
    Check(CheckArgs),
    /// Prints what a reconcile of one object would do, with the reasons, and does nothing.
    Plan(PlanArgs),
    /// Looks at, and after, clusters with your own rights: the same as `kubectl hello`.
    Ctl(ctl::CtlArgs),
}

/// How to log; the same for every program.
#[derive(Debug, Clone, Args)]
pub struct LogArgs {
    /// Log at debug level (RUST_LOG overrides it, target by target).
    #[arg(long, short, global = true)]
    pub verbose: bool,
    /// Form of the log lines; by default text on a terminal and JSON elsewhere.
    #[arg(long, global = true, value_enum, env = "HELLO_LOG_FORMAT")]
    pub log_format: Option<LogFormat>,
}

/// Form of the log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Flags of `hello-operator run`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Run without a Lease. Only for a single process: two of them would both act.
    #[arg(long)]
    pub standalone: bool,
    /// Image that brings the agent into the database Pods; normally the operator's own.
    #[arg(long, env = "HELLO_AGENT_IMAGE", default_value = "hello-operator:dev")]
    pub agent_image: String,
    /// Install the CustomResourceDefinitions at the start, and repair them when something replaces them.
    #[arg(long, env = "HELLO_MANAGE_CRDS")]
    pub manage_crds: bool,
    /// Address of /metrics, /livez and /readyz.
    #[arg(long, env = "HELLO_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// Serve /metrics here over TLS, and not at the address above: to those with a token whom the API server lets get it.
    #[arg(long, env = "HELLO_METRICS_LISTEN")]
    pub metrics_listen: Option<SocketAddr>,
    /// Name of this process among the operator's replicas; the Pod's name in a cluster.
    #[arg(long, env = "POD_NAME", default_value = "terminal")]
    pub identity: String,
    /// Namespace of the operator's own Lease.
    #[arg(long, env = "POD_NAMESPACE", default_value = "default")]
    pub namespace: String,
    /// Look after these namespaces only, with rights in them and nowhere else. None: after all.
    #[arg(long, env = "HELLO_WATCH_NAMESPACES", value_delimiter = ',')]
    pub watch_namespaces: Vec<String>,
    /// How many clusters are reconciled at the same time. Each waits for the API server or an agent nearly always.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub concurrency: u16,
}

/// Flags of `hello-operator agent`; the operator sets all of them in the Pod.
#[derive(Debug, Clone, Args)]
pub struct AgentArgs {
    /// Name of the HelloOperator object.
    #[arg(long, env = "HELLO_CLUSTER")]
    pub cluster: String,
    /// Name of this instance, which is the Pod's name.
    #[arg(long, env = "POD_NAME")]
    pub instance: String,
    /// Namespace of the Pod.
    #[arg(long, env = "POD_NAMESPACE")]
    pub namespace: String,
    /// Uid of the Pod.
    #[arg(long, env = "POD_UID")]
    pub pod_uid: String,
    /// Address of the Pod.
    #[arg(long, env = "POD_IP")]
    pub address: std::net::IpAddr,
    /// Memory limit of the container in bytes; 0 where there is none.
    #[arg(long, env = "HELLO_MEMORY_BYTES", default_value_t = 0)]
    pub memory_bytes: u64,
    /// Where the data volume is mounted.
    #[arg(long, default_value = crate::api::names::DATA_MOUNT)]
    pub data: PathBuf,
    /// Where the WAL volume is mounted, when the cluster has one.
    #[arg(long, env = "HELLO_WAL_MOUNT")]
    pub wal: Option<PathBuf>,
}

/// Flags of `hello-operator killer`.
#[derive(Debug, Clone, Args)]
pub struct KillerArgs {
    /// The agent that started it.
    #[arg(long)]
    pub agent: u32,
}

/// Flags of `hello-operator archive`.
#[derive(Debug, Clone, Args)]
pub struct ArchiveArgs {
    /// The agent's socket.
    #[arg(long)]
    pub socket: PathBuf,
    /// The segment.
    pub path: PathBuf,
}

/// Flags of `hello-operator fetch`.
#[derive(Debug, Clone, Args)]
pub struct FetchArgs {
    /// The agent's socket.
    #[arg(long)]
    pub socket: PathBuf,
    /// Name of the file in the archive.
    pub name: String,
    /// Where to put it.
    pub to: PathBuf,
}

/// Flags of `hello-operator verify`.
#[derive(Debug, Clone, Args)]
pub struct VerifyArgs {
    /// What to verify: [`crate::api::verify::VerifyOrder`] as JSON.
    #[arg(long, env = "HELLO_VERIFY")]
    pub order: String,
    /// Namespace of the Pod.
    #[arg(long, env = "POD_NAMESPACE")]
    pub namespace: String,
    /// Where the scratch volume is mounted.
    #[arg(long, default_value = crate::api::names::DATA_MOUNT)]
    pub data: PathBuf,
    /// Where the result goes.
    #[arg(long, default_value = "/dev/termination-log")]
    pub result: PathBuf,
}

/// Flags of `hello-operator inject`.
#[derive(Debug, Clone, Args)]
pub struct InjectArgs {
    /// Where to put the binary.
    #[arg(long, default_value = crate::api::names::AGENT_BINARY)]
    pub to: PathBuf,
}

/// Flags of `hello-operator check`.
#[derive(Debug, Clone, Args)]
pub struct CheckArgs {
    /// Namespace of the operator's own Lease.
    #[arg(long, env = "POD_NAMESPACE", default_value = "default")]
    pub namespace: String,
    /// Look only whether the resources are served: for rights that end at namespaces.
    #[arg(long)]
    pub served_only: bool,
}

/// Flags of `hello-operator plan`.
#[derive(Debug, Clone, Args)]
pub struct PlanArgs {
    /// Name of the HelloOperator object.
    pub name: String,
    /// Its namespace; by default the kubeconfig's.
    #[arg(long, short)]
    pub namespace: Option<String>,
}

/// What telemetry takes from the environment and has no flag.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TelemetryEnv {
    /// `RUST_LOG`: levels, target by target.
    pub log_filter: Option<String>,
    /// The collector of traces that the standard `OTEL_` variables name, if they name one.
    pub traces: Option<Destination>,
    /// Why they cannot be followed.
    pub refused: Option<String>,
}

impl TelemetryEnv {
    /// Reads it.
    #[expect(clippy::disallowed_methods, reason = "this is the place where the environment is read")]
    pub fn read() -> Self {
        Self::from(|name| std::env::var(name).ok())
    }

    fn from(get: impl Fn(&str) -> Option<String>) -> Self {
        let get = |name: &str| get(name).filter(|value| !value.trim().is_empty());
        let (traces, refused) = match traces::destination(get) {
            Ok(traces) => (traces, None),
            Err(why) => (None, Some(why)),
        };
        Self { log_filter: get("RUST_LOG"), traces, refused }
    }
}

/// Reads what the cloud's admission webhooks put into the environment of a Pod for the identity of its service account.
#[expect(clippy::disallowed_methods, reason = "this is the place where the environment is read")]
pub fn cloud_identity() -> CloudIdentity {
    let get = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    CloudIdentity {
        aws: AwsIdentity {
            web_identity_token_file: get("AWS_WEB_IDENTITY_TOKEN_FILE"),
            role_arn: get("AWS_ROLE_ARN"),
            role_session_name: get("AWS_ROLE_SESSION_NAME"),
            sts_endpoint: get("AWS_ENDPOINT_URL_STS"),
            container_credentials_full_uri: get("AWS_CONTAINER_CREDENTIALS_FULL_URI"),
            container_authorization_token_file: get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
        },
        google: get("GOOGLE_APPLICATION_CREDENTIALS"),
        azure: AzureIdentity {
            client_id: get("AZURE_CLIENT_ID"),
            tenant_id: get("AZURE_TENANT_ID"),
            federated_token_file: get("AZURE_FEDERATED_TOKEN_FILE"),
            authority_host: get("AZURE_AUTHORITY_HOST"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(values: &[(&str, &str)]) -> TelemetryEnv {
        TelemetryEnv::from(|name| values.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn what_cannot_be_followed_is_said() {
        let broken = env(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "collector")]);
        assert_eq!(broken.traces, None);
        assert!(broken.refused.unwrap().contains("OTEL_EXPORTER_OTLP_ENDPOINT"));
    }

    #[test]
    fn rust_log_is_taken_unless_empty() {
        assert_eq!(env(&[("RUST_LOG", "debug")]).log_filter.as_deref(), Some("debug"));
        assert_eq!(env(&[("RUST_LOG", "")]).log_filter, None);
    }
}
