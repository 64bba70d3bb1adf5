//! Timeline history files: the parents of a timeline, and where each was left.

use crate::api::agent::Lsn;

/// Reason in the history file of a timeline id that was reserved and never used.
pub const RESERVED: &str = "reserved by hello-operator";

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

/// The history file that reserves an id for nobody: PostgreSQL takes the next id after those that it finds.
pub fn placeholder(parents: &[(u32, Lsn)]) -> String {
    parents.iter().map(|(timeline, left)| format!("{timeline}\t{left}\t{RESERVED}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_reads_as_postgres_writes_it() {
        let text = "1\t0/3000148\tno recovery target specified\n\n2\t0/50000A0\tno recovery target specified\n";
        assert_eq!(parse(text), [(1, Lsn(0x300_0148)), (2, Lsn(0x500_00A0))]);
        assert_eq!(file_name(26), "0000001A.history");
    }

    #[test]
    fn a_placeholder_is_a_history() {
        let parents = [(1, Lsn(0x300_0148)), (2, Lsn(0x500_00A0))];
        assert_eq!(parse(&placeholder(&parents)), parents);
    }
}
