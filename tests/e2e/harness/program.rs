//! Running programs.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;

use super::Result;

/// What a program said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    pub success: bool,
    pub stdout: String,
    pub stderr: String,
}

impl Said {
    /// What it printed, if it succeeded.
    pub fn ok(self) -> Result<String> {
        if self.success { Ok(self.stdout.trim_end().to_owned()) } else { Err(self.stderr.into()) }
    }

    /// What it complained of, if it failed.
    pub fn refused(self) -> Result<String> {
        if self.success { Err(format!("succeeded, with: {}", self.stdout).into()) } else { Ok(self.stderr) }
    }
}

/// Runs a program to its end, which comes within `limit`.
pub async fn run<I, S>(limit: Duration, program: &Path, arguments: I, input: &str) -> Result<Said>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut command = tokio::process::Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
    let mut stdin = child.stdin.take();
    let work = async {
        if let Some(mut stdin) = stdin.take() {
            // One that does not read its input may end before it is written.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        child.wait_with_output().await
    };
    let output = tokio::time::timeout(limit, work)
        .await
        .map_err(|_| format!("{} did not end within {limit:?}", program.display()))??;
    Ok(Said {
        success: output.status.success(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}
