//! One archive of a base backup, made by a thread: files in, compressed pieces out.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::body::Bytes;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep};

use super::Error;
use super::digest::{Hasher, Sha256};
use super::manifest::FileEntry;
use super::pace::{Pace, Progress};
use super::walk::Found;

/// How files are read.
const BUFFER: usize = 256 << 10;

/// A piece of an archive, with the permit for its memory.
pub(super) struct Piece {
    pub bytes: Bytes,
    pub permit: OwnedSemaphorePermit,
}

/// What makes an archive.
pub(super) struct Job {
    pub root: PathBuf,
    pub files: Vec<Found>,
    pub part: u32,
    pub level: i32,
    /// Bytes of each piece but the last.
    pub piece: usize,
    pub pieces: mpsc::Sender<Piece>,
    /// Pieces that may exist at once.
    pub memory: Arc<Semaphore>,
    pub pace: Option<Arc<Pace>>,
    pub progress: Arc<Progress>,
    pub runtime: Handle,
}

/// An archive that was made.
pub(super) struct Packed {
    pub files: Vec<FileEntry>,
    pub bytes: u64,
    pub sha256: Sha256,
}

impl Job {
    /// Runs in a thread that may block. Ends early when nobody takes the pieces any more.
    pub(super) fn run(self) -> Result<Packed, Error> {
        let failed = |source| Error::io("pack", &self.root)(source);
        let output = Output { job: &self, piece: None, hasher: Hasher::new(), bytes: 0 };
        let mut encoder = zstd::Encoder::new(output, self.level).map_err(failed)?;
        encoder.include_checksum(true).map_err(failed)?;
        let mut archive = tar::Builder::new(encoder);
        let mut files = Vec::with_capacity(self.files.len());
        for found in &self.files {
            files.extend(self.file(&mut archive, found)?);
        }
        let mut output = archive.into_inner().and_then(zstd::Encoder::finish).map_err(failed)?;
        output.pass_on().map_err(failed)?;
        Ok(Packed { files, bytes: output.bytes, sha256: output.hasher.finish() })
    }

    /// Packs a file as long as it is when it is opened. None: it is gone, as a dropped table is.
    fn file(&self, archive: &mut tar::Builder<impl Write>, found: &Found) -> Result<Option<FileEntry>, Error> {
        let path = self.root.join(&found.path);
        let Some(file) = open(&path)? else { return Ok(None) };
        let meta = file.metadata().map_err(Error::io("look at", &path))?;
        let mut header = tar::Header::new_gnu();
        header.set_size(meta.len());
        header.set_mode(0o600);
        header.set_mtime(u64::try_from(meta.mtime()).unwrap_or(0));
        let input = Input { job: self, file, left: meta.len(), hasher: Hasher::new() };
        let mut input = BufReader::with_capacity(BUFFER, input);
        archive.append_data(&mut header, &found.path, &mut input).map_err(Error::io("pack", &path))?;
        let sha256 = input.into_inner().hasher.finish();
        Ok(Some(FileEntry { path: found.path.clone(), size: meta.len(), sha256, part: self.part }))
    }

    fn gone(&self) -> std::io::Result<()> {
        if self.pieces.is_closed() { Err(std::io::Error::other("the backup was given up")) } else { Ok(()) }
    }
}

fn open(path: &Path) -> Result<Option<File>, Error> {
    // A link that took the file's place would lead elsewhere.
    let no_link = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0);
    match File::options().read(true).custom_flags(no_link).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("open", path)(error)),
    }
}

/// A file that has exactly the size that it had when it was opened: what grows is cut, what shrinks is filled with zeros (as
/// pg_basebackup does: the WAL truncates or writes it again).
struct Input<'a> {
    job: &'a Job,
    file: File,
    left: u64,
    hasher: Hasher,
}

impl Read for Input<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let wanted = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let Some(buffer) = buffer.get_mut(..wanted).filter(|buffer| !buffer.is_empty()) else { return Ok(0) };
        self.job.gone()?;
        let read = match self.file.read(buffer)? {
            0 => {
                buffer.fill(0);
                wanted
            }
            read => read,
        };
        if let Some(piece) = buffer.get(..read) {
            self.hasher.update(piece);
        }
        self.left -= read as u64;
        self.job.progress.add_read(read as u64);
        if let Some(pace) = &self.job.pace {
            let wait = pace.take(read, Instant::now());
            if !wait.is_zero() {
                self.job.runtime.block_on(async {
                    tokio::select! {
                        () = sleep(wait) => {}
                        () = self.job.pieces.closed() => {}
                    }
                });
            }
        }
        Ok(read)
    }
}

/// Cuts what is written into pieces and passes them on.
struct Output<'a> {
    job: &'a Job,
    piece: Option<(Vec<u8>, OwnedSemaphorePermit)>,
    hasher: Hasher,
    bytes: u64,
}

impl Output<'_> {
    fn pass_on(&mut self) -> std::io::Result<()> {
        let Some((bytes, permit)) = self.piece.take() else { return Ok(()) };
        self.hasher.update(&bytes);
        self.bytes += bytes.len() as u64;
        self.job.progress.add_stored(bytes.len() as u64);
        let piece = Piece { bytes: bytes.into(), permit };
        self.job.pieces.blocking_send(piece).map_err(|_| std::io::Error::other("the backup was given up"))
    }
}

impl Write for Output<'_> {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        let size = self.job.piece;
        let (piece, _) = match &mut self.piece {
            Some(piece) => piece,
            none => {
                // Returned permits come from pieces that were sent or, when nobody waits any more, dropped.
                let permit = self.job.runtime.block_on(Arc::clone(&self.job.memory).acquire_owned());
                none.insert((Vec::with_capacity(size), permit.map_err(std::io::Error::other)?))
            }
        };
        let taken = data.len().min(size - piece.len());
        piece.extend_from_slice(data.get(..taken).unwrap_or_default());
        if piece.len() == size {
            self.pass_on()?;
        }
        Ok(taken)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
