//! The client whose writes pass the gate.
//!
//! The question is asked twice: before a request enters the connection, and again when its bytes are about to be
//! written, because between the two a connection may have to be made, or the process may have been stopped for a minute.
//! The answer is waited for, and the API server told to work on it, only for as long as nobody else can hold the Lease.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::UPGRADE;
use http::uri::PathAndQuery;
use http::{Method, Request, Response, Uri};
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt};
use tower::{BoxError, Service, ServiceBuilder};

use super::gate::{Gate, NotLeader};

/// Less than this is not worth a request.
const LEAST_PATIENCE: Duration = Duration::from_secs(1);

/// A client like kube's own, but for two things: every request other than a read passes the gate, and nothing is
/// retried. A refused request fails with an error in which [`NotLeader::find`] finds the reason.
pub fn connect(config: &kube::Config, gate: Gate) -> Result<kube::Client, kube::Error> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(http)?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    let inner = HttpClient::builder(TokioExecutor::new()).build(connector);
    let stack = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(Gated { gate, inner });
    Ok(kube::Client::new(stack, config.default_namespace.clone()))
}

/// Reads pass always. What upgrades the connection (exec, attach, port-forward) is a GET, and acts.
fn acts<B>(request: &Request<B>) -> bool {
    !matches!(*request.method(), Method::GET | Method::HEAD) || upgrades(request)
}

fn upgrades<B>(request: &Request<B>) -> bool {
    request.headers().contains_key(UPGRADE)
}

/// Asks the gate before each request that acts. The innermost service but for the connection itself, so that nothing
/// is waited for in between.
#[derive(Clone)]
struct Gated<S> {
    gate: Gate,
    inner: S,
}

type Pending<R> = Pin<Box<dyn Future<Output = Result<R, BoxError>> + Send>>;

impl<S, B> Service<Request<Body>> for Gated<S>
where
    S: Service<Request<GatedBody>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = Pending<Response<B>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if !acts(&request) {
            let answer = self.inner.call(request.map(|body| GatedBody { gate: None, body }));
            return Box::pin(async move { answer.await.map_err(Into::into) });
        }
        let permit = match self.gate.enter() {
            Ok(permit) => permit,
            Err(refused) => return Box::pin(std::future::ready(Err(refused.into()))),
        };
        let patience = self.gate.patience();
        if let Some(patience) = patience
            && !upgrades(&request)
            && let Some(uri) = bounded(request.uri(), patience)
        {
            *request.uri_mut() = uri;
        }
        let gate = Some(self.gate.clone());
        let answer = self.inner.call(request.map(|body| GatedBody { gate, body }));
        Box::pin(async move {
            let answer = match patience {
                None => answer.await,
                Some(patience) => tokio::time::timeout(patience, answer).await.map_err(|_| NotLeader::RanOut)?,
            };
            let answer = answer.map_err(Into::into)?;
            permit.answered();
            Ok(answer)
        })
    }
}

/// Tells the API server to give up after so long, rounded down; otherwise it works on for a minute.
fn bounded(uri: &Uri, patience: Duration) -> Option<Uri> {
    let seconds = patience.max(LEAST_PATIENCE).as_secs();
    let joint = if uri.query().is_some() { '&' } else { '?' };
    let mut parts = uri.clone().into_parts();
    let path = parts.path_and_query?;
    parts.path_and_query = Some(PathAndQuery::try_from(format!("{path}{joint}timeout={seconds}s")).ok()?);
    Uri::from_parts(parts).ok()
}

/// A body that fails when its bytes are asked for while the gate is closed: the connection then breaks off, and the API
/// server never sees a whole request.
struct GatedBody {
    gate: Option<Gate>,
    body: Body,
}

impl HttpBody for GatedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(gate) = &self.gate
            && let Err(refused) = gate.check()
        {
            return Poll::Ready(Some(Err(refused.into())));
        }
        Pin::new(&mut self.body).poll_frame(context).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: Method, upgrade: bool) -> Request<()> {
        let builder = Request::builder().method(method).uri("/x");
        let builder = if upgrade { builder.header(UPGRADE, "websocket") } else { builder };
        builder.body(()).unwrap()
    }

    #[test]
    fn only_plain_reads_pass_a_closed_gate() {
        assert!(!acts(&request(Method::GET, false)));
        assert!(!acts(&request(Method::HEAD, false)));
        assert!(acts(&request(Method::GET, true)), "exec is a GET");
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            assert!(acts(&request(method, false)));
        }
    }

    #[test]
    fn the_api_server_is_told_how_long_to_try() {
        let uri = |text: &str| bounded(&text.parse().unwrap(), Duration::from_millis(12_900)).unwrap().to_string();
        assert_eq!(uri("https://host:1/api/v1/pods"), "https://host:1/api/v1/pods?timeout=12s");
        assert_eq!(uri("/api/v1/pods?dryRun=All"), "/api/v1/pods?dryRun=All&timeout=12s");
    }
}
