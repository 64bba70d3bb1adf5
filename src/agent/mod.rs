//! The shell around [`crate::core`] in a database Pod: PID 1 of the database container.
