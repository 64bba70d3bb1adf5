//! A running PostgreSQL is backed up and starts again from it: by our own code, and by hand as docs/destination.md says.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use hello_operator::api::agent::Lsn;
use hello_operator::backup::base::{self, BackupPlan, Progress};
use hello_operator::backup::layout::{Segment, SegmentSize, WalFile};
use hello_operator::backup::target::Target;
use hello_operator::backup::wal::{self, Pushed};
use hello_operator::backup::{Store, restore};
use tokio_postgres::{Client, NoTls};

use crate::world::{BOUNDS, Folder, claimed, id, manifest};

/// Runs a program as a user that PostgreSQL accepts.
fn run(folder: &Path, program: &str, arguments: &[&str]) -> String {
    let mut command = if rustix::process::geteuid().is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", program]);
        command
    } else {
        Command::new(program)
    };
    // The server that pg_ctl starts keeps what it inherits, so nobody waits for the end of a pipe.
    let output =
        command.args(arguments).current_dir(folder).stdin(Stdio::null()).stderr(Stdio::inherit()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}: {text}");
    text
}

fn programs() -> PathBuf {
    let versions =
        std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL below /usr/lib/postgresql: tests/engine/install");
    versions.map(|version| version.unwrap().path().join("bin")).find(|bin| bin.join("initdb").exists()).unwrap()
}

struct Postgres {
    folder: Folder,
    ctl: String,
}

impl Postgres {
    fn at(folder: Folder) -> Self {
        Self { folder, ctl: programs().join("pg_ctl").display().to_string() }
    }
    fn data(&self) -> String {
        self.folder.join("data").display().to_string()
    }
    async fn start(&self) -> Client {
        own(&self.folder.0);
        let options = format!("-c listen_addresses='' -c unix_socket_directories='{}'", self.folder.0.display());
        let log = self.folder.join("log").display().to_string();
        run(&self.folder.0, &self.ctl, &["-D", &self.data(), "-l", &log, "-o", &options, "-w", "-t", "60", "start"]);
        let (client, connection) =
            tokio_postgres::connect(&format!("host={} user=postgres dbname=postgres", self.folder.0.display()), NoTls)
                .await
                .unwrap();
        tokio::spawn(connection);
        client
    }
    fn stop(&self) {
        run(&self.folder.0, &self.ctl, &["-D", &self.data(), "-w", "-m", "fast", "stop"]);
    }
    fn configure(&self, text: &str) {
        let path = self.folder.join("data/postgresql.auto.conf");
        let before = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, before + text).unwrap();
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.folder.join("data/postmaster.pid").exists() && std::thread::panicking() {
            let _ = Command::new("cat").arg(self.folder.join("log")).status();
            let _ = Command::new("setpriv")
                .args([
                    "--reuid=postgres",
                    "--regid=postgres",
                    "--clear-groups",
                    &self.ctl,
                    "-D",
                    &self.data(),
                    "-m",
                    "immediate",
                    "stop",
                ])
                .status();
        }
    }
}

fn own(folder: &Path) {
    if rustix::process::geteuid().is_root() {
        assert!(Command::new("chown").args(["-R", "postgres:postgres"]).arg(folder).status().unwrap().success());
    }
}

async fn count(client: &Client) -> i64 {
    client.query_one("SELECT count(*) FROM t", &[]).await.unwrap().get(0)
}

fn lsn(text: &str) -> Lsn {
    text.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_postgres_is_backed_up_and_starts_again() {
    let volume = Folder::new();
    let store = Store::open_with(&Target::Volume { folder: volume.0.clone() }, "db", BOUNDS).unwrap();
    claimed(&store).await;
    let source = Postgres::at(Folder::new());
    std::fs::create_dir(source.folder.join("archive")).unwrap();
    own(&source.folder.0);
    run(
        &source.folder.0,
        &programs().join("initdb").display().to_string(),
        &["-D", &source.data(), "-U", "postgres", "-A", "trust", "-k"],
    );
    let archive = source.folder.join("archive");
    source.configure(&format!(
        "archive_mode = on\narchive_command = 'cp %p {}/%f.tmp && mv {0}/%f.tmp {0}/%f'\n",
        archive.display()
    ));
    let client = source.start().await;
    client.batch_execute("CREATE TABLE t AS SELECT g, repeat('x', 100) FROM generate_series(1, 50000) g; CREATE UNLOGGED TABLE u (i int)").await.unwrap();

    let writer = source.start_writer().await;
    let start = client.query_one("SELECT pg_backup_start('test', fast => true)::text", &[]).await.unwrap();
    let plan = BackupPlan { max_bytes_per_second: Some(40 << 20), ..BackupPlan::new(id(1), source.data()) };
    let taken = base::take(&store, &plan, &Arc::new(Progress::default())).await.unwrap();
    let stop = client
        .query_one("SELECT lsn::text, labelfile, spcmapfile FROM pg_backup_stop(wait_for_archive => false)", &[])
        .await
        .unwrap();
    writer.abort();
    assert!(taken.skipped.is_empty(), "{:?}", taken.skipped);
    let mut manifest = manifest(&plan.id, &taken);
    manifest.summary.start_lsn = lsn(start.get(0));
    manifest.summary.stop_lsn = lsn(stop.get(0));
    manifest.backup_label = stop.get(1);
    assert_eq!(stop.get::<_, String>(2), "", "no tablespace map");
    base::finish(&store, &manifest).await.unwrap();

    client.batch_execute("INSERT INTO t SELECT g, 'after' FROM generate_series(1, 1000) g").await.unwrap();
    let rows = count(&client).await;
    let last = client.query_one("SELECT pg_walfile_name(pg_switch_wal())", &[]).await.unwrap().get::<_, String>(0);
    tokio::time::timeout(Duration::from_secs(60), async {
        while !archive.join(&last).exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
    source.stop();
    for entry in std::fs::read_dir(&archive).unwrap() {
        let path = entry.unwrap().path();
        let file: WalFile = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
        let pushed = wal::push(&store, &path, &file, 3).await.unwrap();
        assert_eq!(matches!(file, WalFile::Label(_)), pushed == Pushed::NotStored);
    }
    let size = SegmentSize::default();
    let listing = wal::list(&store).await.unwrap();
    assert!(listing.segments.contains(&Segment::of(1, manifest.summary.start_lsn, size)));

    // By our own code.
    let restored = Postgres::at(Folder::new());
    restore::unpack(&store, &manifest, &restored.folder.join("data"), 2, &Arc::new(Progress::default())).await.unwrap();
    for segment in &listing.segments {
        assert!(
            wal::fetch(&store, &WalFile::Segment(*segment), &restored.folder.join(&segment.to_string())).await.unwrap()
        );
    }
    std::fs::write(restored.folder.join("data/recovery.signal"), "").unwrap();
    restored.configure(&format!("restore_command = 'cp {}/%f %p'\narchive_mode = off\n", restored.folder.0.display()));
    verify(&restored, rows).await;

    // By hand.
    let by_hand = Postgres::at(Folder::new());
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/destination.md")).unwrap();
    let script = text.split("```sh\n").nth(1).unwrap().split("```").next().unwrap();
    let status = Command::new("bash")
        .args(["-euc", script])
        .current_dir(&by_hand.folder.0)
        .env("D", volume.join("db"))
        .env("ID", plan.id.to_string())
        .status()
        .unwrap();
    assert!(status.success());
    std::fs::set_permissions(&volume.0, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    by_hand.configure("archive_mode = off\n");
    verify(&by_hand, rows).await;
}

async fn verify(postgres: &Postgres, rows: i64) {
    let client = postgres.start().await;
    tokio::time::timeout(Duration::from_secs(60), async {
        while client.query_one("SELECT pg_is_in_recovery()", &[]).await.unwrap().get(0) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(count(&client).await, rows);
    assert_eq!(client.query_one("SELECT count(*) FROM u", &[]).await.unwrap().get::<_, i64>(0), 0);
    postgres.stop();
    // Every page has its checksum.
    run(
        &postgres.folder.0,
        &programs().join("pg_checksums").display().to_string(),
        &["-D", &postgres.data(), "--check"],
    );
}

impl Postgres {
    /// Somebody who writes all the time.
    async fn start_writer(&self) -> tokio::task::JoinHandle<()> {
        let (client, connection) =
            tokio_postgres::connect(&format!("host={} user=postgres dbname=postgres", self.folder.0.display()), NoTls)
                .await
                .unwrap();
        tokio::spawn(async move {
            let work = async {
                loop {
                    client
                        .batch_execute(
                            "UPDATE t SET repeat = 'y' WHERE g % 7 = 0; CREATE TABLE n (i int); DROP TABLE n",
                        )
                        .await
                        .unwrap();
                }
            };
            tokio::select! {
                _ = connection => {}
                () = work => {}
            }
        })
    }
}
