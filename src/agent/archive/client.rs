//! What PostgreSQL runs as archive_command and restore_command: asks the agent over its unix socket, and is gone.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longer than any answer of the agent takes.
const ANSWER: Duration = Duration::from_mins(10);

/// Why a segment was not handed over.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The agent does not answer.
    #[error("the agent does not answer at {path}: {source}")]
    Silent {
        /// Its socket.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The agent said no, and why.
    #[error("{0}")]
    Said(String),
}

/// Hands a finished segment to the agent; success means that the store has it.
pub fn archive(socket: &Path, file: &Path) -> Result<(), Refusal> {
    ask(socket, &format!("archive {}", absolute(file).display()))
}

/// Has the agent fetch a file of the archive.
pub fn fetch(socket: &Path, name: &str, to: &Path) -> Result<(), Refusal> {
    ask(socket, &format!("fetch {name} {}", absolute(to).display()))
}

/// PostgreSQL gives paths relative to its data directory, which is where it runs this.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn ask(socket: &Path, question: &str) -> Result<(), Refusal> {
    let silent = |source| Refusal::Silent { path: socket.to_owned(), source };
    let mut stream = UnixStream::connect(socket).map_err(silent)?;
    stream.set_read_timeout(Some(ANSWER)).map_err(silent)?;
    stream.set_write_timeout(Some(ANSWER)).map_err(silent)?;
    stream.write_all(format!("{question}\n").as_bytes()).map_err(silent)?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).map_err(silent)?;
    match answer.trim_end() {
        "ok" => Ok(()),
        "" => Err(Refusal::Said("the agent ended before it answered".into())),
        why => Err(Refusal::Said(why.to_owned())),
    }
}
