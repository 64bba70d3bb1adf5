//! The first data directory of a cluster that begins with a backup. As with an empty one, it is made beside the live one and
//! becomes data in one step.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::Error;
use super::archive::Archive;
use super::base_backup::ARCHIVE_ID;
use super::bootstrap::{control, sync};
use super::keep::{entries, wal_of};
use super::postmaster::{Postmaster, accepts_sessions};
use super::process::Processes;
use super::run::random_word;
use super::sql::{Session, Socket};
use super::tool::Tool;
use super::volume::{Layout, Staged, disk, make_private, remove, replace_file};
use crate::api::config::RestoreOrder;
use crate::backup::base::Progress;
use crate::backup::manifest::Manifest;
use crate::backup::restore::unpack;
use crate::backup::store::Store;
use crate::backup::{catalog, owner};
use crate::core::backup::{Choice, Target, Wish as Aim, choose};
use crate::engine::postgres::{Major, hba, quote};

/// How many parts are fetched at the same time.
const PARALLEL: usize = 2;
/// Recovery that neither asks for WAL nor ends within this is given up.
const SILENCE: Duration = Duration::from_hours(1);
/// How long the shutdown after the recovery may take.
const SHUTDOWN: Duration = Duration::from_mins(5);

/// What is restored, and into what.
#[derive(Clone)]
pub struct Wish {
    /// Its member id.
    pub member: String,
    /// From where, and to which moment.
    pub order: RestoreOrder,
    /// Where this cluster's own backups go, for people; the source must be another place.
    pub own: Option<String>,
    /// The source, for people.
    pub source: String,
    /// Where a volume with the source is mounted.
    pub mount: PathBuf,
    /// The application's database and its owner, which have to be in it.
    pub database: String,
    /// The owner.
    pub owner: String,
    /// A short path that nobody else enters, for the socket.
    pub private: PathBuf,
    /// restore_command.
    pub restore_command: String,
}

/// Restores into the staging folder, complete and synced. Everything that can be refused is, before the volume is touched;
/// `begins` hears which backup it is.
pub async fn restore(
    processes: &Processes,
    archive: &Arc<Archive>,
    layout: &Layout,
    wish: &Wish,
    progress: &Arc<Progress>,
    begins: &mut (dyn FnMut(&str) + Send),
) -> Result<Staged, Error> {
    if wish.own.as_ref() == Some(&wish.source) {
        return Err(refused(&format!(
            "{} holds the backups that are restored, and they stay as they are: give this cluster a backup.destination with another path",
            wish.source
        )));
    }
    let store = archive.stores().open(&wish.order.source, &wish.order.root, &wish.mount).await?;
    if owner::read(&store).await?.is_none() {
        return Err(refused(&format!("{} holds no backups of a cluster: look at its bucket and path", wish.source)));
    }
    let major = installed(processes).await?;
    let (manifest, choice) = chosen(&store, &wish.order, major).await?;
    let free = disk(layout.data())?.free;
    if free < manifest.summary.bytes {
        return Err(refused(&format!(
            "the backup has {} MiB and the volume has room for {} MiB: raise storage.size",
            manifest.summary.bytes >> 20,
            free >> 20
        )));
    }
    begins(&manifest.summary.id.to_string());
    tracing::info!(backup = %manifest.summary.id, bytes = manifest.summary.bytes, timeline = choice.timeline, "restores a backup");
    let staging = layout.staging();
    remove(&staging)?;
    make_private(&staging)?;
    if let Some(wal) = layout.wal_folder(&wish.member) {
        remove(&wal)?;
        make_private(&wal)?;
        std::os::unix::fs::symlink(&wal, staging.join("pg_wal")).map_err(Error::io("link", &wal))?;
    }
    unpack(&store, &manifest, &staging, PARALLEL, progress).await?;
    prepare(processes, &staging, wish, &choice).await?;
    remove(&wish.private)?;
    make_private(&wish.private)?;
    archive.restore_from(Some((store, manifest.summary.segment_size)))?;
    let outcome = recover(processes, archive, &staging, wish).await;
    let forgotten = archive.restore_from(None);
    remove(&wish.private)?;
    let timeline = outcome?;
    forgotten?;
    // From here on it writes a history of its own.
    let id = format!("{}-{}", manifest.summary.system_identifier, random_word());
    replace_file(&staging.join(ARCHIVE_ID), id.as_bytes())?;
    sync(processes, &staging).await?;
    let control = control(processes, &staging).await?;
    tracing::info!(backup = %manifest.summary.id, timeline, "the restore is complete");
    Ok(Staged { member: wish.member.clone(), system_id: control.system_id, timeline })
}

/// The major version of the image's PostgreSQL.
async fn installed(processes: &Processes) -> Result<u16, Error> {
    let said = Tool::new("postgres").arg("--version").run(processes).await?;
    Ok(Major::parse(&said)?.0)
}

/// The backup to begin with and the way from there, or why there is none.
async fn chosen(store: &Store, order: &RestoreOrder, major: u16) -> Result<(Manifest, Choice), Error> {
    let found = catalog::backups(store).await?;
    let wal = wal_of(store, &found).await?;
    let aim = Aim::of(order, u32::from(major))?;
    let choice = choose(&entries(&found), &wal, &aim)?;
    if let Some(gap) = &choice.gap {
        tracing::warn!(segment = gap, "a segment of WAL is missing in the archive: recovery cannot pass it");
    }
    let id = choice.backup_id.parse().map_err(|_| refused("the id of the backup cannot be read"))?;
    Ok((Manifest::read(store, &id).await?, choice))
}

/// What PostgreSQL reads when it starts on the unpacked data.
async fn prepare(processes: &Processes, staging: &Path, wish: &Wish, choice: &Choice) -> Result<(), Error> {
    for name in ["standby.signal", "postgresql.auto.conf", "pg_ident.conf", ARCHIVE_ID] {
        remove(&staging.join(name))?;
    }
    let write = |name: &str, text: &str| {
        let path = staging.join(name);
        std::fs::write(&path, text).map_err(Error::io("write", path))
    };
    write("pg_ident.conf", "")?;
    write("postgresql.auto.conf", "")?;
    write("recovery.signal", "")?;
    write("pg_hba.conf", &hba::private())?;
    let mut settings = vec![
        ("listen_addresses", String::new()),
        ("unix_socket_directories", wish.private.to_string_lossy().into_owned()),
        ("logging_collector", "off".into()),
        ("archive_mode", "off".into()),
        // Everything is synced at the end, once.
        ("fsync", "off".into()),
        // Nobody reads before it is where it shall be.
        ("hot_standby", "off".into()),
        ("restore_command", wish.restore_command.clone()),
        ("recovery_target_timeline", choice.timeline.to_string()),
        ("recovery_target_action", "promote".into()),
    ];
    let target = Aim::of(&wish.order, 0)?.target;
    match target {
        Target::Latest => {}
        Target::Time(time) => settings.push(("recovery_target_time", time_setting(time))),
        Target::Lsn(lsn) => settings.push(("recovery_target_lsn", lsn.to_string())),
        Target::Name(name) => settings.push(("recovery_target_name", name)),
    }
    // Transactions that were prepared need their places again.
    for (name, value) in control(processes, staging).await?.critical.pairs() {
        settings.push((name, value.to_string()));
    }
    let mut text = String::new();
    for (name, value) in settings {
        let _ = writeln!(text, "{name} = {}", quote::setting(&value));
    }
    write("postgresql.conf", &text)
}

/// Recovers to the target, and tells the timeline that begins there.
async fn recover(processes: &Processes, archive: &Arc<Archive>, staging: &Path, wish: &Wish) -> Result<u32, Error> {
    let socket = Socket::new(&wish.private, 5432);
    let postmaster = Postmaster::start(processes, staging, &socket, || true)?;
    let outcome = tokio::select! {
        biased;
        _ = postmaster.wait() => Err(Error::Program { program: "the recovery".into(), outcome: postmaster.complaint() }),
        outcome = look_at_end(archive, staging, &socket, wish) => outcome,
    };
    let clean = postmaster.stop(processes, SHUTDOWN).await;
    let timeline = outcome?;
    if clean { Ok(timeline) } else { Err(Error::Timeout("the shutdown after the recovery".into())) }
}

async fn look_at_end(archive: &Arc<Archive>, staging: &Path, socket: &Socket, wish: &Wish) -> Result<u32, Error> {
    let mut asked = (archive.fetches(), tokio::time::Instant::now());
    let session: Session = loop {
        if accepts_sessions(staging)
            && let Ok(session) = socket.open("postgres").await
        {
            break session;
        }
        if archive.fetches() != asked.0 {
            asked = (archive.fetches(), tokio::time::Instant::now());
        }
        if asked.1.elapsed() >= SILENCE {
            return Err(Error::Timeout("the recovery".into()));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let has = async |what: &str, table: &str, column: &str, name: &str, field: &str| {
        let name = quote::literal(name);
        if session.exists(&format!("SELECT 1 FROM {table} WHERE {column} = {name}")).await? {
            return Ok(());
        }
        Err(refused(&format!("the restored data has no {what} {name}: set postgresql.{field} to what the source has")))
    };
    has("role", "pg_roles", "rolname", &wish.owner, "owner").await?;
    has("database", "pg_database", "datname", &wish.database, "database").await?;
    session.status().await?.timeline.ok_or_else(|| refused("PostgreSQL does not say its timeline"))
}

/// As PostgreSQL reads it in its configuration, where it knows no abbreviation of a time zone, not even Z.
fn time_setting(time: jiff::Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M:%S%.6f+00").to_string()
}

fn refused(message: &str) -> Error {
    Error::Invalid { what: "bootstrap.restore", message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_moment_is_written_as_postgresql_reads_it() {
        let text = super::time_setting("2026-11-30T10:01:02.123456789+01:00".parse().unwrap());
        assert_eq!(text, "2026-11-30 09:01:02.123456+00");
    }
}
