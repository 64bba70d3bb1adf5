//! From the archive to a PostgreSQL that recovers: while it replays one segment, the next ones are fetched.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};

use super::Archive;
use crate::agent::Error;
use crate::agent::volume::{make_private, remove};
use crate::backup::layout::{SegmentSize, WalFile};
use crate::backup::store::Store;
use crate::backup::wal;

/// How many segments are fetched ahead.
const AHEAD: usize = 4;

type Fetch = Shared<BoxFuture<'static, Result<bool, Arc<Error>>>>;

/// What is fetched ahead, and from where.
pub(super) struct Prefetch {
    spare: PathBuf,
    source: Mutex<Option<(Store, SegmentSize)>>,
    under_way: Mutex<BTreeMap<String, Fetch>>,
}

impl Prefetch {
    /// Segments wait in this folder.
    pub(super) fn new(spare: impl Into<PathBuf>) -> Self {
        Self { spare: spare.into(), source: Mutex::default(), under_way: Mutex::default() }
    }
}

impl Archive {
    /// From here on restore_command is answered from this store; None: from none.
    pub fn restore_from(&self, source: Option<(Store, SegmentSize)>) -> Result<(), Error> {
        let none = source.is_none();
        *self.prefetch.source.lock().unwrap_or_else(PoisonError::into_inner) = source;
        self.prefetch.under_way.lock().unwrap_or_else(PoisonError::into_inner).clear();
        remove(&self.prefetch.spare)?;
        if none { Ok(()) } else { make_private(&self.prefetch.spare) }
    }

    /// Fetches a file of the archive that is restored. False: the archive certainly has none of this name.
    pub async fn fetch(self: &Arc<Self>, name: &str, to: &Path) -> Result<bool, Error> {
        self.fetches.fetch_add(1, Ordering::Relaxed);
        let unknown = |message: String| Error::Invalid { what: "the archive", message };
        let source = self.prefetch.source.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (store, size) = source.ok_or_else(|| unknown("nothing is restored here".into()))?;
        let file: WalFile = name.parse().map_err(|_| unknown(format!("{name:?} is no name of a WAL file")))?;
        let WalFile::Segment(segment) = file else { return Ok(wal::fetch(&store, &file, to).await?) };
        let fetch = self.begin_fetch(&store, name, &file);
        let mut next = segment.next(size);
        for _ in 0..AHEAD {
            let Some(ahead) = next else { break };
            let file = WalFile::Segment(ahead);
            drop(self.begin_fetch(&store, &file.to_string(), &file));
            next = ahead.next(size);
        }
        let fetched = fetch.await;
        self.prefetch.under_way.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        // What was tried ahead, perhaps minutes ago, answers only when it succeeded: the end of the WAL, or of the restore, is
        // told by what is so now.
        if !matches!(fetched, Ok(true)) {
            return Ok(wal::fetch(&store, &file, to).await?);
        }
        let from = self.prefetch.spare.join(name);
        if std::fs::rename(&from, to).is_err() {
            // The WAL may be on a volume of its own.
            tokio::fs::copy(&from, to).await.map_err(Error::io("copy", to))?;
            remove(&from)?;
        }
        Ok(true)
    }

    fn begin_fetch(self: &Arc<Self>, store: &Store, name: &str, file: &WalFile) -> Fetch {
        let mut under_way = self.prefetch.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = || {
            let (store, file, to) = (store.clone(), file.clone(), self.prefetch.spare.join(name));
            let task = tokio::spawn(async move { wal::fetch(&store, &file, &to).await });
            async move {
                match task.await {
                    Ok(outcome) => outcome.map_err(|error| Arc::new(Error::from(error))),
                    Err(_) => Err(Arc::new(Error::Timeout("a fetch that was given up".into()))),
                }
            }
            .boxed()
            .shared()
        };
        under_way.entry(name.to_owned()).or_insert_with(begin).clone()
    }
}
