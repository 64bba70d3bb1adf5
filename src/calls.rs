//! Calls to the API server, for whoever makes them: each has an end, and what went wrong is told in the server's own words.

use std::future::Future;
use std::time::Duration;

use crate::api::words::with_causes;

/// Why a call to the API server failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The API server refused, or could not be reached.
    #[error("{what}: {}", sentence(.source))]
    Kube {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: Box<kube::Error>,
    },
    /// No answer in time.
    #[error("{what}: no answer within {} s", .limit.as_secs())]
    Timeout {
        /// What was tried.
        what: String,
        /// How long it was waited for.
        limit: Duration,
    },
}

impl CallError {
    /// The API server's answer, when it answered.
    pub fn status(&self) -> Option<&kube::core::Status> {
        match self {
            Self::Kube { source, .. } => match &**source {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            Self::Timeout { .. } => None,
        }
    }

    /// The code of that answer.
    pub fn code(&self) -> Option<u16> {
        self.status().map(|status| status.code)
    }
}

/// The API server's own words, without the debug form of its answer.
pub fn sentence(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return status.message.clone();
    }
    with_causes(error)
}

/// Ends a call by then at the latest, and says what it was for.
pub async fn within<T>(
    limit: Duration,
    what: impl Into<String>,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, CallError> {
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(source)) => Err(CallError::Kube { what: what.into(), source: Box::new(source) }),
        Err(_) => Err(CallError::Timeout { what: what.into(), limit }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_ends_and_says_what_it_was_for() {
        let silent =
            within(Duration::from_secs(3), "the status of db", std::future::pending::<kube::Result<()>>()).await;
        assert_eq!(silent.unwrap_err().to_string(), "the status of db: no answer within 3 s");
        let refused = async {
            Err::<(), _>(kube::Error::Api(
                kube::core::Status::failure("no such thing", "NotFound").with_code(404).boxed(),
            ))
        };
        let refused = within(Duration::from_secs(3), "db", refused).await.unwrap_err();
        assert_eq!((refused.to_string().as_str(), refused.code()), ("db: no such thing", Some(404)));
    }
}
