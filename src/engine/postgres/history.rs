//! Timeline history files: the parents of a timeline, and where each was left.

use crate::api::agent::Lsn;

/// All that stands in the history file of a timeline id that was reserved and never used: PostgreSQL takes the next id after
/// those that it finds.
///
/// It names no parent, so PostgreSQL never takes the id for a timeline to follow. One that named the present timeline was taken
/// for the parent of the promoted one, and then no WAL before the promotion could be streamed from it.
pub const PLACEHOLDER: &str = "# reserved by hello-operator\n";

/// Name of the history file of a timeline, in pg_wal.
pub fn file_name(timeline: u32) -> String {
    format!("{timeline:08X}.history")
}

/// The parents in a history file with the position at which each was left, oldest first. Lines that are none are passed over,
/// as PostgreSQL does with comments.
pub fn parse(text: &str) -> Vec<(u32, Lsn)> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_reads_as_postgres_writes_it() {
        let text = "1\t0/3000148\tno recovery target specified\n\n2\t0/50000A0\tno recovery target specified\n";
        assert_eq!(parse(text), [(1, Lsn(0x300_0148)), (2, Lsn(0x500_00A0))]);
        assert_eq!(file_name(26), "0000001A.history");
        assert_eq!(parse(PLACEHOLDER), []);
    }
}
