//! What can go wrong while a test drives the cluster.

use std::time::Duration;

/// An error of the driver, never of what is tested.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `lc` refused or failed.
    #[error("`lc {command}` failed: {message}")]
    Command { command: String, message: String },
    /// `lc` did not end in time.
    #[error("`lc {command}` did not end within {limit:?}")]
    Unfinished { command: String, limit: Duration },
    /// `lc` printed something else than it promises.
    #[error("`lc {command}` answered {answer:?}")]
    Answer { command: String, answer: String },
    /// A condition did not come true.
    #[error("waited {limit:?} in vain for {what}; last seen: {last}")]
    Condition { what: String, limit: Duration, last: String },
    /// The API server or the way to it.
    #[error(transparent)]
    Kubernetes(#[from] kube::Error),
    /// The kubeconfig that `lc` wrote.
    #[error(transparent)]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// A user agent that is no header value.
    #[error("{0:?} cannot be a user agent")]
    UserAgent(String),
    /// A line of the audit log that is no event.
    #[error("the audit log has a line that is no event: {line}")]
    AuditLine { line: String, source: serde_json::Error },
    /// Reading a file or starting a process.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}
