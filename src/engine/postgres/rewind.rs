//! What pg_rewind says (with LC_ALL=C and --progress).

/// How far it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It only reads.
    Looking,
    /// It may have written.
    Writing,
}

impl Stage {
    /// After it said this line.
    #[must_use]
    pub fn after(self, line: &str) -> Self {
        // The last thing that it says before it writes.
        if line.contains("need to copy ") { Self::Writing } else { self }
    }
}

/// Whether it can never succeed with this data, by what it said at its end.
pub fn hopeless(said: &str) -> bool {
    [
        // WAL back to where the histories parted is gone.
        "could not find previous WAL record",
        "could not read WAL record",
        "could not find common ancestor",
        "needs to use either data checksums",
    ]
    .iter()
    .any(|reason| said.contains(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    // As PostgreSQL 15 and 17 say it.
    const SAID: &str = "pg_rewind: connected to server
pg_rewind: servers diverged at WAL location 0/3000148 on timeline 1
pg_rewind: rewinding from last common checkpoint at 0/2000060 on timeline 1
pg_rewind: reading source file list
pg_rewind: reading target file list
pg_rewind: reading WAL in target
pg_rewind: need to copy 52 MB (total source directory size is 75 MB)
    0/53862 kB (0%) copied";

    #[test]
    fn it_writes_nothing_before_it_says_how_much() {
        let after = |lines: usize| SAID.lines().take(lines).fold(Stage::Looking, Stage::after);
        assert_eq!(after(6), Stage::Looking);
        assert_eq!(after(7), Stage::Writing);
        assert_eq!(after(8), Stage::Writing);
    }

    #[test]
    fn what_another_attempt_may_change_is_not_hopeless() {
        assert!(hopeless("pg_rewind: error: could not find previous WAL record at 0/2000060: could not open file"));
        assert!(!hopeless(
            "pg_rewind: error: connection to server at \"127.0.0.1\", port 1 failed: Connection refused"
        ));
        assert!(!hopeless("pg_rewind: error: source and target clusters are from different systems"));
    }
}
