//! The processes of this Pod: how they are started, reaped, and killed for good.
//!
//! The agent is PID 1 of its container (elsewhere it makes itself a subreaper), so every process whose parent ended
//! becomes its child. Each backend of PostgreSQL has a process group of its own: killing by group misses them, and one
//! that is missed goes on to acknowledge. So killing goes by parenthood, from /proc.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_child_subreaper, waitpid};
use tokio::process::{Child, Command};

use super::Error;

/// How long the fence may take.
pub const STOP_BUDGET: Duration = Duration::from_secs(2);

/// The processes that this agent started.
#[derive(Debug, Clone, Default)]
pub struct Processes {
    /// Those that tokio waits for; everything else that ends as our child is an orphan.
    ours: Arc<Mutex<BTreeSet<i32>>>,
}

/// A child that tokio waits for.
#[derive(Debug)]
pub struct Running {
    child: Child,
    pid: i32,
    processes: Processes,
}

impl Processes {
    /// Makes this process the parent of every orphan below it.
    pub fn new() -> Result<Self, Error> {
        if std::process::id() != 1 {
            set_child_subreaper(Some(rustix::process::getpid()))
                .map_err(|error| Error::io("become subreaper", "/proc/self")(error.into()))?;
        }
        Ok(Self::default())
    }

    fn ours(&self) -> std::sync::MutexGuard<'_, BTreeSet<i32>> {
        self.ours.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a program.
    pub fn spawn(&self, program: &str, command: &mut Command) -> Result<Running, Error> {
        self.spawn_if(program, command, || true)
    }

    /// Starts a program if it is `allowed`, which is asked at the very last moment: nothing is started behind the back of
    /// a fence that has looked already.
    pub fn spawn_if(&self, program: &str, command: &mut Command, allowed: impl Fn() -> bool) -> Result<Running, Error> {
        let failed = |error: std::io::Error| Error::Program {
            program: program.to_owned(),
            outcome: format!("could not be started: {error}"),
        };
        command.stdin(Stdio::null());
        // The lock is held from fork to registration, so that the reaper never takes a child of tokio's for an orphan.
        let mut ours = self.ours();
        if !allowed() {
            let outcome = "was not started: there is no valid Lease".to_owned();
            return Err(Error::Program { program: program.to_owned(), outcome });
        }
        let child = command.spawn().map_err(failed)?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
        ours.insert(pid);
        drop(ours);
        Ok(Running { child, pid, processes: self.clone() })
    }

    /// Reaps orphans that ended. Called at each SIGCHLD and each tick.
    pub fn reap_orphans(&self) {
        let ours = self.ours();
        for process in children_of(std::process::id()) {
            if process.zombie
                && !ours.contains(&process.pid)
                && let Some(pid) = Pid::from_raw(process.pid)
            {
                let _ = waitpid(Some(pid), WaitOptions::NOHANG);
            }
        }
    }

    /// The fence: kills everything below this process, and returns when there is nothing left, or after the stop
    /// budget. True if nothing is left.
    ///
    /// First the direct children are stopped, so that a postmaster neither restarts what dies nor forks anew; then
    /// everything below them dies, then they. It blocks: it is for a thread of its own.
    pub fn kill_everything(&self) -> bool {
        let me = std::process::id();
        let end = std::time::Instant::now() + STOP_BUDGET;
        let mut below_is_empty = false;
        // Whoever is just starting something has it in /proc when this lock is free.
        drop(self.ours());
        loop {
            let all = snapshot();
            let direct: Vec<i32> = all
                .iter()
                .filter(|process| process.parent == me && !process.zombie)
                .map(|process| process.pid)
                .collect();
            let below = descendants(&all, &direct);
            for pid in &direct {
                signal(*pid, Signal::STOP);
            }
            for pid in &below {
                signal(*pid, Signal::KILL);
            }
            // Two looks in a row: what forked between the look and the stop is seen at the second.
            if below.is_empty() && below_is_empty {
                for pid in &direct {
                    signal(*pid, Signal::KILL);
                }
                if direct.is_empty() {
                    self.reap_orphans();
                    return true;
                }
            }
            below_is_empty = below.is_empty();
            if std::time::Instant::now() >= end {
                return false;
            }
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }
}

impl Running {
    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }
    /// Waits until it ended.
    pub async fn wait(&mut self) -> std::io::Result<std::process::ExitStatus> {
        let status = self.child.wait().await;
        self.processes.ours().remove(&self.pid);
        status
    }
    /// The pipes, taken once.
    pub fn pipes(&mut self) -> (Option<tokio::process::ChildStdout>, Option<tokio::process::ChildStderr>) {
        (self.child.stdout.take(), self.child.stderr.take())
    }
    /// Sends a signal, unless it was waited for already.
    pub fn signal(&self, signal: Signal) {
        // tokio forgets the id when it reaped the child, so this never hits a stranger.
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok()) {
            self::signal(pid, signal);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Nobody waits for it any more: from here on it is an orphan like any other.
        self.processes.ours().remove(&self.pid);
    }
}

/// Sends a signal; that the process is gone already is no failure.
pub fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

/// A process as /proc shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Its id.
    pub pid: i32,
    /// Its parent.
    pub parent: u32,
    /// Whether it ended and was not reaped yet.
    pub zombie: bool,
}

/// All processes.
pub fn snapshot() -> Vec<Seen> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            parse_stat(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
        })
        .collect()
}

/// Direct children of a process.
pub fn children_of(parent: u32) -> Vec<Seen> {
    snapshot().into_iter().filter(|process| process.parent == parent).collect()
}

fn parse_stat(pid: i32, stat: &str) -> Option<Seen> {
    // The name in parentheses may hold anything, so count from the last one.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    Some(Seen { pid, parent: fields.next()?.parse().ok()?, zombie: matches!(state, "Z" | "X") })
}

/// Living processes below `roots`, without the roots.
fn descendants(all: &[Seen], roots: &[i32]) -> Vec<i32> {
    let mut found: Vec<i32> = Vec::new();
    let mut parents: Vec<u32> = roots.iter().filter_map(|pid| u32::try_from(*pid).ok()).collect();
    while let Some(parent) = parents.pop() {
        for process in all.iter().filter(|process| process.parent == parent) {
            if found.contains(&process.pid) {
                continue;
            }
            if !process.zombie {
                found.push(process.pid);
            }
            parents.extend(u32::try_from(process.pid).ok());
        }
    }
    found
}

/// Seconds on a clock that neither jumps nor stands still while the machine sleeps.
pub fn boottime() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or_default(), u32::try_from(now.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_confuse() {
        assert_eq!(parse_stat(7, "7 (a) Z 99) S 1 7 7 0 -1"), Some(Seen { pid: 7, parent: 1, zombie: false }));
        assert_eq!(parse_stat(8, "8 (x) Z 7 8"), Some(Seen { pid: 8, parent: 7, zombie: true }));
        assert_eq!(parse_stat(8, "rubbish"), None);
    }

    #[test]
    fn descendants_are_found_through_the_dead() {
        let seen = |pid, parent, zombie| Seen { pid, parent, zombie };
        let all = [seen(10, 1, false), seen(11, 10, true), seen(12, 11, false), seen(20, 2, false)];
        assert_eq!(descendants(&all, &[10]), vec![12]);
    }
}
