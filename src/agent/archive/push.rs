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
use super::{Archive, LEVEL, Written};
use crate::agent::Error;
use crate::api::agent::Lsn;
use crate::backup::layout::{Segment, SegmentSize, WalFile};
use crate::backup::store::Store;
use crate::backup::wal::{self, Pushed};
use crate::engine::postgres::history::{PLACEHOLDER, file_name, parse};

/// How many segments are sent at the same time.
const PARALLEL: usize = 4;
/// A replica leaves a young segment to its primary, and looks this often whether the store has it.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A segment that nobody archived this long is archived by a replica too.
const YOUNG: Duration = Duration::from_secs(30);
/// A push that takes this long is told as failing.
const SLOW: Duration = Duration::from_secs(15);
/// How long a segment is waited for that is not whole: less than PostgreSQL's command waits for us.
const UNFINISHED: Duration = Duration::from_mins(9);
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
            Ok(Outcome::Aside) => {
                self.note(|report| {
                    report.waiting = waiting.saturating_sub(1);
                    report.aside += 1;
                    (report.failing_since, report.error) = (None, None);
                });
                Reply::Done
            }
            Ok(Outcome::NotYet) => Reply::NotNow,
            Ok(Outcome::Stored) => {
                self.note(|report| {
                    report.last = path.file_name().map(|name| name.to_string_lossy().into_owned());
                    report.last_at = Some(Timestamp::now().to_string());
                    report.waiting = waiting.saturating_sub(1);
                    report.archived += 1;
                    (report.failing_since, report.error) = (None, None);
                });
                Reply::Done
            }
            Ok(Outcome::NotForUs) => Reply::Done,
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

    async fn try_push(self: &Arc<Self>, path: &Path) -> Result<Outcome, Error> {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let file: WalFile = name.parse().map_err(|_| Error::Invalid {
            what: "the archiver's file",
            message: format!("{name:?} is no name of a WAL file"),
        })?;
        match file {
            WalFile::Label(_) => return Ok(Outcome::NotForUs),
            // An id that was reserved: its real history may be in the store.
            WalFile::History(_) if is_placeholder(path)? => return Ok(Outcome::NotForUs),
            _ => {}
        }
        let wish = self.wished().ok_or_else(|| later("the configuration was not read yet"))?;
        if wish.destination.is_none() || !wish.wal {
            return Ok(Outcome::NotForUs);
        }
        let file = match file {
            WalFile::Segment(segment) => match self.await_end(path, segment).await? {
                Some(Kind::Whole) => file,
                Some(Kind::Aside) => {
                    let (store, _) = self.own_store().await?;
                    tracing::warn!(%segment, "not of the history that this cluster goes on with: it is archived as a partial segment, where there is none");
                    let partial = WalFile::Partial(segment);
                    let push = wal::push(&store, path, &partial, LEVEL);
                    tokio::time::timeout(LONGEST, push).await.map_err(|_| Error::Timeout("the archive".into()))??;
                    return Ok(Outcome::Aside);
                }
                None => return Ok(Outcome::NotYet),
            },
            other => other,
        };
        let (store, _) = self.own_store().await?;
        if !wish.primary && self.left_to_the_primary(&store, path, &file).await? {
            return Ok(Outcome::Stored);
        }
        let upload = self.upload(&store, path, &name, &file);
        self.send_ahead(&store, path, &name);
        let outcome = tokio::time::timeout(LONGEST, upload).await;
        self.forget(&name);
        match outcome {
            Ok(Ok(())) => Ok(Outcome::Stored),
            Ok(Err(error)) => {
                if let Error::Store(error) = error.as_ref() {
                    self.distrust_if_refused(error).await;
                }
                Err(Error::Shared(error))
            }
            Err(_) => Err(Error::Timeout("the archive".into())),
        }
    }

    /// What a segment is, once it can be told. None: not within the time that there is.
    async fn await_end(&self, path: &Path, segment: Segment) -> Result<Option<Kind>, Error> {
        let limit = tokio::time::Instant::now() + UNFINISHED;
        while tokio::time::Instant::now() < limit {
            if let Some(known) = self.kind(path, segment)? {
                return Ok(Some(known));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(None)
    }

    /// What a segment is, as far as that is known now.
    ///
    /// A primary's archiver hands over what is full. A standby's does so with the segment in which it stopped to stream, too: when
    /// another primary takes over, and when its own ends the stream in order and hears its answer. The rest of such a segment is what the file held before.
    fn kind(&self, path: &Path, segment: Segment) -> Result<Option<Kind>, Error> {
        let Some(written) = *self.written.lock().unwrap_or_else(PoisonError::into_inner) else { return Ok(None) };
        let bytes = std::fs::metadata(path).map_err(Error::io("look at", path))?.len();
        let Some(size) = u32::try_from(bytes).ok().and_then(SegmentSize::new) else {
            // Its digest and its length tell what it is.
            return Ok(Some(Kind::Whole));
        };
        let segment_end = Lsn(segment.start(size).0.saturating_add(size.bytes()));
        let history = if segment.timeline < written.timeline { history(path, written.timeline)? } else { Vec::new() };
        Ok(kind(written, &history, segment.timeline, segment_end))
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
            let path = folder.join(other);
            if let Ok(file @ WalFile::Segment(segment)) = other.parse()
                && matches!(self.kind(&path, segment), Ok(Some(Kind::Whole)))
            {
                drop(self.upload(store, &path, other, &file));
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

/// What became of a file.
enum Outcome {
    /// The store has it.
    Stored,
    /// It is not for the store.
    NotForUs,
    /// It is not of the cluster's history: the store has it, or another one, as a partial segment.
    Aside,
    /// It cannot be told yet what it is.
    NotYet,
}

/// What a segment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// All of it is WAL of the cluster's history.
    Whole,
    /// The history left its timeline before its end, or never was on it.
    Aside,
}

/// `history` are the parents of the timeline that is written here, with the position at which each was left. None: it cannot be told
/// yet.
fn kind(written: Written, history: &[(u32, Lsn)], timeline: u32, end: Lsn) -> Option<Kind> {
    if timeline == written.timeline {
        return (!written.standby || end <= written.end).then_some(Kind::Whole);
    }
    // A timeline that begins here is heard of in a moment.
    if timeline > written.timeline {
        return None;
    }
    // A later timeline than the first has a history. As long as it is not here it cannot be told what it goes through.
    if history.is_empty() {
        return None;
    }
    let left_at = history.iter().find(|(parent, _)| *parent == timeline).map(|(_, left_at)| *left_at);
    Some(if left_at.is_some_and(|left_at| end <= left_at) { Kind::Whole } else { Kind::Aside })
}

/// The parents of a timeline, by its history beside the segment; none while it is not there.
fn history(segment: &Path, timeline: u32) -> Result<Vec<(u32, Lsn)>, Error> {
    let path = segment.with_file_name(file_name(timeline));
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(parse(&text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Error::io("read", path)(error)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_whole_as_far_as_the_history_goes_through_it() {
        let history = [(1, Lsn(100)), (3, Lsn(250))];
        let kind = |written, primary: bool, timeline, end| {
            let written = Written { timeline: written, end: Lsn(400), standby: !primary };
            kind(written, &history, timeline, Lsn(end))
        };
        for (timeline, end, wanted) in [
            (1, 100, Kind::Whole),
            (1, 101, Kind::Aside),
            (3, 200, Kind::Whole),
            (3, 300, Kind::Aside),
            // It was begun and never led here.
            (2, 100, Kind::Aside),
        ] {
            assert_eq!(kind(4, false, timeline, end), Some(wanted), "{timeline} {end}");
            assert_eq!(kind(4, true, timeline, end), Some(wanted), "{timeline} {end}");
        }
        assert_eq!(kind(4, false, 4, 400), Some(Kind::Whole));
        assert_eq!(kind(4, false, 4, 401), None, "the rest of it is still to come");
        assert_eq!(kind(4, true, 4, 500), Some(Kind::Whole), "a primary hands over what is full");
        assert_eq!(kind(4, false, 5, 100), None);
        let written = Written { timeline: 4, end: Lsn(400), standby: false };
        assert_eq!(super::kind(written, &[], 1, Lsn(100)), None, "its history is not here yet");
    }
}
