//! An object as a stream of bytes for a thread that reads it. A connection that breaks is taken up again where it broke.

use std::io::Read;

use futures::StreamExt;
use hyper::body::Bytes;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::store::Body;
use super::{Error, Store};

/// Pieces that wait for the reader; one is some hundred KiB at most.
const AHEAD: usize = 4;
/// Piece of a file.
const PIECE: usize = 256 << 10;

/// The side that asks the destination.
pub(super) struct Download {
    object: String,
    body: Body,
    pieces: mpsc::Sender<Bytes>,
}

/// The side that reads. It sees an end where the download failed, too: the download's result has to be looked at first.
pub(super) struct Reader {
    pieces: mpsc::Receiver<Bytes>,
    piece: Bytes,
}

/// Begins to read an object.
pub(super) async fn open(store: &Store, object: &str) -> Result<(Download, Reader), Error> {
    let body = store.read(object, 0).await?;
    let (sender, receiver) = mpsc::channel(AHEAD);
    let download = Download { object: object.to_owned(), body, pieces: sender };
    Ok((download, Reader { pieces: receiver, piece: Bytes::new() }))
}

impl Download {
    /// Runs to the end of the object, or until nobody reads any more.
    pub(super) async fn run(self, store: &Store) -> Result<(), Error> {
        let Self { object, body, pieces } = self;
        match body {
            Body::File(file) => {
                let read = tokio::task::spawn_blocking(move || copy(file, &pieces)).await;
                read.unwrap_or_else(|error| Err(std::io::Error::other(error)))
                    .map_err(Error::io("read", store.place(&object)))
            }
            Body::Stream { mut stream, size } => {
                let (mut offset, mut retry) = (0, 0);
                loop {
                    let failure = match timeout(store.bounds().silence, stream.next()).await {
                        Ok(Some(Ok(piece))) => {
                            offset += piece.len() as u64;
                            retry = 0;
                            if pieces.send(piece).await.is_err() {
                                return Ok(());
                            }
                            continue;
                        }
                        Ok(None) if offset >= size => return Ok(()),
                        Ok(None) => Error::Unavailable {
                            at: store.place(&object),
                            what: "reading",
                            reason: format!("it ended at byte {offset} of {size}"),
                        },
                        Ok(Some(Err(failure))) => store.error("reading", &object, &failure),
                        Err(_) => store.late("reading", &object),
                    };
                    if retry >= store.bounds().retries {
                        return Err(failure);
                    }
                    tokio::time::sleep(store.bounds().pause_before(retry)).await;
                    retry += 1;
                    match store.read(&object, offset).await? {
                        Body::Stream { stream: again, .. } => stream = again,
                        Body::File(_) => return Err(failure),
                    }
                }
            }
        }
    }
}

fn copy(mut file: std::fs::File, pieces: &mpsc::Sender<Bytes>) -> std::io::Result<()> {
    loop {
        let mut piece = vec![0; PIECE];
        let read = file.read(&mut piece)?;
        piece.truncate(read);
        if read == 0 || pieces.blocking_send(piece.into()).is_err() {
            return Ok(());
        }
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.piece.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let piece = self.piece.split_to(self.piece.len().min(buffer.len()));
        match buffer.get_mut(..piece.len()) {
            Some(to) => to.copy_from_slice(&piece),
            None => return Ok(0),
        }
        Ok(piece.len())
    }
}
