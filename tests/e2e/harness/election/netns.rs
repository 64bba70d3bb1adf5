//! A thread in a node's network, where Services have addresses: the machine itself has no way to them.

use std::os::fd::AsFd;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::Api;
use kube::api::{Patch, PatchParams};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::json;

use super::super::{Result, Suite};
use crate::cluster::Node;

/// Number of the node that only clients use. No fault hits it, and no Pod of a case runs there.
const CLIENTS: u8 = 4;

/// The node of the clients; it is added when the first case asks.
pub async fn client_node(suite: &Suite) -> Result<Node> {
    let cluster = suite.cluster();
    let nodes: Api<NodeObject> = Api::all(cluster.client().await?);
    let node = cluster.node(CLIENTS);
    if nodes.get_opt(&node.name()).await?.is_none() && cluster.add_node().await? != node {
        return Err(format!("{} is for clients, but the cluster has other nodes than three", node.name()).into());
    }
    let taint = json!({"spec": {"taints": [{"key": "clients-only", "effect": "NoSchedule"}]}});
    nodes.patch(&node.name(), &PatchParams::default(), &Patch::Merge(taint)).await?;
    Ok(node)
}

/// Starts a thread in a network namespace with a runtime of its own: what `body` opens is opened there.
pub fn spawn<F, R>(namespace: PathBuf, body: F) -> std::thread::JoinHandle<Result>
where
    F: FnOnce() -> R + Send + 'static,
    R: Future<Output = ()>,
{
    std::thread::spawn(move || {
        let file = std::fs::File::open(&namespace).map_err(|error| format!("{}: {error}", namespace.display()))?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(body());
        Ok(())
    })
}
