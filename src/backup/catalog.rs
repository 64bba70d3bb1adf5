//! What a destination holds, and taking it away.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::layout::{BASE, BackupId};
use super::manifest::{Manifest, Part, Summary};
use super::store::Listed;
use super::{Error, Store};

pub use super::wal::{list as wal, remove as remove_wal};

/// Manifests that are remembered, at most: the newest.
const MOST: usize = 1000;

/// A backup that is, will be or was to be.
#[derive(Debug)]
pub struct Entry {
    /// Its name.
    pub id: BackupId,
    /// What is known of it.
    pub state: State,
}

/// What is known of a backup.
#[derive(Debug)]
pub enum State {
    /// It has a manifest, and its archives are there in their sizes.
    Complete(Box<Summary>),
    /// It has no manifest: it is being taken, or what took it died.
    Unfinished {
        /// When its newest object was written.
        newest: Timestamp,
        /// Bytes of its objects.
        bytes: u64,
    },
    /// It has a manifest and cannot be used.
    Broken(Error),
}

/// Every backup, oldest first. One that cannot be read is an entry, too; a destination that cannot be read is an error.
pub async fn backups(store: &Store) -> Result<Vec<Entry>, Error> {
    Summaries::default().backups(store).await
}

/// Manifests of one destination that were read before: each is written once, and may have some MiB. Only what the last look found is
/// kept, of each some hundred bytes and its archives.
#[derive(Debug, Default)]
pub struct Summaries {
    /// Which destination.
    of: String,
    read: BTreeMap<BackupId, Read>,
}

#[derive(Debug)]
struct Read {
    /// As it was listed: another one under its name is read.
    listed: Listed,
    summary: Summary,
    parts: Vec<Part>,
}

impl Summaries {
    /// As [`backups`], and reads only manifests that are new.
    pub async fn backups(&mut self, store: &Store) -> Result<Vec<Entry>, Error> {
        let place = store.to_string();
        if self.of != place {
            (self.of, self.read) = (place, BTreeMap::new());
        }
        let before = std::mem::take(&mut self.read);
        look(store, before, &mut self.read).await
    }
}

async fn look(
    store: &Store,
    mut before: BTreeMap<BackupId, Read>,
    read: &mut BTreeMap<BackupId, Read>,
) -> Result<Vec<Entry>, Error> {
    let mut objects: BTreeMap<BackupId, Vec<Listed>> = BTreeMap::new();
    for object in store.list(BASE).await? {
        if let Some(id) = BackupId::of_object(&object.object) {
            objects.entry(id).or_default().push(object);
        }
    }
    let mut entries = Vec::with_capacity(objects.len());
    // One after the other: a manifest with all its files may take some MiB.
    for (id, objects) in objects {
        let state = if let Some(listed) = objects.iter().find(|object| object.object == id.manifest()) {
            let known = match before.remove(&id).filter(|known| known.listed == *listed) {
                Some(known) => Ok(known),
                None => Manifest::read(store, &id).await.map(|manifest| Read {
                    listed: listed.clone(),
                    summary: manifest.summary,
                    parts: manifest.parts,
                }),
            };
            match known.and_then(|known| complete(store, &known.parts, &objects).map(|()| known)) {
                Ok(known) => {
                    let summary = known.summary.clone();
                    read.insert(id.clone(), known);
                    if read.len() > MOST {
                        read.pop_first();
                    }
                    State::Complete(Box::new(summary))
                }
                Err(error @ (Error::Corrupt { .. } | Error::Refused(_))) => State::Broken(error),
                // Removed since it was listed.
                Err(Error::NotFound { .. }) => continue,
                Err(error) => return Err(error),
            }
        } else {
            let newest = objects.iter().map(|object| object.modified).max().unwrap_or(Timestamp::UNIX_EPOCH);
            State::Unfinished { newest, bytes: objects.iter().map(|object| object.bytes).sum() }
        };
        entries.push(Entry { id, state });
    }
    Ok(entries)
}

fn complete(store: &Store, parts: &[Part], objects: &[Listed]) -> Result<(), Error> {
    for part in parts {
        let detail = match objects.iter().find(|object| object.object == part.object) {
            Some(object) if object.bytes == part.bytes => continue,
            Some(object) => format!("it has {} bytes, and its manifest has {}", object.bytes, part.bytes),
            None => "it is gone".to_owned(),
        };
        return Err(Error::Corrupt { at: store.place(&part.object), detail });
    }
    Ok(())
}

/// Removes a backup: its manifest first, so that what is left when this fails is none. What is absent already is no error.
pub async fn remove_backup(store: &Store, id: &BackupId) -> Result<(), Error> {
    store.delete(&id.manifest()).await?;
    let objects = store.list(&id.folder()).await?;
    store.delete_all(objects.into_iter().map(|object| object.object)).await?;
    store.clear(&id.folder()).await
}

/// Removes what an agent that was killed in the middle of a write has left on a volume, if it is older than a moment that no write
/// takes (a day ago); how many files. Object stores keep such things to themselves: there a rule of the bucket
/// (AbortIncompleteMultipartUpload) does it.
pub async fn sweep(store: &Store, older_than: Timestamp) -> Result<usize, Error> {
    let mut swept = 0;
    for (path, modified) in store.leftovers("").await? {
        if modified < older_than {
            tokio::fs::remove_file(&path).await.map_err(Error::io("remove", path))?;
            swept += 1;
        }
    }
    Ok(swept)
}
