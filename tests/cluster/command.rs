//! Running `lc`, which does the work.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use super::{Error, Result};

/// For what takes milliseconds.
pub const SHORT: Duration = Duration::from_secs(60);
/// For what starts processes or copies images.
pub const LONG: Duration = Duration::from_secs(180);

/// Runs `lc` and returns what it printed, without the newline at its end.
pub async fn lc<I, S>(limit: Duration, arguments: I) -> Result<String>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests", "cluster", "lc"].iter().collect();
    let mut command = tokio::process::Command::new(path);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let shown = || {
        let words: Vec<_> = command.as_std().get_args().map(OsStr::to_string_lossy).collect();
        words.join(" ")
    };
    let shown = shown();
    let Ok(output) = tokio::time::timeout(limit, command.output()).await else {
        return Err(Error::Unfinished { command: shown, limit });
    };
    let output = output?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    } else {
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(Error::Command { command: shown, message })
    }
}
