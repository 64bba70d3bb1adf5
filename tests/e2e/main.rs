//! End to end: the image and the chart as they are shipped, on a real Kubernetes with a real PostgreSQL.
//!
//! `make e2e` runs all, `make e2e CASE=scale` those whose name contains `scale`. HELLO_PROFILE=quick builds our image
//! quickly, HELLO_KEEP=1 keeps the namespaces of failed cases. Where a case fails, its message names the folder with the
//! objects, events and logs of that moment.

#[path = "../cluster/mod.rs"]
mod cluster;
mod harness;

// Cases that need the whole cluster come first, one after another; the rest run side by side.
mod alone;
mod backup;
mod chaos;
mod children;
mod ctl;
mod invalid;
mod kstatus;
mod lifetime;
mod monitoring;
mod replication;
mod rolls;
mod scale;
mod secrets;
mod state;
mod trouble;
mod versions;
