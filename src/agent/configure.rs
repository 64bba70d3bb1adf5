//! How the running PostgreSQL comes to follow the configuration, the sync rule and the source that hold now.

use std::time::Duration;

use super::Error;
use super::bootstrap::control;
use super::conf::Aim;
use super::duties::{Written, sync_of};
use super::postmaster::Postmaster;
use super::run::{Agent, Event};
use super::sql::Socket;
use crate::core::election::EngineState;
use crate::engine::postgres::sync_names;

/// How long PostgreSQL may take to read its files again.
const RELOAD: Duration = Duration::from_secs(5);

impl Agent {
    /// Makes the running PostgreSQL follow the configuration, the rule and the source that hold now.
    pub(super) fn configure(&mut self) {
        let aim = match &self.engine {
            EngineState::Primary => match self.sync_setting() {
                Some(sync) => Aim::Primary(sync),
                None => return,
            },
            EngineState::Standby { source, .. } => self.standby_aim(source.clone()),
            EngineState::Stopped | EngineState::Busy(_) => return,
        };
        let (Some(config), Some(postmaster)) = (&self.config, &self.postmaster) else { return };
        let chosen = self.chosen(config);
        let full = self.rooms.full.is_some();
        let files = match self.place.files(config, &chosen, &aim, full) {
            Ok(files) => files,
            Err(error) => {
                self.duties.trouble = Some(error.to_string());
                return;
            }
        };
        let sync = sync_of(&aim);
        match &mut self.duties.written {
            Some(written) if written.files == files => written.chosen = chosen,
            _ => {
                if let Err(error) = self.place.write(&files) {
                    self.duties.trouble = Some(error.to_string());
                    return;
                }
                let before = self.duties.written.as_ref().and_then(|written| written.sync.clone());
                if let (Some(before), Some(after)) = (before, &sync)
                    && before != *after
                {
                    tracing::info!(names = %sync_names::any(after.k, &after.members), "commits wait for");
                    self.duties.from_empty |= before.k == 0 && after.k > 0;
                }
                self.duties.written = Some(Written { chosen, sync, files, told: false });
            }
        }
        self.duties.trouble = None;
        let Some(written) = &mut self.duties.written else { return };
        if written.told && self.duties.loaded == written.chosen.generation || !self.duties.reloading.due() {
            return;
        }
        let reload = !written.told;
        written.told = true;
        let chosen = written.chosen.clone();
        self.duties.reloading.begin();
        let (socket, postmaster, events) = (self.place.socket.clone(), postmaster.clone(), self.events.clone());
        tokio::spawn(async move {
            let outcome = read_again(&socket, &postmaster, reload).await;
            let _ = events.send(Event::Reloaded(chosen, outcome)).await;
        });
    }

    /// A replica keeps what its primary's settings were when it began to follow. When the primary's went down meanwhile, the
    /// control file says so as soon as that is replayed.
    pub(super) fn look_at_floor(&mut self) {
        if !matches!(self.engine, EngineState::Standby { .. }) || !self.duties.floor.due() {
            return;
        }
        self.duties.floor.begin();
        let (processes, pgdata, events) = (self.processes.clone(), self.place.layout.pgdata(), self.events.clone());
        tokio::spawn(async move {
            let outcome = control(&processes, &pgdata).await.map(|control| control.critical);
            let _ = events.send(Event::Floor(outcome)).await;
        });
    }
}

/// What a session sees that was opened after the postmaster had read its files again.
#[derive(Debug)]
pub struct Reread {
    /// Settings that wait for a restart.
    pub pending: Vec<String>,
    /// What PostgreSQL does not accept.
    pub errors: Vec<String>,
}

/// Has PostgreSQL read its files again.
async fn read_again(socket: &Socket, postmaster: &Postmaster, reload: bool) -> Result<Reread, Error> {
    let loaded = async || socket.open("postgres").await?.loaded_at().await;
    if reload {
        let before = match loaded().await {
            Ok(before) => before,
            Err(error) => {
                // It must hear of it even if it does not answer: a replica that waits for its primary, for instance.
                postmaster.reload();
                return Err(error);
            }
        };
        postmaster.reload();
        let end = tokio::time::Instant::now() + RELOAD;
        // With a broken line in it, the postmaster does not take the file over at all; then the errors say why.
        while loaded().await? == before && tokio::time::Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let session = socket.open("postgres").await?;
    Ok(Reread { pending: session.pending_restart().await?, errors: session.configuration_errors().await? })
}
