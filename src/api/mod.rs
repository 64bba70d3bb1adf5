//! The contract with users and between our own programs: the resources, every name, label and annotation, and what
//! operator and agents say to each other. Data only.

pub mod agent;
pub mod archive;
pub mod backup;
pub mod build;
pub mod category;
pub mod config;
pub mod crd;
pub mod names;
pub mod owned;
pub mod spec;
pub mod status;
pub mod verify;
pub mod words;

pub use backup::HelloBackup;
pub use category::Category;
pub use spec::{HelloOperator, HelloOperatorSpec};
pub use status::HelloOperatorStatus;
