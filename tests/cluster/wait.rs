//! Awaiting a condition.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use super::{Error, Result};

/// Often enough for figures in tenths of a second, seldom enough not to be what is measured.
const INTERVAL: Duration = Duration::from_millis(50);

/// Asks until the answer is `Ok`, and returns it. `Err` is what was seen instead; when time is up, the last of it is
/// in the error. An answer that does not come counts as not seen: no wait is longer than `limit`.
pub async fn eventually<T, S, F, A>(limit: Duration, what: &str, mut ask: F) -> Result<T>
where
    S: Display,
    F: FnMut() -> A,
    A: Future<Output = Result<T, S>>,
{
    let deadline = Instant::now() + limit;
    let mut last = "no answer".to_owned();
    while let Ok(answer) = timeout_at(deadline, ask()).await {
        match answer {
            Ok(value) => return Ok(value),
            Err(seen) => last = seen.to_string(),
        }
        if Instant::now() + INTERVAL >= deadline {
            break;
        }
        sleep(INTERVAL).await;
    }
    Err(Error::Condition { what: what.to_owned(), limit, last })
}
