//! The local cluster, for tests: a typed driver of `tests/cluster/lc`.
//!
//! ```ignore
//! #[path = "cluster/mod.rs"]
//! mod cluster;
//!
//! let cluster = Cluster::up().await?;            // started, or repaired if a test before left it broken
//! cluster.node(2).kill().await?;                 // power loss
//! cluster.network(3).cut_from().await?;          // nobody hears node3
//! cluster.pod("default", "pg-0").signal("postgres", Process::Matching("checkpointer"), Signal::Kill).await?;
//! let rows = cluster.sql("default", "pg-1", "postgres", "select count(*) from t").await?;
//! ```
//!
//! A `Cluster` is exclusive: a second one, of another test or another process, waits until the first is dropped.

// Each test binary uses its own part of this.
#![allow(dead_code, unused_imports)]

mod audit;
mod command;
mod error;
mod faults;
mod pod;
mod wait;

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use audit::{AuditEvent, AuditLog, ObjectReference, Stage};
pub use error::Error;
pub use faults::{ApiServer, Network, Node};
pub use pod::{Output, Pod, Process, Signal};
pub use wait::eventually;

use command::{LONG, SHORT, lc};

/// What fails in here, fails with an [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// How long a test waits for another one to finish with the cluster.
const TURN: Duration = Duration::from_secs(40 * 60);
/// Building Kubernetes from nothing is part of the first start.
const FIRST_START: Duration = Duration::from_secs(40 * 60);

/// A running local cluster that this test has for itself.
pub struct Cluster {
    kubeconfig: PathBuf,
    audit_log: PathBuf,
    // Closing the file gives the cluster to the next.
    _turn: File,
}

impl Cluster {
    /// Waits for this test's turn, then starts a cluster of three nodes, or brings the running one back to health:
    /// every node has power, nothing is cut, the API server answers. Objects of earlier tests are still there.
    pub async fn up() -> Result<Self> {
        let turn = take_turn(Path::new(&lc(SHORT, ["test-lock"]).await?)).await?;
        lc(FIRST_START, ["up"]).await?;
        Ok(Self {
            kubeconfig: lc(SHORT, ["kubeconfig"]).await?.into(),
            audit_log: lc(SHORT, ["audit-log"]).await?.into(),
            _turn: turn,
        })
    }

    /// Ends the cluster without a trace. Seldom needed: the next test reuses what runs.
    pub async fn down(self) -> Result<()> {
        lc(LONG, ["down", "--force"]).await.map(drop)
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A client with the administrator's rights and a bounded time to connect; bound the answers with [`eventually`] or a timeout.
    pub async fn client(&self) -> Result<kube::Client> {
        self.client_as("hello-operator-tests").await
    }

    /// The same under another user agent, by which the audit log tells clients apart.
    pub async fn client_as(&self, user_agent: &str) -> Result<kube::Client> {
        // More than one provider can be in the dependency tree, and then rustls has no default; a second call is no news.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let kubeconfig = kube::config::Kubeconfig::read_from(&self.kubeconfig)?;
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await?;
        config.connect_timeout = Some(Duration::from_secs(5));
        config
            .headers
            .push((http::header::USER_AGENT, user_agent.parse().map_err(|_| Error::UserAgent(user_agent.to_owned()))?));
        Ok(kube::Client::try_from(config)?)
    }

    /// Node `N`, named `nodeN` in the cluster.
    pub fn node(&self, number: u8) -> Node {
        Node::new(number)
    }

    /// Adds a node and returns it when it is Ready.
    pub async fn add_node(&self) -> Result<Node> {
        let number = lc(LONG, ["node", "add"]).await?;
        number.parse().map(Node::new).map_err(|_| Error::Answer { command: "node add".into(), answer: number })
    }

    /// Takes a node out of the cluster for good, with its disk.
    pub async fn remove_node(&self, node: Node) -> Result<()> {
        lc(LONG, ["node", "remove", &node.number().to_string()]).await.map(drop)
    }

    /// The network of node `N`.
    pub fn network(&self, number: u8) -> Network {
        Network::new(number)
    }

    /// The API server's process.
    pub fn api_server(&self) -> ApiServer {
        ApiServer
    }

    /// The processes of a Pod.
    pub fn pod(&self, namespace: &str, name: &str) -> Pod {
        Pod::new(namespace, name)
    }

    /// Runs a statement in the container `postgres` of a Pod, as its superuser, and returns the rows as `psql -At`
    /// prints them. It goes past the API server, so it works in every outage.
    pub async fn sql(&self, namespace: &str, pod: &str, database: &str, statement: &str) -> Result<String> {
        self.pod(namespace, pod).sql("postgres", database, statement).await
    }

    /// Runs a command in a Pod through the API server, as `kubectl exec` does.
    pub async fn exec(&self, namespace: &str, pod: &str, container: &str, command: &[&str]) -> Result<Output> {
        pod::exec_through_api(self.client().await?, namespace, pod, container, command).await
    }

    /// Imports an OCI archive on every node.
    pub async fn load_image(&self, archive: &Path) -> Result<()> {
        lc(LONG, [std::ffi::OsStr::new("load-image"), archive.as_os_str()]).await.map(drop)
    }

    /// What the API server was asked from now on.
    pub fn audit_log(&self) -> Result<AuditLog> {
        AuditLog::from_now(&self.audit_log)
    }
}

async fn take_turn(path: &Path) -> Result<File> {
    let file = File::options().create(true).append(true).open(path)?;
    eventually(TURN, "the cluster to be free", || async {
        match file.try_lock() {
            Ok(()) => Ok(()),
            Err(TryLockError::WouldBlock) => Err("another test holds it".to_owned()),
            Err(TryLockError::Error(error)) => Err(error.to_string()),
        }
    })
    .await?;
    Ok(file)
}
