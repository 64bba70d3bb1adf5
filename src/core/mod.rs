//! Every decision, and no I/O: facts and the time come in as arguments, a decision goes out as data.

pub mod cluster;
pub mod election;
pub mod quantity;
