//! The proof that the newest backup can be restored: it is, into a scratch volume, and everything in it is read.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Client;

use super::Error;
use super::archive::stores::Stores;
use super::archive::{Archive, socket};
use super::conf::Archiver;
use super::postmaster::{Postmaster, first_session};
use super::process::Processes;
use super::restore::{Wish, restore};
use super::sql::Socket;
use super::tool::Tool;
use super::volume::{Layout, make_private, remove};
use crate::api::config::RestoreOrder;
use crate::api::names::{BACKUP_MOUNT, SOCKET_DIR};
use crate::api::verify::{VerifyOrder, VerifyResult};
use crate::backup::target::CloudIdentity;
use crate::config::VerifyArgs;

/// How long PostgreSQL may take to start on what was restored, and to stop.
const START: Duration = Duration::from_mins(5);
/// Reading every page is silent; a disk that takes this long has stopped to work.
const SILENCE: Duration = Duration::from_hours(4);
/// How long the user's statement may run.
const QUERY: Duration = Duration::from_mins(30);
/// How long reading the catalogue of a database may take.
const CATALOGUE: Duration = Duration::from_mins(5);

/// Where a verification works.
pub struct Scratch {
    /// Its volume, which holds nothing else.
    pub data: PathBuf,
    /// Namespace of the cluster.
    pub namespace: String,
    /// Where a volume destination is mounted.
    pub mount: PathBuf,
    /// Folder of the agent's socket and of PostgreSQL's.
    pub run: PathBuf,
    /// Our own binary.
    pub program: PathBuf,
}

impl Scratch {
    /// In a Pod.
    pub fn in_pod(data: PathBuf, namespace: String) -> Result<Self, Error> {
        let program = std::env::current_exe().map_err(Error::io("find", "/proc/self/exe"))?;
        Ok(Self { data, namespace, mount: BACKUP_MOUNT.into(), run: SOCKET_DIR.into(), program })
    }
}

/// Verifies; what goes wrong is the answer.
pub async fn verify(client: Client, cloud: CloudIdentity, scratch: &Scratch, order: &VerifyOrder) -> VerifyResult {
    let begun = Instant::now();
    let mut backup_id = None;
    let outcome = try_verify(client, cloud, scratch, order, &mut backup_id).await;
    let seconds = begun.elapsed().as_secs();
    match outcome {
        Ok(message) => VerifyResult { ok: true, backup_id, message, seconds },
        Err(error) => {
            tracing::error!(%error, category = error.category().as_str(), "the verification failed");
            VerifyResult { ok: false, backup_id, message: error.to_string(), seconds }
        }
    }
}

/// Verifies what the Pod was started for, and leaves the result where the kubelet looks for it.
pub async fn run(args: VerifyArgs, cloud: CloudIdentity) -> Result<(), Error> {
    let invalid = |error: serde_json::Error| Error::Invalid { what: "HELLO_VERIFY", message: error.to_string() };
    let order: VerifyOrder = serde_json::from_str(&args.order).map_err(invalid)?;
    let scratch = Scratch::in_pod(args.data, args.namespace)?;
    let result = verify(super::start::client()?, cloud, &scratch, &order).await;
    let text = serde_json::to_string(&result).map_err(invalid)?;
    std::fs::write(&args.result, text).map_err(Error::io("write", &args.result))?;
    tracing::info!(ok = result.ok, backup = result.backup_id, seconds = result.seconds, "{}", result.message);
    Ok(())
}

async fn try_verify(
    client: Client,
    cloud: CloudIdentity,
    scratch: &Scratch,
    order: &VerifyOrder,
    backup_id: &mut Option<String>,
) -> Result<String, Error> {
    let processes = Processes::new()?;
    let layout = Layout::new(&scratch.data, None);
    let lock = layout.lock()?;
    layout.settle(&lock)?;
    let stores = Stores::new(client, &scratch.namespace, cloud);
    let archive = Arc::new(Archive::new(stores, &scratch.mount, layout.spare()));
    let path = scratch.run.join(super::backups::ARCHIVE_SOCKET);
    socket::serve(archive.clone(), &path)?;
    let private = scratch.run.join("private");
    let wish = Wish {
        member: "scratch".into(),
        order: RestoreOrder {
            source: order.source.clone(),
            root: order.root.clone(),
            backup_id: None,
            target_time: None,
            target_lsn: None,
            target_name: None,
            target_timeline: None,
        },
        own: None,
        source: order.source.place(&order.root),
        mount: scratch.mount.clone(),
        database: order.database.clone(),
        owner: order.owner.clone(),
        private: private.clone(),
        restore_command: Archiver { program: scratch.program.clone(), socket: path }.fetch_command(),
    };
    let progress = Arc::default();
    let mut begins = |id: &str| *backup_id = Some(id.to_owned());
    restore(&processes, &archive, &layout, &wish, &progress, &mut begins).await?;
    let data = layout.staging();
    Tool::new("pg_checksums").arg("--check").arg("--pgdata").arg(&data).silence(SILENCE).run(&processes).await?;
    remove(&private)?;
    make_private(&private)?;
    let socket = Socket::new(&private, 5432);
    let postmaster = Postmaster::start(&processes, &data, &socket, || true)?;
    let read = read(&data, &socket, order).await;
    postmaster.stop(&processes, START).await;
    let (databases, relations) = read?;
    Ok(format!(
        "{} MiB were restored and every page read; {relations} relations in {databases} databases",
        progress.total() >> 20
    ))
}

/// Reads the catalogue of every database, and runs the user's statement.
async fn read(data: &Path, socket: &Socket, order: &VerifyOrder) -> Result<(usize, i64), Error> {
    let session = first_session(data, socket, START).await?;
    let databases = session.databases().await?;
    let mut relations = 0;
    for database in &databases {
        let session = socket.open(database).await?;
        // Every relation is opened, which needs its catalogue and its file.
        let sql = "SELECT count(pg_relation_size(c.oid)), count(a.attname) FROM pg_class c
                     JOIN pg_attribute a ON a.attrelid = c.oid";
        session.run_within("its catalogue", sql, CATALOGUE).await?;
        relations += session.relations().await?;
    }
    if let Some(query) = &order.query {
        let session = socket.open(&order.database).await?;
        session.run_within("backup.verify.query", query, QUERY).await?;
    }
    Ok((databases.len(), relations))
}
