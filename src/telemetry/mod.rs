//! Logs, metrics, traces and the health endpoints.
