//! PostgreSQL as a child of the agent: its files, its start, its log, its end.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tokio::process::Command;
use tokio::sync::watch;

use super::Error;
use super::process::Processes;
use super::sql::{Session, Socket};
use super::tool::Lines;
use super::volume::{remove, replace_file};
use crate::engine::postgres::logline::{self, Level};

/// A PostgreSQL that runs, or ran.
#[derive(Debug, Clone)]
pub struct Postmaster {
    pid: i32,
    ended: watch::Receiver<Option<ExitStatus>>,
    says: Arc<Says>,
}

/// What PostgreSQL said in its log that concerns the agent.
#[derive(Debug, Default)]
struct Says {
    wal_is_gone: AtomicBool,
    complaint: Mutex<String>,
}

/// Files in the data directory that the agent writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// postgresql.conf
    pub conf: String,
    /// pg_hba.conf
    pub hba: String,
    /// Whether it is a standby.
    pub standby: bool,
}

impl Files {
    /// Writes what differs; true if something did. What ALTER SYSTEM or a base backup left behind would override ours, so
    /// that file is emptied.
    pub fn write(&self, pgdata: &Path) -> Result<bool, Error> {
        let mut changed = false;
        for (name, text) in [
            ("postgresql.conf", self.conf.as_str()),
            ("pg_hba.conf", self.hba.as_str()),
            ("pg_ident.conf", ""),
            ("postgresql.auto.conf", ""),
        ] {
            let path = pgdata.join(name);
            if !std::fs::read(&path).is_ok_and(|present| present == text.as_bytes()) {
                replace_file(&path, text.as_bytes())?;
                changed = true;
            }
        }
        let signal = pgdata.join("standby.signal");
        if self.standby != signal.exists() {
            if self.standby {
                replace_file(&signal, b"")?;
            } else {
                remove(&signal)?;
            }
        }
        // Whoever left this behind, recovery is never a point in time here.
        remove(&pgdata.join("recovery.signal"))?;
        Ok(changed)
    }
}

impl Postmaster {
    /// Starts PostgreSQL on a data directory whose files stand, if that is `allowed` at the very moment.
    pub fn start(
        processes: &Processes,
        pgdata: &Path,
        socket: &Socket,
        allowed: impl Fn() -> bool,
    ) -> Result<Self, Error> {
        // It names a process of an earlier container, or nobody; the lock on the volume is what protects the data.
        remove(&pgdata.join("postmaster.pid"))?;
        remove(&socket.folder.join(format!(".s.PGSQL.{}.lock", socket.port)))?;
        let mut command = Command::new("postgres");
        command.arg("-D").arg(pgdata).env("LC_ALL", "C").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = processes.spawn_if("postgres", &mut command, allowed)?;
        let pid = running.pid();
        let says = Arc::new(Says::default());
        let (stdout, stderr) = running.pipes();
        if let Some(pipe) = stdout {
            tokio::spawn(follow(pipe, says.clone()));
        }
        if let Some(pipe) = stderr {
            tokio::spawn(follow(pipe, says.clone()));
        }
        let (sender, ended) = watch::channel(None);
        tokio::spawn(async move {
            if let Ok(status) = running.wait().await {
                let _ = sender.send(Some(status));
            }
        });
        Ok(Self { pid, ended, says })
    }

    /// How it ended; None while it runs.
    pub fn ended(&self) -> Option<ExitStatus> {
        // Without a sender nobody waits for it any more: that it ended is all that is known.
        *self.ended.borrow()
    }

    /// Waits until it ended.
    pub async fn wait(&self) -> Option<ExitStatus> {
        let mut ended = self.ended.clone();
        let status = ended.wait_for(Option::is_some).await.ok()?;
        *status
    }

    /// Sends a signal while it runs.
    pub fn signal(&self, signal: Signal) {
        if self.ended().is_none() {
            super::process::signal(self.pid, signal);
        }
    }

    /// Makes it read its files again.
    pub fn reload(&self) {
        self.signal(Signal::HUP);
    }

    /// Tells every WAL receiver to end. How many there are.
    pub fn end_receivers(&self) -> usize {
        let Ok(postmaster) = u32::try_from(self.pid) else { return 0 };
        let receives = |pid: i32| {
            std::fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|title| String::from_utf8_lossy(&title).contains("walreceiver"))
        };
        let receivers: Vec<i32> = super::process::children_of(postmaster)
            .into_iter()
            .filter(|process| !process.zombie && receives(process.pid))
            .map(|process| process.pid)
            .collect();
        for pid in &receivers {
            super::process::signal(*pid, Signal::TERM);
        }
        receivers.len()
    }

    /// Whether it said that the WAL which it needs is gone from its primary.
    pub fn wal_is_gone(&self) -> bool {
        self.says.wal_is_gone.load(Ordering::Relaxed)
    }

    /// The last thing that it complained about.
    pub fn complaint(&self) -> String {
        self.says.complaint.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Shuts down in order: sessions end, a last checkpoint is written, replicas get everything. True if it came to its
    /// clean end within the limit; else everything is killed.
    pub async fn stop(&self, processes: &Processes, limit: Duration) -> bool {
        self.signal(Signal::INT);
        if let Ok(status) = tokio::time::timeout(limit, self.wait()).await {
            // Whatever outlived its postmaster must not write on.
            kill(processes).await;
            return status.is_some_and(|status| status.success());
        }
        kill(processes).await;
        false
    }
}

/// Whether the PostgreSQL on this data directory accepts sessions, as it says itself in postmaster.pid. Asking it by a
/// session would put an error into its log each time.
pub fn accepts_sessions(pgdata: &Path) -> bool {
    let says = std::fs::read_to_string(pgdata.join("postmaster.pid")).unwrap_or_default();
    matches!(says.lines().nth(7).map(str::trim), Some("ready" | "standby"))
}

/// Kills every process below the agent, from a thread of its own. False if some were left after the stop budget.
pub async fn kill(processes: &Processes) -> bool {
    let processes = processes.clone();
    tokio::task::spawn_blocking(move || processes.kill_everything()).await.unwrap_or(false)
}

/// Waits for the first session.
pub async fn first_session(pgdata: &Path, socket: &Socket, limit: Duration) -> Result<Session, Error> {
    let end = tokio::time::Instant::now() + limit;
    loop {
        let late = tokio::time::Instant::now() >= end;
        if late || accepts_sessions(pgdata) {
            match socket.open("postgres").await {
                Ok(session) => return Ok(session),
                Err(error) if late => return Err(error),
                Err(_) => {}
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn follow(pipe: impl tokio::io::AsyncRead + Unpin, says: Arc<Says>) {
    let mut lines = Lines::new(pipe);
    while let Some(line) = lines.next().await {
        if logline::says_wal_is_gone(&line) {
            says.wal_is_gone.store(true, Ordering::Relaxed);
        }
        if let Some(complaint) = logline::complaint(&line) {
            complaint.clone_into(&mut says.complaint.lock().unwrap_or_else(PoisonError::into_inner));
        }
        forward(&line);
    }
}

/// One line of PostgreSQL's log as one of ours.
pub fn forward(line: &str) {
    match logline::level(line) {
        Level::Debug => tracing::debug!(target: "postgres", "{line}"),
        Level::Info => tracing::info!(target: "postgres", "{line}"),
        Level::Warn => tracing::warn!(target: "postgres", "{line}"),
        Level::Error => tracing::error!(target: "postgres", "{line}"),
    }
}
