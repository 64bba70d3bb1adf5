//! `/metrics`, `/livez` and `/readyz`. The server starts before leadership and before the caches, and answers with the
//! reasons as text.

use std::fmt::Write as _;
use std::future::{Future, IntoFuture};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::Error;

/// How long requests in flight may take once the server is asked to end.
const GRACE: Duration = Duration::from_secs(1);

/// `Err` carries the reason, a sentence for people.
type Probe = Box<dyn Fn() -> Result<(), String> + Send + Sync>;
type Checks = Arc<RwLock<Vec<(&'static str, Probe)>>>;
/// Makes the text of `/metrics`.
pub type Metrics = Arc<dyn Fn() -> Result<String, Error> + Send + Sync>;

/// The named checks behind `/livez` and `/readyz`. Cheap to clone; clones share the checks.
///
/// A check is a closure that looks at the present ([`Health::live`], [`Health::ready`]), or a [`Flag`] that somebody
/// sets ([`Health::ready_flag`]). Checks must return at once.
#[derive(Clone, Default)]
pub struct Health {
    live: Checks,
    ready: Checks,
}

impl Health {
    /// No checks yet: live and ready.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a check to `/livez`: the kubelet restarts the container when it fails for long.
    pub fn live(&self, name: &'static str, probe: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        self.live.write().unwrap_or_else(PoisonError::into_inner).push((name, Box::new(probe)));
    }

    /// Adds a check to `/readyz`.
    pub fn ready(&self, name: &'static str, probe: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        self.ready.write().unwrap_or_else(PoisonError::into_inner).push((name, Box::new(probe)));
    }

    /// Adds a check to `/readyz` that fails with `reason` until the flag is set.
    pub fn ready_flag(&self, name: &'static str, reason: impl Into<String>) -> Flag {
        let flag = Flag(Arc::new(Mutex::new(Err(reason.into()))));
        let state = flag.clone();
        self.ready(name, move || state.0.lock().unwrap_or_else(PoisonError::into_inner).clone());
        flag
    }
}

/// A check that somebody sets. Clones are the same flag.
#[derive(Clone)]
pub struct Flag(Arc<Mutex<Result<(), String>>>);

impl Flag {
    /// From now on the check passes.
    pub fn pass(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Ok(());
    }

    /// From now on the check fails, and this is why.
    pub fn fail(&self, reason: impl Into<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Err(reason.into());
    }
}

/// The bound, not yet serving server.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    router: Router,
}

impl Server {
    /// Binds `address`; port 0 takes a free one, see [`Server::address`]. Without `metrics` there is no `/metrics` here.
    pub async fn bind(address: SocketAddr, health: &Health, metrics: Option<Metrics>) -> Result<Self, Error> {
        let listen = |source| Error::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let bound = listener.local_addr().map_err(listen)?;
        let mut router = Router::new()
            .route("/livez", get(checks).with_state(Arc::clone(&health.live)))
            .route("/readyz", get(checks).with_state(Arc::clone(&health.ready)));
        if let Some(metrics) = metrics {
            router = router.route("/metrics", get(exposition).with_state(metrics));
        }
        Ok(Self { listener, address: bound, router })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` resolves; requests in flight then have one second.
    pub async fn serve(self, shutdown: impl Future<Output = ()> + Send + 'static) {
        let (ending, ended) = oneshot::channel();
        let server = axum::serve(self.listener, self.router).with_graceful_shutdown(async move {
            shutdown.await;
            // The receiver lives as long as this server.
            let _ = ending.send(());
        });
        tokio::select! {
            // axum retries accept errors itself, so this ends only by the shutdown.
            _ = server.into_future() => {}
            () = async { if ended.await.is_ok() { tokio::time::sleep(GRACE).await } } => {}
        }
    }
}

/// Every check with its state, one a line; 503 when one fails.
async fn checks(State(probes): State<Checks>) -> Response {
    let mut text = String::new();
    let mut failed = false;
    for (name, probe) in probes.read().unwrap_or_else(PoisonError::into_inner).iter() {
        // Writing to a String cannot fail.
        let _ = match probe() {
            Ok(()) => writeln!(text, "[+] {name}"),
            Err(reason) => {
                failed = true;
                writeln!(text, "[-] {name}: {reason}")
            }
        };
    }
    let (status, verdict) = if failed { (StatusCode::SERVICE_UNAVAILABLE, "failed") } else { (StatusCode::OK, "ok") };
    text.push_str(verdict);
    text.push('\n');
    (status, text).into_response()
}

pub(super) async fn exposition(State(metrics): State<Metrics>) -> Response {
    match metrics() {
        Ok(text) => ([(CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::task::JoinHandle;

    use super::*;

    struct Running {
        address: SocketAddr,
        stop: oneshot::Sender<()>,
        task: JoinHandle<()>,
    }

    async fn start(health: &Health) -> Running {
        let metrics: Metrics = Arc::new(|| Ok("hello_up 1\n".to_owned()));
        let server = Server::bind("127.0.0.1:0".parse().unwrap(), health, Some(metrics)).await.unwrap();
        let (stop, stopped) = oneshot::channel();
        let address = server.address();
        let task = tokio::spawn(server.serve(async move {
            let _ = stopped.await;
        }));
        Running { address, stop, task }
    }

    async fn fetch(address: SocketAddr, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    #[tokio::test]
    async fn without_checks_it_is_live_and_ready_and_shows_metrics() {
        let running = start(&Health::new()).await;
        assert_eq!(fetch(running.address, "/livez").await, (200, "ok\n".into()));
        assert_eq!(fetch(running.address, "/readyz").await, (200, "ok\n".into()));
        assert_eq!(fetch(running.address, "/metrics").await, (200, "hello_up 1\n".into()));
        assert_eq!(fetch(running.address, "/other").await.0, 404);
    }

    #[tokio::test]
    async fn reasons_are_answered_and_checks_may_come_later() {
        let health = Health::new();
        let running = start(&health).await;
        let caches = health.ready_flag("caches", "the watch of pods has not answered yet");
        let frozen = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&frozen);
        health.live("watches", move || if seen.load(Ordering::Relaxed) { Err("stale".into()) } else { Ok(()) });

        let expected = "[-] caches: the watch of pods has not answered yet\nfailed\n";
        assert_eq!(fetch(running.address, "/readyz").await, (503, expected.into()));
        caches.pass();
        assert_eq!(fetch(running.address, "/readyz").await, (200, "[+] caches\nok\n".into()));
        caches.fail("gone");
        assert_eq!(fetch(running.address, "/readyz").await.0, 503);
        assert_eq!(fetch(running.address, "/livez").await, (200, "[+] watches\nok\n".into()));
        frozen.store(true, Ordering::Relaxed);
        assert_eq!(fetch(running.address, "/livez").await, (503, "[-] watches: stale\nfailed\n".into()));
    }

    #[tokio::test]
    async fn it_ends_when_asked_even_with_a_client_that_says_nothing() {
        let running = start(&Health::new()).await;
        let _silent = TcpStream::connect(running.address).await.unwrap();
        assert_eq!(fetch(running.address, "/livez").await.0, 200);
        running.stop.send(()).unwrap();
        tokio::time::timeout(GRACE * 3, running.task).await.unwrap().unwrap();
        assert!(TcpStream::connect(running.address).await.is_err());
    }

    #[tokio::test]
    async fn an_address_in_use_is_an_error_that_names_it() {
        let running = start(&Health::new()).await;
        let Err(error) = Server::bind(running.address, &Health::new(), None).await else {
            panic!("two servers on one address");
        };
        assert!(error.to_string().contains(&running.address.to_string()), "{error}");
    }
}
