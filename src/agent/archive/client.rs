//! What PostgreSQL runs as archive_command and restore_command: asks the agent over its unix socket, and is gone.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Longer than any answer of the agent takes.
const ANSWER: Duration = Duration::from_mins(10);
/// Above 128, PostgreSQL takes the command for killed. Its archiver ends at once, where it would try twice more, a second
/// apart, and hold up a shutdown. Its recovery ends with an error, where it would take the file for absent, and so for the end of
/// the WAL.
const GIVE_UP: u8 = 137;

/// What the agent answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// It is done.
    Done,
    /// The archive certainly has no such file.
    Absent,
    /// Not now, because PostgreSQL is about to stop.
    NotNow,
    /// It failed; why, in a sentence.
    Failed(String),
}

impl Reply {
    /// As one line.
    pub fn line(&self) -> String {
        match self {
            Self::Done => "done\n".into(),
            Self::Absent => "absent\n".into(),
            Self::NotNow => "not now\n".into(),
            Self::Failed(why) => format!("failed {}\n", why.replace(['\n', '\r'], " ")),
        }
    }

    fn parse(line: &str) -> Self {
        match line.trim_end() {
            "done" => Self::Done,
            "absent" => Self::Absent,
            "not now" => Self::NotNow,
            other => Self::Failed(match other.strip_prefix("failed ") {
                Some(why) => why.to_owned(),
                None => "the agent ended before it answered".into(),
            }),
        }
    }
}

/// archive_command: hands a finished segment to the agent; success means that the store has it.
pub fn archive(socket: &Path, file: &Path) -> ExitCode {
    let reply = ask(socket, &format!("archive {}", absolute(file).display()));
    match reply {
        Reply::Done => ExitCode::SUCCESS,
        Reply::NotNow => ExitCode::from(GIVE_UP),
        Reply::Absent => ExitCode::FAILURE,
        Reply::Failed(why) => complain(&why, ExitCode::FAILURE),
    }
}

/// restore_command: has the agent fetch a file of the archive.
pub fn fetch(socket: &Path, name: &str, to: &Path) -> ExitCode {
    let reply = ask(socket, &format!("fetch {name} {}", absolute(to).display()));
    match reply {
        Reply::Done => ExitCode::SUCCESS,
        Reply::Absent => ExitCode::FAILURE,
        Reply::NotNow => ExitCode::from(GIVE_UP),
        Reply::Failed(why) => complain(&why, ExitCode::from(GIVE_UP)),
    }
}

#[expect(clippy::print_stderr, reason = "PostgreSQL's log is where an administrator looks")]
fn complain(why: &str, code: ExitCode) -> ExitCode {
    eprintln!("hello-operator: {why}");
    code
}

/// PostgreSQL gives paths relative to its data directory, which is where it runs this.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn ask(socket: &Path, question: &str) -> Reply {
    let answer = || -> std::io::Result<String> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_write_timeout(Some(ANSWER))?;
        stream.write_all(format!("{question}\n").as_bytes())?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(line)
    };
    match answer() {
        Ok(line) => Reply::parse(&line),
        Err(error) => Reply::Failed(format!("the agent does not answer at {}: {error}", socket.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::Reply;

    #[test]
    fn a_reply_is_read_as_it_was_written_and_silence_is_a_failure() {
        for reply in [Reply::Done, Reply::Absent, Reply::NotNow, Reply::Failed("no bucket".into())] {
            assert_eq!(Reply::parse(&reply.line()), reply);
        }
        assert!(matches!(Reply::parse(""), Reply::Failed(_)));
        assert_eq!(Reply::Failed("two\nlines".into()).line().lines().count(), 1);
    }
}
