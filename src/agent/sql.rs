//! Questions to the own PostgreSQL, over its unix socket; every one has an end.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::{Client, NoTls, Row};

use super::Error;
use crate::api::agent::Lsn;
use crate::api::names::SUPERUSER;
use crate::engine::postgres::quote;

/// Where the own PostgreSQL listens.
#[derive(Debug, Clone)]
pub struct Socket {
    /// Folder of the socket.
    pub folder: PathBuf,
    /// The port, which is part of the socket's name.
    pub port: u16,
}

/// A session of the agent.
pub struct Session {
    client: Client,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.task.abort();
    }
}

const CONNECT: Duration = Duration::from_secs(3);
const ANSWER: Duration = Duration::from_secs(5);
/// Whether a session has ended is looked at this often.
const LOOK: Duration = Duration::from_millis(500);

impl Socket {
    /// A socket in this folder.
    pub fn new(folder: impl AsRef<Path>, port: u16) -> Self {
        Self { folder: folder.as_ref().to_owned(), port }
    }

    /// A new session.
    ///
    /// The agent's own commits never wait for a replica: they repeat when they are lost, and a loop that waits for
    /// replicas could not bring them about. On a full volume clients do not write; what the agent writes is little.
    pub async fn open(&self, database: &str) -> Result<Session, Error> {
        let mut config = tokio_postgres::Config::new();
        config
            .host_path(&self.folder)
            .port(self.port)
            .user(SUPERUSER)
            .dbname(database)
            .application_name("hello-operator")
            .connect_timeout(CONNECT)
            .options(
                "-c synchronous_commit=local -c statement_timeout=0 -c lock_timeout=5s -c default_transaction_read_only=off",
            );
        let what = "a session";
        let (client, connection) = tokio::time::timeout(CONNECT, config.connect(NoTls))
            .await
            .map_err(|_| Error::Timeout("PostgreSQL, asked for a session,".into()))?
            .map_err(|source| Error::Sql { what, source })?;
        let task = tokio::spawn(async move {
            // How a session ends is told by the statement that it fails.
            let _ = connection.await;
        });
        Ok(Session { client, task })
    }
}

impl Session {
    /// Ends when this session has ended, whoever ended it.
    pub async fn closed(&self) {
        while !self.client.is_closed() {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Runs statements that give nothing back.
    pub async fn run(&self, what: &'static str, sql: &str) -> Result<(), Error> {
        self.run_within(what, sql, ANSWER).await
    }

    /// Runs statements that may take longer.
    pub async fn run_within(&self, what: &'static str, sql: &str, limit: Duration) -> Result<(), Error> {
        tokio::time::timeout(limit, self.client.batch_execute(sql))
            .await
            .map_err(|_| Error::Timeout(format!("PostgreSQL, asked for {what},")))?
            .map_err(|source| Error::Sql { what, source })
    }

    async fn rows(&self, what: &'static str, sql: &str) -> Result<Vec<Row>, Error> {
        tokio::time::timeout(ANSWER, self.client.query(sql, &[]))
            .await
            .map_err(|_| Error::Timeout(format!("PostgreSQL, asked for {what},")))?
            .map_err(|source| Error::Sql { what, source })
    }

    async fn row(&self, what: &'static str, sql: &str) -> Result<Row, Error> {
        let rows = self.rows(what, sql).await?;
        rows.into_iter().next().ok_or(Error::Invalid { what: "PostgreSQL's answer", message: "no row".into() })
    }

    /// Value of a setting, as this session has it.
    pub async fn setting(&self, name: &str) -> Result<String, Error> {
        let row = self.row("a setting", &format!("SELECT current_setting({})", quote::literal(name))).await?;
        get(&row, 0)
    }

    /// Id of this session's backend.
    pub async fn backend(&self) -> Result<i32, Error> {
        get(&self.row("its backend", "SELECT pg_backend_pid()").await?, 0)
    }

    /// What PostgreSQL does now.
    pub async fn status(&self) -> Result<Status, Error> {
        let row = self
            .row(
                "its status",
                "SELECT pg_is_in_recovery(),
                        CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_current_wal_flush_lsn()::text END,
                        CASE WHEN pg_is_in_recovery() THEN NULL
                             ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END,
                        pg_last_wal_receive_lsn()::text, pg_last_wal_replay_lsn()::text,
                        (SELECT received_tli FROM pg_stat_wal_receiver WHERE status = 'streaming'),
                        (SELECT sender_host FROM pg_stat_wal_receiver WHERE status = 'streaming'),
                        (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'
                            AND application_name <> 'hello-operator'),
                        current_setting('max_connections')::bigint,
                        (SELECT coalesce(sum(xact_commit), 0)::bigint FROM pg_stat_database),
                        (SELECT coalesce(sum(xact_rollback), 0)::bigint FROM pg_stat_database),
                        (SELECT coalesce(sum(blks_hit), 0)::bigint FROM pg_stat_database),
                        (SELECT coalesce(sum(blks_read), 0)::bigint FROM pg_stat_database),
                        current_setting('synchronous_standby_names'),
                        pg_is_in_recovery() AND pg_last_wal_receive_lsn() IS NULL AND NOT EXISTS (
                            SELECT FROM pg_stat_activity WHERE backend_type = 'startup'
                               AND wait_event IN ('RecoveryRetrieveRetryInterval', 'RecoveryWalStream'))",
            )
            .await?;
        let timeline: Option<String> = get(&row, 2)?;
        let received: Option<i32> = get(&row, 5)?;
        Ok(Status {
            in_recovery: get(&row, 0)?,
            flushed: position(get(&row, 1)?),
            timeline: match timeline {
                Some(hex) => u32::from_str_radix(&hex, 16).ok(),
                None => received.and_then(|timeline| u32::try_from(timeline).ok()),
            },
            received: position(get(&row, 3)?),
            replayed: position(get(&row, 4)?),
            streaming_from: get(&row, 6)?,
            connections: get(&row, 7)?,
            max_connections: get(&row, 8)?,
            commits: get(&row, 9)?,
            rollbacks: get(&row, 10)?,
            blocks_hit: get(&row, 11)?,
            blocks_read: get(&row, 12)?,
            sync_names: get(&row, 13)?,
            replaying: get(&row, 14)?,
        })
    }

    /// The standbys that are connected.
    pub async fn walsenders(&self) -> Result<Vec<Walsender>, Error> {
        let rows = self
            .rows(
                "its replicas",
                "SELECT pid, application_name, state, write_lsn::text, flush_lsn::text, replay_lsn::text
                   FROM pg_stat_replication",
            )
            .await?;
        rows.iter()
            .map(|row| {
                let state: Option<String> = get(row, 2)?;
                Ok(Walsender {
                    pid: get(row, 0)?,
                    name: get::<Option<String>>(row, 1)?.unwrap_or_default(),
                    streaming: state.as_deref() == Some("streaming"),
                    backup: state.as_deref() == Some("backup"),
                    written: position(get(row, 3)?),
                    flushed: position(get(row, 4)?),
                    replayed: position(get(row, 5)?),
                })
            })
            .collect()
    }

    /// Physical replication slots.
    pub async fn slots(&self) -> Result<Vec<Slot>, Error> {
        let rows = self
            .rows(
                "its slots",
                "SELECT slot_name, active, coalesce(wal_status, '') = 'lost',
                        CASE WHEN pg_is_in_recovery() THEN NULL
                             ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint END
                   FROM pg_replication_slots WHERE slot_type = 'physical'",
            )
            .await?;
        rows.iter()
            .map(|row| {
                Ok(Slot { name: get(row, 0)?, active: get(row, 1)?, lost: get(row, 2)?, retained: get(row, 3)? })
            })
            .collect()
    }

    /// Settings whose new value waits for a restart.
    pub async fn pending_restart(&self) -> Result<Vec<String>, Error> {
        let rows = self
            .rows("pending restarts", "SELECT name FROM pg_settings WHERE pending_restart ORDER BY name LIMIT 100")
            .await?;
        rows.iter().map(|row| get(row, 0)).collect()
    }

    /// When the postmaster had read its configuration last, as this session has it from its birth.
    pub async fn loaded_at(&self) -> Result<String, Error> {
        get(&self.row("the time of its configuration", "SELECT pg_conf_load_time()::text").await?, 0)
    }

    /// Lines of the configuration that cannot be applied, without those that only wait for a restart.
    pub async fn configuration_errors(&self) -> Result<Vec<String>, Error> {
        let rows = self
            .rows(
                "errors in its configuration",
                "SELECT coalesce(name, '') || ': ' || error FROM pg_file_settings f
                  WHERE error IS NOT NULL AND NOT EXISTS
                        (SELECT FROM pg_settings s WHERE s.name = f.name AND s.pending_restart)
                 UNION ALL
                 SELECT 'line ' || line_number || ' of pg_hba.conf: ' || error FROM pg_hba_file_rules
                  WHERE error IS NOT NULL LIMIT 10",
            )
            .await?;
        rows.iter().map(|row| get(row, 0)).collect()
    }

    /// Bytes of each database; read seldom, since PostgreSQL walks through its files.
    pub async fn database_sizes(&self) -> Result<Vec<(String, i64)>, Error> {
        let rows = self
            .rows(
                "the size of its databases",
                "SELECT datname, pg_database_size(oid) FROM pg_database WHERE datallowconn AND NOT datistemplate
                  ORDER BY 2 DESC LIMIT 50",
            )
            .await?;
        rows.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect()
    }

    /// Writes a record to the WAL and returns a position at or behind its end. Nothing waits for it.
    pub async fn write_marker(&self) -> Result<Lsn, Error> {
        self.run("a record", "SELECT pg_logical_emit_message(true, 'hello-operator', 'marker')").await?;
        let row = self.row("its position", "SELECT pg_current_wal_flush_lsn()::text").await?;
        let text: String = get(&row, 0)?;
        Lsn::from_str(&text).map_err(|error| Error::Invalid { what: "PostgreSQL's answer", message: error.to_string() })
    }

    /// Whether there is a WAL receiver.
    pub async fn has_receiver(&self) -> Result<bool, Error> {
        get(&self.row("its WAL receiver", "SELECT EXISTS (SELECT FROM pg_stat_wal_receiver)").await?, 0)
    }

    /// How far a standby that receives nothing more has come.
    pub async fn replay(&self) -> Result<Replay, Error> {
        let row = self
            .row(
                "its replay",
                "SELECT pg_last_wal_receive_lsn()::text, pg_last_wal_replay_lsn()::text, EXISTS (
                    SELECT FROM pg_stat_activity
                     WHERE backend_type = 'startup' AND wait_event = 'RecoveryRetrieveRetryInterval')",
            )
            .await?;
        Ok(Replay { received: position(get(&row, 0)?), replayed: position(get(&row, 1)?), at_end: get(&row, 2)? })
    }

    /// Ends every client's session but this one.
    pub async fn terminate_clients(&self) -> Result<(), Error> {
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
        self.run("the end of all sessions", sql).await
    }

    /// Makes a physical replication slot that keeps WAL from now on.
    pub async fn create_slot(&self, name: &str) -> Result<(), Error> {
        let name = quote::literal(name);
        self.run("a slot", &format!("SELECT pg_create_physical_replication_slot({name}, true)")).await
    }

    /// Begins a base backup and returns where its WAL begins. This session has to stay until it ends.
    pub async fn backup_start(&self, limit: Duration) -> Result<Lsn, Error> {
        let sql = "SELECT pg_backup_start('hello-operator', true)::text";
        let rows = tokio::time::timeout(limit, self.client.query(sql, &[]))
            .await
            .map_err(|_| Error::Timeout("the checkpoint before the base backup".into()))?
            .map_err(|source| Error::Sql { what: "a base backup", source })?;
        let text: Option<String> = match rows.first() {
            Some(row) => get(row, 0)?,
            None => None,
        };
        position(text).ok_or(Error::Invalid { what: "PostgreSQL's answer", message: "no position".into() })
    }

    /// Ends the base backup of this session.
    pub async fn backup_stop(&self) -> Result<BackupStop, Error> {
        let row = self
            .row(
                "the end of the base backup",
                "SELECT lsn::text, labelfile, COALESCE(spcmapfile, ''), current_setting('server_version_num')
                   FROM pg_backup_stop(false)",
            )
            .await?;
        let invalid = |message: &str| Error::Invalid { what: "PostgreSQL's answer", message: message.into() };
        let version: String = get(&row, 3)?;
        Ok(BackupStop {
            lsn: position(get(&row, 0)?).ok_or_else(|| invalid("no position"))?,
            label: get(&row, 1)?,
            tablespace_map: get(&row, 2)?,
            server_version: version.parse().map_err(|_| invalid(&version))?,
        })
    }

    /// End of the WAL on its disk: what it wrote or, a standby, received.
    pub async fn flushed(&self) -> Result<Lsn, Error> {
        let row = self
            .row(
                "the end of its WAL",
                "SELECT (CASE WHEN pg_is_in_recovery()
                         THEN GREATEST(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())
                         ELSE pg_current_wal_flush_lsn() END)::text",
            )
            .await?;
        let text: Option<String> = get(&row, 0)?;
        Ok(position(text).unwrap_or_default())
    }

    /// Databases that take sessions.
    pub async fn databases(&self) -> Result<Vec<String>, Error> {
        let rows = self.rows("its databases", "SELECT datname FROM pg_database WHERE datallowconn").await?;
        rows.iter().map(|row| get(row, 0)).collect()
    }

    /// How many relations this session's database has.
    pub async fn relations(&self) -> Result<i64, Error> {
        get(&self.row("its relations", "SELECT count(*) FROM pg_class").await?, 0)
    }

    /// Whether a query gives a row.
    pub async fn exists(&self, sql: &str) -> Result<bool, Error> {
        Ok(!self.rows("whether something is there", sql).await?.is_empty())
    }

    /// Ends a session of PostgreSQL.
    pub async fn terminate(&self, pid: i32) -> Result<(), Error> {
        self.run("the end of a session", &format!("SELECT pg_terminate_backend({pid})")).await
    }
}

fn get<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, column: usize) -> Result<T, Error> {
    row.try_get(column).map_err(|source| Error::Sql { what: "a value", source })
}

fn position(text: Option<String>) -> Option<Lsn> {
    text.and_then(|text| Lsn::from_str(&text).ok())
}

/// How a base backup ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupStop {
    /// From here on what was copied is consistent.
    pub lsn: Lsn,
    /// The file backup_label.
    pub label: String,
    /// The file tablespace_map; empty without tablespaces.
    pub tablespace_map: String,
    /// Version of the server as a number, such as 170002.
    pub server_version: u32,
}

/// What PostgreSQL does now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Whether it is a standby.
    pub in_recovery: bool,
    /// End of the flushed WAL (a primary).
    pub flushed: Option<Lsn>,
    /// Timeline that it writes, or receives.
    pub timeline: Option<u32>,
    /// End of the received WAL (a standby).
    pub received: Option<Lsn>,
    /// End of the replayed WAL (a standby).
    pub replayed: Option<Lsn>,
    /// Host from which a standby streams, as its configuration calls it.
    pub streaming_from: Option<String>,
    /// Client sessions without the agent's.
    pub connections: i64,
    /// max_connections
    pub max_connections: i64,
    /// Committed transactions since the statistics began.
    pub commits: i64,
    /// Rolled back ones.
    pub rollbacks: i64,
    /// Blocks found in the buffer cache since then.
    pub blocks_hit: i64,
    /// Blocks that were not.
    pub blocks_read: i64,
    /// synchronous_standby_names
    pub sync_names: String,
    /// Whether a standby still replays what it had when it started: it reports less than it has.
    pub replaying: bool,
}

/// How far a standby has come that receives nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replay {
    /// End of what it has received since it started, on whatever timeline; perhaps within a record.
    pub received: Option<Lsn>,
    /// End of the last record that it replayed.
    pub replayed: Option<Lsn>,
    /// Whether it found no other record on its disk, and waits.
    pub at_end: bool,
}

/// A standby that is connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walsender {
    /// Backend.
    pub pid: i32,
    /// application_name: a member id.
    pub name: String,
    /// Whether it has caught up and streams.
    pub streaming: bool,
    /// Whether it sends a base backup.
    pub backup: bool,
    /// Position written there.
    pub written: Option<Lsn>,
    /// Position flushed there.
    pub flushed: Option<Lsn>,
    /// Position replayed there.
    pub replayed: Option<Lsn>,
}

/// A physical replication slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Name.
    pub name: String,
    /// Whether somebody streams from it.
    pub active: bool,
    /// Whether WAL that it needs is gone.
    pub lost: bool,
    /// Bytes of WAL that it keeps.
    pub retained: Option<i64>,
}
