//! Archive and backups in the agent's loop: what the archive shall do, the backup under way, and the look at the store.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::oneshot;

use super::Error;
use super::archive::{Archive, Wish, Written};
use super::base_backup::{self, Order, archive_id};
use super::duties::Turn;
use super::run::{Agent, Event, Task};
use crate::api::agent::{CommandAnswer, Lsn};
use crate::api::archive::{
    BackupCommand, BackupEnd, BackupReport, CancelBackupCommand, CatalogEntry, CatalogReport, StoreError, StoreReport,
};
use crate::api::names::{RESTORE_MOUNT, SOCKET_DIR};
use crate::api::spec::State;
use crate::backup::base::Progress;
use crate::backup::layout::BackupId;
use crate::core::backup::Policy;
use crate::core::election::{Data, EngineState};
use crate::core::quantity;

/// The agent's socket for archive_command and restore_command.
pub const ARCHIVE_SOCKET: &str = "hello.sock";
/// Ids of backups that are remembered.
const MOST_IDS: usize = 64;
/// A look at the store that failed is repeated after this.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Archive and backups of this instance.
pub(super) struct Backups {
    pub(super) archive: Arc<Archive>,
    under_way: Option<UnderWay>,
    last: Option<BackupReport>,
    cancelled: Vec<String>,
    catalog: CatalogReport,
    looking: Turn,
    /// Backups of all agents that ended, as last heard: a new one is worth a look.
    ended: Vec<String>,
    /// Member and id of its archive.
    archive_id: Option<(String, String)>,
    /// Instances that take one, by what they said last, with the position at which its WAL begins.
    elsewhere: BTreeMap<String, Option<Lsn>>,
    restoring: Option<Arc<Progress>>,
}

struct UnderWay {
    report: BackupReport,
    progress: Arc<Progress>,
    start: Arc<OnceLock<Lsn>>,
    cancel: Option<oneshot::Sender<()>>,
    _task: Task,
}

impl Backups {
    pub(super) fn new(archive: Archive) -> Self {
        Self {
            archive: Arc::new(archive),
            under_way: None,
            last: None,
            cancelled: Vec::new(),
            catalog: CatalogReport::default(),
            looking: Turn::default(),
            ended: Vec::new(),
            archive_id: None,
            elsewhere: BTreeMap::new(),
            restoring: None,
        }
    }

    /// A restore begins.
    pub(super) fn restores(&mut self) -> Arc<Progress> {
        let progress = Arc::new(Progress::default());
        self.restoring = Some(progress.clone());
        progress
    }

    /// How far the restore is, for people.
    pub(super) fn restored(&self) -> Option<String> {
        let progress = self.restoring.as_ref()?;
        let mebibytes = |bytes: u64| bytes >> 20;
        let (done, total) = (progress.read(), progress.total());
        Some(match total {
            0 => "looks for the backup to restore".to_owned(),
            _ if done >= total => "replays the WAL of the archive".to_owned(),
            _ => format!("restores a backup: {} of {} MiB", mebibytes(done), mebibytes(total)),
        })
    }

    /// What there is to tell.
    fn report(&self) -> StoreReport {
        let backup = match &self.under_way {
            Some(under_way) => {
                let progress = &under_way.progress;
                Some(BackupReport {
                    done_bytes: progress.read(),
                    total_bytes: progress.total(),
                    stored_bytes: progress.stored(),
                    start_lsn: under_way.start.get().copied(),
                    ..under_way.report.clone()
                })
            }
            None => self.last.clone(),
        };
        StoreReport { archive: self.archive.report(), backup, catalog: None }
    }
}

impl Agent {
    /// What there is to tell of archive and backups; nothing without a destination.
    pub(super) fn store_report(&self) -> Option<StoreReport> {
        self.config.as_ref()?.spec.backup.destination.as_ref()?;
        let catalog = (self.engine == EngineState::Primary).then(|| self.backups.catalog.clone());
        Some(StoreReport { catalog, ..self.backups.report() })
    }

    /// Tells the archive what it shall do, and looks at the store when that is due.
    pub(super) fn look_after_backups(&mut self) {
        let Some(config) = &self.config else { return };
        let spec = &config.spec.backup;
        let (namespace, cluster) = (self.namespace.clone(), self.cluster.clone());
        let system_id = self.data.system_id().map(str::to_owned);
        let member = self.state.member.clone().unwrap_or_default();
        if let (Data::Present(_), Some(system_id)) = (&self.data, &system_id)
            && self.backups.archive_id.as_ref().is_none_or(|(of, _)| *of != member)
            && let Ok(id) = archive_id(&self.place.layout.pgdata(), system_id)
        {
            self.backups.archive_id = Some((member.clone(), id));
        }
        let known = self.backups.archive_id.as_ref().filter(|(of, _)| *of == member).map(|(_, id)| id.clone());
        // A hibernated cluster's last segment has nobody else to archive it.
        let hibernates = config.spec.state == State::Hibernated;
        let stops = self.stopping.is_some() || self.tenure.as_ref().is_some_and(|tenure| tenure.ending.is_some());
        self.backups.archive.wish(Wish {
            destination: spec.destination.clone(),
            root: spec.destination.as_ref().map(|to| to.root(&namespace, &cluster)).unwrap_or_default(),
            wal: spec.wal_archive,
            cluster: format!("{namespace}/{cluster}"),
            archive: known,
            system_id,
            primary: self.engine == EngineState::Primary,
            hurry: stops && !hibernates,
        });
        // A standby whose primary is away has what it had, and what stops still archives.
        if self.postmaster.is_none() {
            self.backups.archive.written(None);
        } else if let Some(status) = self.observation.as_ref().map(|seen| &seen.status) {
            let standby = status.in_recovery;
            if let (Some(timeline), Some(end)) =
                (status.timeline, if standby { status.received } else { status.flushed })
            {
                self.backups.archive.written(Some(Written { timeline, end, standby }));
            }
        }
        // Only who takes writes removes anything.
        let primary = self.valid() && self.engine == EngineState::Primary;
        if spec.destination.is_none() || !primary || !self.backups.looking.due() {
            return;
        }
        self.backups.looking.begin();
        let (archive, events, policy) =
            (self.backups.archive.clone(), self.events.clone(), Policy::of(&spec.retention));
        let running = self.running_backups();
        tokio::spawn(async move {
            let report = super::keep::look(&archive, &policy, &running).await;
            let _ = events.send(Event::Catalog(Box::new(report))).await;
        });
    }

    /// The store was looked at.
    pub(super) fn looked_at_store(&mut self, report: CatalogReport) {
        let failed = report.error.is_some();
        self.backups.looking.end(if failed { LOOK_AGAIN } else { super::keep::EVERY });
        // What was known before is still the best that is known.
        self.backups.catalog = match report {
            CatalogReport { read_at: None, error, .. } => CatalogReport { error, ..self.backups.catalog.clone() },
            report => report,
        };
    }

    /// Positions at which the WAL of the backups begins that are being taken, here and elsewhere. One that does not know its own yet
    /// may need any.
    fn running_backups(&self) -> Vec<Lsn> {
        let own = self.backups.under_way.as_ref().map(|under_way| under_way.start.get().copied());
        let members = |instance: &String| {
            self.terms.as_ref().is_none_or(|terms| terms.instances.iter().any(|member| member == instance))
        };
        let others = self.backups.elsewhere.iter().filter(|(instance, _)| members(instance)).map(|(_, start)| *start);
        own.into_iter().chain(others).map(Option::unwrap_or_default).collect()
    }

    /// What another agent says of its backup. When one ended, the catalogue is looked at again.
    pub(super) fn heard_of_backup(&mut self, instance: &str, store: Option<&StoreReport>) {
        let Some(store) = store else { return };
        match &store.backup {
            Some(backup) if backup.end.is_none() => {
                self.backups.elsewhere.insert(instance.to_owned(), backup.start_lsn);
                return;
            }
            _ => drop(self.backups.elsewhere.remove(instance)),
        }
        let Some(backup) = &store.backup else { return };
        if !self.backups.ended.contains(&backup.id) {
            remember(&mut self.backups.ended, &backup.id);
            self.backups.looking.end(Duration::ZERO);
        }
    }

    /// Somebody wants a base backup, or to know how far it is.
    pub(super) fn back_up(&mut self, command: BackupCommand) -> Result<CommandAnswer, String> {
        self.refuse_older(command.term)?;
        if let Some(under_way) = &self.backups.under_way {
            if under_way.report.id == command.id {
                return Ok(CommandAnswer { done: false, message: "the backup is under way".into() });
            }
            return Err("another backup is under way here".into());
        }
        if self.backups.last.as_ref().is_some_and(|last| last.id == command.id) {
            return Ok(CommandAnswer { done: true, message: "the backup has ended".into() });
        }
        if self.backups.cancelled.contains(&command.id) {
            return Err("the backup was cancelled".into());
        }
        let primary = match &self.engine {
            EngineState::Primary => None,
            EngineState::Standby { source: Some(source), .. } => Some(source.instance.clone()),
            _ => return Err("PostgreSQL does not run here".into()),
        };
        let Some(config) = &self.config else { return Err("the configuration was not read yet".into()) };
        if config.spec.backup.destination.is_none() {
            return Err("there is no backup.destination".into());
        }
        let rate = config.spec.backup.max_bytes_per_second.as_ref();
        let now = Timestamp::now();
        let id = BackupId::new(now, rand::random());
        let start = Arc::<OnceLock<Lsn>>::default();
        let order = Order {
            requested_by: command.id.clone(),
            id: id.clone(),
            instance: self.me.instance.clone(),
            primary,
            pgdata: self.place.layout.pgdata(),
            socket: self.place.socket.clone(),
            max_bytes_per_second: rate
                .and_then(|rate| quantity::parse(&rate.0))
                .and_then(|rate| u64::try_from(rate).ok()),
            start: start.clone(),
        };
        let progress = Arc::new(Progress::default());
        let (cancel, cancelled) = oneshot::channel();
        let (archive, processes, peers) = (self.backups.archive.clone(), self.processes.clone(), self.peers.clone());
        let (events, seen, requested) = (self.events.clone(), progress.clone(), command.id.clone());
        let task = tokio::spawn(async move {
            let outcome = tokio::select! {
                outcome = base_backup::take(&archive, &processes, &peers, &order, &seen) => Some(outcome),
                _ = cancelled => None,
            };
            let end = ended(&archive, &order.id, outcome).await;
            let _ = events.send(Event::BackupEnded(requested, Box::new(end))).await;
        });
        self.backups.under_way = Some(UnderWay {
            report: BackupReport {
                id: command.id,
                backup_id: id.to_string(),
                started_at: now.to_string(),
                done_bytes: 0,
                total_bytes: 0,
                stored_bytes: 0,
                start_lsn: None,
                end: None,
            },
            progress,
            start,
            cancel: Some(cancel),
            _task: Task(task),
        });
        Ok(CommandAnswer { done: false, message: "the backup begins".into() })
    }

    /// Nobody wants this backup any more.
    pub(super) fn cancel_backup(&mut self, command: &CancelBackupCommand) -> CommandAnswer {
        remember(&mut self.backups.cancelled, &command.id);
        match self.backups.under_way.as_mut().filter(|under_way| under_way.report.id == command.id) {
            Some(under_way) => {
                if let Some(cancel) = under_way.cancel.take() {
                    tracing::info!(backup = under_way.report.backup_id, "a base backup is cancelled");
                    let _ = cancel.send(());
                }
                CommandAnswer { done: false, message: "what it wrote is removed".into() }
            }
            None => CommandAnswer { done: true, message: "nothing of it is left".into() },
        }
    }

    /// A base backup ended, in one way or the other.
    pub(super) fn backup_ended(&mut self, id: &str, end: BackupEnd) {
        let Some(under_way) = self.backups.under_way.take_if(|under_way| under_way.report.id == id) else { return };
        let progress = &under_way.progress;
        self.backups.last = Some(BackupReport {
            done_bytes: progress.read(),
            total_bytes: progress.total(),
            stored_bytes: progress.stored(),
            start_lsn: under_way.start.get().copied(),
            end: Some(end),
            ..under_way.report
        });
        self.backups.looking.end(Duration::ZERO);
    }

    /// restore_command and where its answers come from.
    pub(super) fn restore_wish(&self) -> Result<super::restore::Wish, Error> {
        let waits = |message: &str| Error::Invalid { what: "bootstrap.restore", message: message.into() };
        let config = self.config.as_ref().ok_or_else(|| waits("the configuration was not read yet"))?;
        let order = config.restore.clone().ok_or_else(|| waits("its backup is not known: look at the conditions"))?;
        let own = config.spec.backup.destination.as_ref();
        Ok(super::restore::Wish {
            member: self.me.member_for(&self.me.instance),
            own: own.map(|own| own.place(&own.root(&self.namespace, &self.cluster))),
            source: order.source.place(&order.root),
            order,
            mount: RESTORE_MOUNT.into(),
            database: config.spec.postgresql.database.clone(),
            owner: config.spec.postgresql.owner.clone(),
            private: std::env::temp_dir().join("hello-bootstrap"),
            restore_command: self.place.archiver.fetch_command(),
        })
    }
}

/// Notes an id, and forgets the oldest of many.
fn remember(ids: &mut Vec<String>, id: &str) {
    if !ids.iter().any(|known| known == id) {
        ids.push(id.to_owned());
        let many = ids.len().saturating_sub(MOST_IDS);
        ids.drain(..many);
    }
}

async fn ended(archive: &Arc<Archive>, id: &BackupId, outcome: Option<Result<CatalogEntry, Error>>) -> BackupEnd {
    let failed = match outcome {
        Some(Ok(entry)) => return BackupEnd::Completed(entry),
        Some(Err(error)) => {
            tracing::warn!(%error, category = error.category().as_str(), backup = %id, "the base backup failed");
            Some(StoreError { category: error.category(), message: error.to_string() })
        }
        None => None,
    };
    // What cannot be removed now has no manifest: it counts for nothing, and goes later.
    if let Err(error) = base_backup::clean_up(archive, id).await {
        tracing::warn!(%error, backup = %id, "what the unfinished backup left is removed later");
    }
    failed.map_or(BackupEnd::Cancelled, BackupEnd::Failed)
}

/// Path of the agent's socket.
pub(super) fn socket_path() -> std::path::PathBuf {
    std::path::Path::new(SOCKET_DIR).join(ARCHIVE_SOCKET)
}
