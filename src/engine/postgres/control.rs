//! What pg_controldata prints (with LC_ALL=C).

use super::ParseError;
use crate::api::agent::Lsn;

/// The control file of a data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlData {
    /// Names the database cluster; all its members have the same.
    pub system_id: String,
    /// How it was last left.
    pub state: ClusterState,
    /// Position of the latest checkpoint.
    pub checkpoint: Lsn,
    /// Timeline of the latest checkpoint.
    pub timeline: u32,
    /// Replay must have come this far before the data is consistent.
    pub min_recovery: Lsn,
    /// Timeline of that position; 0 where there is none.
    pub min_recovery_timeline: u32,
    /// Settings of the primary that a standby may not go below.
    pub critical: Critical,
    /// Whether data pages have checksums.
    pub checksums: bool,
    /// Bytes of a segment of WAL.
    pub segment_size: u32,
}

/// Settings that a standby may not go below without stopping its replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Critical {
    /// max_connections
    pub max_connections: u32,
    /// max_worker_processes
    pub max_worker_processes: u32,
    /// max_wal_senders
    pub max_wal_senders: u32,
    /// max_prepared_transactions
    pub max_prepared_transactions: u32,
    /// max_locks_per_transaction
    pub max_locks_per_transaction: u32,
}

impl Critical {
    /// The settings by name.
    pub fn pairs(&self) -> [(&'static str, u32); 5] {
        [
            ("max_connections", self.max_connections),
            ("max_worker_processes", self.max_worker_processes),
            ("max_wal_senders", self.max_wal_senders),
            ("max_prepared_transactions", self.max_prepared_transactions),
            ("max_locks_per_transaction", self.max_locks_per_transaction),
        ]
    }
}

/// How a data directory was last left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterState {
    /// A primary that was shut down cleanly.
    ShutDown,
    /// A standby that was shut down cleanly.
    ShutDownInRecovery,
    /// A primary that runs or crashed.
    InProduction,
    /// A standby that runs or crashed.
    InArchiveRecovery,
    /// Anything else: in the middle of a shutdown or of crash recovery.
    Other,
}

impl ControlData {
    /// Reads what pg_controldata printed.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let checksum: u32 = number(text, "Data page checksum version")?;
        Ok(Self {
            system_id: field(text, "Database system identifier")?.to_owned(),
            state: match field(text, "Database cluster state")? {
                "shut down" => ClusterState::ShutDown,
                "shut down in recovery" => ClusterState::ShutDownInRecovery,
                "in production" => ClusterState::InProduction,
                "in archive recovery" => ClusterState::InArchiveRecovery,
                _ => ClusterState::Other,
            },
            checkpoint: number(text, "Latest checkpoint location")?,
            timeline: number(text, "Latest checkpoint's TimeLineID")?,
            min_recovery: number(text, "Minimum recovery ending location")?,
            min_recovery_timeline: number(text, "Min recovery ending loc's timeline")?,
            critical: Critical {
                max_connections: number(text, "max_connections setting")?,
                max_worker_processes: number(text, "max_worker_processes setting")?,
                max_wal_senders: number(text, "max_wal_senders setting")?,
                max_prepared_transactions: number(text, "max_prepared_xacts setting")?,
                max_locks_per_transaction: number(text, "max_locks_per_xact setting")?,
            },
            checksums: checksum != 0,
            segment_size: number(text, "Bytes per WAL segment")?,
        })
    }

    /// Whether it was shut down cleanly.
    pub fn clean(&self) -> bool {
        matches!(self.state, ClusterState::ShutDown | ClusterState::ShutDownInRecovery)
    }

    /// Timeline and position that the data certainly reaches; after a clean stop of a primary exactly the end of its WAL.
    pub fn reached(&self) -> (u32, Lsn) {
        if self.state == ClusterState::ShutDown {
            return (self.timeline, end_of_checkpoint(self.checkpoint));
        }
        (self.timeline.max(self.min_recovery_timeline), self.checkpoint.max(self.min_recovery))
    }
}

/// End of the checkpoint record that begins here. It has 114 bytes in 15 to 18; where it crosses into the next page, that
/// page's header comes on top, and a record ends on a multiple of 8.
fn end_of_checkpoint(start: Lsn) -> Lsn {
    const RECORD: u64 = 114;
    const PAGE: u64 = 8192;
    const SEGMENT: u64 = 16 * 1024 * 1024;
    let left = PAGE - start.0 % PAGE;
    let mut end = start.0 + RECORD;
    if RECORD > left {
        let next_page = start.0 + left;
        end += if next_page.is_multiple_of(SEGMENT) { 40 } else { 24 };
    }
    Lsn(end.next_multiple_of(8))
}

fn field<'a>(text: &'a str, name: &'static str) -> Result<&'a str, ParseError> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
        .ok_or(ParseError::Missing(name))
}

fn number<T: std::str::FromStr>(text: &str, name: &'static str) -> Result<T, ParseError> {
    let value = field(text, name)?;
    value.parse().map_err(|_| ParseError::Invalid { name, value: value.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REAL: &str = include_str!("testdata/controldata-15.txt");

    #[test]
    fn a_real_output_is_read() {
        let data = ControlData::parse(REAL).unwrap();
        assert_eq!(data.system_id, "7713935230952752697");
        assert_eq!(data.state, ClusterState::ShutDown);
        assert_eq!(data.checkpoint.to_string(), "0/17529B0");
        assert_eq!((data.timeline, data.min_recovery), (1, Lsn(0)));
        assert_eq!(data.critical.max_connections, 100);
        assert!(data.checksums && data.clean());
        assert_eq!(data.segment_size, 16 << 20);
    }

    #[test]
    fn a_clean_stop_ends_behind_its_checkpoint() {
        // pg_waldump of the real one: rmgr: XLOG len (rec/tot): 114/114, lsn: 0/017529B0, next record would be 0/1752A28.
        assert_eq!(ControlData::parse(REAL).unwrap().reached(), (1, "0/1752A28".parse().unwrap()));
        assert_eq!(
            end_of_checkpoint(Lsn(0x1FC0)),
            Lsn(0x1FC0 + 144),
            "114 and a page header of 24, on a multiple of 8"
        );
        assert_eq!(end_of_checkpoint(Lsn(0xFF_FFC0)), Lsn(0xFF_FFC0 + 160), "the header of a segment has 40");
    }

    #[test]
    fn a_missing_or_broken_line_is_named() {
        let broken = REAL.replace("0/17529B0", "?");
        assert_eq!(
            ControlData::parse(&broken),
            Err(ParseError::Invalid { name: "Latest checkpoint location", value: "?".into() })
        );
        assert_eq!(ControlData::parse(""), Err(ParseError::Missing("Data page checksum version")));
    }
}
