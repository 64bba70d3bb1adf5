//! The shell around [`crate::core`] in a database Pod: PID 1 of the database container.

pub mod bootstrap;
pub mod clone;
pub mod error;
pub mod files;
pub mod postmaster;
pub mod process;
pub mod sql;
pub mod tool;
pub mod volume;

pub use error::Error;
