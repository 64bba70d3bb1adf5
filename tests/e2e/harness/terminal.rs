//! The operator on a terminal, outside of the cluster.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use super::{Result, Suite};
use crate::cluster::eventually;

/// A running operator. It ends with the test, however that ends.
pub struct Terminal {
    child: Child,
    lines: Arc<Mutex<Vec<(Timestamp, String)>>>,
}

impl Terminal {
    /// Starts `hello-operator run` with further arguments.
    pub async fn run(suite: &Suite, arguments: &[&str]) -> Result<Self> {
        let binary = suite.binary().await?;
        // setpriv: also where this process is killed.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .arg(binary)
            .arg("run")
            .args(["--agent-image", suite.image(), "--listen", "127.0.0.1:0"])
            .args(arguments)
            .env("KUBECONFIG", suite.cluster().kubeconfig())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn()?;
        let lines = Arc::new(Mutex::new(Vec::new()));
        if let Some(stream) = child.stdout.take() {
            tokio::spawn(collect(stream, lines.clone()));
        }
        if let Some(stream) = child.stderr.take() {
            tokio::spawn(collect(stream, lines.clone()));
        }
        Ok(Self { child, lines })
    }

    /// The lines with this text so far, and when they came.
    pub async fn lines_with(&self, text: &str) -> Vec<(Timestamp, String)> {
        self.lines.lock().await.iter().filter(|(_, line)| line.contains(text)).cloned().collect()
    }

    /// The first line with this text.
    pub async fn line(&self, limit: Duration, text: &str) -> Result<String> {
        let what = format!("a log line with {text:?}");
        let found = eventually(limit, &what, || async {
            match self.lines_with(text).await.into_iter().next() {
                Some((_, line)) => Ok(line),
                None => Err(self.tail().await),
            }
        });
        Ok(found.await?)
    }

    /// The last lines.
    pub async fn tail(&self) -> String {
        let lines = self.lines.lock().await;
        let skip = lines.len().saturating_sub(15);
        lines.iter().skip(skip).map(|(_, line)| format!("\n  {line}")).collect()
    }

    /// Its process id.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Asks it to end (SIGTERM), as Ctrl-C does, and returns its exit code.
    pub async fn end(mut self, limit: Duration) -> Result<Option<i32>> {
        let id = self.child.id().and_then(|id| rustix::process::Pid::from_raw(i32::try_from(id).ok()?));
        rustix::process::kill_process(id.ok_or("it has ended already")?, rustix::process::Signal::TERM)?;
        match tokio::time::timeout(limit, self.child.wait()).await {
            Ok(status) => Ok(status?.code()),
            Err(_) => Err(format!("the operator did not end within {limit:?} of SIGTERM{}", self.tail().await).into()),
        }
    }
}

async fn collect(stream: impl tokio::io::AsyncRead + Unpin, lines: Arc<Mutex<Vec<(Timestamp, String)>>>) {
    let mut reader = BufReader::new(stream).lines();
    while let Ok(Some(line)) = reader.next_line().await {
        let now = Timestamp::now();
        lines.lock().await.push((now, line));
    }
}
