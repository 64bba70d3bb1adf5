//! `/metrics` over TLS, for whom somebody else lets read it: `guard` is asked about the bearer token of each request.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::future::BoxFuture;
use rustls::ServerConfig;
use tokio::net::TcpListener;

use super::Error;
use super::health::{Metrics, exposition};
use crate::https;

const MOST_CONNECTIONS: usize = 16;
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
    tls: Arc<ServerConfig>,
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
        Ok(Self { listener, address: bound, tls, router })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` resolves.
    pub async fn serve(self, shutdown: impl Future<Output = ()> + Send + 'static) {
        let Self { listener, tls, router, .. } = self;
        tokio::select! {
            () = shutdown => {}
            () = https::serve(listener, MOST_CONNECTIONS, || Arc::clone(&tls), move |_| router.clone()) => {}
        }
    }
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
