//! What can go wrong, in words for the person at the terminal.

use std::future::Future;
use std::time::Duration;

/// Every single call to the API server ends by then.
pub const CALL: Duration = Duration::from_secs(15);

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no cluster to talk to.
    #[error("no Kubernetes cluster: {0}")]
    Config(String),
    /// The API server refused, or could not be reached.
    #[error("{what}: {}", sentence(.source))]
    Kube {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: Box<kube::Error>,
    },
    /// No answer in time.
    #[error("{what}: no answer within {} s", CALL.as_secs())]
    Timeout {
        /// What was tried.
        what: String,
    },
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
            Self::Kube { source, .. } => match &**source {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }
}

/// The API server's own words, without the debug form of its answer.
pub fn sentence(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return status.message.clone();
    }
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(source) = next {
        let more = source.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = source.source();
    }
    text
}

/// Bounds a call to the API server, and says what it was for.
pub async fn call<T>(what: impl Into<String>, future: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
    match tokio::time::timeout(CALL, future).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(source)) => Err(Error::Kube { what: what.into(), source: Box::new(source) }),
        Err(_) => Err(Error::Timeout { what: what.into() }),
    }
}
