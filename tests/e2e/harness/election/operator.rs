//! Whether the operator is there: it is not in the path of a failover.

use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;

use super::super::suite::{OPERATOR, OPERATOR_NAMESPACE};
use super::super::{Result, SOON, Suite};
use crate::cluster::eventually;

/// What a case does without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperatorIs {
    Running,
    /// Scaled to 0.
    Away,
}

impl OperatorIs {
    /// Makes it so.
    pub async fn arrange(self, suite: &Suite) -> Result {
        match self {
            Self::Running => start_operator(suite).await,
            Self::Away => suite.stop_operator().await,
        }
    }
}

/// Scales it back, and waits until one of its replicas is ready: the other may be on a node that is away.
pub async fn start_operator(suite: &Suite) -> Result {
    let target = format!("deployment/{OPERATOR}");
    suite.kubectl(&["-n", OPERATOR_NAMESPACE, "scale", &target, "--replicas=2"], "").await?.ok()?;
    let deployments: Api<Deployment> = Api::namespaced(suite.cluster().client().await?, OPERATOR_NAMESPACE);
    eventually(SOON, "an operator to be ready", || async {
        let status = deployments.get(OPERATOR).await.map_err(|error| error.to_string())?.status;
        let ready = status.and_then(|status| status.ready_replicas).unwrap_or(0);
        if ready > 0 { Ok(()) } else { Err("none is".to_owned()) }
    })
    .await?;
    Ok(())
}
