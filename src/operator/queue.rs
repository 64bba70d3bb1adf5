//! Which cluster to look at next: each at most once at a time, the earliest first.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::mirror::ClusterKey;

/// The queue. Cheap to add to: a cluster that waits already is not added twice.
#[derive(Default)]
pub struct Queue {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Default)]
struct State {
    order: BTreeSet<(Instant, ClusterKey)>,
    due: HashMap<ClusterKey, Instant>,
    running: HashSet<ClusterKey>,
}

impl State {
    fn schedule(&mut self, key: ClusterKey, at: Instant) {
        if let Some(before) = self.due.get(&key).copied() {
            if before <= at {
                return;
            }
            self.order.remove(&(before, key.clone()));
        }
        self.due.insert(key.clone(), at);
        self.order.insert((at, key));
    }
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Look at it after `delay`, or earlier if that was asked for already.
    pub fn add(&self, key: ClusterKey, delay: Duration) {
        self.state().schedule(key, Instant::now() + delay);
        self.wake.notify_one();
    }

    /// How many wait and are due.
    pub fn depth(&self) -> usize {
        let now = Instant::now();
        self.state().order.iter().take_while(|(at, _)| *at <= now).count()
    }

    /// The next one that is due and not being looked at. It counts as being looked at until [`Queue::done`].
    pub async fn next(&self) -> ClusterKey {
        loop {
            let woken = self.wake.notified();
            let wait = {
                let mut state = self.state();
                let now = Instant::now();
                let found = state.order.iter().find(|(_, key)| !state.running.contains(key)).cloned();
                match found {
                    Some((at, key)) if at <= now => {
                        state.order.remove(&(at, key.clone()));
                        state.due.remove(&key);
                        state.running.insert(key.clone());
                        drop(state);
                        // Another worker may wait for what comes next.
                        self.wake.notify_one();
                        return key;
                    }
                    Some((at, _)) => Some(at),
                    None => None,
                }
            };
            match wait {
                Some(at) => tokio::select! { () = woken => {}, () = tokio::time::sleep_until(at) => {} },
                None => woken.await,
            }
        }
    }

    /// It was looked at.
    pub fn done(&self, key: &ClusterKey) {
        self.state().running.remove(key);
        self.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_earliest_comes_first_and_none_twice_at_a_time() {
        let queue = Queue::default();
        let key = |name: &str| ClusterKey::new("shop", name);
        queue.add(key("late"), Duration::from_millis(50));
        queue.add(key("soon"), Duration::from_millis(10));
        queue.add(key("late"), Duration::from_millis(90));
        assert_eq!(queue.next().await, key("soon"));
        queue.add(key("soon"), Duration::ZERO);
        assert_eq!(queue.next().await, key("late"), "soon is being looked at");
        queue.done(&key("soon"));
        assert_eq!(queue.next().await, key("soon"));
        assert_eq!(queue.depth(), 0);
    }
}
