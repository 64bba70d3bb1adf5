//! The timeline history beside the data.

use std::path::Path;

use super::Error;
use super::volume::{remove, replace_file};
use crate::api::agent::Lsn;
use crate::engine::postgres::history::{PLACEHOLDER, file_name, parse};

/// The parents of a timeline with the position at which each was left; none for the first timeline.
pub fn history_of(pgdata: &Path, timeline: u32) -> Vec<(u32, Lsn)> {
    let path = pgdata.join("pg_wal").join(file_name(timeline));
    std::fs::read_to_string(path).map(|text| parse(&text)).unwrap_or_default()
}

/// The timelines in the history of this one, itself last.
pub fn timelines(pgdata: &Path, timeline: u32) -> Vec<u32> {
    history_of(pgdata, timeline).into_iter().map(|(parent, _)| parent).chain([timeline]).collect()
}

/// Makes the next promotion from this timeline take exactly the timeline `target`: each id between gets a history file, unless
/// it has one. They must stay, because replicas fetch the file of each id by name.
pub fn reserve(pgdata: &Path, timeline: u32, target: u32) -> Result<(), Error> {
    for id in timeline.saturating_add(1)..target {
        let path = pgdata.join("pg_wal").join(file_name(id));
        if !path.exists() {
            replace_file(&path, PLACEHOLDER.as_bytes())?;
        }
    }
    Ok(())
}

/// Before a standby starts: removes the ids above its own timeline that were reserved and not used, unless a later one was used.
/// It refuses to start when the last id that it finds is no child of its own.
pub fn forget_reserved(pgdata: &Path, timeline: u32) -> Result<(), Error> {
    let folder = pgdata.join("pg_wal");
    let mut unused = Vec::new();
    // PostgreSQL looks for them in the same way: one after the other, to the first that is missing.
    for id in timeline.saturating_add(1).. {
        let path = folder.join(file_name(id));
        match std::fs::read_to_string(&path) {
            Ok(text) if text == PLACEHOLDER => unused.push(path),
            Ok(_) => unused.clear(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => break,
            Err(error) => return Err(Error::io("read", path)(error)),
        }
    }
    // From above, so that a crash in between leaves no gap.
    unused.iter().rev().try_for_each(|path| remove(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reserved_ids_above_the_last_used_one_are_forgotten() {
        let pgdata = std::env::temp_dir().join(format!("hello-history-{}", std::process::id()));
        let exists = |id| pgdata.join("pg_wal").join(file_name(id)).exists();
        std::fs::create_dir_all(pgdata.join("pg_wal")).unwrap();
        reserve(&pgdata, 1, 4).unwrap();
        assert!(exists(2) && exists(3) && !exists(4));
        std::fs::write(pgdata.join("pg_wal").join(file_name(4)), "1\t0/64\tno recovery target specified\n").unwrap();
        reserve(&pgdata, 4, 7).unwrap();
        assert_eq!((history_of(&pgdata, 6), history_of(&pgdata, 4)), (vec![], vec![(1, Lsn(100))]));
        forget_reserved(&pgdata, 1).unwrap();
        assert!(exists(2) && exists(3) && exists(4) && !exists(5) && !exists(6));
        std::fs::remove_dir_all(pgdata).unwrap();
    }
}
