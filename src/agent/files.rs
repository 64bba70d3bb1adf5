//! The mounted Secrets: certificates and passwords.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::Error;
use crate::engine::postgres::settings::Tls;

/// Where the Secrets are mounted.
#[derive(Debug, Clone)]
pub struct Secrets {
    root: PathBuf,
}

/// Name and password of a role.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Name of the role.
    pub username: String,
    /// Its password.
    pub password: String,
}

impl Secrets {
    /// Mounted below this folder.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }
    /// A file: `part` is app, superuser, server or replication.
    pub fn file(&self, part: &str, key: &str) -> PathBuf {
        self.root.join(part).join(key)
    }
    fn text(&self, part: &str, key: &str) -> String {
        self.file(part, key).to_string_lossy().into_owned()
    }
    /// The files that PostgreSQL's configuration names.
    pub fn tls(&self) -> Tls {
        Tls {
            certificate: self.text("server", "tls.crt"),
            key: self.text("server", "tls.key"),
            client_ca: self.text("replication", "ca.crt"),
        }
    }
    /// Authority, client certificate and key of a replica's connection.
    pub fn client(&self) -> (String, String, String) {
        (self.text("server", "ca.crt"), self.text("replication", "tls.crt"), self.text("replication", "tls.key"))
    }
    /// Name and password of a role.
    pub fn credentials(&self, part: &str) -> Result<Credentials, Error> {
        let read = |key: &str| {
            let path = self.file(part, key);
            std::fs::read_to_string(&path).map_err(Error::io("read", path))
        };
        Ok(Credentials { username: read("username")?, password: read("password")? })
    }
    /// A hash over files, which changes when one of them does. A missing file is part of it.
    pub fn fingerprint(&self, parts: &[&str]) -> Fingerprint {
        let mut hash = Sha256::new();
        for part in parts {
            for key in ["tls.crt", "tls.key", "ca.crt", "username", "password"] {
                match std::fs::read(self.file(part, key)) {
                    Ok(bytes) => {
                        hash.update(bytes.len().to_be_bytes());
                        hash.update(bytes);
                    }
                    Err(_) => hash.update([0xFF]),
                }
            }
        }
        Fingerprint(hash.finalize().into())
    }
}

/// What files held at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

/// Reads a file.
pub fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(Error::io("read", path))
}
