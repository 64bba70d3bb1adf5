//! What happens to a primary: each row of the table "What triggers a hand-over".

use std::time::{Duration, Instant};

use hello_operator::api::names::{CONTAINER, DATA_MOUNT};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, EvictParams};

use super::super::Result;
use super::world::World;
use crate::cluster::{Process, Signal};

/// A fault of one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    PodDeleted,
    PodEvicted,
    PostmasterKilled,
    ContainerKilled,
    PostgresFrozen,
    DataDeleted,
    AgentFrozen,
    ContainerFrozen,
    PowerLoss,
    Partition,
}

/// Command lines of PostgreSQL's processes: the postmaster, and everybody.
const POSTMASTER: &str = "^postgres -D ";
const POSTGRES: &str = "^postgres( -D |: )";
const EVERYTHING: &str = ".";

impl Fault {
    pub const ALL: [Self; 10] = [
        Self::PodDeleted,
        Self::PostmasterKilled,
        Self::PodEvicted,
        Self::ContainerKilled,
        Self::PostgresFrozen,
        Self::DataDeleted,
        Self::AgentFrozen,
        Self::ContainerFrozen,
        Self::PowerLoss,
        Self::Partition,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::PodDeleted => "pod deleted",
            Self::PodEvicted => "pod evicted",
            Self::PostmasterKilled => "postmaster killed",
            Self::ContainerKilled => "container's first process killed",
            Self::PostgresFrozen => "PostgreSQL frozen",
            Self::DataDeleted => "PGDATA deleted",
            Self::AgentFrozen => "agent frozen",
            Self::ContainerFrozen => "container frozen",
            Self::PowerLoss => "node lost its power",
            Self::Partition => "node cut off",
        }
    }

    /// The promised time to the first write through the Service.
    pub fn budget(self) -> Duration {
        Duration::from_secs(match self {
            Self::PodDeleted | Self::PodEvicted | Self::PostmasterKilled => 2,
            Self::ContainerKilled => 4,
            Self::PostgresFrozen | Self::DataDeleted => 10,
            Self::AgentFrozen | Self::ContainerFrozen | Self::PowerLoss | Self::Partition => 20,
        })
    }

    /// Whether the Pod is gone for good, and comes back by an operator only.
    pub fn needs_operator(self) -> bool {
        matches!(self, Self::PodDeleted | Self::PodEvicted)
    }

    /// Whether the kubelet restarts the container afterwards, a little later each time.
    pub fn restarts(self) -> bool {
        matches!(self, Self::ContainerKilled | Self::AgentFrozen | Self::ContainerFrozen)
    }

    /// Does it to an instance; returns when it began.
    pub async fn strike(self, world: &World, instance: &str) -> Result<Instant> {
        let pod = world.pod(instance);
        let node = world.node_of(instance)?;
        let pods = world.case.api::<Pod>();
        let began = Instant::now();
        match self {
            Self::PodDeleted => drop(pods.delete(instance, &DeleteParams::default()).await?),
            Self::PodEvicted => drop(pods.evict(instance, &EvictParams::default()).await?),
            Self::PostmasterKilled => pod.signal(CONTAINER, Process::Matching(POSTMASTER), Signal::Kill).await?,
            Self::ContainerKilled => pod.signal(CONTAINER, Process::First, Signal::Kill).await?,
            Self::PostgresFrozen => pod.signal(CONTAINER, Process::Matching(POSTGRES), Signal::Stop).await?,
            Self::DataDeleted => {
                let delete = format!("rm -rf {DATA_MOUNT}/pgdata");
                // What is written meanwhile makes rm complain.
                let _ = pod.run(CONTAINER, &["sh", "-c", &delete]).await;
            }
            Self::AgentFrozen => pod.signal(CONTAINER, Process::First, Signal::Stop).await?,
            Self::ContainerFrozen => pod.signal(CONTAINER, Process::Matching(EVERYTHING), Signal::Stop).await?,
            Self::PowerLoss => node.kill().await?,
            Self::Partition => world.suite.cluster().network(node.number()).cut().await?,
        }
        Ok(began)
    }

    /// Puts back what does not come back by itself.
    pub async fn undo(self, world: &World, instance: &str) -> Result {
        match self {
            Self::PowerLoss => Ok(world.node_of(instance)?.revive().await?),
            Self::Partition => {
                let node = world.node_of(instance)?;
                Ok(world.suite.cluster().network(node.number()).heal().await?)
            }
            // The kubelet ends what is frozen; the rest is repaired by the agents.
            _ => Ok(()),
        }
    }
}
