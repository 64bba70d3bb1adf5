//! `/metrics` over TLS, for whom somebody else lets read it: `guard` is asked about the bearer token of each request.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::future::BoxFuture;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use super::Error;
use super::health::{Metrics, exposition};

const HANDSHAKE: Duration = Duration::from_secs(5);
/// A connection may stay open this long for further scrapes.
const CONNECTION: Duration = Duration::from_mins(5);
const MOST_CONNECTIONS: usize = 16;
/// Pause after an accept that failed: out of file descriptors, for instance.
const PAUSE: Duration = Duration::from_millis(100);

/// What is to become of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It is answered.
    Granted,
    /// The token is nobody's (401).
    Unknown,
    /// It is somebody's who may not read metrics (403).
    Denied,
    /// Nobody could be asked (503).
    Unavailable,
}

/// Decides by the bearer token.
pub type Guard = Arc<dyn Fn(String) -> BoxFuture<'static, Access> + Send + Sync>;

/// The bound, not yet serving server.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    acceptor: TlsAcceptor,
    router: Router,
}

impl Server {
    /// Binds `address`; port 0 takes a free one, see [`Server::address`].
    pub async fn bind(
        address: SocketAddr,
        tls: Arc<ServerConfig>,
        metrics: Metrics,
        guard: Guard,
    ) -> Result<Self, Error> {
        let listen = |source| Error::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let bound = listener.local_addr().map_err(listen)?;
        let router = Router::new().route("/metrics", get(guarded)).with_state((metrics, guard));
        Ok(Self { listener, address: bound, acceptor: TlsAcceptor::from(tls), router })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` resolves.
    pub async fn serve(self, shutdown: impl Future<Output = ()> + Send + 'static) {
        tokio::select! {
            () = shutdown => {}
            () = self.accept() => {}
        }
    }

    async fn accept(self) {
        let slots = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let (acceptor, router) = (self.acceptor.clone(), self.router.clone());
                    tokio::spawn(async move {
                        let _ = tokio::time::timeout(CONNECTION, connection(stream, &acceptor, router)).await;
                        drop(slot);
                    });
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }
}

async fn connection(stream: TcpStream, acceptor: &TlsAcceptor, router: Router) {
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await else { return };
    // How a connection ends is the client's matter.
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HANDSHAKE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await;
}

async fn guarded(State((metrics, guard)): State<(Metrics, Guard)>, headers: HeaderMap) -> Response {
    let token = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let access = match token.map(str::trim).filter(|token| !token.is_empty()) {
        Some(token) => guard(token.to_owned()).await,
        None => Access::Unknown,
    };
    let refuse = |status: StatusCode, why: &'static str| (status, why).into_response();
    match access {
        Access::Granted => exposition(State(metrics)).await,
        Access::Unknown => {
            let status = StatusCode::UNAUTHORIZED;
            (status, [(WWW_AUTHENTICATE, "Bearer")], "a token that the API server knows is needed\n").into_response()
        }
        Access::Denied => refuse(StatusCode::FORBIDDEN, "the right to get /metrics is needed\n"),
        Access::Unavailable => refuse(StatusCode::SERVICE_UNAVAILABLE, "the API server cannot be asked now\n"),
    }
}
