//! Flags and environment, typed, read in this one place.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Hello Operator: PostgreSQL on Kubernetes, highly available.
#[derive(Debug, Parser)]
#[command(name = "hello-operator", version, about)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// How to log.
    #[command(flatten)]
    pub log: LogArgs,
}

/// The programs in this one binary.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs the operator: in the cluster, or from a terminal with a kubeconfig.
    Run(RunArgs),
    /// Runs the agent: PID 1 of the database container of each instance.
    Agent(AgentArgs),
    /// Copies this binary into a shared volume, so that any database image can run the agent.
    Inject(InjectArgs),
    /// Prints the CustomResourceDefinitions as YAML.
    Crds,
    /// Prints what a reconcile of one object would do, with the reasons, and does nothing.
    Plan(PlanArgs),
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
    /// Name of this process among the operator's replicas; the Pod's name in a cluster.
    #[arg(long, env = "POD_NAME", default_value = "terminal")]
    pub identity: String,
    /// Namespace of the operator's own Lease.
    #[arg(long, env = "POD_NAMESPACE", default_value = "default")]
    pub namespace: String,
    /// How many clusters are reconciled at the same time.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
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

/// Flags of `hello-operator inject`.
#[derive(Debug, Clone, Args)]
pub struct InjectArgs {
    /// Where to put the binary.
    #[arg(long, default_value = crate::api::names::AGENT_BINARY)]
    pub to: PathBuf,
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
