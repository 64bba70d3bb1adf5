//! A real etcd and kube-apiserver, and nothing else: no nodes, no controllers.

mod audit;
mod pki;
mod process;
mod proxy;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tokio::sync::{OnceCell, RwLock};

pub use audit::Write;
pub use pki::Authority;
pub use process::Process;
pub use proxy::Proxy;

/// Waits until a condition holds, and says what did not come when it does not.
pub async fn eventually<T>(what: &str, limit: Duration, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    // Often at first, and then ever less often: a look may cost something.
    let began = Instant::now();
    let waited = async {
        loop {
            if let Some(found) = condition().await {
                return found;
            }
            tokio::time::sleep((began.elapsed() / 20).clamp(Duration::from_millis(1), Duration::from_millis(200)))
                .await;
        }
    };
    tokio::time::timeout(limit, waited).await.unwrap_or_else(|_| panic!("not within {limit:?}: {what}"))
}

/// The API server and its etcd. Both end with this, or with the test process, however that ends.
pub struct Plane {
    /// Tests that need the machine's or the API server's whole attention take it for themselves.
    pub attention: RwLock<()>,
    /// Done once the definition is installed.
    pub definition: OnceCell<()>,
    authority: Authority,
    directory: PathBuf,
    port: u16,
    api_server: Process,
    etcd: Process,
    namespaces: AtomicU32,
}

impl Plane {
    /// Starts both and waits until the API server is ready.
    pub async fn start() -> Self {
        let base = Path::new(env!("CARGO_TARGET_TMPDIR"));
        sweep(base);
        let directory = base.join(format!("api-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let authority = Authority::new();
        write(&directory.join("ca.crt"), &authority.certificate());
        let server = authority.server();
        write(&directory.join("server.crt"), &server.certificate);
        write(&directory.join("server.key"), &server.key);
        let (private, public) = pki::key_pair();
        write(&directory.join("service-account.key"), &private);
        write(&directory.join("service-account.pub"), &public);
        write(&directory.join("audit-policy.yaml"), &audit::policy().to_string());

        let [client, peer, port] = free_ports();
        let etcd = startetcd(&directory, client, peer);
        let api_server = start_api_server(&directory, client, port);
        let plane = Self {
            attention: RwLock::new(()),
            definition: OnceCell::new(),
            authority,
            directory,
            port,
            api_server,
            etcd,
            namespaces: AtomicU32::new(0),
        };
        let client = plane.client("admin").await;
        eventually("the API server to be ready", Duration::from_mins(1), async || {
            let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
            client.request_text(request).await.ok()
        })
        .await;
        plane
    }

    /// The API server's process, to stop and continue it.
    pub fn api_server(&self) -> &Process {
        &self.api_server
    }

    /// Port of the API server on the loopback interface.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Everything of this run is below it.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// A kubeconfig of an administrator of that name, who appears under it in the audit log.
    pub fn kubeconfig(&self, user: &str, port: u16) -> Value {
        self.kubeconfig_with(user, port, &self.authority.administrator(user))
    }

    /// A kubeconfig of somebody who may do only what the name is bound to.
    pub fn kubeconfig_of(&self, user: &str) -> Value {
        self.kubeconfig_with(user, self.port, &self.authority.user(user))
    }

    fn kubeconfig_with(&self, user: &str, port: u16, identity: &pki::Identity) -> Value {
        use base64::Engine as _;
        let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user, "namespace": "default"}}],
            "clusters": [{"name": "test", "cluster": {
                "server": format!("https://127.0.0.1:{port}"),
                "certificate-authority-data": encode(&self.authority.certificate()),
            }}],
            "users": [{"name": user, "user": {
                "client-certificate-data": encode(&identity.certificate),
                "client-key-data": encode(&identity.key),
            }}],
        })
    }

    /// How to reach the API server as that administrator, through that port.
    pub async fn config_through(&self, user: &str, port: u16) -> kube::Config {
        let config: Kubeconfig = serde_json::from_value(self.kubeconfig(user, port)).unwrap();
        kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap()
    }

    /// How to reach the API server as that administrator.
    pub async fn config(&self, user: &str) -> kube::Config {
        self.config_through(user, self.port).await
    }

    /// A client of that administrator.
    pub async fn client(&self, user: &str) -> kube::Client {
        kube::Client::try_from(self.config(user).await).unwrap()
    }

    /// A new namespace.
    pub async fn namespace(&self) -> String {
        let name = format!("test-{}", self.namespaces.fetch_add(1, Ordering::Relaxed));
        let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> = kube::Api::all(self.client("admin").await);
        let object = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        namespaces.create(&kube::api::PostParams::default(), &object).await.unwrap();
        name
    }

    /// Every write that the API server has answered in a namespace, in the order in which it received them.
    pub fn writes(&self, namespace: &str) -> Vec<Write> {
        self.all_writes().into_iter().filter(|write| write.namespace == namespace).collect()
    }

    /// The same in all namespaces.
    pub fn all_writes(&self) -> Vec<Write> {
        audit::writes(&self.directory.join("audit.log"))
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for log in ["etcd.log", "kube-apiserver.log"] {
                let text = std::fs::read_to_string(self.directory.join(log)).unwrap_or_default();
                let lines: Vec<&str> = text.lines().rev().take(15).collect();
                eprintln!("end of {log}:\n{}", lines.into_iter().rev().collect::<Vec<_>>().join("\n"));
            }
        }
        self.api_server.kill();
        self.etcd.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Removes what runs left behind that were killed.
fn sweep(base: &Path) {
    for entry in std::fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix("api-")).and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}

/// Ports that nobody listens on now.
fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// A program from the local cluster's cache; built when it is not there.
fn program(name: &str) -> PathBuf {
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/build");
    let output = Command::new(build).args(["--path", name]).output().unwrap();
    assert!(output.status.success(), "tests/cluster/build: {}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim()).join(name)
}

fn startetcd(directory: &Path, client: u16, peer: u16) -> Process {
    let mut command = Process::command(&program("etcd"));
    let peer = format!("http://127.0.0.1:{peer}");
    let client = format!("http://127.0.0.1:{client}");
    command
        .args(["--name", "test", "--unsafe-no-fsync", "--log-level", "warn"])
        .arg("--data-dir")
        .arg(directory.join("etcd"))
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .arg(format!("--initial-cluster=test={peer}"));
    Process::start(command, &directory.join("etcd.log"))
}

fn start_api_server(directory: &Path, etcd: u16, port: u16) -> Process {
    let mut command = Process::command(&program("kube"));
    let file = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    command
        .arg("kube-apiserver")
        .args(["--bind-address", "127.0.0.1", "--secure-port", &port.to_string()])
        .args(["--advertise-address", "127.0.0.1", "--service-cluster-ip-range", "10.96.0.0/16"])
        .arg(format!("--etcd-servers=http://127.0.0.1:{etcd}"))
        .args(["--client-ca-file", &file("ca.crt")])
        .args(["--tls-cert-file", &file("server.crt"), "--tls-private-key-file", &file("server.key")])
        .args(["--service-account-issuer", "https://kubernetes.default.svc"])
        .args(["--service-account-key-file", &file("service-account.pub")])
        .args(["--service-account-signing-key-file", &file("service-account.key")])
        .args(["--authorization-mode", "RBAC", "--allow-privileged"])
        .args(["--audit-policy-file", &file("audit-policy.yaml"), "--audit-log-path", &file("audit.log")])
        // The property tests ask for thousands of answers at once.
        .args(["--max-mutating-requests-inflight", "400"]);
    Process::start(command, &directory.join("kube-apiserver.log"))
}
