//! The shell around [`crate::core`] in a database Pod: PID 1 of the database container.

pub mod error;
pub mod process;
pub mod tool;
pub mod volume;

pub use error::Error;
