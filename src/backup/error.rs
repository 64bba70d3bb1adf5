//! What can go wrong with a destination: in a sentence that says which object and what to do, and never with a secret or an
//! address that could hold one.

use std::path::PathBuf;

use crate::api::Category;

/// What can go wrong. `at` is an object's place for people: `s3://bucket/root/object`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object is certainly not there.
    #[error("{at} is not there")]
    NotFound {
        /// Which object.
        at: String,
    },
    /// The credentials were refused, or allow too little.
    #[error(
        "the destination refuses our credentials for {at} ({reason}); look whether the Secret or the workload identity is right \
         and may read, write, list and delete there"
    )]
    Unauthorized {
        /// Which object.
        at: String,
        /// What the destination said.
        reason: String,
    },
    /// The bucket, container or volume is not there.
    #[error("{destination} is not there ({reason}); create the bucket, container or volume, or correct its name")]
    NoBucket {
        /// Which.
        destination: String,
        /// What the destination said.
        reason: String,
    },
    /// Something else stands under that name.
    #[error(
        "{at} exists already with other content ({detail}); it is not overwritten: look whether another cluster writes there"
    )]
    Conflict {
        /// Which object.
        at: String,
        /// What differs.
        detail: String,
    },
    /// What is stored is not what was stored.
    #[error("{at} is damaged ({detail}); it cannot be used: restore it from a copy, or take a new backup")]
    Corrupt {
        /// Which object.
        at: String,
        /// How that was seen.
        detail: String,
    },
    /// No answer in time, retries included.
    #[error(
        "no answer in time: {what} {at} took longer than {seconds} s; it is tried again later: look at network and load"
    )]
    Timeout {
        /// Which object.
        at: String,
        /// What was tried.
        what: &'static str,
        /// How long that may take.
        seconds: u64,
    },
    /// The destination failed or cannot be reached, retries included.
    #[error(
        "{what} {at} failed ({reason}); it is tried again later: look whether the destination can be reached and works"
    )]
    Unavailable {
        /// Which object.
        at: String,
        /// What was tried.
        what: &'static str,
        /// What was seen.
        reason: String,
    },
    /// The destination belongs to another cluster.
    #[error(
        "{destination} belongs to {cluster} (archive {archive}), not to archive {wanted}; give this cluster a path of its own, or \
         remove what stands there if nobody needs it"
    )]
    OtherOwner {
        /// Which destination.
        destination: String,
        /// Whose it is.
        cluster: String,
        /// The archive that stands there.
        archive: String,
        /// The archive that was to be written.
        wanted: String,
    },
    /// A file or folder on this machine, or on a volume that is the destination.
    #[error("{what} {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// It cannot be as it was asked for.
    #[error("{0}")]
    Refused(String),
}

/// The kind of an [`Error`], for conditions and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// [`Error::NotFound`]
    NotFound,
    /// [`Error::Unauthorized`]
    Unauthorized,
    /// [`Error::NoBucket`]
    NoBucket,
    /// [`Error::Conflict`]
    Conflict,
    /// [`Error::Corrupt`]
    Corrupt,
    /// [`Error::Timeout`]
    Timeout,
    /// [`Error::Unavailable`]
    Unavailable,
    /// [`Error::OtherOwner`]
    OtherOwner,
    /// [`Error::Io`]
    Io,
    /// [`Error::Refused`]
    Refused,
}

impl Error {
    /// Which of them it is.
    pub fn kind(&self) -> Kind {
        match self {
            Self::NotFound { .. } => Kind::NotFound,
            Self::Unauthorized { .. } => Kind::Unauthorized,
            Self::NoBucket { .. } => Kind::NoBucket,
            Self::Conflict { .. } => Kind::Conflict,
            Self::Corrupt { .. } => Kind::Corrupt,
            Self::Timeout { .. } => Kind::Timeout,
            Self::Unavailable { .. } => Kind::Unavailable,
            Self::OtherOwner { .. } => Kind::OtherOwner,
            Self::Io { .. } => Kind::Io,
            Self::Refused(_) => Kind::Refused,
        }
    }
    /// What kind of trouble it is.
    pub fn category(&self) -> Category {
        match self {
            Self::Timeout { .. } => Category::Timeout,
            Self::Io { .. } => Category::Io,
            Self::Refused(_) => Category::Invalid,
            _ => Category::Store,
        }
    }
    /// For `map_err` of file operations.
    pub fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }
}
