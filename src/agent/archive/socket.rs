//! The agent's unix socket for archive_command and restore_command. Only PostgreSQL's own user reaches it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use super::Archive;
use crate::agent::Error;
use crate::agent::volume::remove;

/// How long a question may take to arrive.
const QUESTION: Duration = Duration::from_secs(5);
/// Longest question.
const LONGEST: u64 = 8 * 1024;

/// Serves for the life of the agent.
pub fn serve(archive: Arc<Archive>, path: &Path) -> Result<(), Error> {
    // Of an earlier agent; nobody else makes one there.
    remove(path)?;
    let listener = UnixListener::bind(path).map_err(Error::io("listen on", path))?;
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let archive = archive.clone();
                    tokio::spawn(async move { answer(&archive, stream).await });
                }
                // Out of file descriptors, for instance.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    });
    Ok(())
}

async fn answer(archive: &Arc<Archive>, stream: UnixStream) {
    let mut stream = BufReader::new(stream.take_limited());
    let mut question = String::new();
    let read = tokio::time::timeout(QUESTION, stream.read_line(&mut question)).await;
    if !matches!(read, Ok(Ok(_))) {
        return;
    }
    let words: Vec<&str> = question.trim_end().splitn(3, ' ').collect();
    let outcome = match words.as_slice() {
        ["archive", path] => archive.push(Path::new(path)).await.map_err(|error| error.to_string()),
        ["fetch", name, to] => match archive.fetch(name, Path::new(to)).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("the archive has no {name}")),
            Err(error) => Err(error.to_string()),
        },
        _ => Err("that is no question".to_owned()),
    };
    let text = outcome.map_or_else(|why| why.replace(['\n', '\r'], " "), |()| "ok".to_owned());
    // Who asked may be gone by now; PostgreSQL asks again.
    let _ = stream.get_mut().get_mut().write_all(format!("{text}\n").as_bytes()).await;
}

trait Limited {
    fn take_limited(self) -> tokio::io::Take<UnixStream>;
}

impl Limited for UnixStream {
    fn take_limited(self) -> tokio::io::Take<UnixStream> {
        self.take(LONGEST)
    }
}
