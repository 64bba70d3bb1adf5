//! Processes inside Pods.

use k8s_openapi::api::core::v1::Pod as PodObject;
use kube::api::AttachParams;
use tokio::io::AsyncReadExt;

use super::command::{SHORT, lc};
use super::{Error, Result};

/// Which of a container's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Process<'a> {
    /// PID 1 of the container.
    First,
    /// Every one whose command line matches this (extended) regular expression; none is an error.
    Matching(&'a str),
}

/// What a process is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    Kill,
    Stop,
    Continue,
    Terminate,
    Interrupt,
    Quit,
}

impl Signal {
    fn name(self) -> &'static str {
        match self {
            Self::Kill => "KILL",
            Self::Stop => "STOP",
            Self::Continue => "CONT",
            Self::Terminate => "TERM",
            Self::Interrupt => "INT",
            Self::Quit => "QUIT",
        }
    }
}

/// What a command in a Pod said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    pub success: bool,
    pub stdout: String,
    pub stderr: String,
}

/// A Pod, found on its node: all of this works while the API server does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    namespace: String,
    name: String,
}

impl Pod {
    pub(super) fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Signals processes of a container from outside, so that even its PID 1 can be killed or stopped.
    pub async fn signal(&self, container: &str, process: Process<'_>, signal: Signal) -> Result<()> {
        let mut arguments = vec!["pod-signal", &self.namespace, &self.name, container, signal.name()];
        if let Process::Matching(expression) = process {
            arguments.push(expression);
        }
        lc(SHORT, arguments).await.map(drop)
    }

    /// The file system at a path answers no write for so long. It has to be a volume of the class `local-sized`: others
    /// are a folder of the machine's own disk.
    pub async fn freeze_disk(&self, container: &str, path: &str, time: std::time::Duration) -> Result<()> {
        let seconds = time.as_secs().to_string();
        lc(SHORT, ["pod-freeze-disk", &self.namespace, &self.name, container, path, &seconds]).await.map(drop)
    }

    /// Runs a command in a container, as its user and with its environment, and returns what it printed.
    pub async fn run(&self, container: &str, command: &[&str]) -> Result<String> {
        let mut arguments = vec!["pod-exec", &self.namespace, &self.name, container];
        arguments.extend_from_slice(command);
        lc(SHORT, arguments).await
    }

    /// Runs a statement as the superuser `postgres` and returns the rows as `psql -At` prints them.
    pub async fn sql(&self, container: &str, database: &str, statement: &str) -> Result<String> {
        let psql = ["psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", database, "-c", statement];
        self.run(container, &psql).await
    }
}

/// As `kubectl exec` does it.
pub async fn exec_through_api(
    client: kube::Client,
    namespace: &str,
    pod: &str,
    container: &str,
    command: &[&str],
) -> Result<Output> {
    let exec = async {
        let pods: kube::Api<PodObject> = kube::Api::namespaced(client, namespace);
        let parameters = AttachParams::default().container(container).stderr(true);
        let mut process = pods.exec(pod, command.iter().copied(), &parameters).await?;
        let (mut stdout, mut stderr) = (String::new(), String::new());
        let status = process.take_status();
        let (mut out, mut err) = (process.stdout(), process.stderr());
        // Both at once: a full pipe nobody reads would stop the command.
        tokio::try_join!(
            async {
                match out.as_mut() {
                    Some(stream) => stream.read_to_string(&mut stdout).await,
                    None => Ok(0),
                }
            },
            async {
                match err.as_mut() {
                    Some(stream) => stream.read_to_string(&mut stderr).await,
                    None => Ok(0),
                }
            },
        )?;
        let status = match status {
            Some(status) => status.await,
            None => None,
        };
        let success = status.and_then(|status| status.status).is_some_and(|status| status == "Success");
        Ok(Output { success, stdout, stderr })
    };
    match tokio::time::timeout(SHORT, exec).await {
        Ok(result) => result,
        Err(_) => Err(Error::Unfinished { command: format!("exec in {namespace}/{pod}: {command:?}"), limit: SHORT }),
    }
}
