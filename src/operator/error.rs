//! What can go wrong in the shell, and its category.

use std::future::Future;
use std::time::Duration;

use crate::api::Category;
use crate::calls::{self, CallError};
use crate::leader::NotLeader;

/// Every call to the API server ends by then.
pub const CALL: Duration = Duration::from_secs(10);

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call to the API server failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Somebody else's object has the name.
    #[error("{0} exists and is not ours: delete or rename it, and this cluster takes the name")]
    NameTaken(String),
    /// An object of an earlier cluster of this name is not gone yet.
    #[error("{0} of an earlier object of this name is not gone yet")]
    Leftover(String),
    /// An agent could not be reached, or refused.
    #[error("the agent of {instance}: {why}")]
    Agent {
        /// Its instance.
        instance: String,
        /// What it said, or what went wrong on the way.
        why: String,
    },
    /// An agent is at it.
    #[error("{0}")]
    Pending(String),
    /// A key or certificate cannot be used.
    #[error("{what}: {why}")]
    Tls {
        /// Which one.
        what: String,
        /// Why not.
        why: String,
    },
    /// Telemetry could not begin.
    #[error(transparent)]
    Telemetry(#[from] crate::telemetry::Error),
    /// The cluster cannot be found.
    #[error("no Kubernetes cluster: {0}")]
    Config(String),
    /// An installation does not work.
    #[error("{0}")]
    Check(String),
    /// Our own fault.
    #[error("{0}")]
    Internal(String),
}

impl Error {
    /// What kind of trouble it is.
    pub fn category(&self) -> Category {
        match self {
            Self::Call(CallError::Timeout { .. }) => Category::Timeout,
            Self::Call(CallError::Kube { source, .. }) if NotLeader::find(&**source).is_some() => Category::NotLeader,
            Self::Call(CallError::Kube { .. }) => match self.code() {
                Some(409) => Category::Conflict,
                Some(401 | 403) => Category::Forbidden,
                Some(422) => Category::Invalid,
                _ => Category::Api,
            },
            Self::Config(_) | Self::Check(_) => Category::Api,
            Self::NameTaken(_) | Self::Leftover(_) => Category::Conflict,
            Self::Agent { .. } | Self::Pending(_) => Category::Agent,
            Self::Tls { .. } => Category::Tls,
            Self::Telemetry(error) => error.category(),
            Self::Internal(_) => Category::Internal,
        }
    }

    /// The API server's status code, when it answered.
    pub fn code(&self) -> Option<u16> {
        self.status().map(|status| status.code)
    }

    /// The API server's answer, when it answered.
    pub fn status(&self) -> Option<&kube::core::Status> {
        match self {
            Self::Call(error) => error.status(),
            _ => None,
        }
    }

    /// A reason for conditions and events.
    pub fn reason(&self) -> &'static str {
        if self.status().is_some_and(|status| status.message.contains("exceeded quota")) {
            return "QuotaExceeded";
        }
        match self {
            Self::NameTaken(_) => "NameTaken",
            _ => match self.category() {
                Category::Forbidden => "Forbidden",
                Category::Invalid => "Refused",
                Category::Conflict => "Conflict",
                Category::Agent => "AgentUnreachable",
                Category::Timeout => "Timeout",
                _ => "Failed",
            },
        }
    }

    /// Whether it passes without anybody's doing and is not worth a condition.
    pub fn passing(&self) -> bool {
        matches!(self, Self::Leftover(_) | Self::Pending(_))
            || matches!(self.category(), Category::Conflict | Category::NotLeader)
                && !matches!(self, Self::NameTaken(_))
    }
}

/// Bounds a call to the API server, and says what it was for.
pub async fn call<T>(what: impl Into<String>, future: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
    Ok(calls::within(CALL, what, future).await?)
}
