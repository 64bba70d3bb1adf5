//! Real PostgreSQL on this machine: a user that may run it, folders, certificates.

use std::path::{Path, PathBuf};
use std::process::Command;

use hello_operator::agent::bootstrap::Wish;
use hello_operator::agent::files::{Credentials, Secrets};
use hello_operator::agent::postmaster::{Files, Postmaster, first_session};
use hello_operator::agent::process::Processes;
use hello_operator::agent::sql::{Session, Socket};
use hello_operator::agent::volume::{Layout, State, VolumeLock};
use hello_operator::agent::{Error, bootstrap, clone};
use hello_operator::engine::postgres::conninfo::Upstream;
use hello_operator::engine::postgres::settings::{self, Archiving, Own, Role};
use hello_operator::engine::postgres::{Major, hba, slots};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

/// Names our own program to a test.
const PROGRAM: &str = "HELLO_ENGINE_PROGRAM";

/// Runs a test as a user that PostgreSQL accepts, in a process of its own: what it kills, it kills below itself.
///
/// Without PostgreSQL on this machine the test fails and says what to install.
pub fn isolated(name: &str, test: impl AsyncFnOnce(World)) {
    const CHILD: &str = "HELLO_ENGINE_TEST";
    #[expect(clippy::disallowed_methods, reason = "the test's own switch")]
    let child = std::env::var_os(CHILD).is_some();
    if child {
        // What PostgreSQL says, for a look: RUST_LOG=info.
        let filter = tracing_subscriber::EnvFilter::builder()
            .with_default_directive(tracing_subscriber::filter::LevelFilter::OFF.into())
            .from_env_lossy();
        tracing_subscriber::fmt().with_env_filter(filter).init();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { test(World::new(name)).await });
        return;
    }
    let programs = programs().expect("PostgreSQL's programs below /usr/lib/postgresql: apt-get install postgresql");
    // Where that user can reach them.
    let place = |program: &Path, kind: &str| {
        let file = format!("hello-engine-{}-{}-{kind}", name.replace("::", "-"), std::process::id());
        let copy = std::env::temp_dir().join(file);
        std::fs::hard_link(program, &copy).or_else(|_| std::fs::copy(program, &copy).map(drop)).unwrap();
        copy
    };
    let copy = place(&std::env::current_exe().unwrap(), "test");
    let program = place(Path::new(env!("CARGO_BIN_EXE_hello-operator")), "program");
    let mut command = if rustix::process::geteuid().is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(&copy);
        command
    } else {
        Command::new(&copy)
    };
    #[expect(clippy::disallowed_methods, reason = "PATH is the interface to PostgreSQL's programs")]
    let path = std::env::var("PATH").unwrap_or_default();
    let status = command
        .args([name, "--exact", "--nocapture"])
        .env(CHILD, "1")
        .env(PROGRAM, &program)
        .env("HOME", "/nonexistent")
        .env("PATH", format!("{}:{path}", programs.display()))
        .current_dir("/")
        .status()
        .unwrap();
    for file in [copy, program] {
        std::fs::remove_file(file).unwrap();
    }
    assert!(status.success(), "{name}: {status}");
}

/// The newest PostgreSQL of this machine, or the one that HELLO_PG_BIN names.
fn programs() -> Option<PathBuf> {
    #[expect(clippy::disallowed_methods, reason = "the test's own switch")]
    if let Some(chosen) = std::env::var_os("HELLO_PG_BIN") {
        return Some(chosen.into());
    }
    let mut found: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(|bin| bin.join("postgres").exists())
        .collect();
    found.sort();
    found.pop()
}

/// A folder, certificates, and the processes below this one.
pub struct World {
    pub root: PathBuf,
    pub processes: Processes,
    pub secrets: Secrets,
    /// Our own program, which has the killer in it.
    pub program: PathBuf,
}

impl Drop for World {
    fn drop(&mut self) {
        self.processes.kill_everything();
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

/// An instance: its volume and its place.
pub struct Instance {
    pub name: String,
    pub layout: Layout,
    pub lock: VolumeLock,
    pub socket: Socket,
    pub state: State,
}

impl World {
    pub fn new(name: &str) -> Self {
        // Short: the path of a socket has about a hundred letters.
        let word: String = name.rsplit("::").next().unwrap_or_default().chars().take(24).collect();
        let root = std::env::temp_dir().join(format!("he-{word}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(&root).unwrap();
        certificates(&root.join("secrets"));
        let secrets = Secrets::new(root.join("secrets"));
        #[expect(clippy::disallowed_methods, reason = "the test's own switch")]
        let program = std::env::var_os(PROGRAM).unwrap().into();
        Self { root, processes: Processes::new().unwrap(), secrets, program }
    }

    /// Secrets in which the certificate of `part` stands where an agent's own is looked for.
    pub fn identity_of(&self, part: &str) -> Secrets {
        let root = self.root.join(format!("as-{part}"));
        std::fs::create_dir_all(&root).unwrap();
        if !root.join("replication").exists() {
            std::os::unix::fs::symlink(self.root.join("secrets").join(part), root.join("replication")).unwrap();
        }
        Secrets::new(root)
    }

    pub fn instance(&self, name: &str) -> Instance {
        let folder = self.root.join(name);
        for part in ["data", "wal", "run"] {
            std::fs::create_dir_all(folder.join(part)).unwrap();
        }
        let layout = Layout::new(folder.join("data"), Some(folder.join("wal")));
        let lock = layout.lock().unwrap();
        let state = layout.settle(&lock).unwrap();
        Instance { name: name.into(), layout, lock, socket: Socket::new(folder.join("run"), free_port()), state }
    }

    pub fn wish(&self, init_sql: &[&str]) -> Wish {
        let of = |name: &str| Credentials { username: name.into(), password: format!("p'\\{name}") };
        Wish {
            member: "m1".into(),
            superuser: of("postgres"),
            owner: of("app"),
            database: "app".into(),
            init_sql: init_sql.iter().map(|sql| (*sql).to_owned()).collect(),
            private: self.root.join("private"),
        }
    }

    /// Bootstraps and makes it live.
    pub async fn bootstrap(&self, instance: &mut Instance) {
        let staged = bootstrap::bootstrap(&self.processes, &instance.layout, &self.wish(&[])).await.unwrap();
        instance.layout.go_live(&instance.lock).unwrap();
        instance.state.member = Some(staged.member);
    }

    pub fn upstream(&self, primary: &Instance) -> Upstream {
        let (ca, certificate, key) = self.secrets.client();
        Upstream {
            instance: primary.name.clone(),
            address: "127.0.0.1".parse().unwrap(),
            port: primary.socket.port,
            foreign_certificate: false,
            ca,
            certificate,
            key,
        }
    }

    /// Clones and makes it live.
    pub async fn clone_from(&self, primary: &Instance, member: &str, instance: &mut Instance) -> Result<(), Error> {
        clone::clone(&self.processes, &instance.layout, &self.upstream(primary), member).await?;
        instance.layout.go_live(&instance.lock)?;
        instance.state.member = Some(member.into());
        Ok(())
    }

    pub fn write_files(&self, instance: &Instance, role: Role, chosen: &[(&str, &str)]) {
        self.write_archiving(instance, role, chosen, Archiving::none());
    }

    pub fn write_archiving(&self, instance: &Instance, role: Role, chosen: &[(&str, &str)], archiving: Archiving) {
        let version = std::fs::read_to_string(instance.layout.pgdata().join("PG_VERSION")).unwrap();
        let standby = matches!(role, Role::Standby { .. });
        let own = Own {
            major: Major::parse(&version).unwrap(),
            instance: instance.name.clone(),
            socket_dir: instance.socket.folder.to_string_lossy().into_owned(),
            port: instance.socket.port,
            tls: self.secrets.tls(),
            role,
            archiving,
            read_only: false,
        };
        let chosen = chosen.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let all = settings::render(&settings::derived(0, 1 << 30, 100), &chosen, &own);
        let files = Files { conf: settings::text(&all), hba: hba::render(&[]), standby };
        files.write(&instance.layout.pgdata()).unwrap();
    }

    pub fn follows(&self, primary: &Instance, member: &str) -> Role {
        let upstream = (self.upstream(primary).conninfo(member), slots::of(member));
        Role::Standby { upstream: Some(upstream), critical: None }
    }

    pub async fn start(&self, instance: &Instance) -> (Postmaster, Session) {
        let postmaster =
            Postmaster::start(&self.processes, &instance.layout.pgdata(), &instance.socket, || true).unwrap();
        let session = first_session(&instance.layout.pgdata(), &instance.socket, std::time::Duration::from_secs(30))
            .await
            .unwrap();
        (postmaster, session)
    }
}

/// Awaits a condition; panics with `what` after a minute.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let end = std::time::Instant::now() + std::time::Duration::from_mins(1);
    while !condition().await {
        assert!(std::time::Instant::now() < end, "{what} never came");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn certificates(root: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
    let issuer = Issuer::new(ca, ca_key);
    let write = |part: &str, name: &str, sans: &[&str], usages: &[ExtendedKeyUsagePurpose]| {
        let key = KeyPair::generate().unwrap();
        let sans: Vec<String> = sans.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(sans).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.extended_key_usages = usages.to_vec();
        let certificate = params.signed_by(&key, &issuer).unwrap().pem();
        let folder = root.join(part);
        std::fs::create_dir_all(&folder).unwrap();
        for (file, text) in [("tls.crt", certificate), ("tls.key", key.serialize_pem()), ("ca.crt", ca_pem.clone())] {
            std::fs::write(folder.join(file), text).unwrap();
            std::fs::set_permissions(folder.join(file), std::fs::Permissions::from_mode(0o600)).unwrap();
        }
    };
    write("operator", "hello-operator", &["hello-operator"], &[ExtendedKeyUsagePurpose::ClientAuth]);
    write("stranger", "somebody", &["somebody"], &[ExtendedKeyUsagePurpose::ClientAuth]);
    let both = [ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
    write("server", "db", &["db-1", "db-2", "db-3"], &[ExtendedKeyUsagePurpose::ServerAuth]);
    write("replication", "streaming_replica", &["db-1", "db-2", "db-3"], &both);
}
