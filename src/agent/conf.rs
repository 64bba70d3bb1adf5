//! PostgreSQL's configuration, from the operator's, the container's and the role.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::Error;
use super::files::Secrets;
use super::postmaster::Files;
use super::sql::Socket;
use super::volume::{Chosen, Layout, disk};
use crate::api::config::ClusterConfig;
use crate::api::names::PORT_POSTGRES;
use crate::core::election::{Source, SyncSetting};
use crate::core::quantity;
use crate::engine::postgres::conninfo::Upstream;
use crate::engine::postgres::control::Critical;
use crate::engine::postgres::settings::{self, Archiving, Own, Role};
use crate::engine::postgres::{Major, hba, slots, sync_names};

/// What the configuration of one instance depends on and that does not change while the agent runs.
#[derive(Debug, Clone)]
pub struct Place {
    /// Name of the instance.
    pub instance: String,
    /// Memory limit of the container in bytes; 0: none.
    pub memory: u64,
    /// Its volumes.
    pub layout: Layout,
    /// Its socket.
    pub socket: Socket,
    /// Its Secrets.
    pub secrets: Secrets,
    /// How PostgreSQL reaches the agent for its archive.
    pub archiver: Archiver,
}

/// The commands by which PostgreSQL hands WAL to the agent, and asks for it.
#[derive(Debug, Clone)]
pub struct Archiver {
    /// Our own binary.
    pub program: PathBuf,
    /// The agent's socket.
    pub socket: PathBuf,
}

impl Archiver {
    fn command(&self, what: &str) -> String {
        format!("\"{}\" {what} --socket \"{}\"", self.program.display(), self.socket.display())
    }
    /// archive_command
    pub fn archive_command(&self) -> String {
        format!("{} \"%p\"", self.command("archive"))
    }
    /// restore_command
    pub fn fetch_command(&self) -> String {
        format!("{} %f \"%p\"", self.command("fetch"))
    }
}

/// Whether it shall take writes, or whom it shall follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Aim {
    /// Takes writes; commits wait for these.
    Primary(SyncSetting),
    /// Is about to take writes: commits wait for these from the first on.
    Promotion(SyncSetting),
    /// Follows.
    Standby {
        /// Own member id.
        member: String,
        /// Whom.
        source: Option<Source>,
        /// The primary's settings in the control file.
        critical: Option<Critical>,
    },
}

impl Place {
    /// The files of the data directory. `full`: whether a volume is full, so that clients shall not write.
    pub fn files(&self, config: &ClusterConfig, chosen: &Chosen, aim: &Aim, full: bool) -> Result<Files, Error> {
        let version_file = self.layout.pgdata().join("PG_VERSION");
        let version = std::fs::read_to_string(&version_file).map_err(Error::io("read", version_file))?;
        let standby = !matches!(aim, Aim::Primary(_));
        let own = Own {
            major: Major::parse(&version)?,
            instance: self.instance.clone(),
            socket_dir: self.socket.folder.to_string_lossy().into_owned(),
            port: self.socket.port,
            tls: self.secrets.tls(),
            role: self.role(config, aim)?,
            archiving: self.archiving(config),
            read_only: full && !matches!(aim, Aim::Standby { .. }),
        };
        let derived = self.derived(config, chosen)?;
        let all = settings::render(&derived, &chosen.parameters, &own);
        Ok(Files { conf: settings::text(&all), hba: hba::render(&chosen.hba), standby })
    }

    fn archiving(&self, config: &ClusterConfig) -> Archiving {
        let backup = &config.spec.backup;
        if backup.destination.is_none() || !backup.wal_archive {
            return Archiving::none();
        }
        Archiving { command: self.archiver.archive_command(), timeout: backup.archive_timeout_seconds }
    }

    /// Writes what differs of them, also where the volume is full.
    pub fn write(&self, files: &Files) -> Result<bool, Error> {
        self.layout.make_room(|| files.write(&self.layout.pgdata()))
    }

    fn role(&self, config: &ClusterConfig, aim: &Aim) -> Result<Role, Error> {
        Ok(match aim {
            Aim::Primary(sync) | Aim::Promotion(sync) => Role::Primary { sync: sync_names::any(sync.k, &sync.members) },
            Aim::Standby { member, source, critical } => {
                let upstream = match source {
                    Some(source) => Some((self.upstream(config, source)?.conninfo(member), slots::of(member))),
                    None => None,
                };
                Role::Standby { upstream, critical: *critical }
            }
        })
    }

    fn derived(&self, config: &ClusterConfig, chosen: &Chosen) -> Result<BTreeMap<String, String>, Error> {
        let storage = &config.spec.storage;
        let size = asked(storage.wal_size.as_ref().unwrap_or(&storage.size)).min(disk(self.layout.wal())?.total);
        let connections = chosen.parameters.get("max_connections").and_then(|value| value.parse().ok()).unwrap_or(100);
        Ok(settings::derived(self.memory, size, connections))
    }

    /// Where a replica of this cluster finds its primary.
    pub fn upstream(&self, config: &ClusterConfig, source: &Source) -> Result<Upstream, Error> {
        let address: IpAddr = source.address.parse().map_err(|_| Error::Invalid {
            what: "the holder's address in the Lease",
            message: source.address.clone(),
        })?;
        let (ca, certificate, key) = self.secrets.client();
        Ok(Upstream {
            instance: source.instance.clone(),
            address,
            port: PORT_POSTGRES,
            foreign_certificate: config.spec.certificates.server.is_some(),
            ca,
            certificate,
            key,
        })
    }
}

/// Bytes that were asked for: a volume may be a folder of a much larger disk that others share.
pub fn asked(size: &Quantity) -> u64 {
    quantity::parse(&size.0).and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(u64::MAX)
}
