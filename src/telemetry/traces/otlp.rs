//! OTLP over gRPC and over HTTP. Both are one POST of the same message, so that hyper and rustls, which are here anyway,
//! do without the weight of a gRPC client.
//!
//! A batch has a connection of its own and one try: batches are seconds apart, and a connection that was kept would often
//! have ended meanwhile.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::{Either, select};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HOST, TE, USER_AGENT};
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use prost::Message;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::TlsConnector;

use crate::api::config::{Collector, TraceProtocol};
use crate::api::words::with_causes;

/// Where gRPC expects spans.
const GRPC_PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// Before each message of gRPC: whether it is compressed, and its length.
const GRPC_PREFIX: usize = 5;
/// Longest answer that is read.
const MOST_BYTES: usize = 64 * 1024;

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Sends batches to one collector.
#[derive(Debug)]
pub(super) struct Exporter {
    /// Its own, driven by the thread that exports: a name that is not resolved, for instance, blocks nothing else. None once it
    /// has ended.
    runtime: Mutex<Option<Runtime>>,
    target: Target,
    resource: ResourceAttributesWithSchema,
}

#[derive(Debug)]
struct Target {
    protocol: TraceProtocol,
    gzip: bool,
    timeout: Duration,
    headers: HeaderMap,
    uri: Uri,
    host: String,
    port: u16,
    tls: Option<Tls>,
}

struct Tls {
    name: ServerName<'static>,
    connector: TlsConnector,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.name.fmt(formatter)
    }
}

impl Exporter {
    /// An exporter to this collector, with these headers.
    pub(super) fn new(collector: &Collector, headers: &[(HeaderName, HeaderValue)]) -> Result<Self, String> {
        let target = Target::new(collector, headers)?;
        let runtime = Builder::new_current_thread()
            .enable_all()
            // The resolver's.
            .max_blocking_threads(1)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self { runtime: Mutex::new(Some(runtime)), target, resource: ResourceAttributesWithSchema::default() })
    }

    fn send(&self, batch: Vec<SpanData>) -> Result<(), String> {
        let resource_spans = group_spans_by_resource_and_scope(batch, &self.resource);
        let message = ExportTraceServiceRequest { resource_spans }.encode_to_vec();
        let request = self.target.request(message)?;
        let runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        let runtime = runtime.as_ref().ok_or("the exporter has ended")?;
        let limit = self.target.timeout;
        runtime
            .block_on(async { tokio::time::timeout(limit, self.target.exchange(request)).await })
            .map_err(|_| format!("no answer within {limit:?}"))?
    }
}

impl SpanExporter for Exporter {
    /// Only the thread of the batches asks for it, and it may block that one.
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.send(batch).map_err(OTelSdkError::InternalFailure)
    }
    fn set_resource(&mut self, resource: &Resource) {
        self.resource = resource.into();
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        // A resolver that hangs must not hold up whoever drops it.
        if let Some(runtime) = self.runtime.lock().unwrap_or_else(PoisonError::into_inner).take() {
            runtime.shutdown_background();
        }
    }
}

impl Target {
    fn new(collector: &Collector, headers: &[(HeaderName, HeaderValue)]) -> Result<Self, String> {
        let uri: Uri = collector.endpoint.parse().map_err(|error| format!("the address of the collector: {error}"))?;
        let host = uri.host().ok_or("the address of the collector has no host")?.to_owned();
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let secure = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let tls = secure.then(|| tls(&host, collector)).transpose()?;
        let uri = match collector.protocol {
            TraceProtocol::Http => uri,
            TraceProtocol::Grpc => {
                let mut parts = uri.into_parts();
                parts.path_and_query = Some(PathAndQuery::from_static(GRPC_PATH));
                Uri::from_parts(parts).map_err(|error| error.to_string())?
            }
        };
        let timeout = Duration::from_millis(collector.timeout_millis);
        let headers = headers.iter().cloned().collect();
        Ok(Self { protocol: collector.protocol, gzip: collector.gzip, timeout, headers, uri, host, port, tls })
    }

    fn request(&self, message: Vec<u8>) -> Result<Request<Full<Bytes>>, String> {
        let message = if self.gzip { compressed(&message).map_err(|error| error.to_string())? } else { message };
        let mut request = Request::builder().method(Method::POST);
        if let Some(own) = request.headers_mut() {
            own.extend(self.headers.clone());
            own.insert(USER_AGENT, HeaderValue::from_static(concat!("hello-operator/", env!("CARGO_PKG_VERSION"))));
        }
        let (request, body) = match self.protocol {
            TraceProtocol::Http => {
                let host = self.uri.authority().map_or(self.host.as_str(), Authority::as_str);
                let path = self.uri.path_and_query().map_or("/", PathAndQuery::as_str);
                let request = request.uri(path).header(HOST, host).header(CONTENT_TYPE, "application/x-protobuf");
                (if self.gzip { request.header(CONTENT_ENCODING, "gzip") } else { request }, message)
            }
            TraceProtocol::Grpc => {
                let request =
                    request.uri(self.uri.clone()).header(TE, "trailers").header(CONTENT_TYPE, "application/grpc");
                let length = u32::try_from(message.len()).map_err(|error| error.to_string())?;
                let mut body = Vec::with_capacity(GRPC_PREFIX + message.len());
                body.push(u8::from(self.gzip));
                body.extend(length.to_be_bytes());
                body.extend(message);
                (if self.gzip { request.header("grpc-encoding", "gzip") } else { request }, body)
            }
        };
        request.body(Full::new(body.into())).map_err(|error| error.to_string())
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<(), String> {
        let tcp = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(|error| said("connect", &error))?;
        // A batch is one write, and nothing follows it.
        let _ = tcp.set_nodelay(true);
        let stream: Box<dyn Stream> = match &self.tls {
            None => Box::new(tcp),
            Some(Tls { name, connector }) => {
                Box::new(connector.connect(name.clone(), tcp).await.map_err(|error| said("TLS", &error))?)
            }
        };
        let io = TokioIo::new(stream);
        match self.protocol {
            TraceProtocol::Http => {
                let (mut sender, connection) =
                    hyper::client::conn::http1::handshake(io).await.map_err(|error| said("HTTP", &error))?;
                driven(async { http_answer(sender.send_request(request).await).await }, connection).await
            }
            TraceProtocol::Grpc => {
                let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
                    .await
                    .map_err(|error| said("HTTP/2", &error))?;
                driven(async { grpc_answer(sender.send_request(request).await).await }, connection).await
            }
        }
    }
}

/// An exchange, while its connection is driven. That may end right after the answer arrived.
async fn driven<T>(exchange: impl Future<Output = T>, connection: impl Future) -> T {
    match select(pin!(exchange), pin!(connection)).await {
        Either::Left((answer, _)) => answer,
        Either::Right((_, exchange)) => exchange.await,
    }
}

async fn http_answer(answer: hyper::Result<Response<Incoming>>) -> Result<(), String> {
    let answer = answer.map_err(|error| said("HTTP", &error))?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await;
    if !status.is_success() {
        return Err(format!("it answered {status}"));
    }
    accepted(&body.map_err(|error| said("its answer", &*error))?.to_bytes())
}

async fn grpc_answer(answer: hyper::Result<Response<Incoming>>) -> Result<(), String> {
    let answer = answer.map_err(|error| said("HTTP/2", &error))?;
    let (status, headers) = (answer.status(), answer.headers().clone());
    if !status.is_success() {
        return Err(format!("it answered {status}"));
    }
    let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await;
    let body = body.map_err(|error| said("its answer", &*error))?;
    // A refusal may come in the headers, with nothing after them.
    let last = body.trailers().unwrap_or(&headers);
    let text = |name: &str| last.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match text("grpc-status") {
        "0" => accepted(body.to_bytes().get(GRPC_PREFIX..).unwrap_or_default()),
        code => Err(format!("it answered gRPC status {code:?}: {}", text("grpc-message"))),
    }
}

/// A collector may take a part. That it took all is said by an empty message.
fn accepted(body: &[u8]) -> Result<(), String> {
    let answer = ExportTraceServiceResponse::decode(body).unwrap_or_default();
    match answer.partial_success {
        Some(part) if part.rejected_spans > 0 => {
            Err(format!("it rejected {} spans: {}", part.rejected_spans, part.error_message))
        }
        _ => Ok(()),
    }
}

fn said(what: &str, error: &(dyn std::error::Error + 'static)) -> String {
    format!("{what}: {}", with_causes(error))
}

fn compressed(message: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, message)?;
    encoder.finish()
}

fn tls(host: &str, collector: &Collector) -> Result<Tls, String> {
    let mut roots = RootCertStore::empty();
    match &collector.authority {
        None => {
            roots.add_parsable_certificates(webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().cloned());
        }
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                let certificate = certificate.map_err(|error| format!("the certificate of the collector: {error}"))?;
                roots.add(certificate).map_err(|error| format!("the certificate of the collector: {error}"))?;
            }
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = match collector.protocol {
        TraceProtocol::Grpc => vec![b"h2".to_vec()],
        TraceProtocol::Http => vec![b"http/1.1".to_vec()],
    };
    let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
    Ok(Tls { name, connector: TlsConnector::from(Arc::new(config)) })
}
