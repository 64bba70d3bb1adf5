//! One line of PostgreSQL's log.

/// How bad a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// DEBUG1 to DEBUG5.
    Debug,
    /// LOG, INFO, NOTICE, and the lines that belong to another.
    Info,
    /// WARNING.
    Warn,
    /// ERROR, FATAL and PANIC.
    Error,
}

/// The level of a line, whatever log_line_prefix says: PostgreSQL writes the severity, a colon and two blanks.
pub fn level(line: &str) -> Level {
    const WORDS: [(&str, Level); 13] = [
        ("LOG:  ", Level::Info),
        ("ERROR:  ", Level::Error),
        ("FATAL:  ", Level::Error),
        ("PANIC:  ", Level::Error),
        ("WARNING:  ", Level::Warn),
        ("NOTICE:  ", Level::Info),
        ("INFO:  ", Level::Info),
        ("DETAIL:  ", Level::Info),
        ("HINT:  ", Level::Info),
        ("CONTEXT:  ", Level::Info),
        ("STATEMENT:  ", Level::Info),
        ("DEBUG:  ", Level::Debug),
        ("DEBUG1:  ", Level::Debug),
    ];
    WORDS
        .iter()
        .filter_map(|(word, level)| line.find(word).map(|at| (at, *level)))
        .min_by_key(|(at, _)| *at)
        .map_or(Level::Info, |(_, level)| level)
}

/// What a FATAL or PANIC of the postmaster says (those of sessions have a user before it and are theirs).
pub fn complaint(line: &str) -> Option<&str> {
    let (prefix, text) = ["FATAL:  ", "PANIC:  "].iter().find_map(|word| line.split_once(word))?;
    (!prefix.contains('@')).then_some(text)
}

/// Whether the startup process or a WAL receiver says that the WAL that this standby needs is gone from its primary.
pub fn says_wal_is_gone(line: &str) -> bool {
    line.contains("requested WAL segment") && line.contains("has already been removed")
        || line.contains("can no longer get changes from replication slot")
        || line.contains("can no longer access replication slot")
        || line.contains("cannot read from replication slot") && line.contains("invalidated")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_of_severity_counts() {
        for (line, expected) in [
            ("2026-11-30 12:00:00.000 UTC [17] LOG:  database system is ready to accept connections", Level::Info),
            ("2026-11-30 12:00:00.000 UTC [17] app@app ERROR:  relation \"LOG:  x\" does not exist", Level::Error),
            ("2026-11-30 12:00:00.000 UTC [17] STATEMENT:  select 'ERROR:  x'", Level::Info),
            ("FATAL:  terminating connection", Level::Error),
            ("\tselect 1", Level::Info),
            ("WARNING:  canceling wait for synchronous replication", Level::Warn),
        ] {
            assert_eq!(level(line), expected, "{line}");
        }
    }

    #[test]
    fn what_postgres_itself_dies_of_is_told_from_what_a_session_dies_of() {
        let own = "2026-11-30 12:00:00.000 UTC [17] FATAL:  configuration file \"x\" contains errors";
        assert_eq!(complaint(own), Some("configuration file \"x\" contains errors"));
        assert_eq!(complaint("2026-11-30 12:00:00.000 UTC [17] app@app FATAL:  password authentication failed"), None);
        assert_eq!(complaint("2026-11-30 12:00:00.000 UTC [17] LOG:  ready"), None);
    }

    #[test]
    fn a_standby_that_cannot_catch_up_is_known_by_what_it_says() {
        assert!(says_wal_is_gone(
            "FATAL:  could not receive data from WAL stream: ERROR:  requested WAL segment 000000010000000000000003 has already been removed"
        ));
        assert!(says_wal_is_gone(
            "FATAL:  could not start WAL streaming: ERROR:  cannot read from replication slot \"x\"\tDETAIL:  This slot has been invalidated because it exceeded the maximum reserved size."
        ));
        assert!(!says_wal_is_gone("LOG:  started streaming WAL from primary at 0/3000000 on timeline 1"));
    }
}
