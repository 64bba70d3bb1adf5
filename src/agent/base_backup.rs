//! A base backup: PostgreSQL's low-level backup around the copy of its files into the store.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;

use super::Error;
use super::archive::{Archive, LEVEL};
use super::bootstrap::control;
use super::peers::Peers;
use super::process::Processes;
use super::sql::{Session, Socket};
use crate::api::agent::Lsn;
use crate::api::archive::CatalogEntry;
use crate::backup::base::{self, BackupPlan, Progress};
use crate::backup::layout::{BackupId, FORMAT, Segment, SegmentSize, WalFile};
use crate::backup::manifest::{BackupKind, Compression, Manifest, Summary, TakenBy};
use crate::backup::store::Store;
use crate::backup::{catalog, wal};
use crate::engine::postgres::history::file_name;

/// How long the checkpoint at the beginning may take.
const CHECKPOINT: Duration = Duration::from_mins(30);
/// How long the last segment may take to arrive, once its primary was asked to close it.
const LAST_SEGMENT: Duration = Duration::from_mins(3);
/// The primary is asked again after this.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// How long it takes to remove what an ended backup left, at most.
const CLEAN_UP: Duration = Duration::from_mins(2);

/// What is to be taken, and with what.
#[derive(Clone)]
pub struct Order {
    /// Uid of the HelloBackup.
    pub requested_by: String,
    /// Its id in the store.
    pub id: BackupId,
    /// Name of the instance.
    pub instance: String,
    /// Who takes writes, when that is another instance.
    pub primary: Option<String>,
    /// The data directory.
    pub pgdata: PathBuf,
    /// Its PostgreSQL.
    pub socket: Socket,
    /// Bytes read per second, at most.
    pub max_bytes_per_second: Option<u64>,
    /// Set once it is known at which position the WAL begins that it needs.
    pub start: Arc<OnceLock<Lsn>>,
}

/// Takes it. Whoever drops this calls [`clean_up`].
pub async fn take(
    archive: &Arc<Archive>,
    processes: &Processes,
    peers: &Peers,
    order: &Order,
    progress: &Arc<Progress>,
) -> Result<CatalogEntry, Error> {
    let (store, wish) = archive.own_store().await?;
    if let Some(summary) = taken_before(archive, &store, &order.requested_by).await? {
        tracing::info!(backup = %summary.id, "this base backup is there already: whoever took it could not tell");
        return Ok(entry(&summary));
    }
    let started_at = Timestamp::now();
    let control = control(processes, &order.pgdata).await?;
    let size = segment_size(control.segment_size)?;
    let session = order.socket.open("postgres").await?;
    // Until this session ends, no segment that the backup needs is recycled.
    session
        .run("a slot for the backup", "SELECT pg_create_physical_replication_slot('operator_base_backup', true, true)")
        .await?;
    let timeline = timeline(&session).await?;
    let start_lsn = session.backup_start(CHECKPOINT).await?;
    let _ = order.start.set(start_lsn);
    tracing::info!(backup = %order.id, start = %start_lsn, timeline, "a base backup begins");
    let plan = BackupPlan {
        max_bytes_per_second: order.max_bytes_per_second,
        level: LEVEL,
        ..BackupPlan::new(order.id.clone(), order.pgdata.clone())
    };
    let taken = tokio::select! {
        taken = base::take(&store, &plan, progress) => taken?,
        // Without it nothing that is read from here on could ever be used.
        () = session.closed() => return Err(refused("PostgreSQL stopped while it was taken: take another one")),
    };
    if !taken.skipped.is_empty() {
        tracing::warn!(skipped = ?taken.skipped, "neither files nor folders: they are not in the backup");
    }
    let stopped = session.backup_stop().await?;
    if self::timeline(&session).await? != timeline {
        return Err(refused("the primary changed hands while it was taken: take another one"));
    }
    if !stopped.tablespace_map.trim().is_empty() {
        return Err(refused("there are tablespaces, which are not supported: move their tables to pg_default"));
    }
    let files = Wal { store: &store, folder: order.pgdata.join("pg_wal"), timeline, size };
    files.await_end(&session, peers, order.primary.as_deref(), stopped.lsn).await?;
    files.send(start_lsn, stopped.lsn).await?;
    let role = if order.primary.is_none() { "primary" } else { "replica" };
    let summary = Summary {
        format: FORMAT,
        kind: BackupKind::Full,
        id: order.id.clone(),
        requested_by: order.requested_by.clone(),
        cluster: wish.cluster,
        archive: wish.archive.unwrap_or_default(),
        system_identifier: control.system_id,
        server_version: stopped.server_version,
        major: stopped.server_version / 10_000,
        taken_by: TakenBy { instance: order.instance.clone(), role: role.to_owned() },
        started_at,
        stopped_at: Timestamp::now(),
        timeline,
        start_lsn,
        stop_lsn: stopped.lsn,
        segment_size: size,
        compression: Compression::Zstd,
        bytes: taken.bytes,
        compressed_bytes: taken.compressed_bytes,
    };
    let manifest = Manifest {
        summary,
        backup_label: stopped.label,
        parts: taken.parts,
        files: taken.files,
        folders: taken.folders,
    };
    base::finish(&store, &manifest).await?;
    let summary = manifest.summary;
    tracing::info!(backup = %order.id, bytes = summary.bytes, stored = summary.compressed_bytes, "a base backup is complete");
    Ok(entry(&summary))
}

/// The complete backup of a HelloBackup, if there is one: an agent that restarted does not know what it took.
async fn taken_before(archive: &Archive, store: &Store, requested_by: &str) -> Result<Option<Summary>, Error> {
    let found = archive.known.lock().await.backups(store).await?;
    Ok(found.into_iter().find_map(|entry| match entry.state {
        catalog::State::Complete(summary) if summary.requested_by == requested_by => Some(*summary),
        _ => None,
    }))
}

/// Removes what an unfinished backup left in the store.
pub async fn clean_up(archive: &Arc<Archive>, id: &BackupId) -> Result<(), Error> {
    let work = async {
        let (store, _) = archive.own_store().await?;
        Ok(catalog::remove_backup(&store, id).await?)
    };
    tokio::time::timeout(CLEAN_UP, work)
        .await
        .map_err(|_| Error::Timeout("the removal of an unfinished backup".into()))?
}

/// A complete backup, as it is told.
pub fn entry(summary: &Summary) -> CatalogEntry {
    CatalogEntry {
        backup_id: summary.id.to_string(),
        requested_by: summary.requested_by.clone(),
        instance: summary.taken_by.instance.clone(),
        role: summary.taken_by.role.clone(),
        started_at: summary.started_at.to_string(),
        stopped_at: summary.stopped_at.to_string(),
        timeline: summary.timeline,
        start_lsn: summary.start_lsn,
        stop_lsn: summary.stop_lsn,
        bytes: summary.bytes,
        stored_bytes: summary.compressed_bytes,
    }
}

/// The size of a segment, as the control file tells it.
pub fn segment_size(bytes: u32) -> Result<SegmentSize, Error> {
    SegmentSize::new(bytes)
        .ok_or_else(|| Error::Invalid { what: "the size of a WAL segment", message: format!("{bytes} bytes") })
}

/// The WAL that a backup needs.
struct Wal<'a> {
    store: &'a Store,
    folder: PathBuf,
    timeline: u32,
    size: SegmentSize,
}

impl Wal<'_> {
    /// Waits until the segment with the last position is complete here. A primary closed it with the backup; a replica's is
    /// closed by its primary.
    async fn await_end(&self, session: &Session, peers: &Peers, primary: Option<&str>, stop: Lsn) -> Result<(), Error> {
        let last = Segment::of(self.timeline, Lsn(stop.0.saturating_sub(1)), self.size);
        let end = Lsn(last.start(self.size).0 + self.size.bytes());
        let limit = tokio::time::Instant::now() + LAST_SEGMENT;
        let mut ask = tokio::time::Instant::now();
        loop {
            if session.flushed().await? >= end {
                return Ok(());
            }
            let now = tokio::time::Instant::now();
            if now >= limit {
                return Err(Error::Timeout("the last segment of WAL that the backup needs".into()));
            }
            if let Some(primary) = primary.filter(|_| now >= ask) {
                ask = now + ASK_AGAIN;
                if let Err(error) = peers.switch_wal(primary).await {
                    tracing::debug!(%error, "the primary did not close its segment");
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Every segment of the backup is in the store when this returns, whoever archived it.
    async fn send(&self, start: Lsn, stop: Lsn) -> Result<(), Error> {
        let last = Segment::of(self.timeline, Lsn(stop.0.saturating_sub(1)), self.size);
        let mut next = Some(Segment::of(self.timeline, start, self.size));
        while let Some(segment) = next.filter(|segment| *segment <= last) {
            let path = self.folder.join(segment.to_string());
            wal::push(self.store, &path, &WalFile::Segment(segment), LEVEL).await?;
            next = segment.next(self.size);
        }
        if self.timeline > 1 {
            let path = self.folder.join(file_name(self.timeline));
            wal::push(self.store, &path, &WalFile::History(self.timeline), LEVEL).await?;
        }
        Ok(())
    }
}

async fn timeline(session: &Session) -> Result<u32, Error> {
    session.status().await?.timeline.ok_or_else(|| refused("PostgreSQL does not say its timeline"))
}

fn refused(message: &str) -> Error {
    Error::Invalid { what: "the base backup", message: message.to_owned() }
}

/// Names the history of writes of this data: its system identifier, and after a restore a word more.
pub fn archive_id(pgdata: &Path, system_id: &str) -> Result<String, Error> {
    let path = pgdata.join(ARCHIVE_ID);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(system_id.to_owned()),
        Err(error) => Err(Error::io("read", path)(error)),
    }
}

/// File in the data directory that names the archive of a cluster that was restored.
pub const ARCHIVE_ID: &str = "hello_archive_id";
