//! How fast, and how far: the bound on bytes per second, and what is shown of a long work.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How far a backup or a restore is. All in bytes; shared with whoever shows it.
#[derive(Debug, Default)]
pub struct Progress {
    total: AtomicU64,
    read: AtomicU64,
    stored: AtomicU64,
}

impl Progress {
    /// Bytes of all files, as far as known at the beginning.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }
    /// Bytes of files read (a backup) or written (a restore) so far.
    pub fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }
    /// Compressed bytes sent (a backup) or received (a restore) so far.
    pub fn stored(&self) -> u64 {
        self.stored.load(Ordering::Relaxed)
    }
    pub(super) fn expect(&self, bytes: u64) {
        self.total.store(bytes, Ordering::Relaxed);
    }
    pub(super) fn add_read(&self, bytes: u64) {
        self.read.fetch_add(bytes, Ordering::Relaxed);
    }
    pub(super) fn add_stored(&self, bytes: u64) {
        self.stored.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// A token bucket that holds a quarter of a second's bytes.
#[derive(Debug)]
pub(super) struct Pace {
    bytes_per_second: f64,
    /// When the bucket is full again.
    full_at: Mutex<Instant>,
}

impl Pace {
    pub(super) fn new(bytes_per_second: u64) -> Self {
        #[allow(clippy::cast_precision_loss, reason = "a rate need not be exact")]
        let bytes_per_second = bytes_per_second.max(1) as f64;
        Self { bytes_per_second, full_at: Mutex::new(Instant::now()) }
    }

    /// Takes bytes out; how long to wait before they may be used.
    pub(super) fn take(&self, bytes: usize, now: Instant) -> Duration {
        const BURST: Duration = Duration::from_millis(250);
        #[allow(clippy::cast_precision_loss, reason = "a rate need not be exact")]
        let cost =
            Duration::try_from_secs_f64(bytes as f64 / self.bytes_per_second).unwrap_or(Duration::from_secs(3600));
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        *full_at = (*full_at).max(now) + cost;
        full_at.saturating_duration_since(now + BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_lets_a_burst_through_and_then_the_rate() {
        let pace = Pace::new(1000);
        let now = Instant::now() + Duration::from_secs(1);
        assert_eq!(pace.take(250, now), Duration::ZERO);
        assert_eq!(pace.take(1000, now), Duration::from_secs(1));
        let later = now + Duration::from_secs(10);
        assert_eq!(pace.take(250, later), Duration::ZERO, "idle time fills the bucket, and not beyond");
        assert_eq!(pace.take(500, later), Duration::from_millis(500));
    }
}
