//! Everything between bytes on a disk and a destination of backups. It knows nothing of Kubernetes, agents or processes of
//! PostgreSQL: who takes a backup, when, and between which commands is decided elsewhere.

pub mod base;
pub mod catalog;
mod digest;
mod download;
mod error;
pub mod layout;
pub mod manifest;
pub mod owner;
mod pace;
mod pack;
pub mod restore;
pub mod store;
pub mod target;
mod upload;
pub mod wal;
mod walk;

pub use error::{Error, Kind};
pub use store::Store;
