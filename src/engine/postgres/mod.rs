//! PostgreSQL as the engine: settings, connection strings, host-based authentication and the parsing of its answers.
//! Text in, text out: who writes the files and runs the programs is the agent.

pub mod conninfo;
pub mod control;
pub mod hba;
pub mod history;
pub mod logline;
pub mod quote;
pub mod rewind;
pub mod settings;
pub mod slots;
pub mod sync_names;

/// A text that PostgreSQL should never have given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// pg_controldata printed no such line.
    #[error("pg_controldata printed no line {0:?}")]
    Missing(&'static str),
    /// A value that cannot be read.
    #[error("pg_controldata printed {value:?} as {name:?}")]
    Invalid {
        /// The line's name.
        name: &'static str,
        /// What stood there.
        value: String,
    },
    /// A version that cannot be read.
    #[error("{0:?} is no version of PostgreSQL")]
    Version(String),
}

impl ParseError {
    /// What kind of trouble it is.
    pub fn category(&self) -> crate::api::Category {
        crate::api::Category::Engine
    }
}

/// A major version of PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Major(pub u16);

impl Major {
    /// From the file PG_VERSION, or what `postgres --version` prints (`postgres (PostgreSQL) 17.2 (Debian 17.2-1)`).
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let invalid = || ParseError::Version(text.trim().to_owned());
        let version = text.trim().rsplit_once("(PostgreSQL) ").map_or(text.trim(), |(_, version)| version);
        let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().map(Self).map_err(|_| invalid())
    }
    /// Whether ALTER SYSTEM can be turned off.
    pub fn has_allow_alter_system(self) -> bool {
        self.0 >= 17
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_from_the_file_and_from_the_program() {
        assert_eq!(Major::parse("15\n"), Ok(Major(15)));
        assert_eq!(Major::parse("postgres (PostgreSQL) 17.12 (Debian 17.12-1.pgdg12+1)\n"), Ok(Major(17)));
        assert_eq!(Major::parse("postgres (PostgreSQL) 18beta1"), Ok(Major(18)));
        assert!(Major::parse("mysql").is_err());
    }
}
