//! Waiting for what was asked for, with an end.

use std::fmt::Debug;
use std::time::Duration;

use futures::StreamExt as _;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use super::error::Error;
use super::session::tell;
use crate::calls::sentence;

/// What a look at an object says.
pub enum Look<T> {
    /// It is so.
    Done(T),
    /// It cannot come true any more, and why.
    Never(String),
    /// Not yet; what it does now.
    Still(String),
}

/// Watches an object until a look at it says that it is so. Each other thing that it does on the way is told once.
pub async fn until<K, T>(
    objects: Api<K>,
    name: &str,
    what: &str,
    limit: Duration,
    mut look: impl FnMut(&K) -> Look<T>,
) -> Result<T, Error>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut last = "nothing".to_owned();
    let work = async {
        let mut stream = Box::pin(watcher::watch_object(objects, name).default_backoff());
        while let Some(event) = stream.next().await {
            let now = match event {
                Ok(Some(object)) => match look(&object) {
                    Look::Done(value) => return Ok(value),
                    Look::Never(why) => return Err(Error::Refused(why)),
                    Look::Still(now) => now,
                },
                Ok(None) => return Err(Error::Refused(format!("{name} is gone"))),
                Err(error) => match refused(&error) {
                    Some(source) => {
                        return Err(Error::Refused(format!("{name} cannot be watched: {}", sentence(source))));
                    }
                    None => format!("the API server is away: {error}"),
                },
            };
            if now != last {
                tell(&format!("{name}: {now}"));
                last = now;
            }
        }
        Err(Error::Refused(format!("{name} cannot be watched any more")))
    };
    match tokio::time::timeout(limit, work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Error::NotYet { what: what.to_owned(), limit, last }),
    }
}

/// An answer that the API server will give again.
fn refused(error: &watcher::Error) -> Option<&kube::Error> {
    let (watcher::Error::InitialListFailed(source) | watcher::Error::WatchStartFailed(source)) = error else {
        return None;
    };
    matches!(source, kube::Error::Api(status) if [401, 403, 404].contains(&status.code)).then_some(source)
}
