//! A task beside the loop that asks PostgreSQL what it does. The loop never waits for SQL.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::Error;
use super::postmaster::accepts_sessions;
use super::run::Event;
use super::sql::{Session, Slot, Socket, Status, Walsender};

/// What PostgreSQL said.
#[derive(Debug, Clone)]
pub struct Observation {
    /// What it does.
    pub status: Status,
    /// Standbys that are connected to it.
    pub walsenders: Vec<Walsender>,
    /// Its slots.
    pub slots: Vec<Slot>,
    /// Bytes of each database, as last measured.
    pub databases: Vec<(String, i64)>,
}

/// How often, while all is well, and while something is awaited.
const CALM: Duration = Duration::from_secs(1);
const EAGER: Duration = Duration::from_millis(60);
/// PostgreSQL walks through all files for the sizes of its databases.
const SIZES_EVERY: Duration = Duration::from_mins(1);

/// Observes for the life of the agent, while `running` says that there is a PostgreSQL.
pub async fn observe(
    socket: Socket,
    pgdata: PathBuf,
    mut running: watch::Receiver<bool>,
    eager: watch::Receiver<bool>,
    events: mpsc::Sender<Event>,
) {
    let mut session: Option<Session> = None;
    let mut databases: Vec<(String, i64)> = Vec::new();
    let mut measured: Option<tokio::time::Instant> = None;
    loop {
        if running.wait_for(|running| *running).await.is_err() {
            return;
        }
        let seen = async {
            let open = match session.take() {
                Some(open) => open,
                None if !accepts_sessions(&pgdata) => return Ok(None),
                None => socket.open("postgres").await?,
            };
            let mut seen = look(&open).await?;
            if measured.is_none_or(|at| at.elapsed() >= SIZES_EVERY) && !seen.status.in_recovery {
                databases = open.database_sizes().await.unwrap_or_default();
                measured = Some(tokio::time::Instant::now());
            }
            seen.databases.clone_from(&databases);
            Ok::<_, Error>(Some((open, seen)))
        };
        let event = match seen.await {
            Ok(Some((open, seen))) => {
                session = Some(open);
                Event::Observed(Ok(Some(Box::new(seen))))
            }
            Ok(None) => Event::Observed(Ok(None)),
            Err(error) => Event::Observed(Err(error)),
        };
        if events.send(event).await.is_err() {
            return;
        }
        let pause = if *eager.borrow() { EAGER } else { CALM };
        tokio::time::sleep(pause).await;
    }
}

async fn look(session: &Session) -> Result<Observation, Error> {
    let status = session.status().await?;
    let (walsenders, slots) = if status.in_recovery {
        (Vec::new(), Vec::new())
    } else {
        (session.walsenders().await?, session.slots().await?)
    };
    Ok(Observation { status, walsenders, slots, databases: Vec::new() })
}
