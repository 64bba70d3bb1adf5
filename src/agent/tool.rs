//! Programs of PostgreSQL that run for a while and end: initdb, pg_controldata, pg_basebackup.

use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::Command;
use tokio::sync::mpsc;

use super::Error;
use super::process::Processes;

/// Longest line that is kept or forwarded in one piece.
pub const MAX_LINE: usize = 16 * 1024;
/// How much of a program's output is kept.
const KEPT: usize = 64 * 1024;

/// A program that is about to run.
pub struct Tool {
    name: &'static str,
    command: Command,
    silence: Duration,
}

impl Tool {
    /// The program of this name in PATH.
    pub fn new(name: &'static str) -> Self {
        let mut command = Command::new(name);
        // The output is parsed, so it must not be translated.
        command.env("LC_ALL", "C");
        Self { name, command, silence: Duration::from_mins(1) }
    }
    /// One more argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.arg(arg);
        self
    }
    /// More arguments.
    #[must_use]
    pub fn args<const N: usize>(mut self, args: [&str; N]) -> Self {
        self.command.args(args);
        self
    }
    /// How long it may say nothing before it is killed. A program that works for hours says so now and then.
    #[must_use]
    pub fn silence(mut self, silence: Duration) -> Self {
        self.silence = silence;
        self
    }

    /// Runs it to its end and returns what it printed to its standard output.
    pub async fn run(self, processes: &Processes) -> Result<String, Error> {
        self.run_noting(processes, |_| {}).await
    }

    /// The same; `note` gets each line of its standard error as it comes.
    pub async fn run_noting(mut self, processes: &Processes, mut note: impl FnMut(&str)) -> Result<String, Error> {
        use std::process::Stdio;
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = processes.spawn(self.name, &mut self.command)?;
        let (stdout, stderr) = running.pipes();
        let (sender, mut lines) = mpsc::channel::<(bool, String)>(16);
        let out = tokio::spawn(forward(stdout, true, sender.clone()));
        let err = tokio::spawn(forward(stderr, false, sender));
        let (mut printed, mut said) = (String::new(), String::new());
        let silent = loop {
            match tokio::time::timeout(self.silence, lines.recv()).await {
                Ok(Some((true, line))) => keep(&mut printed, &line),
                Ok(Some((false, line))) => {
                    note(&line);
                    keep(&mut said, &line);
                }
                Ok(None) => break false,
                Err(_) => break true,
            }
        };
        if silent {
            running.signal(Signal::KILL);
        }
        out.abort();
        err.abort();
        let status = tokio::time::timeout(Duration::from_secs(30), running.wait())
            .await
            .map_err(|_| Error::Timeout(self.name.to_owned()))?
            .map_err(|error| Error::Program { program: self.name.into(), outcome: error.to_string() })?;
        if silent {
            return Err(Error::Timeout(self.name.to_owned()));
        }
        if !status.success() {
            let last: Vec<&str> = said.lines().rev().take(3).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            return Err(Error::Program {
                program: self.name.to_owned(),
                outcome: format!("ended with {status}: {}", last.join(" / ")),
            });
        }
        Ok(printed)
    }
}

async fn forward(pipe: Option<impl AsyncRead + Unpin>, standard: bool, sender: mpsc::Sender<(bool, String)>) {
    let Some(pipe) = pipe else { return };
    let mut lines = Lines::new(pipe);
    while let Some(line) = lines.next().await {
        if sender.send((standard, line)).await.is_err() {
            return;
        }
    }
}

fn keep(text: &mut String, line: &str) {
    if text.len() + line.len() > KEPT {
        // The end of what a program says is what explains its failure.
        let from = text.char_indices().map(|(at, _)| at).find(|at| *at >= text.len() / 2).unwrap_or(0);
        text.drain(..from);
    }
    text.push_str(line);
    text.push('\n');
}

/// The lines of a pipe. Overlong ones come in pieces; no output can make this use more memory.
pub struct Lines<R> {
    reader: BufReader<R>,
    line: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    /// The lines of this pipe.
    pub fn new(pipe: R) -> Self {
        Self { reader: BufReader::with_capacity(4096, pipe), line: Vec::new() }
    }

    /// The next line that is not empty; None at the end.
    pub async fn next(&mut self) -> Option<String> {
        loop {
            let (used, complete) = match self.reader.fill_buf().await {
                Ok([]) | Err(_) => {
                    return if self.line.is_empty() { None } else { Some(self.take()) };
                }
                Ok(buffer) => {
                    let end = buffer.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
                    self.line.extend(buffer.iter().take(end.unwrap_or(buffer.len())));
                    (end.map_or(buffer.len(), |at| at + 1), end.is_some())
                }
            };
            self.reader.consume(used);
            if !self.line.is_empty() && (complete || self.line.len() >= MAX_LINE) {
                return Some(self.take());
            }
        }
    }

    fn take(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_split_and_overlong_ones_come_in_pieces() {
        let long = "x".repeat(MAX_LINE + 10);
        let text = format!("a\n\nb\r\n{long}\nlast");
        let mut lines = Lines::new(text.as_bytes());
        let mut seen = Vec::new();
        while let Some(line) = lines.next().await {
            seen.push(line);
        }
        assert_eq!(seen.first().map(String::as_str), Some("a"));
        assert_eq!(seen.get(1).map(String::as_str), Some("b"));
        assert_eq!(seen.last().map(String::as_str), Some("last"));
        assert_eq!(seen.iter().map(String::len).sum::<usize>(), 1 + 1 + MAX_LINE + 10 + 4);
    }

    #[tokio::test]
    async fn a_failure_says_what_the_program_said() {
        let processes = Processes::default();
        let error = Tool::new("sh").arg("-c").arg("echo why >&2; exit 3").run(&processes).await.unwrap_err();
        assert!(error.to_string().contains("why"), "{error}");
        assert_eq!(Tool::new("sh").arg("-c").arg("echo yes").run(&processes).await.unwrap(), "yes\n");
    }

    #[tokio::test]
    async fn a_program_that_falls_silent_is_killed() {
        let tool = Tool::new("sleep").arg("100").silence(Duration::from_millis(50));
        assert!(matches!(tool.run(&Processes::default()).await, Err(Error::Timeout(_))));
    }
}
