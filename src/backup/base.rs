//! Taking a base backup: from a data directory into archives, nothing staged on disk.
//!
//! Memory does not depend on the amount of data: [`MEMORY`] of pieces on their way, for each archive in work the encoder of zstd (3 to
//! 12 MiB, by level) and 512 KiB of buffers, and what connections hold. Together it stays below 64 MiB with two archives at level 3.
//! What grows with the data is the list of files (about 150 bytes each). A single file above 43 GiB makes its pieces larger,
//! because S3 takes no more than 10,000; those of PostgreSQL end at 1 GiB.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::try_join_all;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};

use super::layout::BackupId;
use super::manifest::{FileEntry, Manifest, Part};
use super::pace::Pace;
use super::pack::{Job, Packed};
use super::store::Created;
use super::walk::{self, Found};
use super::{Error, Store};

pub use super::pace::Progress;

/// Bytes of pieces that exist at once, over all archives.
const MEMORY: usize = 40 << 20;
/// Bytes of a piece: the least that S3 takes.
const PIECE: usize = 5 << 20;
/// Pieces of an archive, at most; S3 takes 10,000.
const PIECES: u64 = 9_000;
/// Bytes of files in an archive, about. An archive that has to be sent again is not a whole backup then.
const ARCHIVE: u64 = 2 << 30;
/// Archives in work at once, at most: each has two pieces at least.
const PARALLEL: usize = 4;
const _: () = assert!(MEMORY / PIECE / PARALLEL >= 2);

/// What to take, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupPlan {
    /// Name of the backup.
    pub id: BackupId,
    /// PGDATA.
    pub folder: PathBuf,
    /// Paths below it that are left out, with all in them, besides those that pg_basebackup leaves out.
    pub exclude: Vec<String>,
    /// Of zstd, from 1 to 9: beyond, it takes more memory than it saves.
    pub level: i32,
    /// Archives in work at once, from 1 to 4. Each keeps about one processor busy.
    pub parallel: usize,
    /// Bytes read per second, at most; None: as fast as it goes.
    pub max_bytes_per_second: Option<u64>,
}

impl BackupPlan {
    /// A plan with level 3, two archives at once, unthrottled.
    pub fn new(id: BackupId, folder: impl Into<PathBuf>) -> Self {
        Self { id, folder: folder.into(), exclude: Vec::new(), level: 3, parallel: 2, max_bytes_per_second: None }
    }
}

/// What was taken: what its manifest needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taken {
    /// Archives.
    pub parts: Vec<Part>,
    /// Files.
    pub files: Vec<FileEntry>,
    /// Folders in which no file is.
    pub folders: Vec<String>,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes of all archives.
    pub compressed_bytes: u64,
    /// Links, sockets and the like, which were not taken; to be logged.
    pub skipped: Vec<String>,
}

/// Takes a base backup of a data directory. PostgreSQL has to be in backup mode (pg_backup_start) until this returns. Until
/// [`finish`] there is no backup: whatever fails or is dropped before leaves objects that count for nothing and go with
/// [`super::catalog::remove_backup`].
pub async fn take(store: &Store, plan: &BackupPlan, progress: &Arc<Progress>) -> Result<Taken, Error> {
    let (folder, exclude) = (plan.folder.clone(), plan.exclude.clone());
    let walked = tokio::task::spawn_blocking(move || walk::walk(&folder, &exclude)).await;
    let walked = walked.map_err(|error| Error::io("read", &plan.folder)(std::io::Error::other(error)))??;
    let found = walked.files.iter().chain(&walked.control);
    progress.expect(found.map(|found| found.size).sum());

    let parallel = plan.parallel.clamp(1, PARALLEL);
    let taking = Taking {
        store,
        plan,
        progress,
        pace: plan.max_bytes_per_second.map(|rate| Arc::new(Pace::new(rate))),
        pieces: MEMORY / PIECE / parallel,
    };
    let groups = split(walked.files, parallel);
    let last = groups.len();
    let queue = Mutex::new(groups.into_iter().enumerate());
    let workers = (0..parallel).map(|_| async {
        let mut done = Vec::new();
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((number, files)) = next else { return Ok::<_, Error>(done) };
            done.push((number, taking.archive(number, files).await?));
        }
    });
    let mut archives: Vec<_> = try_join_all(workers).await?.into_iter().flatten().collect();
    if let Some(control) = walked.control {
        archives.push((last, taking.archive(last, vec![control]).await?));
    }
    archives.sort_by_key(|(number, _)| *number);

    let mut taken = Taken { folders: walked.folders, skipped: walked.skipped, ..Taken::default() };
    for (number, packed) in archives {
        taken.bytes += packed.files.iter().map(|file| file.size).sum::<u64>();
        taken.compressed_bytes += packed.bytes;
        taken.files.extend(packed.files);
        taken.parts.push(Part { object: plan.id.part(number), bytes: packed.bytes, sha256: packed.sha256 });
    }
    Ok(taken)
}

/// Groups files into about equal archives, in their order.
fn split(files: Vec<Found>, parallel: usize) -> Vec<Vec<Found>> {
    let total: u64 = files.iter().map(|file| file.size).sum();
    let archives = total.div_ceil(ARCHIVE).max(parallel as u64);
    let share = total.div_ceil(archives).max(1);
    let (mut groups, mut bytes) = (vec![Vec::new()], 0);
    for file in files {
        if bytes >= share {
            groups.push(Vec::new());
            bytes = 0;
        }
        bytes += file.size;
        if let Some(group) = groups.last_mut() {
            group.push(file);
        }
    }
    groups.retain(|group| !group.is_empty());
    groups
}

struct Taking<'a> {
    store: &'a Store,
    plan: &'a BackupPlan,
    progress: &'a Arc<Progress>,
    pace: Option<Arc<Pace>>,
    /// Pieces of one archive that may exist at once.
    pieces: usize,
}

impl Taking<'_> {
    async fn archive(&self, number: usize, files: Vec<Found>) -> Result<Packed, Error> {
        let total: u64 = files.iter().map(|file| file.size + 1024).sum();
        let mut upload = self.store.upload(&self.plan.id.part(number)).await?;
        let (sender, mut receiver) = mpsc::channel(1);
        let job = Job {
            root: self.plan.folder.clone(),
            files,
            part: u32::try_from(number).unwrap_or(u32::MAX),
            level: self.plan.level.clamp(1, 9),
            piece: PIECE.max(usize::try_from(total / PIECES).unwrap_or(usize::MAX)),
            pieces: sender,
            memory: Arc::new(Semaphore::new(self.pieces)),
            pace: self.pace.clone(),
            progress: Arc::clone(self.progress),
            runtime: Handle::current(),
        };
        let packing = tokio::task::spawn_blocking(move || job.run());
        loop {
            tokio::select! {
                piece = receiver.recv() => match piece {
                    Some(piece) => upload.send(piece.bytes, piece.permit),
                    None => break,
                },
                sent = upload.sent() => sent?,
            }
        }
        // Before the object is there: what could not be packed is no archive.
        let packed =
            packing.await.map_err(|error| Error::io("pack", &self.plan.folder)(std::io::Error::other(error)))??;
        upload.finish().await?;
        Ok(packed)
    }
}

/// Makes a backup be there: looks whether its archives are, and writes its manifest. To be called after pg_backup_stop.
pub async fn finish(store: &Store, manifest: &Manifest) -> Result<(), Error> {
    let summary = &manifest.summary;
    let mut retry = 0;
    while let Some(missing) = missing(store, manifest).await? {
        // Some destinations list an object a little later than they take it.
        if retry >= store.bounds().retries {
            let detail = "it was stored, and is not there in its size".to_owned();
            return Err(Error::Corrupt { at: store.place(&missing), detail });
        }
        tokio::time::sleep(store.bounds().pause_before(retry)).await;
        retry += 1;
    }
    let (object, text) = (summary.id.manifest(), manifest.to_json()?);
    match store.create(&object, text.clone()).await? {
        Created::New => Ok(()),
        // Our own, of which we did not hear, or another's.
        Created::Exists if store.get(&object).await? == text => Ok(()),
        Created::Exists => {
            Err(Error::Conflict { at: store.place(&object), detail: "another backup of the same name".to_owned() })
        }
    }
}

async fn missing(store: &Store, manifest: &Manifest) -> Result<Option<String>, Error> {
    let listed = store.list(&manifest.summary.id.folder()).await?;
    let there = |part: &&Part| !listed.iter().any(|object| object.object == part.object && object.bytes == part.bytes);
    Ok(manifest.parts.iter().find(there).map(|part| part.object.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(sizes: &[u64]) -> Vec<Found> {
        sizes.iter().enumerate().map(|(n, &size)| Found { path: n.to_string(), size }).collect()
    }

    #[test]
    fn archives_are_about_equal_and_none_is_empty() {
        let sizes = |groups: Vec<Vec<Found>>| -> Vec<u64> {
            groups.iter().map(|group| group.iter().map(|file| file.size).sum()).collect()
        };
        assert_eq!(sizes(split(files(&[5, 5, 5, 5]), 2)), [10, 10]);
        assert_eq!(sizes(split(files(&[0, 0]), 2)), [0]);
        assert!(split(Vec::new(), 2).is_empty());
        let gib = 1 << 30;
        assert_eq!(sizes(split(files(&[gib; 7]), 2)), [2 * gib, 2 * gib, 2 * gib, gib]);
        assert_eq!(split(files(&[1; 100]), 4).into_iter().flatten().collect::<Vec<_>>(), files(&[1; 100]));
    }
}
