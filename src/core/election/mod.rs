//! Who is the primary of a cluster: the protocol, as data in and data out.
//!
//! The register is one Lease ([`register`]); every change of it is conditional on the version that was read. The agent's
//! loop asks two total functions at each tick: [`lease_step`] says what to do with the register, [`engine_step`] what to
//! do with PostgreSQL. [`rules`] says which replicas a commit waits for, and how that may change.
//!
//! This is the part of the protocol that a first primary and a restart need: bootstrap, take, renew, publish, the sync
//! rules, release, fence. Elections among replicas (freeze, choose, promote, hold, rejoin) join here.

pub mod engine_step;
pub mod lease_step;
pub mod register;
pub mod rules;
pub mod view;

pub use engine_step::{EngineStep, Source, engine_step};
pub use lease_step::{LeaseStep, lease_step};
pub use register::{InvalidRegister, Register, Release};
pub use rules::{Joined, Rule, SyncSetting};
pub use view::{Boot, Data, EngineState, Identity, Job, Member, Seen, Tenure, Terms, View};

#[cfg(test)]
mod tests;
