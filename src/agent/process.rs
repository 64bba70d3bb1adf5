//! The processes of this Pod: how they are started, reaped, and killed for good.
//!
//! The agent is PID 1 of its container (elsewhere it makes itself a subreaper), so every process whose parent ended
//! becomes its child. Each backend of PostgreSQL has a process group of its own: killing by group misses them, and one
//! that is missed goes on to acknowledge. So killing goes by parenthood, from /proc.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_child_subreaper, waitpid};
use tokio::process::{Child, Command};

use super::Error;

/// How long the fence may take.
pub const STOP_BUDGET: Duration = Duration::from_secs(2);

/// Between two looks of a kill.
const BETWEEN: Duration = Duration::from_millis(2);

/// The processes that this agent started.
#[derive(Debug, Clone, Default)]
pub struct Processes(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// Those that somebody waits for; everything else that ends as our child is an orphan.
    ours: BTreeSet<i32>,
    /// The killer, one of them: it outlives every kill.
    killer: Option<i32>,
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

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut known = self.known();
        if !allowed() {
            let outcome = "was not started: there is no valid Lease".to_owned();
            return Err(Error::Program { program: program.to_owned(), outcome });
        }
        let child = command.spawn().map_err(failed)?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
        known.ours.insert(pid);
        drop(known);
        Ok(Running { child, pid, processes: self.clone() })
    }

    /// Starts the killer, which no kill touches from its first moment on.
    pub fn spawn_killer(&self, command: &mut std::process::Command) -> std::io::Result<std::process::Child> {
        let mut known = self.known();
        let child = command.spawn()?;
        let pid = i32::try_from(child.id()).unwrap_or_default();
        known.ours.insert(pid);
        known.killer = Some(pid);
        Ok(child)
    }

    /// The killer ended, and was waited for.
    pub fn killer_ended(&self) {
        let mut known = self.known();
        if let Some(pid) = known.killer.take() {
            known.ours.remove(&pid);
        }
    }

    /// Reaps orphans that ended. Called at each SIGCHLD and each tick.
    pub fn reap_orphans(&self) {
        let known = self.known();
        for process in children_of(std::process::id()) {
            if process.zombie
                && !known.ours.contains(&process.pid)
                && let Some(pid) = Pid::from_raw(process.pid)
            {
                let _ = waitpid(Some(pid), WaitOptions::NOHANG);
            }
        }
    }

    /// The fence: kills everything below this process but the killer, and returns when there is nothing left, or after the
    /// stop budget. True if nothing is left. It blocks: it is for a thread of its own.
    pub fn kill_everything(&self) -> bool {
        // Whoever is just starting something has it in /proc when this lock is free.
        drop(self.known());
        let reach = Reach { agent: std::process::id(), everything: false };
        // Asked after each look, so that a killer that was started before the look is always known.
        let complete = reach.kill(STOP_BUDGET, || self.known().killer);
        if complete {
            self.reap_orphans();
        }
        complete
    }

    /// Whether nothing below this process but the killer will ever run an instruction of its own: it ended, or it was killed
    /// and waits within the kernel, for a disk that hangs. Nothing is acknowledged any more then. But what it has under way
    /// may still reach the disk, so nothing is started on its data before it is gone.
    pub fn doomed(&self) -> bool {
        let reach = Reach { agent: std::process::id(), everything: false };
        let all = snapshot();
        let (direct, rest) = reach.split(&all, self.known().killer);
        direct.iter().chain(&rest).all(|process| process.killed)
    }
}

/// Which processes a kill is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// The agent: its direct children are stopped first and die last.
    pub agent: u32,
    /// Whether everything in this PID namespace dies but the agent, and not only what is below it.
    pub everything: bool,
}

impl Reach {
    /// Kills, and returns when there is nothing left, or after `limit`. True if nothing is left.
    ///
    /// First the direct children are stopped, so that a postmaster neither restarts what dies nor forks anew; then
    /// everything else dies, then they. `spared` lives on.
    pub fn kill(self, limit: Duration, spared: impl Fn() -> Option<i32>) -> bool {
        let end = std::time::Instant::now() + limit;
        let mut rest_was_killed = false;
        loop {
            let all = snapshot();
            let (direct, rest) = self.split(&all, spared());
            for process in direct.iter().filter(|process| !process.killed) {
                signal(process.pid, Signal::STOP);
            }
            for process in &rest {
                signal(process.pid, Signal::KILL);
            }
            // Two looks in a row: what forked between the look and the stop is seen at the second.
            let rest_is_killed = rest.iter().all(|process| process.killed);
            if rest_is_killed && rest_was_killed {
                for process in &direct {
                    signal(process.pid, Signal::KILL);
                }
                if direct.is_empty() && rest.is_empty() {
                    return true;
                }
            }
            rest_was_killed = rest_is_killed;
            if std::time::Instant::now() >= end {
                return false;
            }
            std::thread::park_timeout(BETWEEN);
        }
    }

    /// Those that have not ended: direct children, and the rest of those that must die.
    fn split(self, all: &[Seen], spared: Option<i32>) -> (Vec<Seen>, Vec<Seen>) {
        let dies = |process: &Seen| {
            !process.zombie && Some(process.pid) != spared && u32::try_from(process.pid) != Ok(self.agent)
        };
        let is_direct = |process: &Seen| dies(process) && process.parent == self.agent;
        let direct: Vec<Seen> = all.iter().copied().filter(is_direct).collect();
        let rest = if self.everything {
            all.iter().copied().filter(|process| dies(process) && !is_direct(process)).collect()
        } else {
            descendants(all, &direct)
        };
        (direct, rest)
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
        self.processes.known().ours.remove(&self.pid);
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
        self.processes.known().ours.remove(&self.pid);
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
    /// Whether it was killed, and will end as soon as the kernel lets it.
    pub killed: bool,
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
    let parent = fields.next()?.parse().ok()?;
    let pending: u64 = fields.nth(26)?.parse().ok()?;
    let kill = 1 << (Signal::KILL.as_raw() - 1);
    Some(Seen { pid, parent, zombie: matches!(state, "Z" | "X"), killed: pending & kill != 0 })
}

/// Those below `roots` that have not ended, without the roots.
fn descendants(all: &[Seen], roots: &[Seen]) -> Vec<Seen> {
    let mut found: Vec<Seen> = Vec::new();
    let mut parents: Vec<u32> = roots.iter().filter_map(|process| u32::try_from(process.pid).ok()).collect();
    while let Some(parent) = parents.pop() {
        for process in all.iter().filter(|process| process.parent == parent) {
            if found.contains(process) {
                continue;
            }
            if !process.zombie {
                found.push(*process);
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

    const ALIVE: Seen = Seen { pid: 0, parent: 0, zombie: false, killed: false };

    #[test]
    fn a_name_with_parentheses_does_not_confuse() {
        // As a PostgreSQL looked that waited for a disk, before and after it was killed.
        let stat = |pending: &str| {
            format!(
                "7 (a) Z 99) D 1 7 7 0 -1 4194624 1 0 0 0 0 0 0 0 20 0 1 0 21 22 23 24 1 1 0 0 0 {pending} 0 19935232 84487 0 0 0 0 17 1 0 0"
            )
        };
        assert_eq!(parse_stat(7, &stat("0")), Some(Seen { pid: 7, parent: 1, ..ALIVE }));
        assert_eq!(parse_stat(7, &stat("256")), Some(Seen { pid: 7, parent: 1, killed: true, ..ALIVE }));
        assert!(parse_stat(8, &stat("0").replace(" D ", " Z ")).is_some_and(|seen| seen.zombie));
        assert_eq!(parse_stat(8, "rubbish"), None);
    }

    #[test]
    fn descendants_are_found_through_the_dead() {
        let seen = |pid, parent, zombie| Seen { pid, parent, zombie, ..ALIVE };
        let all = [seen(10, 1, false), seen(11, 10, true), seen(12, 11, false), seen(20, 2, false)];
        assert_eq!(descendants(&all, &[seen(10, 1, false)]), [seen(12, 11, false)]);
    }

    #[test]
    fn a_kill_reaches_everything_but_the_agent_and_whom_it_spares() {
        let seen = |pid, parent| Seen { pid, parent, ..ALIVE };
        let dead = Seen { zombie: true, ..seen(13, 10) };
        // A killer, a postmaster with a backend, and what somebody started in the container from outside.
        let all = [seen(1, 0), seen(9, 1), seen(10, 1), seen(11, 10), dead, seen(20, 0), seen(21, 20)];
        let container = Reach { agent: 1, everything: true };
        let ids = |reach: Reach, spared| {
            let (direct, rest) = reach.split(&all, spared);
            [direct, rest].map(|processes| processes.iter().map(|process| process.pid).collect::<Vec<_>>())
        };
        assert_eq!(ids(container, Some(9)), [vec![10], vec![11, 20, 21]]);
        let below = Reach { everything: false, ..container };
        assert_eq!(ids(below, Some(9)), [vec![10], vec![11]]);
        assert_eq!(ids(below, None), [vec![9, 10], vec![11]]);
    }
}
