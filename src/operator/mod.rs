//! The shell around [`crate::core`] for the whole cluster: streams in, plan, writes out.
