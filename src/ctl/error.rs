//! What can go wrong, in words for the person at the terminal.

use std::future::Future;
use std::time::Duration;

use crate::calls::{self, CallError};

/// Every single call to the API server ends by then.
pub const CALL: Duration = Duration::from_secs(15);

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no cluster to talk to.
    #[error("no Kubernetes cluster: {0}")]
    Config(String),
    /// A call to the API server failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// What was asked for cannot be, or did not come true.
    #[error("{0}")]
    Refused(String),
    /// It was asked for, and is not so yet.
    #[error("{what} within {} s; it was asked for and goes on. Last seen: {last}", .limit.as_secs())]
    NotYet {
        /// What did not happen.
        what: String,
        /// How long it was waited for.
        limit: Duration,
        /// What was seen last.
        last: String,
    },
    /// The answer cannot be written.
    #[error("the answer cannot be written: {0}")]
    Output(#[from] std::io::Error),
}

impl Error {
    /// Whether the API server says that it is not there.
    pub fn is_absent(&self) -> bool {
        self.code() == Some(404)
    }
    /// The API server's code.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Call(error) => error.code(),
            _ => None,
        }
    }
}

/// Bounds a call to the API server, and says what it was for.
pub async fn call<T>(what: impl Into<String>, future: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
    Ok(calls::within(CALL, what, future).await?)
}
