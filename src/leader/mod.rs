//! Who among the replicas of the operator may act. Knows nothing of the rest of the crate.
//!
//! The Lease is read and written by the crate kube-leader-election, which alone is not safe: it compares its own wall
//! clock with a time that another machine wrote, and writes without a precondition. Here a pure [`state::Machine`]
//! decides, and [`guard`] makes the crate's every request carry out that decision and nothing else.
//!
//! Whoever acts asks the [`Gate`]. It opens only until a deadline counted from before the renewal was sent, and closes
//! by itself, on a clock that goes on while the machine sleeps, however silent the API server is. [`connect`] makes the
//! client whose writes pass it; for what does not go through that client there is [`Gate::enter`].

mod client;
mod clock;
mod elector;
mod gate;
mod guard;
#[cfg(test)]
mod simulation;
pub mod state;

pub use client::connect;
pub use elector::{Elector, Error, Leadership, Settings};
pub use gate::{Gate, NotLeader, Permit};
pub use state::Timings;
