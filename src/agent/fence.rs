//! The fence: PostgreSQL ends when the Lease's deadline passes, whatever the rest of the agent does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Error;
use super::process::{Processes, boottime};

/// The deadline in wait. It is kept by a thread of its own, on CLOCK_BOOTTIME.
#[derive(Debug, Clone)]
pub struct Fence(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    deadline: Mutex<Option<Duration>>,
    changed: Condvar,
    fired: AtomicBool,
}

/// A waiting thread looks at the clock this often, because its own waiting stands still while the machine sleeps.
const LOOK: Duration = Duration::from_millis(100);

impl Fence {
    /// Starts the thread.
    pub fn start(processes: Processes) -> Result<Self, Error> {
        let fence = Self(Arc::new(Inner {
            deadline: Mutex::new(None),
            changed: Condvar::new(),
            fired: AtomicBool::new(false),
        }));
        let watch = fence.clone();
        std::thread::Builder::new()
            .name("fence".into())
            .stack_size(256 * 1024)
            .spawn(move || watch.keep(&processes))
            .map_err(Error::io("start the fence", "thread"))?;
        Ok(fence)
    }

    fn deadline(&self) -> MutexGuard<'_, Option<Duration>> {
        self.0.deadline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on writes may be acknowledged until this moment.
    pub fn arm(&self, deadline: Duration) {
        *self.deadline() = Some(deadline);
        self.0.changed.notify_one();
    }

    /// Nothing here can be writable any more.
    pub fn disarm(&self) {
        *self.deadline() = None;
    }

    /// Whether something writable may be started now.
    pub fn open(&self) -> bool {
        self.deadline().is_some_and(|deadline| boottime() < deadline)
    }

    /// Whether it has killed since this was asked last.
    pub fn fired(&self) -> bool {
        self.0.fired.swap(false, Ordering::Relaxed)
    }

    fn keep(&self, processes: &Processes) {
        loop {
            let mut deadline = self.deadline();
            let passed = match *deadline {
                None => {
                    drop(self.0.changed.wait(deadline).unwrap_or_else(PoisonError::into_inner));
                    continue;
                }
                Some(at) => at <= boottime(),
            };
            if !passed {
                drop(self.0.changed.wait_timeout(deadline, LOOK).unwrap_or_else(PoisonError::into_inner));
                continue;
            }
            // It stays passed until somebody renews: nothing starts meanwhile, and what cannot be killed is tried again.
            drop(deadline);
            self.0.fired.store(true, Ordering::Relaxed);
            let complete = processes.kill_everything();
            deadline = self.deadline();
            if complete && deadline.is_some_and(|at| at <= boottime()) {
                *deadline = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_may_start_before_it_is_armed_or_after_the_deadline() {
        let fence = Fence(Arc::new(Inner {
            deadline: Mutex::new(None),
            changed: Condvar::new(),
            fired: AtomicBool::new(false),
        }));
        assert!(!fence.open());
        fence.arm(boottime() + Duration::from_mins(1));
        assert!(fence.open());
        fence.arm(boottime());
        assert!(!fence.open());
        fence.disarm();
        assert!(!fence.open());
    }
}
