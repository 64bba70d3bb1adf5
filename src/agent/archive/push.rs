//! From PostgreSQL's archiver to the store: one segment after the other while it keeps up, several at once when it is behind.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use jiff::Timestamp;

use super::client::Reply;
use super::{Archive, LEVEL};
use crate::agent::Error;
use crate::backup::layout::WalFile;
use crate::backup::store::Store;
use crate::backup::wal::{self, Pushed};
use crate::engine::postgres::history::PLACEHOLDER;

/// How many segments are sent at the same time.
const PARALLEL: usize = 4;
/// A replica leaves a young segment to its primary, and looks this often whether the store has it.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A segment that nobody archived this long is archived by a replica too.
const YOUNG: Duration = Duration::from_secs(30);
/// A push that takes this long is told as failing.
const SLOW: Duration = Duration::from_secs(15);
/// How long one push may take, its retries included: PostgreSQL asks again.
const LONGEST: Duration = Duration::from_mins(5);

type Upload = Shared<BoxFuture<'static, Result<(), Arc<Error>>>>;

/// What is under way, by name.
#[derive(Default)]
pub(super) struct Uploads {
    under_way: Mutex<BTreeMap<String, Upload>>,
}

impl Archive {
    /// Hands a file of `pg_wal` to the store. Done only when the store has it.
    pub async fn push(self: &Arc<Self>, path: &Path) -> Reply {
        let outcome = tokio::select! {
            biased;
            // A shutdown waits for its archiver, and must not wait for a store that hangs.
            () = self.hurried() => return Reply::NotNow,
            outcome = self.try_push(path) => outcome,
            never = self.tell_when_slow(path) => match never {},
        };
        let waiting = waiting(path);
        match outcome {
            Ok(true) => {
                self.note(|report| {
                    report.last = path.file_name().map(|name| name.to_string_lossy().into_owned());
                    report.last_at = Some(Timestamp::now().to_string());
                    report.waiting = waiting.saturating_sub(1);
                    report.archived += 1;
                    (report.failing_since, report.error) = (None, None);
                });
                Reply::Done
            }
            Ok(false) => Reply::Done,
            Err(error) => {
                tracing::warn!(%error, category = error.category().as_str(), path = %path.display(), "the archive");
                self.note(|report| report.waiting = waiting);
                self.note_failure(&error);
                Reply::Failed(error.to_string())
            }
        }
    }

    /// A store that hangs is told of long before the push is given up. Never ends.
    async fn tell_when_slow(&self, path: &Path) -> Infallible {
        tokio::time::sleep(SLOW).await;
        // A replica waits for its primary to archive the same.
        if self.wished().is_some_and(|wish| wish.primary) {
            let waiting = waiting(path);
            tracing::warn!(path = %path.display(), waiting, "the store takes long");
            self.note(|report| report.waiting = waiting);
            self.note_failure(&Error::Timeout(format!("the store, asked to take {},", path.display())));
        }
        std::future::pending().await
    }

    /// True if the store has it; false if it is not for the store.
    async fn try_push(self: &Arc<Self>, path: &Path) -> Result<bool, Error> {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let file: WalFile = name.parse().map_err(|_| Error::Invalid {
            what: "the archiver's file",
            message: format!("{name:?} is no name of a WAL file"),
        })?;
        match file {
            WalFile::Label(_) => return Ok(false),
            // An id that was reserved: its real history may be in the store.
            WalFile::History(_) if is_placeholder(path)? => return Ok(false),
            _ => {}
        }
        let wish = self.wished().ok_or_else(|| later("the configuration was not read yet"))?;
        if wish.destination.is_none() || !wish.wal {
            return Ok(false);
        }
        let (store, _) = self.own_store().await?;
        if !wish.primary && self.left_to_the_primary(&store, path, &file).await? {
            return Ok(true);
        }
        let upload = self.upload(&store, path, &name, &file);
        self.send_ahead(&store, path, &name);
        let outcome = tokio::time::timeout(LONGEST, upload).await;
        self.forget(&name);
        match outcome {
            Ok(Ok(())) => Ok(true),
            Ok(Err(error)) => {
                if let Error::Store(error) = error.as_ref() {
                    self.distrust_if_refused(error).await;
                }
                Err(Error::Shared(error))
            }
            Err(_) => Err(Error::Timeout("the archive".into())),
        }
    }

    /// The primary archives the same segment: as long as it is young, a replica only looks whether the store has it.
    async fn left_to_the_primary(&self, store: &Store, path: &Path, file: &WalFile) -> Result<bool, Error> {
        loop {
            let modified = tokio::fs::metadata(path).await.and_then(|found| found.modified());
            let age = modified.map_err(Error::io("look at", path))?.elapsed().unwrap_or_default();
            if wal::is_there(store, path, file).await? {
                return Ok(true);
            }
            let wish = self.wished().unwrap_or_default();
            if age >= YOUNG || wish.primary {
                return Ok(false);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Begins to send a file, unless that is under way.
    fn upload(self: &Arc<Self>, store: &Store, path: &Path, name: &str, file: &WalFile) -> Upload {
        let mut under_way = self.uploads.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = || {
            let (store, path, file) = (store.clone(), path.to_owned(), file.clone());
            let task = tokio::spawn(async move {
                match wal::push(&store, &path, &file, LEVEL).await {
                    Ok(Pushed::Stored { .. } | Pushed::AlreadyThere | Pushed::NotStored) => Ok(()),
                    Err(error) => Err(Arc::new(Error::from(error))),
                }
            });
            async move { task.await.unwrap_or_else(|_| Err(Arc::new(later("it was given up")))) }.boxed().shared()
        };
        under_way.entry(name.to_owned()).or_insert_with(begin).clone()
    }

    /// What waits behind this one is sent at the same time; the archiver asks for it next.
    fn send_ahead(self: &Arc<Self>, store: &Store, path: &Path, name: &str) {
        let Some(folder) = path.parent() else { return };
        let ready = ready(folder);
        let behind = ready.iter().filter(|other| other.as_str() > name).take(PARALLEL - 1);
        for other in behind {
            if let Ok(file @ WalFile::Segment(_)) = other.parse() {
                drop(self.upload(store, &folder.join(other), other, &file));
            }
        }
        let mut under_way = self.uploads.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        // What nobody will ask for any more.
        under_way.retain(|other, _| other == name || ready.binary_search(other).is_ok());
    }

    /// What was sent to another destination is not in this one.
    pub(super) fn forget_uploads(&self) {
        self.uploads.under_way.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn forget(&self, name: &str) {
        self.uploads.under_way.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

/// Names of the files that wait for the archiver, in order.
fn ready(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder.join("archive_status"));
    let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut ready: Vec<String> = names.filter_map(|name| name.strip_suffix(".ready").map(str::to_owned)).collect();
    ready.sort_unstable();
    ready
}

fn waiting(path: &Path) -> u64 {
    path.parent().map_or(0, |folder| u64::try_from(ready(folder).len()).unwrap_or(u64::MAX))
}

fn is_placeholder(path: &Path) -> Result<bool, Error> {
    let text = std::fs::read(path).map_err(Error::io("read", PathBuf::from(path)))?;
    Ok(text == PLACEHOLDER.as_bytes())
}

fn later(why: &str) -> Error {
    Error::Invalid { what: "the archive", message: format!("{why}; it is tried again") }
}
