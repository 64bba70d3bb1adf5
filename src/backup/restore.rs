//! Unpacking a base backup into a data directory. Every byte is checked twice: as part of its archive and as part of its file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, File};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::try_join_all;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::digest::Hasher;
use super::manifest::{FileEntry, Manifest, Part};
use super::pace::Progress;
use super::{Error, Store, download};

/// How files are written.
const BUFFER: usize = 256 << 10;
/// Archives in work at once, at most.
const PARALLEL: usize = 8;
/// Times that an archive is read when it comes damaged or not at all: it may have happened on the way.
const TRIES: usize = 3;

/// Unpacks a backup and its `backup_label`. `dest` is absent or empty (but for `pg_wal`, which may be a link to another volume).
/// When it returns, everything in it is on disk; not its entry in the folder above, which is the caller's to name and to fsync.
/// Dropped or failed, it leaves a part of a backup without a `backup_label`, to be removed.
pub async fn unpack(
    store: &Store,
    manifest: &Manifest,
    dest: &Path,
    parallel: usize,
    progress: &Arc<Progress>,
) -> Result<(), Error> {
    let parts = files_of_parts(store, manifest)?;
    progress.expect(manifest.files.iter().map(|file| file.size).sum());
    let folders = folders_of(manifest);
    blocking(dest, move |dest| make_folders(dest, &folders)).await?;
    let queue = Mutex::new(manifest.parts.iter().zip(parts));
    let threads = Arc::new(Semaphore::new(PARALLEL));
    let workers = (0..parallel.clamp(1, PARALLEL)).map(|_| async {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((part, files)) = next else { return Ok::<_, Error>(()) };
            let unpacking = Unpacking {
                place: store.place(&part.object),
                part: part.clone(),
                files,
                progress: Arc::clone(progress),
            };
            unpack_part(store, Arc::new(unpacking), dest, &threads).await?;
        }
    });
    let result = try_join_all(workers).await;
    // When one fails, threads of the others may still write; whoever hears of the failure removes the folder.
    let all = u32::try_from(PARALLEL).unwrap_or(u32::MAX);
    if timeout(store.bounds().call, threads.acquire_many(all)).await.is_err() {
        tracing::warn!(folder = %dest.display(), "threads still write there");
    }
    result?;
    let label = manifest.backup_label.clone();
    blocking(dest, move |dest| {
        let path = dest.join("backup_label");
        create(&path).and_then(|mut file| file.write_all(label.as_bytes())).map_err(Error::io("write", &path))?;
        // One call for all: cheaper than one for each of thousands of files, and it tells of failed writes, too.
        let folder = File::open(dest).map_err(Error::io("open", dest))?;
        rustix::fs::syncfs(&folder).map_err(|error| Error::io("write to disk", dest)(error.into()))
    })
    .await
}

async fn blocking<T: Send + 'static>(
    dest: &Path,
    work: impl FnOnce(&Path) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let owned = dest.to_owned();
    match tokio::task::spawn_blocking(move || work(&owned)).await {
        Ok(result) => result,
        Err(error) => Err(Error::io("write", dest)(std::io::Error::other(error))),
    }
}

/// The files of each archive by path. A manifest that leads out of the folder, names a file twice or an archive that is not there is none of ours.
fn files_of_parts(store: &Store, manifest: &Manifest) -> Result<Vec<BTreeMap<String, FileEntry>>, Error> {
    let corrupt = |detail: String| Error::Corrupt { at: store.place(&manifest.summary.id.manifest()), detail };
    let mut parts = vec![BTreeMap::new(); manifest.parts.len()];
    let mut seen = BTreeSet::new();
    for file in &manifest.files {
        if !stays_inside(&file.path) || !seen.insert(&file.path) {
            return Err(corrupt(format!("it has the file {:?}", file.path)));
        }
        let part = parts.get_mut(usize::try_from(file.part).unwrap_or(usize::MAX));
        let part =
            part.ok_or_else(|| corrupt(format!("{:?} is in archive {}, which is not there", file.path, file.part)))?;
        part.insert(file.path.clone(), file.clone());
    }
    match manifest.folders.iter().find(|folder| !stays_inside(folder)) {
        Some(folder) => Err(corrupt(format!("it has the folder {folder:?}"))),
        None => Ok(parts),
    }
}

fn stays_inside(path: &str) -> bool {
    let mut components = Path::new(path).components().peekable();
    components.peek().is_some()
        && components.all(|component| matches!(component, Component::Normal(_)))
        && !path.contains('\0')
}

/// Every folder, each after the one that holds it.
fn folders_of(manifest: &Manifest) -> BTreeSet<PathBuf> {
    let files = manifest.files.iter().filter_map(|file| Path::new(&file.path).parent());
    let all = files.chain(manifest.folders.iter().map(Path::new));
    all.flat_map(Path::ancestors).filter(|folder| !folder.as_os_str().is_empty()).map(Path::to_owned).collect()
}

fn make_folders(dest: &Path, folders: &BTreeSet<PathBuf>) -> Result<(), Error> {
    let make = |path: &Path| match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        result => result.map_err(Error::io("create", path)),
    };
    make(dest)?;
    for entry in dest.read_dir().map_err(Error::io("read", dest))? {
        let name = entry.map_err(Error::io("read", dest))?.file_name();
        if name != "pg_wal" {
            return Err(Error::Refused(format!(
                "{} holds {} already; a backup is restored into an empty folder only",
                dest.display(),
                name.display()
            )));
        }
    }
    folders.iter().try_for_each(|folder| make(&dest.join(folder)))
}

async fn unpack_part(
    store: &Store,
    unpacking: Arc<Unpacking>,
    dest: &Path,
    threads: &Arc<Semaphore>,
) -> Result<(), Error> {
    let mut tries = 0;
    loop {
        tries += 1;
        match try_part(store, Arc::clone(&unpacking), dest, threads).await {
            Err(error @ (Error::Corrupt { .. } | Error::Unavailable { .. } | Error::Timeout { .. }))
                if tries < TRIES =>
            {
                tracing::warn!(%error, "an archive is read again");
                tokio::time::sleep(store.bounds().pause_before(tries)).await;
            }
            result => return result,
        }
    }
}

async fn try_part(
    store: &Store,
    unpacking: Arc<Unpacking>,
    dest: &Path,
    threads: &Arc<Semaphore>,
) -> Result<(), Error> {
    let (download, reader) = download::open(store, &unpacking.part.object).await?;
    let permit = Arc::clone(threads)
        .acquire_owned()
        .await
        .map_err(|error| Error::io("write", dest)(std::io::Error::other(error)))?;
    let folder = dest.to_owned();
    let unpacked = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        unpacking.run(reader, &folder)
    });
    // Its result comes first: when the download fails, the unpacking only sees an end too early.
    let downloaded = download.run(store).await;
    let unpacked = unpacked.await.unwrap_or_else(|error| Err(Error::io("write", dest)(std::io::Error::other(error))));
    downloaded.and(unpacked)
}

struct Unpacking {
    place: String,
    part: Part,
    files: BTreeMap<String, FileEntry>,
    progress: Arc<Progress>,
}

impl Unpacking {
    fn corrupt(&self, detail: impl std::fmt::Display) -> Error {
        Error::Corrupt { at: self.place.clone(), detail: detail.to_string() }
    }

    fn run(&self, reader: impl Read, dest: &Path) -> Result<(), Error> {
        let input = Hashed { inner: reader, hasher: Hasher::new(), bytes: 0, progress: &self.progress };
        let decoder = zstd::Decoder::new(input).map_err(|error| self.corrupt(error))?;
        let mut archive = tar::Archive::new(decoder);
        let mut missing: BTreeSet<&str> = self.files.keys().map(String::as_str).collect();
        for entry in archive.entries().map_err(|error| self.corrupt(error))? {
            let mut entry = entry.map_err(|error| self.corrupt(error))?;
            let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            // Only what the manifest names, and that once, so an archive cannot lead anywhere else.
            let file = self.files.get(&path).filter(|_| missing.remove(path.as_str()));
            let file = file.ok_or_else(|| self.corrupt(format!("it holds {path:?}, which its manifest does not")))?;
            self.file(&mut entry, file, dest)?;
        }
        if let Some(path) = missing.first() {
            return Err(self.corrupt(format!("{path:?} is not in it")));
        }
        let mut decoder = archive.into_inner();
        std::io::copy(&mut decoder, &mut std::io::sink()).map_err(|error| self.corrupt(error))?;
        let mut input = decoder.finish();
        std::io::copy(&mut input, &mut std::io::sink()).map_err(|error| self.corrupt(error))?;
        let input = input.into_inner();
        let (bytes, sha256) = (input.bytes, input.hasher.finish());
        if (bytes, sha256) == (self.part.bytes, self.part.sha256) {
            Ok(())
        } else {
            Err(self.corrupt(format!(
                "{bytes} bytes with SHA-256 {sha256}, and its manifest has {} with {}",
                self.part.bytes, self.part.sha256
            )))
        }
    }

    fn file(&self, content: &mut impl Read, file: &FileEntry, dest: &Path) -> Result<(), Error> {
        let path = dest.join(&file.path);
        let mut output = create(&path).map_err(Error::io("create", &path))?;
        let (mut hasher, mut size, mut buffer) = (Hasher::new(), 0, vec![0; BUFFER]);
        loop {
            let read = content.read(&mut buffer).map_err(|error| self.corrupt(error))?;
            let Some(piece) = buffer.get(..read).filter(|piece| !piece.is_empty()) else { break };
            hasher.update(piece);
            size += read as u64;
            output.write_all(piece).map_err(Error::io("write", &path))?;
            self.progress.add_read(read as u64);
        }
        let sha256 = hasher.finish();
        if (size, sha256) == (file.size, file.sha256) {
            Ok(())
        } else {
            Err(self.corrupt(format!(
                "{:?} in it has {size} bytes with SHA-256 {sha256}, and not what its manifest has",
                file.path
            )))
        }
    }
}

/// Opens a new file. One of an earlier try is emptied; a link is not followed.
fn create(path: &Path) -> std::io::Result<File> {
    let no_link = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0);
    File::options().write(true).create(true).truncate(true).mode(0o600).custom_flags(no_link).open(path)
}

struct Hashed<'a, R> {
    inner: R,
    hasher: Hasher,
    bytes: u64,
    progress: &'a Progress,
}

impl<R: Read> Read for Hashed<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(buffer)?;
        if let Some(piece) = buffer.get(..read) {
            self.hasher.update(piece);
        }
        self.bytes += read as u64;
        self.progress.add_stored(read as u64);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_leads_out() {
        for path in ["base/1/2", "ünï/with space", ".hidden"] {
            assert!(stays_inside(path), "{path}");
        }
        for path in ["", "/etc/passwd", "../x", "base/../../x", "./x", "a\0b"] {
            assert!(!stays_inside(path), "{path}");
        }
    }
}
