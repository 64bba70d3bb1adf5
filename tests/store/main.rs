//! Destinations of backups as they are, and with faults between us and them. Needs no Kubernetes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

mod archive;
mod backup;
mod faults;
mod memory;
mod postgres;
mod proxy;
mod refusals;
mod world;
