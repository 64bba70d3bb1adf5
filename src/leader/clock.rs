//! The one clock of leases: it counts on while the machine sleeps, and nobody can set it.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::state::Moment;

/// Now.
pub(super) fn now() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
    Moment::since_boot(Duration::new(seconds, nanos))
}

/// Waits until a moment. Tokio's clock stands still while the machine sleeps, so it looks again at least once a second.
pub(super) async fn sleep_until(moment: Moment) {
    loop {
        let left = moment.since(now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(Duration::from_secs(1))).await;
    }
}
