//! Hello Operator: a `HelloOperator` object becomes a highly available PostgreSQL.
//!
//! Imports run one way (`tests/architecture.rs` enforces it):
//! `api <- engine <- core <- {operator, agent} <- main`, with `telemetry` beside them, `backup` (`api` only) below `agent`,
//! `leader` knowing nothing of the rest, and `ctl`, the tool of users, on `api` alone. `api`, `engine` and `core` do no I/O and read no clock, randomness or environment.

pub mod agent;
pub mod api;
pub mod backup;
pub mod config;
pub mod core;
pub mod ctl;
pub mod engine;
pub mod leader;
pub mod operator;
pub mod telemetry;
