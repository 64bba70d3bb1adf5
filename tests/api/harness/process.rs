//! A process that ends with its owner.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Killed when dropped, and by the kernel when the thread that started it is gone.
pub struct Process {
    pid: Pid,
    child: Mutex<Child>,
}

impl Process {
    /// A command that does not outlive this thread.
    pub fn command(program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        command
    }

    /// Starts it with its output in a file.
    pub fn start(mut command: Command, log: &Path) -> Self {
        let log = File::create(log).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn().unwrap();
        Self { pid: Pid::from_child(&child), child: Mutex::new(child) }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).unwrap();
    }

    /// Freezes it until the returned value is dropped: a test that fails meanwhile leaves nothing frozen for the next one.
    pub fn freeze(&self) -> Frozen<'_> {
        self.signal(Signal::STOP);
        Frozen(self)
    }

    /// SIGKILL; nothing if it is gone.
    pub fn kill(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Waits for its end.
    pub async fn ended(&self, limit: Duration) -> ExitStatus {
        super::eventually("the end of a process", limit, async || {
            self.child.lock().unwrap_or_else(PoisonError::into_inner).try_wait().unwrap()
        })
        .await
    }
}

/// A process that is frozen.
pub struct Frozen<'a>(&'a Process);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = kill_process(self.0.pid, Signal::CONT);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
