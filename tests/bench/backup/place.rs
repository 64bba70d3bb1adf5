//! The S3 server, the TLS before it, and the database: one of each, for all that are measured.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, KeyPair};

use super::Result;

pub const BUCKET: &str = "backups";
pub const KEY: &str = "tester";
pub const SECRET: &str = "a-secret-of-the-benchmark";
pub const REGION: &str = "us-east-1";
/// The tables that are filled, each less than a file of 1 GiB for databases up to 4 GB.
const TABLES: u32 = 4;

/// A program, run by the user that PostgreSQL accepts.
pub fn as_postgres(program: &str, folder: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", program]);
    command.current_dir(folder).env("HOME", folder).env("TMPDIR", folder);
    command.env("PATH", format!("{}:/usr/bin:/bin", programs().display()));
    command
}

/// A program that ends with this one, however that ends.
fn bound(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", program]);
    command
}

/// PostgreSQL's programs, the newest of this machine.
pub fn programs() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        versions.map(|version| version.path().join("bin")).filter(|bin| bin.join("postgres").exists()).collect();
    found.sort();
    found.pop().unwrap_or_else(|| "/usr/lib/postgresql".into())
}

/// What belongs to the run, and goes with it.
pub struct Place {
    pub root: PathBuf,
    /// Of the TLS before the S3 server.
    pub port: u16,
    /// Its certificate.
    pub ca: PathBuf,
    processes: Vec<Child>,
}

impl Place {
    pub fn new(root: PathBuf, server: &str) -> Result<Self> {
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(root.join("s3").join(BUCKET))?;
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(vec!["localhost".to_owned()])?.self_signed(&key)?;
        let ca = root.join("ca.pem");
        std::fs::write(&ca, certificate.pem())?;
        std::fs::write(root.join("key.pem"), key.serialize_pem())?;
        let (plain, port) = (free()?, free()?);
        let mut place = Self { root, port, ca, processes: Vec::new() };
        let mut s3 = bound(server);
        s3.args(["--host", "127.0.0.1", "--port", &plain.to_string(), "--access-key", KEY, "--secret-key", SECRET]);
        s3.arg(place.root.join("s3")).env("RUST_LOG", "off");
        place.start(&mut s3, plain)?;
        let conf = place.root.join("stunnel.conf");
        let text = format!(
            "foreground = yes\npid =\ndebug = 3\n[s3]\naccept = 127.0.0.1:{port}\nconnect = 127.0.0.1:{plain}\ncert = {}\nkey = {}\n",
            place.ca.display(),
            place.root.join("key.pem").display()
        );
        std::fs::write(&conf, text)?;
        place.start(bound("stunnel").arg(conf), port)?;
        place.own()?;
        Ok(place)
    }

    fn start(&mut self, command: &mut Command, port: u16) -> Result {
        self.processes.push(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
        let limit = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if Instant::now() > limit {
                return Err(format!("{command:?} does not listen").into());
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
        Ok(())
    }

    pub fn own(&self) -> Result {
        let done = Command::new("chown").args(["-R", "postgres:postgres"]).arg(&self.root).status()?;
        if done.success() { Ok(()) } else { Err("chown failed".into()) }
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Nothing of a tool is left in the bucket.
    pub fn empty(&self) -> Result {
        let bucket = self.root.join("s3").join(BUCKET);
        for entry in std::fs::read_dir(bucket)? {
            std::fs::remove_dir_all(entry?.path())?;
        }
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

fn free() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// A PostgreSQL that runs.
pub struct Postgres<'a> {
    place: &'a Place,
    pub data: PathBuf,
    pub socket: PathBuf,
    pub port: u16,
}

impl<'a> Postgres<'a> {
    /// An empty one with data checksums and an archiver that has no command yet.
    pub fn create(place: &'a Place, variables: &[(String, String)]) -> Result<Self> {
        let data = place.join("data");
        let socket = place.join("run");
        std::fs::create_dir_all(&socket)?;
        place.own()?;
        let text = data.display().to_string();
        checked(as_postgres("initdb", &place.root).args(["-D", &text, "-U", "postgres", "-A", "trust", "-k"]))?;
        let conf = "archive_mode = on\narchive_timeout = 0\nmax_wal_size = 4GB\ncheckpoint_timeout = 30min\nautovacuum = off\n";
        let path = data.join("postgresql.auto.conf");
        std::fs::write(path, conf)?;
        let postgres = Self { place, data, socket, port: free()? };
        postgres.start(variables)?;
        Ok(postgres)
    }

    /// One that was restored: it runs with what stands here, and what the tool wrote for its recovery.
    pub fn restored(place: &'a Place, data: PathBuf) -> Result<Self> {
        Ok(Self { place, data, socket: place.join("run"), port: free()? })
    }

    pub fn start(&self, variables: &[(String, String)]) -> Result {
        let options = format!(
            "-c listen_addresses='' -c unix_socket_directories='{}' -c port={}",
            self.socket.display(),
            self.port
        );
        let (data, log) = (self.data.display().to_string(), self.place.join("postgres.log").display().to_string());
        let mut command = as_postgres("pg_ctl", &self.place.root);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command.args(["-D", &data, "-l", &log, "-o", &options, "-w", "-t", "600", "start"]);
        checked(&mut command).map(drop)
    }

    pub fn stop(&self) -> Result {
        let data = self.data.display().to_string();
        checked(as_postgres("pg_ctl", &self.place.root).args(["-D", &data, "-w", "-m", "immediate", "stop"])).map(drop)
    }

    pub fn sql(&self, sql: &str) -> Result<String> {
        let (socket, port) = (self.socket.display().to_string(), self.port.to_string());
        let mut command = as_postgres("psql", &self.place.root);
        command.args(["-h", &socket, "-p", &port, "-U", "postgres", "-d", "postgres"]);
        checked(command.args(["-v", "ON_ERROR_STOP=1", "-Atqc", sql]))
    }

    /// Rows that compress about as those of people do: numbers, times, words, and hashes that do not compress at all.
    pub fn fill(&self, megabytes: u64) -> Result {
        // About 165 bytes of a row with its overhead.
        let rows = megabytes * 1_000_000 / 165 / u64::from(TABLES);
        for table in 0..TABLES {
            self.sql(&format!(
                "CREATE TABLE t{table} AS SELECT g AS id, g % 1000 AS customer, now() + g * interval '1 second' AS at,
                   md5(g::text) || md5((g + 7)::text) AS token, 'order ' || g || ' of customer ' || g % 1000 AS note
                 FROM generate_series(1, {rows}) g"
            ))?;
        }
        self.sql("CHECKPOINT").map(drop)
    }

    /// How many rows there are: the same before and after.
    pub fn rows(&self) -> Result<String> {
        let mut sql = String::from("SELECT 0");
        for table in 0..TABLES {
            write!(sql, " + (SELECT count(*) FROM t{table})")?;
        }
        self.sql(&sql)
    }

    /// Bytes of the data directory without its WAL.
    pub fn bytes(&self) -> Result<u64> {
        let said = checked(Command::new("du").args(["-sb", "--exclude=pg_wal"]).arg(&self.data))?;
        Ok(said.split_whitespace().next().unwrap_or_default().parse()?)
    }

    /// Awaits the end of recovery: until then it answers nobody.
    pub fn recovered(&self) -> Result {
        let limit = Instant::now() + Duration::from_mins(10);
        loop {
            match self.sql("SELECT pg_is_in_recovery()") {
                Ok(said) if said == "f" => return Ok(()),
                Err(error) if Instant::now() > limit => return Err(error),
                _ => std::thread::park_timeout(Duration::from_millis(20)),
            }
        }
    }

    /// Hands WAL over with this command from here on; empty: not at all, and it waits.
    pub fn archive(&self, command: &str) -> Result {
        let text = command.replace('\'', "''");
        self.sql(&format!("ALTER SYSTEM SET archive_command = '{text}'"))?;
        self.sql("SELECT pg_reload_conf()").map(drop)
    }

    /// Writes that fill segments; the name of the last one.
    pub fn write(&self, segments: u64) -> Result<String> {
        self.sql("CREATE TABLE IF NOT EXISTS w (id int, token text)")?;
        let begin = self.sql("SELECT pg_current_wal_lsn()")?;
        let enough = format!("SELECT pg_current_wal_lsn() - '{begin}' > {}", (segments - 1) << 24);
        while self.sql(&enough)? != "t" {
            self.sql("INSERT INTO w SELECT g, md5(g::text) || md5((g + 7)::text) FROM generate_series(1, 50000) g")?;
        }
        self.sql("TRUNCATE w")?;
        self.sql("SELECT pg_walfile_name(pg_switch_wal())")
    }

    /// Awaits that a segment is archived.
    pub fn archived(&self, segment: &str) -> Result {
        let limit = Instant::now() + Duration::from_mins(10);
        while self.sql(&format!("SELECT last_archived_wal >= '{segment}' FROM pg_stat_archiver"))? != "t" {
            if Instant::now() > limit {
                return Err(format!(
                    "{segment} was not archived: look at {}",
                    self.place.join("postgres.log").display()
                )
                .into());
            }
            std::thread::park_timeout(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for Postgres<'_> {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

fn checked(command: &mut Command) -> Result<String> {
    // A server that pg_ctl starts keeps its output open, so what it says goes to its log alone.
    let output = command.stdin(Stdio::null()).stderr(Stdio::piped()).output()?;
    if !output.status.success() {
        return Err(format!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
