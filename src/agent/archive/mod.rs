//! The WAL archive: what PostgreSQL's archiver hands over goes to the store, and is done only when the store has it.

pub mod client;
mod prefetch;
mod push;
pub mod socket;
pub mod stores;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

use tokio::sync::watch;

use super::Error;
use super::process::boottime;
use crate::api::agent::Lsn;
use crate::api::archive::{ArchiveReport, StoreError};
use crate::api::spec::Destination;
use crate::backup::catalog::Summaries;
use crate::backup::owner::{self, Owner};
use crate::backup::store::Store;
use crate::core::election::Boot;
use prefetch::Prefetch;
use push::Uploads;
use stores::Stores;

/// zstd's level for WAL and base backups: the next ones cost much more time for little less space.
pub const LEVEL: i32 = 3;
/// Whose archive it is, is looked at again after this.
const CLAIM_EVERY: Duration = Duration::from_mins(5);

/// What the archive shall do now.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Wish {
    /// Where it goes. None: nowhere.
    pub destination: Option<Destination>,
    /// Folder in it.
    pub root: String,
    /// Whether WAL is archived.
    pub wal: bool,
    /// The cluster, as `namespace/name`.
    pub cluster: String,
    /// Names this history of writes; None while there is no data.
    pub archive: Option<String>,
    /// System identifier of the data.
    pub system_id: Option<String>,
    /// Whether this instance takes writes.
    pub primary: bool,
    /// PostgreSQL shall stop soon, and its archiver must not hold it up: what is left is archived later, or by others.
    pub hurry: bool,
}

/// What WAL is on the disk of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// The timeline that it writes or receives.
    pub timeline: u32,
    /// Where it ends.
    pub end: Lsn,
    /// Whether it is received: a standby's archiver hands over segments that are not whole yet.
    pub standby: bool,
}

/// The archive of this instance.
pub struct Archive {
    stores: Stores,
    mount: PathBuf,
    /// None until the configuration was read.
    wish: watch::Sender<Option<Wish>>,
    claimed: Mutex<Option<(Wish, Boot)>>,
    written: Mutex<Option<Written>>,
    /// What of its backups was read before.
    pub(super) known: tokio::sync::Mutex<Summaries>,
    uploads: Uploads,
    prefetch: Prefetch,
    report: Mutex<ArchiveReport>,
    fetches: AtomicU64,
}

impl Archive {
    /// Of an instance whose volume destination is mounted here.
    pub fn new(stores: Stores, mount: impl Into<PathBuf>, spare: impl Into<PathBuf>) -> Self {
        Self {
            stores,
            mount: mount.into(),
            wish: watch::Sender::new(None),
            claimed: Mutex::default(),
            written: Mutex::default(),
            known: tokio::sync::Mutex::default(),
            uploads: Uploads::default(),
            prefetch: Prefetch::new(spare),
            report: Mutex::default(),
            fetches: AtomicU64::default(),
        }
    }

    /// What it shall do from now on.
    pub fn wish(&self, wish: Wish) {
        let before = self.wished();
        let same = |what: fn(&Wish, &Wish) -> bool| before.as_ref().is_some_and(|before| what(before, &wish));
        let other = !same(|a, b| a.destination == b.destination);
        if other || !same(|a, b| a.root == b.root && a.archive == b.archive) {
            self.forget_uploads();
        }
        self.wish.send_if_modified(|present| present.replace(wish.clone()) != Some(wish));
        if other {
            // What was said of another destination says nothing of this one.
            self.note(|report| *report = ArchiveReport::default());
        }
    }

    /// What WAL is on the disk here, as was seen last; None: nobody knows.
    pub fn written(&self, seen: Option<Written>) {
        *self.written.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }

    fn wished(&self) -> Option<Wish> {
        self.wish.borrow().clone()
    }

    /// Ends when PostgreSQL shall stop soon.
    async fn hurried(&self) {
        let hurry = |wish: &Option<Wish>| wish.as_ref().is_some_and(|wish| wish.hurry);
        // The sender lives as long as this.
        let _ = self.wish.subscribe().wait_for(hurry).await;
    }

    /// What there is to tell.
    pub fn report(&self) -> ArchiveReport {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many files a recovery has asked for.
    pub fn fetches(&self) -> u64 {
        self.fetches.load(Ordering::Relaxed)
    }

    /// Stores by destination, for restores.
    pub fn stores(&self) -> &Stores {
        &self.stores
    }

    /// Where a volume destination is mounted.
    pub fn mount(&self) -> &Path {
        &self.mount
    }

    /// The store of this cluster, after it is certain that it belongs to this cluster.
    pub async fn own_store(&self) -> Result<(Store, Wish), Error> {
        let unknown = |message: &str| Error::Invalid { what: "the archive", message: message.into() };
        let wish = self.wished().ok_or_else(|| unknown("the configuration was not read yet"))?;
        let destination = wish.destination.as_ref().ok_or_else(|| unknown("there is no backup.destination"))?;
        let store = self.stores.open(destination, &wish.root, &self.mount).await?;
        let fresh = |claimed: &(Wish, Boot)| {
            let (before, at) = claimed;
            let same =
                before.destination == wish.destination && before.root == wish.root && before.archive == wish.archive;
            same && boottime().saturating_sub(*at) < CLAIM_EVERY
        };
        if self.claimed.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(fresh) {
            return Ok((store, wish));
        }
        let (Some(archive), Some(system_identifier)) = (wish.archive.clone(), wish.system_id.clone()) else {
            return Err(unknown("it is not known yet whose data this is"));
        };
        let claim = Owner {
            format: crate::backup::layout::FORMAT,
            archive,
            system_identifier,
            cluster: wish.cluster.clone(),
            created_at: Timestamp::now(),
        };
        if let Err(error) = owner::claim(&store, &claim).await {
            self.distrust_if_refused(&error).await;
            return Err(error.into());
        }
        *self.claimed.lock().unwrap_or_else(PoisonError::into_inner) = Some((wish.clone(), boottime()));
        Ok((store, wish))
    }

    async fn distrust_if_refused(&self, error: &crate::backup::Error) {
        if error.kind() == crate::backup::Kind::Unauthorized {
            self.stores.distrust().await;
        }
    }

    fn note(&self, change: impl FnOnce(&mut ArchiveReport)) {
        change(&mut self.report.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn note_failure(&self, error: &Error) {
        self.note(|report| {
            report.failures += 1;
            report.failing_since.get_or_insert_with(|| Timestamp::now().to_string());
            report.error = Some(StoreError { category: error.category(), message: error.to_string() });
        });
    }
}
