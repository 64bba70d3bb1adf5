//! The agent's own code in a process of its own, as a tool beside the others: its archive, a base backup, a restore.

use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hello_operator::agent::archive::stores::Stores;
use hello_operator::agent::archive::{Archive, Wish, Written, socket};
use hello_operator::agent::base_backup::{self, Order};
use hello_operator::agent::bootstrap::control;
use hello_operator::agent::conf::Archiver;
use hello_operator::agent::peers::Peers;
use hello_operator::agent::restore::{self, restore};
use hello_operator::agent::sql::Socket;
use hello_operator::agent::tls::Tls;
use hello_operator::agent::volume::Layout;
use hello_operator::api::agent::Lsn;
use hello_operator::api::config::RestoreOrder;
use hello_operator::api::spec::{Destination, S3, S3Credentials, SecretKey};
use hello_operator::backup::layout::BackupId;
use hello_operator::backup::target::CloudIdentity;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Result;
use super::place::{BUCKET, KEY, REGION, SECRET};
use super::world::World;

/// Folder of our archive in the bucket.
pub const ROOT: &str = "ours/db";
/// Name of the Secret with the keys.
const KEYS: &str = "keys";

/// What the process is asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Errand {
    pub what: What,
    /// Of the TLS before the S3 server.
    pub store_port: u16,
    pub ca: PathBuf,
    /// Of the source.
    pub data: PathBuf,
    pub socket: PathBuf,
    pub port: u16,
    /// Our binary, for the commands of PostgreSQL, and the socket that they ask.
    pub program: PathBuf,
    pub archive_socket: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// Takes what the archiver hands over, until it is killed.
    Archive,
    BackUp,
    /// Into a volume here.
    Restore(PathBuf),
}

/// What it says at the end.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    /// Memory before the work, and the most there was, in MiB.
    pub before: f64,
    pub peak: f64,
    /// Bytes in the store.
    pub stored: u64,
}

impl Errand {
    pub fn archiver(&self) -> Archiver {
        Archiver { program: self.program.clone(), socket: self.archive_socket.clone() }
    }

    fn destination(&self) -> Destination {
        let key = |key: &str| SecretKey { name: KEYS.into(), key: key.into() };
        let credentials = S3Credentials {
            secret: KEYS.into(),
            access_key_id: "id".into(),
            secret_access_key: "secret".into(),
            session_token: None,
        };
        let s3 = S3 {
            bucket: BUCKET.into(),
            endpoint: Some(format!("https://localhost:{}", self.store_port)),
            region: REGION.into(),
            credentials: Some(credentials),
            ca: Some(key("ca")),
            ..S3::default()
        };
        Destination { s3: Some(s3), ..Destination::default() }
    }

    /// An API server that has one Secret.
    async fn client(&self) -> Result<kube::Client> {
        let text = |text: &str| Value::String(BASE64_STANDARD.encode(text));
        let data = json!({"id": text(KEY), "secret": text(SECRET), "ca": text(&std::fs::read_to_string(&self.ca)?)});
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": KEYS}, "data": data});
        let answer = async |State(secret): State<Value>| Json(secret);
        let routes = Router::new().route("/api/v1/namespaces/tests/secrets/keys", get(answer)).with_state(secret);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Ok(kube::Client::try_from(kube::Config::new(format!("http://{address}").parse()?))?)
    }
}

/// Does it. Runs as the user of PostgreSQL.
pub async fn run(errand: Errand) -> Result {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let world = World::new("bench");
    let client = errand.client().await?;
    let stores = Stores::new(client.clone(), "tests", CloudIdentity::default());
    let archive = Arc::new(Archive::new(stores, &world.root, world.root.join("fetched")));
    let system_id = control(&world.processes, &errand.data).await?.system_id;
    archive.wish(Wish {
        destination: Some(errand.destination()),
        root: ROOT.into(),
        wal: true,
        cluster: "tests/db".into(),
        archive: Some(system_id.clone()),
        system_id: Some(system_id),
        primary: true,
        hurry: false,
    });
    // A primary's archiver hands over what is full, wherever it stands.
    archive.written(Some(Written { timeline: 1, end: Lsn(0), standby: false }));
    let mut answer = Answer { before: memory("VmRSS"), ..Answer::default() };
    match &errand.what {
        What::Archive => {
            socket::serve(archive, &errand.archive_socket)?;
            return std::future::pending().await;
        }
        What::BackUp => {
            let order = Order {
                requested_by: "uid".into(),
                id: BackupId::new(Timestamp::now(), 1),
                instance: "db-1".into(),
                primary: None,
                pgdata: errand.data.clone(),
                socket: Socket::new(&errand.socket, errand.port),
                max_bytes_per_second: None,
                start: Arc::default(),
            };
            let peers = Peers::new(client, "tests", Tls::load(&world.identity_of("operator"))?);
            let entry = base_backup::take(&archive, &world.processes, &peers, &order, &Arc::default()).await?;
            answer.stored = entry.stored_bytes;
        }
        What::Restore(volume) => {
            // recovery asks for its WAL at a socket of its own, as in the Pod of the new cluster.
            let own = world.root.join("archive.sock");
            socket::serve(archive.clone(), &own)?;
            let layout = Layout::new(volume, None);
            let lock = layout.lock()?;
            layout.settle(&lock)?;
            let wish = restore::Wish {
                member: "restored".into(),
                order: RestoreOrder {
                    source: errand.destination(),
                    root: ROOT.into(),
                    backup_id: None,
                    target_time: None,
                    target_lsn: None,
                    target_name: None,
                    target_timeline: None,
                },
                own: None,
                source: "the benchmark".into(),
                mount: world.root.clone(),
                database: "postgres".into(),
                owner: "postgres".into(),
                private: world.root.join("private"),
                restore_command: Archiver { program: errand.program.clone(), socket: own }.fetch_command(),
            };
            restore(&world.processes, &archive, &layout, &wish, &Arc::default(), &mut |_| {}).await?;
            layout.go_live(&lock)?;
        }
    }
    answer.peak = memory("VmHWM");
    super::numbers::show(&serde_json::to_string(&answer)?);
    Ok(())
}

/// From `/proc/self/status`, in MiB.
fn memory(field: &str) -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kibibytes.unwrap_or(f64::NAN) / 1024.0
}
