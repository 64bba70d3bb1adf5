//! An object that comes in pieces.

use std::fmt;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hyper::body::Bytes;
use object_store::{MultipartUpload, UploadPart};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::{Error, Store};

/// How long an upload that is given up may take to tell the destination so.
const ABORT: Duration = Duration::from_secs(30);

/// A multipart upload. Dropped before it is finished, it is aborted beside; where that fails too (or our process is killed) the
/// destination keeps the pieces unseen until a rule of its own removes them.
pub(super) struct Upload {
    store: Store,
    object: String,
    inner: Option<Box<dyn MultipartUpload>>,
    flying: FuturesUnordered<Flight>,
    bytes: u64,
}

type Flight = std::pin::Pin<Box<dyn Future<Output = Result<(), object_store::Error>> + Send>>;

impl Upload {
    pub(super) fn new(store: Store, object: String, inner: Box<dyn MultipartUpload>) -> Self {
        Self { store, object, inner: Some(inner), flying: FuturesUnordered::new(), bytes: 0 }
    }

    /// Begins to send a piece, after those before it. All but the last have the same size, at least 5 MiB (S3 wants it). The permit is
    /// for the memory of the piece and returns when it is sent. Waits only for pieces that are done already.
    pub(super) fn send(&mut self, piece: Bytes, permit: OwnedSemaphorePermit) {
        if let Some(inner) = &mut self.inner {
            self.bytes += piece.len() as u64;
            let sent: UploadPart = inner.put_part(piece.into());
            self.flying.push(Box::pin(async move {
                let result = sent.await;
                drop(permit);
                result
            }));
        }
    }

    /// Waits until some piece is sent; never returns while none flies.
    pub(super) async fn sent(&mut self) -> Result<(), Error> {
        if self.flying.is_empty() {
            return std::future::pending().await;
        }
        match timeout(self.store.bounds().call, self.flying.next()).await {
            Ok(Some(Err(failure))) => Err(self.store.error("writing", &self.object, &failure)),
            Ok(_) => Ok(()),
            Err(_) => Err(self.store.late("writing", &self.object)),
        }
    }

    /// Makes the object be there.
    pub(super) async fn finish(mut self) -> Result<(), Error> {
        while !self.flying.is_empty() {
            self.sent().await?;
        }
        // Taken out only afterwards, so that a failure aborts.
        let Some(inner) = &mut self.inner else { return Ok(()) };
        let completed = self.store.bounded("writing", &self.object, inner.complete()).await;
        if completed.is_err() && !there(&self.store, &self.object, self.bytes).await {
            return completed.map(drop);
        }
        self.inner = None;
        Ok(())
    }
}

/// Whether an object is there in its size: then it was made by a call of which we did not hear, and a repeated one finds no upload.
/// That call may still be at it: a destination that puts the pieces together takes its time (s3s-fs then denied the repeated call).
async fn there(store: &Store, object: &str, bytes: u64) -> bool {
    let folder = object.rsplit_once('/').map_or("", |(folder, _)| folder);
    let looks = async {
        loop {
            match store.list(folder).await {
                Ok(listed) if listed.iter().any(|listed| listed.object == object && listed.bytes == bytes) => {
                    return true;
                }
                Ok(_) => tokio::time::sleep(store.bounds().pause).await,
                Err(_) => return false,
            }
        }
    };
    timeout(store.bounds().silence * 3, looks).await.unwrap_or(false)
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(mut inner) = self.inner.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            // What still flies would arrive after the abort.
            self.flying.clear();
            let place = self.store.place(&self.object);
            runtime.spawn(async move {
                match timeout(ABORT, inner.abort()).await {
                    Ok(Ok(())) => {}
                    _ => tracing::warn!(object = %place, "an upload that was given up could not be aborted; its pieces cost until the destination removes them"),
                }
            });
        }
    }
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Upload({})", self.store.place(&self.object))
    }
}
