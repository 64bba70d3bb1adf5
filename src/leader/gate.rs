//! The gate: may this process act, now?

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::clock;
use super::state::Moment;

/// Never reached.
const ALWAYS: u64 = u64::MAX;
const CLOSED: u64 = 0;

/// How long after a write was given up unanswered the API server may still carry it out.
const SETTLE: Duration = Duration::from_millis(250);

/// The request was not carried through, because this replica does not, or no longer, lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotLeader {
    /// It was not sent.
    #[error("this replica is not the leader: the request was not sent")]
    Refused,
    /// It was sent, and the lease ran out before the answer.
    #[error("the lease ran out before the API server answered: whether the request was carried out is unknown")]
    RanOut,
}

impl NotLeader {
    /// Finds it in an error or its sources, such as a `kube::Error`.
    pub fn find(error: &(dyn std::error::Error + 'static)) -> Option<Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref::<Self>() {
                return Some(*found);
            }
            next = error.source();
        }
        None
    }
}

/// Tells whether this process may act. Cheap to clone and to ask; it needs nobody to close it at the deadline.
#[derive(Debug, Clone)]
pub struct Gate(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Nanoseconds since boot.
    open_until: AtomicU64,
    grace: Duration,
    refused: AtomicU64,
    in_flight: watch::Sender<InFlight>,
}

#[derive(Debug, Clone, Copy, Default)]
struct InFlight {
    count: usize,
    given_up: Option<Moment>,
}

impl Gate {
    fn new(open_until: u64, grace: Duration) -> Self {
        Self(Arc::new(Inner {
            open_until: AtomicU64::new(open_until),
            grace,
            refused: AtomicU64::new(0),
            in_flight: watch::Sender::new(InFlight::default()),
        }))
    }

    /// A gate that is always open: for a process that is the only one.
    pub fn always() -> Self {
        Self::new(ALWAYS, Duration::ZERO)
    }

    /// A closed gate. `grace` is what lies between its deadline and the first moment at which another may act.
    pub(super) fn closed(grace: Duration) -> Self {
        Self::new(CLOSED, grace)
    }

    /// Open until then; None: closed.
    pub(super) fn set(&self, until: Option<Moment>) {
        self.0.open_until.store(until.map_or(CLOSED, Moment::as_nanos), Ordering::SeqCst);
    }

    /// Whether this process may act now.
    pub fn leading(&self) -> bool {
        match self.0.open_until.load(Ordering::SeqCst) {
            ALWAYS => true,
            until => clock::now().as_nanos() < until,
        }
    }

    /// Fails, and counts, when this process may not act now.
    pub fn check(&self) -> Result<(), NotLeader> {
        if self.leading() {
            return Ok(());
        }
        self.0.refused.fetch_add(1, Ordering::Relaxed);
        Err(NotLeader::Refused)
    }

    /// How many requests were refused.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    /// The right to send one request. Hold it until the answer is there, and say so with [`Permit::answered`]: a
    /// release of the Lease waits for it.
    pub fn enter(&self) -> Result<Permit, NotLeader> {
        // Counted before the check, so that who closes the gate and then counts misses nobody.
        let permit = Permit { gate: self.clone(), over: false };
        self.0.in_flight.send_modify(|in_flight| in_flight.count += 1);
        match self.check() {
            Ok(()) => Ok(permit),
            Err(refused) => {
                permit.answered();
                Err(refused)
            }
        }
    }

    /// How long a request that is sent now may remain unanswered before another replica could act; None: for ever.
    pub(super) fn patience(&self) -> Option<Duration> {
        match self.0.open_until.load(Ordering::SeqCst) {
            ALWAYS => None,
            until => Some(Duration::from_nanos(until.saturating_sub(clock::now().as_nanos())) + self.0.grace),
        }
    }

    /// Waits, after the gate was closed, until no request is under way; false if some still is after `limit`.
    pub(super) async fn drained(&self, limit: Duration) -> bool {
        let mut in_flight = self.0.in_flight.subscribe();
        let drained = async {
            // The sender lives in self, so this cannot fail while we wait.
            let given_up = in_flight.wait_for(|now| now.count == 0).await.ok().and_then(|now| now.given_up);
            if let Some(given_up) = given_up {
                clock::sleep_until(given_up.after(SETTLE)).await;
            }
        };
        tokio::time::timeout(limit, drained).await.is_ok()
    }
}

/// The right to send one request.
#[derive(Debug)]
pub struct Permit {
    gate: Gate,
    over: bool,
}

impl Permit {
    /// The answer is there, whatever it says. A permit that is just dropped stands for an unknown outcome.
    pub fn answered(mut self) {
        self.over = true;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.gate.0.in_flight.send_modify(|in_flight| {
            in_flight.count = in_flight.count.saturating_sub(1);
            if !self.over {
                in_flight.given_up = Some(clock::now());
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_for(wait: Duration) -> Gate {
        let gate = Gate::closed(Duration::from_secs(5));
        gate.set(Some(clock::now().after(wait)));
        gate
    }

    #[test]
    fn it_closes_by_itself_and_counts_what_it_refuses() {
        let gate = open_for(Duration::from_millis(20));
        assert_eq!(gate.check(), Ok(()));
        while gate.leading() {
            std::hint::spin_loop();
        }
        assert_eq!(gate.check(), Err(NotLeader::Refused));
        assert!(gate.enter().is_err());
        assert_eq!(gate.refused(), 2);
        assert!(Gate::always().leading());
    }

    #[test]
    fn it_is_found_under_other_errors() {
        let error = kube::Error::Service(Box::new(kube::Error::Service(Box::new(NotLeader::RanOut))));
        assert_eq!(NotLeader::find(&error), Some(NotLeader::RanOut));
        assert_eq!(NotLeader::find(&kube::Error::LinesCodecMaxLineLengthExceeded), None);
    }

    #[tokio::test]
    async fn a_release_waits_for_what_is_under_way() {
        let gate = open_for(Duration::from_mins(1));
        let permit = gate.enter().unwrap();
        gate.set(None);
        assert!(!gate.drained(Duration::from_millis(20)).await);
        permit.answered();
        assert!(gate.drained(Duration::ZERO).await, "nothing is under way");
    }

    #[tokio::test]
    async fn a_request_that_was_given_up_is_waited_for_a_little() {
        let gate = open_for(Duration::from_mins(1));
        drop(gate.enter().unwrap());
        assert!(!gate.drained(SETTLE / 10).await);
        assert!(gate.drained(Duration::from_secs(10)).await);
    }
}
