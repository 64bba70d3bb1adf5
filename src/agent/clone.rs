//! A copy of the holder's data directory: how a replica begins.

use std::time::Duration;

use super::Error;
use super::bootstrap::{control, sync};
use super::process::Processes;
use super::tool::Tool;
use super::volume::{Layout, remove};
use crate::engine::postgres::conninfo::Upstream;
use crate::engine::postgres::slots;

/// How long a clone may make no progress.
const SILENCE: Duration = Duration::from_mins(5);

/// Copies the upstream's data directory into the staging folder, synced, with a slot that keeps the WAL which the new
/// member needs next. Returns the system identifier of the copy.
pub async fn clone(processes: &Processes, layout: &Layout, upstream: &Upstream, member: &str) -> Result<String, Error> {
    match copy(processes, layout, upstream, member, true).await {
        // An earlier attempt under this id made the slot.
        Err(Error::Program { outcome, .. }) if outcome.contains("already exists") => {
            copy(processes, layout, upstream, member, false).await
        }
        other => other,
    }?;
    let staging = layout.staging();
    sync(processes, &staging).await?;
    Ok(control(processes, &staging).await?.system_id)
}

async fn copy(
    processes: &Processes,
    layout: &Layout,
    upstream: &Upstream,
    member: &str,
    create_slot: bool,
) -> Result<(), Error> {
    let staging = layout.staging();
    remove(&staging)?;
    let mut tool = Tool::new("pg_basebackup")
        .arg("--pgdata")
        .arg(&staging)
        .arg("--dbname")
        // Not the member's name: this stream confirms positions too, and nothing of it is synced yet.
        .arg(upstream.conninfo("hello-clone"))
        .arg("--slot")
        .arg(slots::of(member))
        .args(["--wal-method=stream", "--checkpoint=fast", "--no-sync", "--no-manifest", "--no-password", "--progress"])
        .silence(SILENCE);
    if create_slot {
        tool = tool.arg("--create-slot");
    }
    if let Some(wal) = layout.wal_folder(member) {
        remove(&wal)?;
        tool = tool.arg("--waldir").arg(wal);
    }
    tool.run(processes).await.map(drop)
}
