//! Who among the replicas of the operator may act. Knows nothing of the rest of the crate.
