//! A destination: objects below a root, each call bounded in time and with errors that say what to do.
//!
//! On a volume an object is written beside its place, fsynced, and linked (put-if-absent) or renamed there; its folders are
//! fsynced too. Deletions on a volume are not fsynced: after a power cut a deleted object may be there again.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::BoxStream;
use hyper::body::Bytes;
use jiff::Timestamp;
use object_store::client::{HttpError, HttpErrorKind};
use object_store::path::Path;
use object_store::{
    Error as Failure, GetOptions, GetRange, GetResultPayload, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    PutPayload,
};
use tokio::time::timeout;

use super::Error;
use super::target::Target;
use super::upload::Upload;

pub use super::target::Bounds;

/// A destination.
#[derive(Clone)]
pub struct Store {
    client: Arc<dyn ObjectStore>,
    target: Arc<Target>,
    root: Path,
    bounds: Bounds,
}

/// Whether a put-if-absent put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// It did.
    New,
    /// Something was there. It may be what an earlier try put, whose answer was lost: compare.
    Exists,
}

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name below the root.
    pub object: String,
    /// How large it is.
    pub bytes: u64,
    /// When it was written, by the destination's clock.
    pub modified: Timestamp,
}

/// What an object holds, as it comes.
pub(super) enum Body {
    /// A file of a volume, at its beginning.
    File(std::fs::File),
    /// From the network.
    Stream {
        /// The pieces.
        stream: BoxStream<'static, Result<Bytes, Failure>>,
        /// Size of the whole object.
        size: u64,
    },
}

impl Store {
    /// Opens a destination. Nothing is asked of it yet, but for a volume's folder. `root` is a path such as `team/db1`.
    pub fn open(target: &Target, root: &str) -> Result<Self, Error> {
        Self::open_with(target, root, Bounds::default())
    }

    /// The same with other bounds.
    pub fn open_with(target: &Target, root: &str, bounds: Bounds) -> Result<Self, Error> {
        let root = Path::parse(root.trim_matches('/'))
            .map_err(|_| Error::Refused(format!("{root:?} is no path in a destination")))?;
        Ok(Self { client: target.client(&bounds)?, target: Arc::new(target.clone()), root, bounds })
    }

    pub(super) fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// An object's place, for people.
    pub fn place(&self, object: &str) -> String {
        format!("{self}/{object}")
    }

    fn path(&self, object: &str) -> Path {
        object.split('/').filter(|part| !part.is_empty()).fold(self.root.clone(), Path::join)
    }

    fn folder(&self) -> Option<&FilePath> {
        match self.target.as_ref() {
            Target::Volume { folder } => Some(folder),
            _ => None,
        }
    }

    /// Runs one call in its time, and gives its failure a kind and words.
    pub(super) async fn bounded<T>(
        &self,
        what: &'static str,
        object: &str,
        call: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Error> {
        match timeout(self.bounds.call, call).await {
            Ok(result) => result.map_err(|failure| self.error(what, object, &failure)),
            Err(_) => Err(self.late(what, object)),
        }
    }

    pub(super) fn late(&self, what: &'static str, object: &str) -> Error {
        Error::Timeout { at: self.place(object), what, seconds: self.bounds.call.as_secs() }
    }

    /// Looks whether the destination is there and lets us list.
    pub async fn check(&self) -> Result<(), Error> {
        if let Some(folder) = self.folder() {
            self.there(folder)?;
        }
        let first = async { self.client.list(Some(&self.root)).next().await.transpose() };
        self.bounded("listing", "", first).await.map(drop)
    }

    fn there(&self, folder: &FilePath) -> Result<(), Error> {
        match std::fs::metadata(folder) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(Error::NoBucket { destination: self.to_string(), reason: "no such folder".to_owned() })
            }
            Err(error) => Err(Error::io("look at", folder)(error)),
        }
    }

    /// A small object as a whole.
    pub async fn get(&self, object: &str) -> Result<Bytes, Error> {
        let path = self.path(object);
        self.bounded("reading", object, async { self.client.get(&path).await?.bytes().await }).await
    }

    /// Some bytes of an object; fewer where it ends before.
    pub(super) async fn get_range(&self, object: &str, range: Range<u64>) -> Result<Bytes, Error> {
        let path = self.path(object);
        let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
        self.bounded("reading", object, async { self.client.get_opts(&path, options).await?.bytes().await }).await
    }

    /// An object from some byte on, as it comes.
    pub(super) async fn read(&self, object: &str, offset: u64) -> Result<Body, Error> {
        let path = self.path(object);
        let range = (offset > 0).then_some(GetRange::Offset(offset));
        let options = GetOptions { range, ..GetOptions::default() };
        let result = self.bounded("reading", object, self.client.get_opts(&path, options)).await?;
        Ok(match result.payload {
            GetResultPayload::File(file, _) => Body::File(file),
            GetResultPayload::Stream(stream) => Body::Stream { stream, size: result.meta.size },
        })
    }

    /// Writes an object unless one of that name is there. A try that got no answer is repeated, so `Exists` may mean our own.
    pub async fn create(&self, object: &str, payload: impl Into<PutPayload>) -> Result<Created, Error> {
        let (path, payload) = (self.path(object), payload.into());
        let put = async {
            let mut retry = 0;
            loop {
                let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
                match self.client.put_opts(&path, payload.clone(), options).await {
                    Ok(_) => return Ok(Created::New),
                    Err(Failure::AlreadyExists { .. }) => return Ok(Created::Exists),
                    // The library repeats only what may be done twice; this may, because whoever hears of `Exists` compares.
                    Err(failure) if retry < self.bounds.retries && unanswered(&failure) => {
                        tokio::time::sleep(self.bounds.pause_before(retry)).await;
                        retry += 1;
                        // A server may refuse what is there before it has read the rest, and end the connection: then its answer
                        // is lost every time, and only a look tells.
                        if self.client.head(&path).await.is_ok() {
                            return Ok(Created::Exists);
                        }
                    }
                    Err(failure) => return Err(failure),
                }
            }
        };
        self.bounded("writing", object, put).await
    }

    /// Begins an object that comes in pieces. It is not there before the upload is finished.
    pub(super) async fn upload(&self, object: &str) -> Result<Upload, Error> {
        let path = self.path(object);
        let inner = self.bounded("writing", object, self.client.put_multipart(&path)).await?;
        Ok(Upload::new(self.clone(), object.to_owned(), inner))
    }

    /// Every object below a prefix, which ends at a `/`, by name.
    pub async fn list(&self, prefix: &str) -> Result<Vec<Listed>, Error> {
        let path = self.path(prefix);
        let mut stream = self.client.list(Some(&path));
        let mut all = Vec::new();
        // The bound is for each page or less, so that a long listing is none that hangs.
        while let Some(meta) = self.bounded("listing", prefix, async { stream.next().await.transpose() }).await? {
            if let Some(object) = self.object(&meta.location) {
                let modified = Timestamp::from_second(meta.last_modified.timestamp()).unwrap_or(Timestamp::UNIX_EPOCH);
                all.push(Listed { object, bytes: meta.size, modified });
            }
        }
        if all.is_empty()
            && let Some(folder) = self.folder()
        {
            self.there(folder)?;
        }
        all.sort_by(|a, b| a.object.cmp(&b.object));
        Ok(all)
    }

    /// What writes that were cut short have left on a volume below a prefix, with its age. No listing shows it.
    pub(super) async fn leftovers(&self, prefix: &str) -> Result<Vec<(PathBuf, Timestamp)>, Error> {
        let Some(folder) = self.folder() else { return Ok(Vec::new()) };
        let top = folder.join(self.path(prefix).as_ref());
        let walk = tokio::task::spawn_blocking(move || {
            let mut left = Vec::new();
            walk_leftovers(&top, &mut left).map_err(Error::io("read", top)).map(|()| left)
        });
        walk.await.unwrap_or_else(|error| Err(Error::io("read", folder)(std::io::Error::other(error))))
    }

    /// Removes what [`Store::leftovers`] found, and on a volume the folder itself, if nothing is left in it.
    pub(super) async fn clear(&self, prefix: &str) -> Result<(), Error> {
        for (path, _) in self.leftovers(prefix).await? {
            tokio::fs::remove_file(&path).await.or_else(absent).map_err(Error::io("remove", path))?;
        }
        if let Some(folder) = self.folder() {
            // Not empty is fine: something is there that is not ours.
            let _ = tokio::fs::remove_dir(folder.join(self.path(prefix).as_ref())).await;
        }
        Ok(())
    }

    fn object(&self, path: &Path) -> Option<String> {
        let parts: Vec<_> = path.prefix_match(&self.root)?.map(|part| part.as_ref().to_owned()).collect();
        (!parts.is_empty()).then(|| parts.join("/"))
    }

    /// Deletes an object. That it was not there is no error.
    pub async fn delete(&self, object: &str) -> Result<(), Error> {
        let path = self.path(object);
        match self.bounded("deleting", object, self.client.delete(&path)).await {
            Err(Error::NotFound { .. }) => Ok(()),
            result => result,
        }
    }

    /// Deletes objects, several at a time; the first failure ends it, and what was not deleted then is still there.
    pub(super) async fn delete_all(&self, objects: impl IntoIterator<Item = String>) -> Result<(), Error> {
        let mut deletions =
            futures::stream::iter(objects).map(|object| async move { self.delete(&object).await }).buffer_unordered(8);
        while let Some(result) = deletions.next().await {
            result?;
        }
        Ok(())
    }

    /// Gives a failure of the library a kind and words.
    pub(super) fn error(&self, what: &'static str, object: &str, failure: &Failure) -> Error {
        let at = self.place(object);
        let reason = innermost(failure);
        let is = |codes: &[&str]| codes.iter().any(|code| reason.contains(code));
        if is(&["NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted", "The specified bucket does not exist"]) {
            return Error::NoBucket { destination: self.to_string(), reason: said(&reason) };
        }
        if let Some(folder) = self.folder() {
            if let Err(error) = self.there(folder) {
                return error;
            }
            if !matches!(failure, Failure::NotFound { .. })
                && let Some(error) = link::<std::io::Error>(failure)
            {
                let source = error.raw_os_error().map_or_else(
                    || std::io::Error::new(error.kind(), error.to_string()),
                    std::io::Error::from_raw_os_error,
                );
                return Error::Io { what, path: folder.join(self.path(object).as_ref()), source };
            }
        }
        if is(&["status code: 416", "object was only"]) {
            return Error::Corrupt { at, detail: "it is shorter than it was".to_owned() };
        }
        match failure {
            Failure::NotFound { .. } => Error::NotFound { at },
            Failure::PermissionDenied { .. } | Failure::Unauthenticated { .. } => {
                Error::Unauthorized { at, reason: said(&reason) }
            }
            // What token services and S3 say with status 400, and credentials that cannot be read here.
            _ if is(&REFUSALS) || link::<std::io::Error>(failure).is_some_and(unreadable) => {
                Error::Unauthorized { at, reason: said(&reason) }
            }
            _ if link::<HttpError>(failure).is_some_and(|error| error.kind() == HttpErrorKind::Timeout) => {
                Error::Timeout { at, what, seconds: self.bounds.call.as_secs() }
            }
            _ => Error::Unavailable { at, what, reason: said(&reason) },
        }
    }
}

fn absent(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// The library writes `name#1` and gives it its name when it is whole.
fn walk_leftovers(folder: &FilePath, left: &mut Vec<(PathBuf, Timestamp)>) -> std::io::Result<()> {
    let entries = match folder.read_dir() {
        Ok(entries) => entries,
        Err(error) => return absent(error),
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.rsplit_once('#')).map(|(_, number)| number);
        if entry.file_type()?.is_dir() {
            walk_leftovers(&entry.path(), left)?;
        } else if number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())) {
            let modified = entry.metadata().and_then(|meta| meta.modified());
            if let Some(modified) = modified.ok().and_then(|modified| Timestamp::try_from(modified).ok()) {
                left.push((entry.path(), modified));
            }
        }
    }
    Ok(())
}

/// How a refusal of credentials looks that does not come with status 401 or 403.
const REFUSALS: [&str; 11] = [
    "status code: 401",
    "status code: 403",
    "ExpiredToken",
    "InvalidToken",
    "InvalidIdentityToken",
    "InvalidAccessKeyId",
    "AuthorizationHeaderMalformed",
    "invalid_grant",
    "invalid_client",
    "unauthorized_client",
    "AADSTS",
];

fn unreadable(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{NotFound, PermissionDenied};
    matches!(error.kind(), NotFound | PermissionDenied)
}

/// Whether a request may have been carried out without our hearing of it: no status came, or not all of the answer. Of which kind
/// the library takes a connection for that was reset depends on the moment.
fn unanswered(failure: &Failure) -> bool {
    link::<HttpError>(failure).is_some()
}

/// The link of a chain of errors that has this type.
fn link<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// The last link of a chain of errors. The others may hold addresses, and those signatures.
pub(super) fn innermost(error: &(dyn StdError + 'static)) -> String {
    let mut last = error;
    while let Some(next) = last.source() {
        last = next;
    }
    last.to_string()
}

/// What a destination said, short: code and message out of its XML, else its beginning.
fn said(reason: &str) -> String {
    let between = |tag: &str| {
        let (_, rest) = reason.split_once(&format!("<{tag}>"))?;
        rest.split_once(&format!("</{tag}>")).map(|(text, _)| text)
    };
    let text = match (between("Code"), between("Message")) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        (Some(code), None) => code.to_owned(),
        _ => reason.split_whitespace().collect::<Vec<_>>().join(" "),
    };
    text.chars().take(300).collect()
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.target.place())?;
        if self.root.as_ref().is_empty() { Ok(()) } else { write!(f, "/{}", self.root) }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_destination_says_is_told_short() {
        let xml = "Server returned non-2xx status code: 403 Forbidden: <?xml?><Error><Code>SignatureDoesNotMatch</Code>\
                   <Message>No.</Message><StringToSign>AWS4\n</StringToSign></Error>";
        assert_eq!(said(xml), "SignatureDoesNotMatch: No.");
        assert_eq!(said("400: {\n  \"error\": \"invalid_grant\"\n}"), "400: { \"error\": \"invalid_grant\" }");
        assert_eq!(said(&"x".repeat(1000)).len(), 300);
    }

    #[tokio::test]
    async fn a_root_is_where_everything_stands() {
        let folder = std::env::temp_dir().join(format!("hello-store-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let target = Target::Volume { folder: folder.clone() };
        let store = Store::open(&target, "/team a/db/").unwrap();
        assert_eq!(store.place("owner.json"), format!("{}/team a/db/owner.json", folder.display()));
        assert_eq!(store.create("wal/x", Bytes::from_static(b"1")).await.unwrap(), Created::New);
        assert_eq!(store.create("wal/x", Bytes::from_static(b"2")).await.unwrap(), Created::Exists);
        assert_eq!(store.get("wal/x").await.unwrap(), "1");
        assert_eq!(
            store.list("").await.unwrap().iter().map(|listed| &listed.object[..]).collect::<Vec<_>>(),
            ["wal/x"]
        );
        assert!(folder.join("team a/db/wal/x").exists());
        assert!(matches!(store.get("wal/y").await, Err(Error::NotFound { .. })));
        store.delete("wal/x").await.unwrap();
        store.delete("wal/x").await.unwrap();
        assert!(store.list("wal").await.unwrap().is_empty());
        for root in ["../x", "a//b", "."] {
            assert!(matches!(Store::open(&target, root), Err(Error::Refused(_))), "{root}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(matches!(store.get("wal/x").await, Err(Error::NoBucket { .. })));
        assert!(matches!(store.list("wal").await, Err(Error::NoBucket { .. })));
    }
}
