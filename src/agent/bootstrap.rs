//! The first data directory of a cluster.
//!
//! It is made beside the live one, behind a socket that nobody else can reach, and becomes data in one step only after
//! everything in it was synced: a crash in the middle leaves nothing that can be taken for data.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use tokio::process::Command;

use super::Error;
use super::files::Credentials;
use super::process::{Processes, Running};
use super::sql::Socket;
use super::tool::{Lines, Tool};
use super::volume::{Layout, Staged, make_private, remove};
use crate::api::names::{REPLICATION_USER, SUPERUSER};
use crate::engine::postgres::control::ControlData;
use crate::engine::postgres::{hba, quote};

/// How long a statement of the user's initSQL may run.
const INIT_SQL_LIMIT: Duration = Duration::from_mins(10);
/// How long the private PostgreSQL may take to start and to stop.
const START_LIMIT: Duration = Duration::from_mins(1);

/// What the first data directory shall hold.
#[derive(Clone)]
pub struct Wish {
    /// Its member id.
    pub member: String,
    /// The superuser's password.
    pub superuser: Credentials,
    /// The application's role.
    pub owner: Credentials,
    /// The application's database.
    pub database: String,
    /// The user's statements.
    pub init_sql: Vec<String>,
    /// A short path that nobody else enters, for the socket.
    pub private: PathBuf,
}

/// Makes a data directory in the staging folder, complete and synced. The caller remembers it in the state.
pub async fn bootstrap(processes: &Processes, layout: &Layout, wish: &Wish) -> Result<Staged, Error> {
    let staging = layout.staging();
    remove(&staging)?;
    let mut tool = Tool::new("initdb").arg("--pgdata").arg(&staging).arg("--username").arg(SUPERUSER).args([
        "--data-checksums",
        "--encoding=UTF8",
        "--locale=C.UTF-8",
        "--auth=peer",
        "--no-sync",
        "--no-instructions",
    ]);
    if let Some(wal) = layout.wal_folder(&wish.member) {
        remove(&wal)?;
        tool = tool.arg("--waldir").arg(wal);
    }
    tool.run(processes).await?;

    remove(&wish.private)?;
    make_private(&wish.private)?;
    std::fs::write(staging.join("pg_hba.conf"), hba::private()).map_err(Error::io("write", &staging))?;
    let outcome = fill(processes, layout, wish).await;
    remove(&wish.private)?;
    outcome?;

    sync(processes, &staging).await?;
    let control = control(processes, &staging).await?;
    Ok(Staged { member: wish.member.clone(), system_id: control.system_id, timeline: 1 })
}

/// What pg_controldata says of a data directory.
pub async fn control(processes: &Processes, pgdata: &std::path::Path) -> Result<ControlData, Error> {
    Ok(ControlData::parse(&Tool::new("pg_controldata").arg(pgdata).run(processes).await?)?)
}

/// Syncs every file of a data directory and its WAL.
pub async fn sync(processes: &Processes, pgdata: &std::path::Path) -> Result<(), Error> {
    // With much data this is silent for long; a disk that takes hours has stopped to work.
    let tool = Tool::new("initdb").arg("--sync-only").arg("--pgdata").arg(pgdata).silence(Duration::from_hours(1));
    tool.run(processes).await.map(drop)
}

/// Starts a PostgreSQL that only we can reach, and makes roles and database in it.
async fn fill(processes: &Processes, layout: &Layout, wish: &Wish) -> Result<(), Error> {
    let setting = |name: &str, value: &str| format!("--{name}={value}");
    let mut command = Command::new("postgres");
    command
        .arg("-D")
        .arg(layout.staging())
        .arg(setting("listen_addresses", ""))
        .arg(setting("unix_socket_directories", &wish.private.to_string_lossy()))
        // Everything is synced at the end, once.
        .arg(setting("fsync", "off"))
        .arg(setting("logging_collector", "off"))
        .arg(setting("password_encryption", "scram-sha-256"))
        .env("LC_ALL", "C")
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut running = processes.spawn("postgres", &mut command)?;
    let (_, stderr) = running.pipes();
    let log = tokio::spawn(async move {
        let Some(stderr) = stderr else { return };
        let mut lines = Lines::new(stderr);
        while let Some(line) = lines.next().await {
            super::postmaster::forward(&line);
        }
    });
    let outcome = define(&mut running, layout, wish).await;
    running.signal(if outcome.is_ok() { Signal::INT } else { Signal::QUIT });
    let ended = tokio::time::timeout(START_LIMIT, running.wait()).await;
    if ended.is_err() {
        running.signal(Signal::KILL);
        let _ = running.wait().await;
    }
    log.abort();
    outcome?;
    match ended {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(Error::Program { program: "postgres".into(), outcome: format!("ended with {status}") }),
        Ok(Err(error)) => Err(Error::Program { program: "postgres".into(), outcome: error.to_string() }),
        Err(_) => Err(Error::Timeout("the shutdown after the bootstrap".into())),
    }
}

async fn define(running: &mut Running, layout: &Layout, wish: &Wish) -> Result<(), Error> {
    let socket = Socket::new(&wish.private, 5432);
    let staging = layout.staging();
    let session = tokio::select! {
        status = running.wait() => {
            let outcome = status.map_or_else(|error| error.to_string(), |status| format!("ended with {status}"));
            return Err(Error::Program { program: "postgres".into(), outcome });
        }
        session = super::postmaster::first_session(&staging, &socket, START_LIMIT) => session?,
    };
    let owner = quote::identifier(&wish.owner.username);
    let database = quote::identifier(&wish.database);
    session.run("its superuser", &password_sql(SUPERUSER, &wish.superuser.password)).await?;
    session
        .run("its roles", &format!("CREATE ROLE {REPLICATION_USER} LOGIN REPLICATION; CREATE ROLE {owner} LOGIN"))
        .await?;
    session.run("the rights of its replicas", &rewind_sql()).await?;
    session.run("its owner", &password_sql(&wish.owner.username, &wish.owner.password)).await?;
    let create = format!("CREATE DATABASE {database} OWNER {owner}");
    session.run_within("its database", &create, START_LIMIT).await?;
    if wish.init_sql.is_empty() {
        return Ok(());
    }
    let session = socket.open(&wish.database).await?;
    for (index, statement) in wish.init_sql.iter().enumerate() {
        let number = index + 1;
        session.run_within("initSQL", statement, INIT_SQL_LIMIT).await.map_err(|error| match error {
            Error::Sql { source, .. } => Error::InitSql { number, message: super::error::said(&source) },
            other => other,
        })?;
    }
    Ok(())
}

/// The statement that lets a replica be rewound to this data: it reads files one by one. It may copy all of them at once
/// anyway, by its right to replicate.
fn rewind_sql() -> String {
    let functions = [
        "pg_ls_dir(text, boolean, boolean)",
        "pg_stat_file(text, boolean)",
        "pg_read_binary_file(text)",
        "pg_read_binary_file(text, bigint, bigint, boolean)",
    ]
    .map(|function| format!("pg_catalog.{function}"));
    format!("GRANT EXECUTE ON FUNCTION {} TO {REPLICATION_USER}", functions.join(", "))
}

/// The statement that gives a role a password. PostgreSQL gets a verifier only, so that no log can hold the password.
pub fn password_sql(role: &str, password: &str) -> String {
    let verifier = postgres_protocol::password::scram_sha_256(password.as_bytes());
    format!("ALTER ROLE {} WITH PASSWORD {}", quote::identifier(role), quote::literal(&verifier))
}
