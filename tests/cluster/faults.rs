//! Taking parts of the cluster away, and giving them back.

use super::command::{LONG, SHORT, lc};
use super::{Error, Result};

/// A node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    number: u8,
}

impl Node {
    pub(super) fn new(number: u8) -> Self {
        Self { number }
    }

    pub fn number(self) -> u8 {
        self.number
    }

    /// Its name in the cluster.
    pub fn name(self) -> String {
        format!("node{}", self.number)
    }

    /// Path of its network namespace: who enters it reaches Services as a Pod does.
    pub async fn network_namespace(self) -> Result<std::path::PathBuf> {
        lc(SHORT, ["node", "network", &self.number.to_string()]).await.map(Into::into)
    }

    /// Power loss: every process of the node is gone at once, and it answers nothing. The disk stays.
    pub async fn kill(self) -> Result<()> {
        lc(SHORT, ["node", "kill", &self.number.to_string()]).await.map(drop)
    }

    /// Power again; returns when the node's new kubelet reports Ready.
    pub async fn revive(self) -> Result<()> {
        lc(LONG, ["node", "revive", &self.number.to_string()]).await.map(drop)
    }
}

/// The network between a node, with its Pods, and everyone else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    number: u8,
}

impl Network {
    pub(super) fn new(number: u8) -> Self {
        Self { number }
    }

    /// Packets are lost both ways; nothing is refused.
    pub async fn cut(self) -> Result<()> {
        self.run("cut").await
    }

    /// The node hears nobody, and is heard.
    pub async fn cut_to(self) -> Result<()> {
        self.run("cut-to").await
    }

    /// Nobody hears the node, and it hears everyone.
    pub async fn cut_from(self) -> Result<()> {
        self.run("cut-from").await
    }

    /// This node and another lose each other; everyone else reaches both.
    pub async fn cut_between(self, other: Node) -> Result<()> {
        lc(SHORT, ["net", "cut-between", &Node::new(self.number).name(), &other.name()]).await.map(drop)
    }

    /// This node loses the control plane (API server and DNS), and nobody else.
    pub async fn cut_control_plane(self) -> Result<()> {
        lc(SHORT, ["net", "cut-between", &Node::new(self.number).name(), "control-plane"]).await.map(drop)
    }

    /// Takes back every cut of this node.
    pub async fn heal(self) -> Result<()> {
        self.run("heal").await
    }

    async fn run(self, verb: &str) -> Result<()> {
        lc(SHORT, ["net", verb, &self.number.to_string()]).await.map(drop)
    }
}

/// The process of the API server. etcd, controllers and nodes go on without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApiServer;

impl ApiServer {
    /// It stops answering, while connections stay open (SIGSTOP).
    pub async fn stop(self) -> Result<()> {
        self.run("stop").await
    }

    /// It goes on where it stopped.
    pub async fn continue_(self) -> Result<()> {
        self.run("continue").await
    }

    /// It is gone, and connections are refused (SIGKILL).
    pub async fn kill(self) -> Result<()> {
        self.run("kill").await
    }

    /// Starts it again after [`ApiServer::kill`]; returns when it is ready.
    pub async fn start(self) -> Result<()> {
        self.run("start").await
    }

    async fn run(self, verb: &str) -> Result<()> {
        lc(LONG, ["api", verb]).await.map(drop)
    }
}
