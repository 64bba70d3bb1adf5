//! What can go wrong in an agent.

use std::path::PathBuf;

use crate::api::Category;
use crate::engine::postgres::ParseError;

/// What can go wrong in an agent.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder.
    #[error("{what} {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Another agent works on this volume.
    #[error("the volume is in use by another agent: {0} is locked")]
    Locked(PathBuf),
    /// A program could not be started or ended badly.
    #[error("{program} {outcome}")]
    Program {
        /// Its name.
        program: String,
        /// How it ended, with the last lines that it said.
        outcome: String,
    },
    /// No answer in time.
    #[error("{0} did not end in time")]
    Timeout(String),
    /// PostgreSQL answered with an error, or not at all.
    #[error("PostgreSQL, asked for {what}: {}", said(source))]
    Sql {
        /// What it was asked for.
        what: &'static str,
        /// What it said.
        source: tokio_postgres::Error,
    },
    /// A statement of the user failed.
    #[error("statement {number} of spec.postgresql.initSQL failed: {message}")]
    InitSql {
        /// Which one, counted from 1.
        number: usize,
        /// What PostgreSQL said.
        message: String,
    },
    /// PostgreSQL said something unexpected.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// A key or certificate.
    #[error("{path}: {message}")]
    Tls {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// The API server.
    #[error("the API server, asked for {what}: {source}")]
    Api {
        /// What it was asked for.
        what: &'static str,
        /// What it said.
        source: Box<kube::Error>,
    },
    /// Another agent.
    #[error("the agent of {instance}: {message}")]
    Peer {
        /// Whose agent.
        instance: String,
        /// What it said.
        message: String,
    },
    /// Another agent answered that it does not do it.
    #[error("the agent of {instance} refused: {message}")]
    Refused {
        /// Whose agent.
        instance: String,
        /// Why.
        message: String,
    },
    /// The store of backups.
    #[error(transparent)]
    Store(#[from] crate::backup::Error),
    /// What several waited for.
    #[error("{0}")]
    Shared(std::sync::Arc<Error>),
    /// What is to be restored cannot be.
    #[error(transparent)]
    Restore(#[from] crate::core::backup::Refusal),
    /// A file that somebody else wrote and that cannot be understood.
    #[error("{what} cannot be read: {message}")]
    Invalid {
        /// Which.
        what: &'static str,
        /// Why.
        message: String,
    },
}

/// What PostgreSQL said; the library tells only that it said something.
pub fn said(error: &tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned())
}

impl Error {
    /// What kind of trouble it is.
    pub fn category(&self) -> Category {
        match self {
            Self::Io { .. } | Self::Locked(_) => Category::Io,
            Self::Program { .. } | Self::Sql { .. } => Category::Engine,
            Self::Timeout(_) => Category::Timeout,
            Self::InitSql { .. } | Self::Invalid { .. } => Category::Invalid,
            Self::Parse(error) => error.category(),
            Self::Tls { .. } => Category::Tls,
            Self::Api { source, .. } => match source.as_ref() {
                kube::Error::Api(status) if status.code == 409 => Category::Conflict,
                kube::Error::Api(status) if status.code == 403 => Category::Forbidden,
                _ => Category::Api,
            },
            Self::Store(error) => error.category(),
            Self::Shared(error) => error.category(),
            Self::Restore(error) => error.category(),
            Self::Peer { .. } | Self::Refused { .. } => Category::Agent,
        }
    }

    /// Whether a volume had no room.
    pub fn disk_is_full(&self) -> bool {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, Self::Io { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded))
    }

    /// For `map_err` of file operations.
    pub fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }
}
