//! What the store holds, and what of it goes: the primary's agent looks and removes, by the retention.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::Error;
use super::archive::Archive;
use super::base_backup::entry;
use crate::api::agent::Lsn;
use crate::api::archive::{CatalogReport, Expiring, StoreError};
use crate::backup::catalog::{self, State};
use crate::backup::layout::WalFile;
use crate::backup::store::Store;
use crate::backup::wal;
use crate::core::backup::{Entry, Policy, Retention, Wal, WalRange, recoverable_from, retention};
use crate::engine::postgres::history;

/// Between two looks.
pub const EVERY: Duration = Duration::from_mins(10);
/// What was begun this long ago and has no manifest never will have one.
const ABANDONED: SignedDuration = SignedDuration::from_hours(24);

/// Looks at the store and removes what the retention lets go. `running` are the positions at which the WAL begins that backups need
/// which are being taken.
pub async fn look(archive: &Arc<Archive>, policy: &Policy, running: &[Lsn]) -> CatalogReport {
    let mut report = CatalogReport::default();
    if let Err(error) = try_look(archive, policy, running, &mut report).await {
        tracing::warn!(%error, category = error.category().as_str(), "the catalogue of backups");
        report.error = Some(StoreError { category: error.category(), message: error.to_string() });
    }
    report
}

async fn try_look(
    archive: &Arc<Archive>,
    policy: &Policy,
    running: &[Lsn],
    report: &mut CatalogReport,
) -> Result<(), Error> {
    let (store, _) = archive.own_store().await?;
    let found = archive.known.lock().await.backups(&store).await?;
    let listing = wal::list(&store).await?;
    let wal = wal_of_listing(&store, &found, &listing).await?;
    let now = Timestamp::now();
    let broken = found.iter().find_map(|found| match &found.state {
        State::Broken(error) => Some(error),
        _ => None,
    });
    // What cannot be read may be what another one would have to be kept for: nothing goes until somebody has looked.
    let plan = match broken {
        Some(_) => Retention::default(),
        None => retention(&entries(&found), running, &wal, now, policy),
    };
    remove_expired(&store, &listing, &wal, &plan).await?;
    for unfinished in &found {
        if let State::Unfinished { newest, bytes } = &unfinished.state
            && now.duration_since(*newest) > ABANDONED
        {
            tracing::info!(backup = %unfinished.id, bytes, "removes what an unfinished backup left");
            catalog::remove_backup(&store, &unfinished.id).await?;
        }
    }
    if let Ok(long_ago) = now.checked_sub(ABANDONED) {
        catalog::sweep(&store, long_ago).await?;
    }
    let kept: Vec<_> =
        found.iter().filter(|found| !plan.backups.iter().any(|gone| gone.id == found.id.to_string())).collect();
    report.backups = kept
        .iter()
        .filter_map(|found| match &found.state {
            State::Complete(summary) => Some(entry(summary)),
            _ => None,
        })
        .collect();
    let left: Vec<Entry> = entries_of(kept.iter().copied());
    let later = now.checked_add(SignedDuration::try_from(EVERY).unwrap_or_default()).unwrap_or(now);
    report.expiring = retention(&left, running, &wal, later, policy)
        .backups
        .into_iter()
        .map(|gone| Expiring { backup_id: gone.id, reason: gone.reason })
        .collect();
    report.recoverable_from = recoverable_from(&left, &wal).map(|from| from.to_string());
    report.oldest_wal = wal.unbroken_from().map(|(timeline, number)| wal.name(timeline, number));
    report.read_at = Some(now.to_string());
    if let Some(broken) = broken {
        let message = format!("nothing is removed while a backup cannot be read: {broken}");
        report.error = Some(StoreError { category: broken.category(), message });
    }
    Ok(())
}

async fn remove_expired(store: &Store, listing: &wal::Listing, wal: &Wal, plan: &Retention) -> Result<(), Error> {
    for gone in &plan.backups {
        tracing::info!(backup = gone.id, reason = gone.reason, "removes a backup");
        let id = gone.id.parse().map_err(|_| Error::Invalid {
            what: "the catalogue",
            message: format!("{:?} is no id of a backup", gone.id),
        })?;
        catalog::remove_backup(store, &id).await?;
    }
    let Some(before) = plan.wal_before else { return Ok(()) };
    let per_log = (1_u64 << 32) / wal.segment_size.max(1);
    let old = |segment: &crate::backup::layout::Segment| {
        u64::from(segment.log) * per_log + u64::from(segment.number) < before
    };
    let gone: Vec<WalFile> = listing
        .segments
        .iter()
        .filter(|segment| old(segment))
        .map(|segment| WalFile::Segment(*segment))
        .chain(listing.partials.iter().filter(|segment| old(segment)).map(|segment| WalFile::Partial(*segment)))
        .collect();
    if !gone.is_empty() {
        tracing::info!(files = gone.len(), reason = plan.wal_reason, "removes WAL from the archive");
        wal::remove(store, &gone).await?;
    }
    Ok(())
}

/// The complete ones, as decisions are made of them.
pub fn entries(found: &[catalog::Entry]) -> Vec<Entry> {
    entries_of(found.iter())
}

fn entries_of<'a>(found: impl Iterator<Item = &'a catalog::Entry>) -> Vec<Entry> {
    found
        .filter_map(|found| match &found.state {
            State::Complete(summary) => Some(Entry {
                id: summary.id.to_string(),
                major: summary.major,
                started_at: summary.started_at,
                stopped_at: summary.stopped_at,
                timeline: summary.timeline,
                start_lsn: summary.start_lsn,
                stop_lsn: summary.stop_lsn,
            }),
            _ => None,
        })
        .collect()
}

/// What WAL the archive holds.
pub async fn wal_of(store: &Store, found: &[catalog::Entry]) -> Result<Wal, Error> {
    let listing = wal::list(store).await?;
    wal_of_listing(store, found, &listing).await
}

async fn wal_of_listing(store: &Store, found: &[catalog::Entry], listing: &wal::Listing) -> Result<Wal, Error> {
    let size = found.iter().rev().find_map(|found| match &found.state {
        State::Complete(summary) => Some(summary.segment_size),
        _ => None,
    });
    let size = match size {
        Some(size) => size,
        // Each segment says how long it is; without one, no number follows from it.
        None => wal::size(store, listing).await?.unwrap_or_default(),
    };
    let segment_size = size.bytes();
    let per_log = (1_u64 << 32) / segment_size;
    let number =
        |segment: &crate::backup::layout::Segment| u64::from(segment.log) * per_log + u64::from(segment.number);
    let ranges = listing
        .ranges(size)
        .into_iter()
        .flat_map(|(timeline, ranges)| ranges.into_iter().map(move |range| (timeline, range)).collect::<Vec<_>>())
        .map(|(timeline, range)| WalRange { timeline, first: number(range.start()), last: number(range.end()) })
        .collect();
    let mut histories = BTreeMap::new();
    for timeline in &listing.histories {
        if let Some(text) = wal::history(store, *timeline).await? {
            histories.insert(*timeline, history::parse(&text));
        }
    }
    Ok(Wal { segment_size, ranges, histories })
}
