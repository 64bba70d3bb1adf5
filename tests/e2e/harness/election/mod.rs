//! The election under faults: a cluster of three, clients that write all the time, what breaks, and what must hold after.

mod faults;
mod ledger;
mod netns;
mod operator;
mod tls;
mod world;
mod writer;

pub use faults::Fault;
pub use operator::{OperatorIs, start_operator};
pub use world::{Recovery, World};
pub use writer::Load;
