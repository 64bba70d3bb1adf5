//! Randomness: passwords, and jitter.

use std::time::Duration;

use rand::Rng;
use rand::distr::Alphanumeric;

/// Length of generated passwords: 190 bits.
const PASSWORD: usize = 32;

/// A password. Letters and digits, so that it survives whatever it is pasted into.
pub fn password() -> String {
    rand::rng().sample_iter(Alphanumeric).take(PASSWORD).map(char::from).collect()
}

/// The duration, give or take a fifth.
pub fn jitter(duration: Duration) -> Duration {
    duration.mul_f64(rand::rng().random_range(0.8..1.2))
}
