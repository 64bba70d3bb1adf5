//! The timeline history beside the data.

use std::path::Path;

use super::Error;
use super::volume::replace_file;
use crate::api::agent::Lsn;
use crate::engine::postgres::history::{file_name, parse, placeholder};

/// The parents of a timeline with the position at which each was left; none for the first timeline.
pub fn history_of(pgdata: &Path, timeline: u32) -> Vec<(u32, Lsn)> {
    let path = pgdata.join("pg_wal").join(file_name(timeline));
    std::fs::read_to_string(path).map(|text| parse(&text)).unwrap_or_default()
}

/// Makes the next promotion take exactly the timeline `target`: each id between gets a history file, unless it has one.
/// They must stay, because replicas fetch the file of each id by name.
pub fn reserve(pgdata: &Path, timeline: u32, end: Lsn, target: u32) -> Result<(), Error> {
    let mut parents = history_of(pgdata, timeline);
    parents.push((timeline, end));
    for id in timeline.saturating_add(1)..target {
        let path = pgdata.join("pg_wal").join(file_name(id));
        if !path.exists() {
            replace_file(&path, placeholder(&parents).as_bytes())?;
        }
    }
    Ok(())
}
