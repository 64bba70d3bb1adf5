//! Hello Operator: a `HelloOperator` object becomes a highly available PostgreSQL.
//!
//! Imports run one way (`tests/architecture.rs` enforces it):
//! `api <- engine <- core <- {operator, agent} <- main`, with `telemetry` beside them, `backup` (`api` only) below `agent`,
//! `leader` knowing nothing of the rest, and `ctl`, the tool of users, on `api` alone. `operator` and `ctl` share `calls`, to the
//! API server, `agent` and `telemetry` share `https`. `api`, `engine` and `core` do no I/O and read no clock, randomness or environment.
//!
//! The feature `shells`, on by default, is everything else: without it the core builds alone, as the simulation uses it.

#[cfg(feature = "shells")]
pub mod agent;
pub mod api;
#[cfg(feature = "shells")]
pub mod backup;
#[cfg(feature = "shells")]
pub mod calls;
#[cfg(feature = "shells")]
pub mod config;
pub mod core;
#[cfg(feature = "shells")]
pub mod ctl;
pub mod engine;
#[cfg(feature = "shells")]
pub mod https;
#[cfg(feature = "shells")]
pub mod leader;
#[cfg(feature = "shells")]
pub mod operator;
#[cfg(feature = "shells")]
pub mod telemetry;
