//! The WAL archive: one object for each segment, written once.
//!
//! A segment's object is a zstd file that begins with a skippable frame of [`HEADER`] bytes. In it stand the SHA-256 and the
//! length of the content, so that whether an existing object is equal can be told from its first bytes, and `zstd -d` still works
//! by hand. Memory: a push holds the compressed segment, in a buffer that
//! grows by doubling (at most about twice a segment's size); a fetch some hundred KiB.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use hyper::body::Bytes;
use object_store::PutPayload;

use super::digest::{Hasher, Sha256};
use super::download;
use super::layout::{OWNER, Segment, SegmentSize, WAL, WalFile};
use super::store::Created;
use super::{Error, Store};

/// Bytes of the skippable frame: its magic number and length (4 and 4), our mark (8), SHA-256 (32), length (8).
const HEADER: u64 = 56;
/// Of the sixteen magic numbers of skippable frames.
const FRAME: u32 = 0x184D_2A5B;
/// Ours: WAL, header version 1.
const MARK: &[u8; 8] = b"HELLOWAL";
/// A history file is some lines.
const LARGEST_HISTORY: u64 = 1 << 20;
/// How files are read.
const BUFFER: usize = 256 << 10;

/// What a push found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pushed {
    /// It is stored now.
    Stored {
        /// How large the object is.
        bytes: u64,
    },
    /// The same was there.
    AlreadyThere,
    /// It need not be stored: a label of a backup, or a partial segment of which another one is there.
    NotStored,
}

/// What an object holds, by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Content {
    sha256: Sha256,
    length: u64,
}

impl Content {
    fn frame(self) -> Bytes {
        let mut frame = Vec::with_capacity(56);
        frame.extend(FRAME.to_le_bytes());
        frame.extend(48u32.to_le_bytes());
        frame.extend(MARK);
        frame.extend(self.sha256.0);
        frame.extend(self.length.to_le_bytes());
        frame.into()
    }

    fn parse(frame: &[u8]) -> Option<Self> {
        let (magic, rest) = frame.split_first_chunk::<4>()?;
        let (size, rest) = rest.split_first_chunk::<4>()?;
        let (mark, rest) = rest.split_first_chunk::<8>()?;
        let (sha256, rest) = rest.split_first_chunk::<32>()?;
        let (length, _) = rest.split_first_chunk::<8>()?;
        let ours = u32::from_le_bytes(*magic) == FRAME && u32::from_le_bytes(*size) == 48 && mark == MARK;
        ours.then(|| Self { sha256: Sha256(*sha256), length: u64::from_le_bytes(*length) })
    }
}

/// Stores a file of pg_wal, of which PostgreSQL says that it is complete. When this returns `Stored` or `AlreadyThere`, the
/// destination has it. Other content under the same name is [`Error::Conflict`], and nothing is overwritten.
pub async fn push(store: &Store, path: &Path, file: &WalFile, level: i32) -> Result<Pushed, Error> {
    let Some(object) = file.object() else { return Ok(Pushed::NotStored) };
    if let WalFile::History(_) = file {
        return push_history(store, path, &object).await;
    }
    let local = blocking("read", path, move |path| digest(&path)).await?;
    let mut payload = None;
    let mut retry = 0;
    loop {
        // Looked at first: every replica pushes every segment, and most are there.
        match standing(store, &object).await {
            Ok(there) if there == local => return Ok(Pushed::AlreadyThere),
            Ok(_) if matches!(file, WalFile::Partial(_)) => return Ok(Pushed::NotStored),
            Ok(there) => {
                let detail = format!("SHA-256 {} there, {} here", there.sha256, local.sha256);
                return Err(Error::Conflict { at: store.place(&object), detail });
            }
            Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        let compressed = match &payload {
            Some(payload) => payload,
            None => payload.insert(blocking("compress", path, move |path| compress(&path, local, level)).await?),
        };
        match store.create(&object, compressed.clone()).await? {
            Created::New => {
                return Ok(Pushed::Stored { bytes: u64::try_from(compressed.content_length()).unwrap_or(u64::MAX) });
            }
            // Somebody was quicker, or it was our own try; the next look tells, where it can be read by then.
            Created::Exists if retry < store.bounds().retries => {
                tokio::time::sleep(store.bounds().pause_before(retry)).await;
                retry += 1;
            }
            Created::Exists => {
                let reason = "it exists and cannot be read".to_owned();
                return Err(Error::Unavailable { at: store.place(&object), what: "reading", reason });
            }
        }
    }
}

/// Whether the destination has an equal object. Other content under the same name is [`Error::Conflict`].
pub async fn is_there(store: &Store, path: &Path, file: &WalFile) -> Result<bool, Error> {
    let Some(object) = file.object() else { return Ok(false) };
    if let WalFile::History(_) = file {
        let text = tokio::fs::read(path).await.map_err(Error::io("read", path))?;
        return match store.get(&object).await {
            Ok(there) if there == text => Ok(true),
            Ok(_) => {
                let detail = "a timeline has one history".to_owned();
                Err(Error::Conflict { at: store.place(&object), detail })
            }
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        };
    }
    let there = match standing(store, &object).await {
        Ok(there) => there,
        Err(Error::NotFound { .. }) => return Ok(false),
        Err(error) => return Err(error),
    };
    let local = blocking("read", path, move |path| digest(&path)).await?;
    if there == local || matches!(file, WalFile::Partial(_)) {
        return Ok(true);
    }
    let detail = format!("SHA-256 {} there, {} here", there.sha256, local.sha256);
    Err(Error::Conflict { at: store.place(&object), detail })
}

async fn push_history(store: &Store, path: &Path, object: &str) -> Result<Pushed, Error> {
    let text = Bytes::from(tokio::fs::read(path).await.map_err(Error::io("read", path))?);
    let mut retry = 0;
    loop {
        match store.get(object).await {
            Ok(there) if there == text => return Ok(Pushed::AlreadyThere),
            Ok(_) => {
                let detail = "a timeline has one history".to_owned();
                return Err(Error::Conflict { at: store.place(object), detail });
            }
            Err(Error::NotFound { .. }) if retry <= store.bounds().retries => {}
            Err(error) => return Err(error),
        }
        if store.create(object, text.clone()).await? == Created::New {
            return Ok(Pushed::Stored { bytes: u64::try_from(text.len()).unwrap_or(u64::MAX) });
        }
        tokio::time::sleep(store.bounds().pause_before(retry)).await;
        retry += 1;
    }
}

/// What the object of a segment holds, by its first bytes.
async fn standing(store: &Store, object: &str) -> Result<Content, Error> {
    let frame = store.get_range(object, 0..HEADER).await?;
    Content::parse(&frame)
        .ok_or_else(|| Error::Corrupt { at: store.place(object), detail: "it does not begin as ours do".to_owned() })
}

async fn blocking<T: Send + 'static>(
    what: &'static str,
    path: &Path,
    work: impl FnOnce(PathBuf) -> std::io::Result<T> + Send + 'static,
) -> Result<T, Error> {
    let owned = path.to_owned();
    match tokio::task::spawn_blocking(move || work(owned)).await {
        Ok(result) => result.map_err(Error::io(what, path)),
        Err(error) => Err(Error::io(what, path)(std::io::Error::other(error))),
    }
}

fn pieces(path: &Path, mut each: impl FnMut(&[u8]) -> std::io::Result<()>) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = file.read(&mut buffer)?;
        match buffer.get(..read) {
            Some(piece) if read > 0 => each(piece)?,
            _ => return Ok(()),
        }
    }
}

fn digest(path: &Path) -> std::io::Result<Content> {
    let (mut hasher, mut length) = (Hasher::new(), 0);
    pieces(path, |piece| {
        hasher.update(piece);
        length += piece.len() as u64;
        Ok(())
    })?;
    Ok(Content { sha256: hasher.finish(), length })
}

fn compress(path: &Path, content: Content, level: i32) -> std::io::Result<PutPayload> {
    let mut encoder = zstd::Encoder::new(Vec::new(), level)?;
    encoder.set_pledged_src_size(Some(content.length))?;
    let (mut hasher, mut length) = (Hasher::new(), 0);
    pieces(path, |piece| {
        hasher.update(piece);
        length += piece.len() as u64;
        encoder.write_all(piece)
    })?;
    let compressed = encoder.finish()?;
    if (Content { sha256: hasher.finish(), length }) != content {
        return Err(std::io::Error::other("it changed while it was read"));
    }
    Ok([content.frame(), compressed.into()].into_iter().collect())
}

/// Fetches a file of pg_wal to a path; whether there is one. It appears there only whole and verified, by a rename, and is not
/// fsynced: PostgreSQL does that with what it keeps.
///
/// `false` means certainly absent: PostgreSQL takes it for the end of the archive, so the owner's object of the same destination
/// has to be readable at that moment. A volume that is not mounted and a bucket that was emptied are errors.
pub async fn fetch(store: &Store, file: &WalFile, dest: &Path) -> Result<bool, Error> {
    let Some(object) = file.object() else { return Ok(false) };
    let mut retry = 0;
    loop {
        let fetched = match file {
            WalFile::History(_) => fetch_history(store, &object, dest).await,
            _ => fetch_segment(store, &object, dest).await,
        };
        match fetched {
            Ok(()) => return Ok(true),
            Err(Error::NotFound { .. }) => {
                return store.get(OWNER).await.map(|_| false).map_err(|error| unclaimed(store, error));
            }
            // Damage may have happened on the way.
            Err(Error::Corrupt { .. } | Error::Unavailable { .. }) if retry < 2 => {
                tokio::time::sleep(store.bounds().pause_before(retry)).await;
                retry += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

fn unclaimed(store: &Store, error: Error) -> Error {
    match error {
        Error::NotFound { .. } => Error::NoBucket {
            destination: store.to_string(),
            reason: format!("there is no {OWNER}, with which every archive begins"),
        },
        error => error,
    }
}

async fn fetch_history(store: &Store, object: &str, dest: &Path) -> Result<(), Error> {
    let text = store.get(object).await?;
    let temporary = Temporary::beside(dest);
    tokio::fs::write(&temporary.0, &text).await.map_err(Error::io("write", &temporary.0))?;
    temporary.becomes(dest)
}

async fn fetch_segment(store: &Store, object: &str, dest: &Path) -> Result<(), Error> {
    let (source, reader) = download::open(store, object).await?;
    let (temporary, place) = (Temporary::beside(dest), store.place(object));
    // The file is the thread's, so that it goes away with it when nobody waits any more.
    let unpacked = tokio::task::spawn_blocking(move || unpack(reader, &temporary.0, &place).map(|()| temporary));
    // Its result comes first: when the download fails, the unpacking only sees an end too early.
    let downloaded = source.run(store).await;
    let unpacked = unpacked.await.unwrap_or_else(|error| Err(Error::io("write", dest)(std::io::Error::other(error))));
    downloaded.and(unpacked)?.becomes(dest)
}

fn unpack(mut source: impl Read, path: &Path, place: &str) -> Result<(), Error> {
    let corrupt = |detail: String| Error::Corrupt { at: place.to_owned(), detail };
    let mut frame = [0; 56];
    source.read_exact(&mut frame).map_err(|error| corrupt(error.to_string()))?;
    let content = Content::parse(&frame).ok_or_else(|| corrupt("it does not begin as ours do".to_owned()))?;
    let mut decoder = zstd::Decoder::new(source).map_err(|error| corrupt(error.to_string()))?;
    let mut file = File::create(path).map_err(Error::io("write", path))?;
    let (mut hasher, mut length, mut buffer) = (Hasher::new(), 0, vec![0; BUFFER]);
    loop {
        let read = decoder.read(&mut buffer).map_err(|error| corrupt(error.to_string()))?;
        let Some(piece) = buffer.get(..read).filter(|piece| !piece.is_empty()) else { break };
        length += read as u64;
        if length > content.length {
            break;
        }
        hasher.update(piece);
        file.write_all(piece).map_err(Error::io("write", path))?;
    }
    let found = Content { sha256: hasher.finish(), length };
    if found != content {
        return Err(corrupt(format!("its content has SHA-256 {}, and {} is noted", found.sha256, content.sha256)));
    }
    Ok(())
}

/// A file that goes away unless it becomes what it is for.
struct Temporary(PathBuf);

impl Temporary {
    fn beside(dest: &Path) -> Self {
        let name = dest.file_name().unwrap_or_default().to_string_lossy();
        Self(dest.with_file_name(format!("{name}.{:016x}.tmp", rand::random::<u64>())))
    }
    fn becomes(self, dest: &Path) -> Result<(), Error> {
        std::fs::rename(&self.0, dest).map_err(Error::io("rename to", dest))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After the rename there is nothing.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The history of a timeline; None when there is none.
pub async fn history(store: &Store, timeline: u32) -> Result<Option<String>, Error> {
    let object = WalFile::History(timeline).object().unwrap_or_default();
    let corrupt = |detail: &str| Error::Corrupt { at: store.place(&object), detail: detail.to_owned() };
    match store.get_range(&object, 0..LARGEST_HISTORY).await {
        Ok(bytes) => String::from_utf8(bytes.into()).map(Some).map_err(|_| corrupt("it is no text")),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What an archive holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// Whole segments.
    pub segments: BTreeSet<Segment>,
    /// Partial ones.
    pub partials: BTreeSet<Segment>,
    /// Timelines with a history.
    pub histories: BTreeSet<u32>,
    /// Bytes of all objects.
    pub bytes: u64,
    /// Objects that are not ours.
    pub strangers: Vec<String>,
}

impl Listing {
    /// The whole segments of each timeline as ranges without a hole.
    pub fn ranges(&self, size: SegmentSize) -> BTreeMap<u32, Vec<RangeInclusive<Segment>>> {
        let mut all: BTreeMap<u32, Vec<RangeInclusive<Segment>>> = BTreeMap::new();
        for segment in &self.segments {
            let ranges = all.entry(segment.timeline).or_default();
            match ranges.last_mut() {
                Some(range) if range.end().next(size).as_ref() == Some(segment) => *range = *range.start()..=*segment,
                _ => ranges.push(*segment..=*segment),
            }
        }
        all
    }
}

/// Looks what an archive holds. One request for about 1000 objects.
pub async fn list(store: &Store) -> Result<Listing, Error> {
    let mut listing = Listing::default();
    for object in store.list(WAL).await? {
        listing.bytes += object.bytes;
        match WalFile::of_object(&object.object) {
            Some(WalFile::Segment(segment)) => drop(listing.segments.insert(segment)),
            Some(WalFile::Partial(segment)) => drop(listing.partials.insert(segment)),
            Some(WalFile::History(timeline)) => drop(listing.histories.insert(timeline)),
            Some(WalFile::Label(_)) | None => listing.strangers.push(object.object),
        }
    }
    Ok(listing)
}

/// How large the segments of an archive are, by what the newest one says of itself. None: there is none.
pub async fn size(store: &Store, listing: &Listing) -> Result<Option<SegmentSize>, Error> {
    let Some(object) = listing.segments.last().and_then(|segment| WalFile::Segment(*segment).object()) else {
        return Ok(None);
    };
    let length = standing(store, &object).await?.length;
    let size = u32::try_from(length).ok().and_then(SegmentSize::new);
    let detail = format!("it holds {length} bytes, which no segment has");
    size.map(Some).ok_or_else(|| Error::Corrupt { at: store.place(&object), detail })
}

/// Removes files from an archive. What is absent already is no error.
pub async fn remove(store: &Store, files: &[WalFile]) -> Result<(), Error> {
    store.delete_all(files.iter().filter_map(WalFile::object)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_tell_the_content() {
        let content = Content { sha256: Sha256::of(b"x"), length: 1 };
        assert_eq!(content.frame().len() as u64, HEADER);
        assert_eq!(Content::parse(&content.frame()), Some(content));
        for bad in [&b""[..], &[0; 56], &content.frame()[..55]] {
            assert_eq!(Content::parse(bad), None);
        }
    }

    #[test]
    fn holes_part_ranges() {
        let size = SegmentSize::default();
        let segments = ["000000010000000000000001", "0000000100000000000000FF", "000000010000000100000000"];
        let further = ["000000010000000100000001", "000000020000000100000002"];
        let listing = Listing {
            segments: segments.iter().chain(&further).map(|name| name.parse().unwrap()).collect(),
            ..Listing::default()
        };
        let ranges = listing.ranges(size);
        let names: Vec<_> = ranges[&1].iter().map(|range| format!("{}-{}", range.start(), range.end())).collect();
        assert_eq!(
            names,
            ["000000010000000000000001-000000010000000000000001", "0000000100000000000000FF-000000010000000100000001"]
        );
        assert_eq!(ranges[&2].len(), 1);
    }
}
