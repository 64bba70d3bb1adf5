//! Destinations to test against: an S3 server that checks signatures, and a volume; and data to back up.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hello_operator::api::agent::Lsn;
use hello_operator::backup::base::{self, BackupPlan, Progress, Taken};
use hello_operator::backup::layout::{BackupId, FORMAT, SegmentSize};
use hello_operator::backup::manifest::{BackupKind, Compression, Manifest, Summary, TakenBy};
use hello_operator::backup::owner::{Owner, claim};
use hello_operator::backup::store::Bounds;
use hello_operator::backup::target::{S3, S3Credentials, Target};
use hello_operator::backup::{Error, Store};

/// Secrets have such characters.
pub const SECRET: &str = "p@ss/w+rd=&?%20#\"' \\ ünï";
pub const BUCKET: &str = "backups";

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A folder that goes away with its test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("hello-store-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }
    pub fn join(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An S3 server of its own, with one bucket.
pub struct Server {
    pub address: SocketAddr,
    pub folder: Folder,
    process: Child,
}

impl Server {
    pub fn start() -> Self {
        let install = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/store/install");
        let output = Command::new(install).stderr(Stdio::inherit()).output().unwrap();
        assert!(output.status.success(), "tests/store/install failed");
        let program = String::from_utf8(output.stdout).unwrap();
        for _ in 0..5 {
            let folder = Folder::new();
            std::fs::create_dir(folder.join(BUCKET)).unwrap();
            let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
            // It ends with the thread that started it, however that ends.
            let mut process = Command::new("setpriv")
                .args(["--pdeathsig", "KILL", program.trim(), "--host", "127.0.0.1"])
                .args(["--port", &address.port().to_string(), "--access-key", "tester", "--secret-key", SECRET])
                .arg(&folder.0)
                .env("RUST_LOG", "off")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let deadline = Instant::now() + Duration::from_secs(10);
            // Another test may have been given the same port meanwhile; then the server ends, and the next try has another port.
            while process.try_wait().unwrap().is_none() && Instant::now() < deadline {
                if TcpStream::connect(address).is_ok() && process.try_wait().unwrap().is_none() {
                    return Self { address, folder, process };
                }
                std::thread::yield_now();
            }
            let _ = process.kill();
            let _ = process.wait();
        }
        panic!("the S3 server does not start");
    }

    /// The bucket by this address, which may be that of a proxy.
    pub fn target(&self, address: SocketAddr) -> Target {
        Target::S3(s3(address))
    }

    pub fn store(&self, root: &str) -> Store {
        Store::open_with(&self.target(self.address), root, BOUNDS).unwrap()
    }

    /// Files of the server's folder that are no objects: its notes of uploads that were not finished.
    pub fn unfinished(&self) -> Vec<String> {
        let names =
            std::fs::read_dir(&self.folder.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.contains("upload")).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub fn s3(address: SocketAddr) -> S3 {
    S3 {
        bucket: BUCKET.to_owned(),
        endpoint: Some(format!("http://{address}")),
        region: None,
        credentials: S3Credentials::Key {
            access_key_id: "tester".to_owned(),
            secret_access_key: SECRET.into(),
            session_token: None,
        },
        ca: None,
        path_style: true,
    }
}

/// Shorter than in life.
pub const BOUNDS: Bounds = Bounds {
    connect: Duration::from_secs(2),
    silence: Duration::from_secs(2),
    call: Duration::from_secs(20),
    retries: 4,
    pause: Duration::from_millis(100),
};

/// Runs a test on each kind of destination.
pub async fn everywhere(test: impl AsyncFn(Store)) {
    let server = Server::start();
    test(server.store("team a/db")).await;
    let folder = Folder::new();
    test(Store::open_with(&Target::Volume { folder: folder.0.clone() }, "team a/db", BOUNDS).unwrap()).await;
}

pub fn owner(archive: &str) -> Owner {
    Owner {
        format: FORMAT,
        archive: archive.to_owned(),
        system_identifier: "7".to_owned(),
        cluster: format!("default/{archive}"),
        created_at: "2026-11-30T18:09:59Z".parse().unwrap(),
    }
}

pub async fn claimed(store: &Store) {
    claim(store, &owner("7")).await.unwrap();
}

pub fn id(random: u32) -> BackupId {
    BackupId::new("2026-11-30T18:09:59Z".parse().unwrap(), random)
}

pub fn manifest(id: &BackupId, taken: &Taken) -> Manifest {
    Manifest {
        summary: Summary {
            format: FORMAT,
            kind: BackupKind::Full,
            id: id.clone(),
            requested_by: "uid".to_owned(),
            cluster: "default/db".to_owned(),
            archive: "7".to_owned(),
            system_identifier: "7".to_owned(),
            server_version: 170_006,
            major: 17,
            taken_by: TakenBy { instance: "db-1".to_owned(), role: "replica".to_owned() },
            started_at: id.at(),
            stopped_at: id.at(),
            timeline: 1,
            start_lsn: Lsn(0x300_0028),
            stop_lsn: Lsn(0x300_0120),
            segment_size: SegmentSize::default(),
            compression: Compression::Zstd,
            bytes: taken.bytes,
            compressed_bytes: taken.compressed_bytes,
        },
        backup_label: "START WAL LOCATION: 0/3000028\n".to_owned(),
        parts: taken.parts.clone(),
        files: taken.files.clone(),
        folders: taken.folders.clone(),
    }
}

/// Takes a whole backup.
pub async fn back_up(store: &Store, plan: &BackupPlan) -> Result<Manifest, Error> {
    let taken = base::take(store, plan, &Arc::new(Progress::default())).await?;
    let manifest = manifest(&plan.id, &taken);
    base::finish(store, &manifest).await?;
    Ok(manifest)
}

/// Bytes of which zstd saves about half, the same for the same seed.
pub fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Sixteen letters.
        bytes.extend(state.to_le_bytes().map(|byte| b'a' + (byte & 15)));
    }
    bytes.truncate(length);
    bytes
}

/// Writes files, and the folders in which they are.
pub fn write(root: &Path, files: &[(&str, &[u8])]) {
    for (path, content) in files {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
}

/// Every file with its content's length and hash, every folder as None, below a folder.
pub fn tree(root: &Path) -> BTreeMap<String, Option<(u64, u64)>> {
    fn walk(folder: &Path, root: &Path, tree: &mut BTreeMap<String, Option<(u64, u64)>>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            if path.is_dir() {
                tree.insert(name, None);
                walk(&path, root, tree);
            } else {
                use std::hash::{DefaultHasher, Hasher};
                let content = std::fs::read(&path).unwrap();
                let mut hasher = DefaultHasher::new();
                hasher.write(&content);
                tree.insert(name, Some((content.len() as u64, hasher.finish())));
            }
        }
    }
    let mut all = BTreeMap::new();
    walk(root, root, &mut all);
    all
}

/// Permissions of everything below a folder.
pub fn modes(root: &Path) -> BTreeMap<String, u32> {
    tree(root)
        .into_keys()
        .map(|path| {
            let mode = std::fs::metadata(root.join(&path)).unwrap().permissions().mode() & 0o7777;
            (path, mode)
        })
        .collect()
}

/// Waits for a condition, at most ten seconds.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(10), async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(waited.await.is_ok(), "waited in vain: {what}");
}
