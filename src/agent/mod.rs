//! The shell around [`crate::core`] in a database Pod: PID 1 of the database container.

pub mod bootstrap;
pub mod clone;
pub mod conf;
mod duties;
mod election;
pub mod endpoints;
pub mod error;
pub mod fence;
pub mod files;
pub mod history;
mod holds;
pub mod inject;
mod jobs;
pub mod killer;
pub mod lease;
pub mod members;
pub mod observe;
pub mod peers;
pub mod postmaster;
pub mod probe;
pub mod process;
pub mod report;
pub mod rewind;
pub mod rules;
pub mod run;
pub mod server;
pub mod sql;
pub mod standstill;
mod steps;
mod tenure;
pub mod tls;
pub mod tool;
pub mod volume;

pub use error::Error;
pub use inject::inject;
pub use run::run;
