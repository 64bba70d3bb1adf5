//! Who is the primary of a cluster: the protocol, as data in and data out.
//!
//! The register is one Lease ([`register`]); every change of it is conditional on the version that was read. The agent's
//! loop asks two total functions at each tick: [`lease_step`] says what to do with the register, [`engine_step`] what to
//! do with PostgreSQL. [`rules`] says which replicas a commit waits for, and how that may change.
//!
//! [`vote`] is what a member promises and answers, [`choose`] the choice among the answers, [`hold`] how a holder goes on
//! while the API server is away, [`planned`] to whom the role is handed over when somebody asks for that.

pub mod choose;
pub mod engine_step;
pub mod hold;
pub mod lease_step;
pub mod mutation;
pub mod planned;
pub mod register;
pub mod rules;
pub mod view;
pub mod vote;

pub use choose::{Blocked, Verdict};
pub use engine_step::{EngineStep, Source, engine_step};
pub use lease_step::{LeaseStep, lease_step};
pub use register::{InvalidRegister, Register, Release};
pub use rules::{Evidence, Joined, Rule, SyncSetting, Walsender};
pub use view::{
    Ballot, Boot, Data, Ending, EngineState, History, Identity, Job, Member, STOP_BUDGET, Seen, Tenure, Terms, View,
};
pub use vote::{Answer, NoAnswer, Promise, Read};

#[cfg(test)]
mod holes;
#[cfg(test)]
mod seen;
#[cfg(test)]
mod tests;
