//! Takes a stopped data directory back to where its history left the holder's, so that it can follow.
//!
//! Half of it is worse than nothing: whoever calls this remembers first that it was begun, and takes what was found in the
//! middle for lost.

use std::time::Duration;

use super::Error;
use super::bootstrap::{control, sync};
use super::process::Processes;
use super::tool::Tool;
use super::volume::{Layout, remove, replace_file};
use crate::engine::postgres::conninfo::Upstream;
use crate::engine::postgres::control::ControlData;
use crate::engine::postgres::rewind::{Stage, hopeless};

/// How long recovery and rewind may make no progress; both say something every few seconds.
const SILENCE: Duration = Duration::from_mins(5);

/// How a rewind ended.
#[derive(Debug)]
pub enum Outcome {
    /// The data is a copy of the holder's that lacks only WAL, synced. What its control file says now: it is consistent from
    /// the minimum recovery point on, which is in the holder's history.
    Rewound(ControlData),
    /// Its history did not leave the holder's, as far as the holder's control file knows; what the own one says now. On
    /// PostgreSQL 15 the holder's lags behind its promotion until its first checkpoint: compare with its history again.
    NotNeeded(ControlData),
    /// It failed before it changed the data: it may be tried again.
    Untouched(Error),
    /// It failed in the middle, or can never succeed: only a clone helps.
    Hopeless(Error),
}

/// Rewinds the data directory to this upstream, which takes writes. PostgreSQL does not run on it; whether it crashed or was
/// shut down, as a primary or as a standby, does not matter.
pub async fn rewind(processes: &Processes, layout: &Layout, upstream: &Upstream) -> Outcome {
    match prepare(processes, layout).await {
        Ok(()) => {}
        Err(error) => return Outcome::Untouched(error),
    }
    let mut stage = Stage::Looking;
    let tool = Tool::new("pg_rewind")
        .arg("--target-pgdata")
        .arg(layout.pgdata())
        .arg("--source-server")
        .arg(upstream.sql_conninfo("hello-rewind"))
        // It was shut down above, and is synced below, where that may take its time.
        .args(["--no-ensure-shutdown", "--no-sync", "--progress"])
        .silence(SILENCE);
    let ended = tool.run_noting(processes, |line| stage = stage.after(line)).await;
    match (ended, stage) {
        (Ok(_), Stage::Writing) => match finish(processes, layout).await {
            Ok(control) => Outcome::Rewound(control),
            Err(error) => Outcome::Hopeless(error),
        },
        (Ok(_), Stage::Looking) => match control(processes, &layout.pgdata()).await {
            Ok(control) => Outcome::NotNeeded(control),
            Err(error) => Outcome::Untouched(error),
        },
        (Err(error), Stage::Writing) => Outcome::Hopeless(error),
        (Err(error), Stage::Looking) if hopeless(&error.to_string()) => Outcome::Hopeless(error),
        (Err(error), Stage::Looking) => Outcome::Untouched(error),
    }
}

/// Brings the data to a clean shutdown. pg_rewind would do so itself, but without syncing anything, and then may fail.
async fn prepare(processes: &Processes, layout: &Layout) -> Result<(), Error> {
    let pgdata = layout.pgdata();
    if control(processes, &pgdata).await?.clean() {
        return Ok(());
    }
    // It names a process of an earlier container, or nobody; the lock on the volume is what protects the data.
    remove(&pgdata.join("postmaster.pid"))?;
    // A single-user PostgreSQL refuses to be a standby. It takes no connections, so nothing is acknowledged by it.
    let signal = pgdata.join("standby.signal");
    let standby = signal.exists();
    remove(&signal)?;
    let recovery = Tool::new("postgres").arg("--single").arg("-D").arg(&pgdata).arg("template1").silence(SILENCE);
    let recovered = recovery.run(processes).await;
    if standby {
        replace_file(&signal, b"")?;
    }
    recovered?;
    if control(processes, &pgdata).await?.clean() {
        return Ok(());
    }
    Err(Error::Program { program: "postgres".into(), outcome: "ended, but not with a shutdown in order".into() })
}

/// It starts as a standby whatever it was, and is on disk as a whole.
async fn finish(processes: &Processes, layout: &Layout) -> Result<ControlData, Error> {
    let pgdata = layout.pgdata();
    replace_file(&pgdata.join("standby.signal"), b"")?;
    sync(processes, &pgdata).await?;
    control(processes, &pgdata).await
}
