//! The exporter and the agent's spans against servers that speak OTLP: gRPC by another implementation, HTTP, both with TLS.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::body::Bytes as Body;
use axum::routing::post;
use opentelemetry::trace::{SpanContext, SpanId, TraceId};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_rustls::TlsAcceptor;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tracing_subscriber::layer::SubscriberExt;

use super::agent::{AgentTraces, answered, current};
use super::{FLUSH, Step, Traces, hand_over};
use crate::api::config::{Collector, TraceProtocol};
use crate::config::traces::Destination;

fn collector(endpoint: String, protocol: TraceProtocol) -> Collector {
    Collector { endpoint, protocol, gzip: false, timeout_millis: 5_000, authority: None }
}

fn to(collector: Collector) -> Destination {
    let token = ("authorization".parse().unwrap(), "Bearer t".parse().unwrap());
    Destination { collector, headers: vec![token] }
}

/// Sends that many spans there, and returns how many were exported and how many failed.
async fn send(destination: &Destination, count: usize) -> (u64, u64) {
    let traces = Traces::start(destination, "hello-operator").unwrap();
    let counters = traces.counters.clone();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(traces.layer("test")), || {
        for _ in 0..count {
            tracing::info_span!(target: "hello_operator::core", "ours").in_scope(|| ());
        }
    });
    traces.shutdown().await;
    let counted = |state| counters.with_label_values(&[state]).get();
    (counted("exported"), counted("failed"))
}

fn spans(request: &ExportTraceServiceRequest) -> &[Span] {
    &request.resource_spans[0].scope_spans[0].spans
}

struct Grpc(UnboundedSender<ExportTraceServiceRequest>, i64);

#[tonic::async_trait]
impl TraceService for Grpc {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        if request.metadata().get("authorization").is_some_and(|token| token != "Bearer t") {
            return Err(tonic::Status::unauthenticated("who are you"));
        }
        let _ = self.0.send(request.into_inner());
        let partial_success =
            (self.1 > 0).then(|| ExportTracePartialSuccess { rejected_spans: self.1, error_message: "too old".into() });
        Ok(tonic::Response::new(ExportTraceServiceResponse { partial_success }))
    }
}

type Received = UnboundedReceiver<ExportTraceServiceRequest>;

fn grpc(rejects: i64) -> (SocketAddr, Received) {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = incoming.local_addr().unwrap();
    let (sender, received) = unbounded_channel();
    let service = TraceServiceServer::new(Grpc(sender, rejects));
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
    (address, received)
}

fn http_router() -> (Router, Received) {
    let (sender, received) = unbounded_channel();
    let take = move |headers: http::HeaderMap, body: Body| async move {
        assert_eq!(headers["content-type"], "application/x-protobuf");
        let body = if headers.contains_key("content-encoding") {
            let mut plain = Vec::new();
            std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&*body), &mut plain).unwrap();
            plain
        } else {
            body.to_vec()
        };
        let _ = sender.send(ExportTraceServiceRequest::decode(&*body).unwrap());
        ""
    };
    (Router::new().route("/v1/traces", post(take)), received)
}

async fn http() -> (SocketAddr, Received) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (router, received) = http_router();
    tokio::spawn(async move { axum::serve(listener, router).await });
    (address, received)
}

/// Ends TLS for `localhost` before that address; returns its own and its certificate.
async fn with_tls(behind: SocketAddr, protocol: &'static [u8]) -> (SocketAddr, String) {
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = pair.cert.pem();
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(pair.signing_key.serialize_pem().as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_no_client_auth().with_single_cert(chain, key).unwrap();
    config.alpn_protocols = vec![protocol.to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut ours) = acceptor.accept(stream).await else { return };
                let mut theirs = tokio::net::TcpStream::connect(behind).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut ours, &mut theirs).await;
            });
        }
    });
    (address, certificate)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_receives_them_over_grpc() {
    let (address, mut received) = grpc(0);
    let there = to(collector(format!("http://{address}"), TraceProtocol::Grpc));
    assert_eq!(send(&there, 2).await, (2, 0));
    let request = received.recv().await.unwrap();
    let resource = request.resource_spans[0].resource.as_ref().unwrap();
    assert!(resource.attributes.iter().any(|attribute| attribute.key == "service.name"));
    assert_eq!(spans(&request).len(), 2);

    let stranger = vec![("authorization".parse().unwrap(), "Bearer x".parse().unwrap())];
    assert_eq!(send(&Destination { headers: stranger, ..there }, 2).await, (0, 2), "a refusal counts");
    let (address, _received) = grpc(1);
    assert_eq!(
        send(&to(collector(format!("http://{address}"), TraceProtocol::Grpc)), 2).await,
        (0, 2),
        "so does a part"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_receives_them_over_http_compressed_or_not() {
    let (address, mut received) = http().await;
    for gzip in [false, true] {
        let endpoint = format!("http://{address}/v1/traces");
        let there = Collector { gzip, ..collector(endpoint, TraceProtocol::Http) };
        assert_eq!(send(&to(there), 3).await, (3, 0));
        assert_eq!(spans(&received.recv().await.unwrap()).len(), 3);
    }
    assert_eq!(send(&to(collector(format!("http://{address}/elsewhere"), TraceProtocol::Http)), 1).await, (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn with_tls_only_a_collector_that_can_be_verified_receives_them() {
    let (plain_grpc, mut by_grpc) = grpc(0);
    let (plain_http, mut by_http) = http().await;
    for (behind, alpn, protocol, received) in [
        (plain_grpc, &b"h2"[..], TraceProtocol::Grpc, &mut by_grpc),
        (plain_http, b"http/1.1", TraceProtocol::Http, &mut by_http),
    ] {
        let (address, certificate) = with_tls(behind, alpn).await;
        let there = |host: &str, authority: Option<String>| {
            let endpoint = format!("https://{host}:{}/v1/traces", address.port());
            to(Collector { authority, ..collector(endpoint, protocol) })
        };
        assert_eq!(send(&there("localhost", Some(certificate.clone())), 2).await, (2, 0), "{protocol:?}");
        assert_eq!(spans(&received.recv().await.unwrap()).len(), 2);
        assert_eq!(send(&there("localhost", None), 1).await, (0, 1), "of nobody that the world trusts");
        assert_eq!(send(&there("127.0.0.1", Some(certificate)), 1).await, (0, 1), "of another name");
        assert!(received.try_recv().is_err());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_collector_delays_neither_spans_nor_the_end() {
    // Accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    for protocol in [TraceProtocol::Grpc, TraceProtocol::Http] {
        let began = Instant::now();
        let (exported, _) = send(&to(collector(endpoint.clone(), protocol)), 10_000).await;
        assert!(began.elapsed() < FLUSH + Duration::from_secs(3), "took {:?}", began.elapsed());
        assert_eq!(exported, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_continues_the_operators_trace_and_adds_its_steps_to_a_hand_over() {
    let (address, mut received) = grpc(0);
    let there = collector(format!("http://{address}"), TraceProtocol::Grpc);
    let traces = AgentTraces::new("shop", "db", "db-2");
    let header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    assert!(traces.request("/v1/switchover", header).is_none(), "nobody said where they go");

    traces.follow(Some(&there));
    let context = traces.request("/v1/switchover", header).unwrap();
    let asked_by = {
        let _guard = context.clone().attach();
        current()
    };
    answered(&context, 409);
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(10);
    let step = |outcome, asked_by| Step {
        name: "stop",
        uid: "uid".into(),
        term: 7,
        took: Duration::from_secs(2),
        outcome,
        asked_by,
    };
    traces.step(step(Ok("in order".into()), asked_by.clone()), now);
    traces.step(step(Err("it was killed".into()), SpanContext::empty_context()), now);
    // Nobody can be elected, for hours.
    for _ in 0..500 {
        traces.step(step(Ok(String::new()), SpanContext::empty_context()), now);
    }
    let shown = traces.hand_over("uid", 7).unwrap();
    traces.shutdown().await;
    assert!(traces.hand_over("uid", 7).is_none());

    let mut found = Vec::new();
    while let Ok(request) = received.try_recv() {
        let resource = request.resource_spans[0].resource.as_ref().unwrap();
        assert!(resource.attributes.iter().any(|attribute| attribute.key == "k8s.pod.name"));
        found.extend(spans(&request).to_vec());
    }
    assert_eq!(found.len(), 1 + 64);
    let (request, stop, killed) = (&found[0], &found[1], &found[2]);
    assert_eq!(request.name, "/v1/switchover");
    assert_eq!(hex(&request.trace_id), "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(hex(&request.parent_span_id), "b7ad6b7169203331");
    assert_eq!(request.status.as_ref().unwrap().code, 2);
    let root = hand_over::root("uid", 7);
    assert_eq!(TraceId::from_bytes(stop.trace_id.clone().try_into().unwrap()), root.trace_id());
    assert_eq!(SpanId::from_bytes(stop.parent_span_id.clone().try_into().unwrap()), root.span_id());
    assert_eq!((stop.start_time_unix_nano, stop.end_time_unix_nano), (8_000_000_000, 10_000_000_000));
    assert_eq!(stop.links[0].span_id, request.span_id, "what was asked for is found from the hand-over");
    assert!(killed.links.is_empty() && killed.status.as_ref().unwrap().message == "it was killed");
    use opentelemetry::trace::TraceContextExt as _;
    assert_eq!(shown.span().span_context().trace_id(), root.trace_id());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_follows_from_one_collector_to_the_next_and_its_counter_goes_on() {
    let (address, mut received) = grpc(0);
    let there = collector(format!("http://{address}"), TraceProtocol::Grpc);
    // Nobody listens there.
    let dead = collector("http://127.0.0.1:1".into(), TraceProtocol::Http);
    let traces = AgentTraces::new("shop", "db", "db-2");
    let step = || Step {
        name: "take",
        uid: "uid".into(),
        term: 1,
        took: Duration::ZERO,
        outcome: Ok(String::new()),
        asked_by: SpanContext::empty_context(),
    };
    let registered = || {
        let registry = prometheus::Registry::new();
        traces.register(&registry).unwrap();
        prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap()
    };
    traces.step(step(), SystemTime::UNIX_EPOCH);
    assert_eq!(registered(), "");
    traces.follow(Some(&dead));
    traces.step(step(), SystemTime::UNIX_EPOCH);
    traces.follow(Some(&there));
    traces.follow(Some(&there));
    traces.step(step(), SystemTime::UNIX_EPOCH);
    let request = tokio::time::timeout(Duration::from_secs(10), received.recv()).await.unwrap().unwrap();
    assert_eq!(spans(&request).len(), 1);
    traces.follow(None);
    traces.step(step(), SystemTime::UNIX_EPOCH);
    let counted = || {
        let text = registered();
        ["recorded\"} 2", "exported\"} 1", "failed\"} 1"].iter().all(|line| text.contains(line))
    };
    let end = Instant::now() + Duration::from_secs(10);
    while !counted() {
        assert!(Instant::now() < end, "{}", registered());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
