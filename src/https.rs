//! Serving over TLS: few connections at a time, and an end for each, whatever the other side does.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

const HANDSHAKE: Duration = Duration::from_secs(5);
/// A connection may stay open this long for further requests.
const CONNECTION: Duration = Duration::from_mins(5);
/// Pause after an accept that failed, out of file descriptors for instance: what is open now closes in time.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves until it is dropped, `most` connections at a time; the others wait. `tls` is asked for each connection, as
/// certificates change, and `router` with the certificate that the client showed, if it showed one.
pub async fn serve(
    listener: TcpListener,
    most: usize,
    tls: impl Fn() -> Arc<ServerConfig> + Send,
    router: impl Fn(Option<&CertificateDer<'static>>) -> Router + Clone + Send + Sync + 'static,
) {
    let slots = Arc::new(Semaphore::new(most));
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (tls, router) = (tls(), router.clone());
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(CONNECTION, connection(stream, tls, router)).await;
                    drop(slot);
                });
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn connection(
    stream: TcpStream,
    tls: Arc<ServerConfig>,
    router: impl Fn(Option<&CertificateDer<'static>>) -> Router,
) {
    let acceptor = TlsAcceptor::from(tls);
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await else { return };
    let router = router(stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()));
    // How a connection ends is the client's matter.
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HANDSHAKE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await;
}
