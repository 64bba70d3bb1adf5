//! The fence: PostgreSQL ends when the Lease's deadline passes, whatever the rest of the agent does.
//!
//! Two lines: a thread of the agent, and the [killer](super::killer), a process of its own for the case that the agent as
//! a whole stands still. Without the second line nothing may start that could be writable.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Error;
use super::killer::Link;
use super::process::{Processes, boottime};

/// The deadline in wait. It is kept by a thread of its own, on CLOCK_BOOTTIME.
#[derive(Debug, Clone)]
pub struct Fence(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
    fired: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    deadline: Option<Duration>,
    /// The killer; None while there is none.
    killer: Option<Link>,
    /// Looks in a row at which it had not taken the last order.
    slow: u32,
}

/// A waiting thread looks at the clock this often, because its own waiting stands still while the machine sleeps.
const LOOK: Duration = Duration::from_millis(100);
/// A killer that has not taken an order after so many looks hangs. Looks, not time: the whole container may be frozen.
const SLOW: u32 = 20;
/// How long a start waits for the killer to say that it has the deadline. It takes well below a millisecond.
const TAKEN: Duration = Duration::from_millis(200);
/// How long a replacement may take until it has the deadline.
const REPLACED: Duration = Duration::from_secs(1);
/// A killer that ended is replaced at once, unless it was so young; then the next one has to wait.
const YOUNG: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_secs(1);

impl State {
    /// Hands the deadline to the killer. It is in its hands when this returns, or there is none any more.
    fn tell(&mut self) {
        let deadline = self.deadline;
        self.slow = 0;
        if self.killer.as_mut().is_some_and(|killer| !killer.order(deadline)) {
            self.without();
        }
    }

    fn taken(&mut self, limit: Duration) -> bool {
        self.killer.as_mut().is_some_and(|killer| killer.has_taken(limit))
    }

    /// This killer is of no use. Its end is noticed by who waits for it.
    fn without(&mut self) {
        if let Some(killer) = self.killer.take() {
            killer.dismiss();
        }
    }
}

impl Fence {
    /// Starts both lines; the killer is this program.
    pub fn start(processes: Processes) -> Result<Self, Error> {
        Self::start_with(processes, "/proc/self/exe")
    }

    /// Starts both lines; `program` has the subcommand `killer`.
    pub fn start_with(processes: Processes, program: impl Into<PathBuf>) -> Result<Self, Error> {
        let (fence, program) = (Self(Arc::default()), program.into());
        let child = fence.hire(&processes, &program).map_err(Error::io("start the killer", &program))?;
        let (keeper, watched) = (fence.clone(), processes.clone());
        thread("fence", move || keeper.keep(&watched))?;
        let overseer = fence.clone();
        thread("killer", move || overseer.oversee(&processes, &program, child))?;
        Ok(fence)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on writes may be acknowledged until this moment.
    pub fn arm(&self, deadline: Duration) {
        let mut state = self.state();
        state.deadline = Some(deadline);
        state.tell();
        self.0.changed.notify_one();
    }

    /// Nothing here can be writable any more.
    pub fn disarm(&self) {
        let mut state = self.state();
        state.deadline = None;
        state.tell();
    }

    /// Whether something writable may be started now: before the deadline, and with a killer that has it.
    pub fn open(&self) -> bool {
        let mut state = self.state();
        let taken = state.deadline.is_some() && state.taken(TAKEN);
        taken && state.deadline.is_some_and(|deadline| boottime() < deadline)
    }

    /// Whether it has killed since this was asked last.
    pub fn fired(&self) -> bool {
        self.0.fired.swap(false, Ordering::Relaxed)
    }

    fn keep(&self, processes: &Processes) {
        let mut state = self.state();
        loop {
            let Some(deadline) = state.deadline else {
                state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = deadline.saturating_sub(boottime());
            if !left.is_zero() {
                state.slow = if state.taken(Duration::ZERO) { 0 } else { state.slow + 1 };
                if state.slow >= SLOW {
                    state.without();
                }
                let (next, _) =
                    self.0.changed.wait_timeout(state, left.min(LOOK)).unwrap_or_else(PoisonError::into_inner);
                state = next;
                continue;
            }
            // It stays passed until somebody renews: nothing starts meanwhile, and what cannot be killed is tried again.
            drop(state);
            let complete = self.kill(processes);
            state = self.state();
            // Nothing is left, and nothing starts that does not ask `open` first: the killer can rest as well.
            if complete && state.deadline.is_some_and(|at| at <= boottime()) {
                state.deadline = None;
                state.tell();
            }
        }
    }

    fn kill(&self, processes: &Processes) -> bool {
        self.0.fired.store(true, Ordering::Relaxed);
        processes.kill_everything()
    }

    /// Starts a killer and hands it what the last one had.
    fn hire(&self, processes: &Processes, program: &Path) -> std::io::Result<Child> {
        let (killer, child) = Link::hire(processes, program)?;
        let mut state = self.state();
        state.killer = Some(killer);
        state.tell();
        Ok(child)
    }

    fn is_replaced(&self) -> bool {
        let end = boottime() + REPLACED;
        while boottime() < end {
            // Not by a wait within, which would hold up those who arm.
            if self.state().taken(Duration::ZERO) {
                return true;
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
        false
    }

    /// Replaces a killer that ended. What may be writable does not stay so without one.
    fn oversee(&self, processes: &Processes, program: &Path, first: Child) {
        let mut child = Some(first);
        let mut begun = boottime();
        loop {
            let outcome = match child.take().map(|mut child| child.wait()) {
                Some(Ok(status)) => status.to_string(),
                Some(Err(error)) => error.to_string(),
                None => "could not be started".to_owned(),
            };
            processes.killer_ended();
            self.state().killer = None;
            tracing::error!(%outcome, "the killer is gone");
            if boottime().saturating_sub(begun) >= YOUNG {
                begun = boottime();
                child = self.hire(processes, program).ok();
                if child.is_some() && self.is_replaced() {
                    continue;
                }
            }
            if self.state().deadline.is_some() {
                tracing::error!("there is no killer: PostgreSQL is killed rather than left without a second line");
                self.kill(processes);
            }
            if child.is_none() {
                std::thread::park_timeout(PAUSE);
                begun = boottime();
                child = self.hire(processes, program).ok();
            }
        }
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let started = std::thread::Builder::new().name(name.into()).stack_size(256 * 1024).spawn(work);
    started.map(drop).map_err(Error::io("start a thread of the fence", "thread"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_killer_nothing_may_start() {
        let fence = Fence(Arc::default());
        assert!(!fence.open());
        fence.arm(boottime() + Duration::from_mins(1));
        assert!(!fence.open());
    }
}
