//! Every decision, and no I/O: facts and the time come in as arguments, a decision goes out as data.

pub mod accept;
pub mod backup;
pub mod build;
pub mod cluster;
pub mod credentials;
pub mod election;
pub mod plan;
pub mod quantity;
pub mod room;
pub mod status;
pub mod trouble;
pub mod world;
