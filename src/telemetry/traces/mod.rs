//! Traces over OTLP (gRPC), only when the environment names a collector. Everything else about them is said in the
//! standard `OTEL_` variables, which the SDK reads itself.
//!
//! A collector that is dead or slow costs nothing but a counter and one log line: spans wait in a bounded queue
//! (`OTEL_BSP_MAX_QUEUE_SIZE`, 2048 by default) on a thread of their own, and are dropped when it is full.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{Span as _, SpanBuilder, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchSpanProcessor, SdkTracer, SdkTracerProvider, Span, SpanData, SpanExporter, SpanProcessor,
};
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

/// How long the end of the process waits for spans to leave.
const FLUSH: Duration = Duration::from_secs(2);

/// Traces of this process.
pub(super) struct Traces {
    provider: SdkTracerProvider,
    counters: IntCounterVec,
}

impl Traces {
    /// Starts the exporter. Needs the Tokio runtime.
    pub(super) fn start(service: &'static str) -> Result<Self, super::Error> {
        let exporter = opentelemetry_otlp::SpanExporter::builder().with_tonic().build()?;
        Ok(Self::with_exporter(exporter, service)?)
    }

    fn with_exporter(exporter: impl SpanExporter + 'static, service: &'static str) -> Result<Self, prometheus::Error> {
        let counters = IntCounterVec::new(
            Opts::new(
                "hello_trace_spans_total",
                "Spans that were recorded, exported, or failed to be exported. Recorded spans that are neither wait or were dropped because the queue was full.",
            ),
            &["state"],
        )?;
        let exporter = Counted {
            inner: exporter,
            exported: counters.with_label_values(&["exported"]),
            failed: counters.with_label_values(&["failed"]),
            failing: AtomicBool::new(false),
        };
        let processor = Counting {
            inner: BatchSpanProcessor::builder(exporter).build(),
            recorded: counters.with_label_values(&["recorded"]),
        };
        let provider =
            SdkTracerProvider::builder().with_span_processor(processor).with_resource(resource(service)).build();
        Ok(Self { provider, counters })
    }

    /// The layer that makes spans of this crate into traces.
    pub(super) fn layer<S>(&self, service: &'static str) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer(service))
            .with_filter(Targets::new().with_target("hello_operator", LevelFilter::INFO))
    }

    /// For hand-overs.
    pub(super) fn hand_overs(&self, service: &'static str) -> HandOvers {
        HandOvers(Some(self.provider.tracer(service)))
    }

    pub(super) fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        registry.register(Box::new(self.counters.clone()))
    }

    /// Sends what waits, within [`FLUSH`].
    pub(super) async fn shutdown(self) {
        // It blocks, and the exporter needs the runtime to go on meanwhile.
        let flushed = tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(FLUSH)).await;
        if !matches!(flushed, Ok(Ok(()))) {
            tracing::debug!("the last spans could not be sent");
        }
    }
}

/// Records hand-overs, which other processes went through, as traces of their own.
#[derive(Clone, Default)]
pub struct HandOvers(Option<SdkTracer>);

/// A hand-over that is complete.
#[derive(Debug, Clone)]
pub struct HandOver<'a> {
    /// Namespace of the cluster.
    pub namespace: &'a str,
    /// Its name.
    pub cluster: &'a str,
    /// Instance that was primary.
    pub from: &'a str,
    /// Instance that took over.
    pub to: &'a str,
    /// Why.
    pub reason: &'a str,
    /// The term that it began.
    pub term: i64,
    /// When the former primary stopped, or was last heard of.
    pub started: SystemTime,
    /// When the Lease was taken, if that is known.
    pub taken: Option<SystemTime>,
    /// When the new primary took writes, and clients were led to it.
    pub completed: SystemTime,
}

impl HandOvers {
    /// One trace with a span for each step, at the times at which they were.
    pub fn record(&self, hand_over: &HandOver<'_>) {
        let Some(tracer) = &self.0 else { return };
        let attributes = vec![
            KeyValue::new("namespace", hand_over.namespace.to_owned()),
            KeyValue::new("cluster", hand_over.cluster.to_owned()),
            KeyValue::new("from", hand_over.from.to_owned()),
            KeyValue::new("to", hand_over.to.to_owned()),
            KeyValue::new("reason", hand_over.reason.to_owned()),
            KeyValue::new("term", hand_over.term),
        ];
        let root = SpanBuilder::from_name("hand-over").with_start_time(hand_over.started).with_attributes(attributes);
        let context = Context::new().with_span(tracer.build_with_context(root, &Context::new()));
        if let Some(taken) = hand_over.taken.filter(|at| (hand_over.started..=hand_over.completed).contains(at)) {
            for (step, from, to) in [("elect", hand_over.started, taken), ("promote", taken, hand_over.completed)] {
                let step = SpanBuilder::from_name(step).with_start_time(from);
                tracer.build_with_context(step, &context).end_with_timestamp(to);
            }
        }
        context.span().end_with_timestamp(hand_over.completed);
    }
}

/// What the spans say about their process: the standard variables first, then ours.
fn resource(service: &'static str) -> Resource {
    let from_environment = Resource::builder().build();
    let named = from_environment
        .get(&opentelemetry::Key::from_static_str("service.name"))
        .is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    let mut builder = Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    if !named {
        builder = builder.with_service_name(service);
    }
    builder.build()
}

/// Counts the spans that enter the queue.
#[derive(Debug)]
struct Counting {
    inner: BatchSpanProcessor,
    recorded: IntCounter,
}

impl SpanProcessor for Counting {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.inner.on_start(span, context);
    }
    fn on_end(&self, span: SpanData) {
        self.recorded.inc();
        self.inner.on_end(span);
    }
    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }
    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }
    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

/// Counts what leaves and what does not, and says once when that changes.
#[derive(Debug)]
struct Counted<E> {
    inner: E,
    exported: IntCounter,
    failed: IntCounter,
    failing: AtomicBool,
}

impl<E: SpanExporter> SpanExporter for Counted<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        match self.inner.export(batch).await {
            Ok(()) => {
                self.exported.inc_by(spans);
                if self.failing.swap(false, Ordering::Relaxed) {
                    tracing::info!("the collector of traces answers again");
                }
            }
            Err(error) => {
                self.failed.inc_by(spans);
                if !self.failing.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        %error,
                        "traces do not reach the collector (OTLP over gRPC, usually port 4317); spans are dropped and counted until it answers"
                    );
                }
            }
        }
        // Said and counted here; the SDK would log an error for every batch.
        Ok(())
    }
    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }
    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }
    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::{Arc, Mutex};
    use std::time::Instant;

    use opentelemetry_otlp::WithExportConfig;
    use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
    use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
    use opentelemetry_sdk::error::OTelSdkError;
    use tonic::transport::Server;
    use tonic::transport::server::TcpIncoming;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Debug, Clone, Default)]
    struct Kept(Arc<Mutex<Vec<String>>>);

    impl SpanExporter for Kept {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.0.lock().unwrap().extend(batch.into_iter().map(|span| span.name.into_owned()));
            Ok(())
        }
    }

    #[derive(Debug, Clone, Default)]
    struct Whole(Arc<Mutex<Vec<SpanData>>>);

    impl SpanExporter for Whole {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.0.lock().unwrap().extend(batch);
            Ok(())
        }
    }

    #[derive(Debug)]
    struct Refused;

    impl SpanExporter for Refused {
        async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
            Err(OTelSdkError::InternalFailure("connection refused".into()))
        }
    }

    fn spans(traces: &Traces, count: usize) {
        tracing::subscriber::with_default(tracing_subscriber::registry().with(traces.layer("test")), || {
            for _ in 0..count {
                tracing::info_span!(target: "hello_operator::core", "ours").in_scope(|| ());
                tracing::debug_span!(target: "hello_operator::core", "too fine").in_scope(|| ());
                tracing::info_span!(target: "hyper", "of the exporter itself").in_scope(|| ());
            }
        });
    }

    fn count(counters: &IntCounterVec, state: &str) -> u64 {
        counters.with_label_values(&[state]).get()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn our_spans_are_exported_and_counted() {
        let exporter = Kept::default();
        let traces = Traces::with_exporter(exporter.clone(), "test").unwrap();
        let counters = traces.counters.clone();
        spans(&traces, 3);
        traces.provider.force_flush().unwrap();
        assert_eq!(*exporter.0.lock().unwrap(), ["ours", "ours", "ours"]);
        traces.shutdown().await;
        assert_eq!((count(&counters, "recorded"), count(&counters, "exported"), count(&counters, "failed")), (3, 3, 0));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_hand_over_is_a_trace_with_a_span_for_each_step() {
        let exporter = Whole::default();
        let traces = Traces::with_exporter(exporter.clone(), "test").unwrap();
        let at = |millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
        let mut hand_over = HandOver {
            namespace: "shop",
            cluster: "db",
            from: "db-1",
            to: "db-2",
            reason: "shutdown",
            term: 7,
            started: at(1_000),
            taken: Some(at(1_400)),
            completed: at(2_250),
        };
        traces.hand_overs("test").record(&hand_over);
        hand_over.taken = Some(at(3_000));
        traces.hand_overs("test").record(&hand_over);
        HandOvers::default().record(&hand_over);
        traces.shutdown().await;
        let spans = exporter.0.lock().unwrap();
        let names: Vec<&str> = spans.iter().map(|span| span.name.as_ref()).collect();
        assert_eq!(names, ["elect", "promote", "hand-over", "hand-over"], "a time that cannot be is left out");
        let (root, elect) = (&spans[2], &spans[0]);
        assert_eq!((root.start_time, root.end_time), (at(1_000), at(2_250)));
        assert_eq!((elect.start_time, elect.end_time), (at(1_000), at(1_400)));
        assert_eq!(elect.parent_span_id, root.span_context.span_id());
        assert_eq!(elect.span_context.trace_id(), root.span_context.trace_id());
        assert_ne!(spans[3].span_context.trace_id(), root.span_context.trace_id());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_dead_collector_costs_a_counter() {
        let traces = Traces::with_exporter(Refused, "test").unwrap();
        let counters = traces.counters.clone();
        spans(&traces, 5);
        traces.shutdown().await;
        assert_eq!((count(&counters, "recorded"), count(&counters, "exported"), count(&counters, "failed")), (5, 0, 5));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_silent_collector_delays_neither_spans_nor_the_end() {
        // Accepts connections and never answers.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_tonic()
            .with_endpoint(format!("http://{}", silent.local_addr().unwrap()))
            .build()
            .unwrap();
        let traces = Traces::with_exporter(exporter, "test").unwrap();
        let counters = traces.counters.clone();
        let began = Instant::now();
        spans(&traces, 10_000);
        traces.shutdown().await;
        assert!(began.elapsed() < FLUSH + Duration::from_secs(3), "took {:?}", began.elapsed());
        assert_eq!((count(&counters, "recorded"), count(&counters, "exported")), (10_000, 0));
    }

    struct Collector(tokio::sync::mpsc::UnboundedSender<ExportTraceServiceRequest>);

    #[tonic::async_trait]
    impl TraceService for Collector {
        async fn export(
            &self,
            request: tonic::Request<ExportTraceServiceRequest>,
        ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
            self.0.send(request.into_inner()).map_err(|_| tonic::Status::cancelled("the test ended"))?;
            Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_real_collector_receives_them_over_grpc() {
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = incoming.local_addr().unwrap();
        let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
        let collector = TraceServiceServer::new(Collector(sender));
        let server = tokio::spawn(Server::builder().add_service(collector).serve_with_incoming(incoming));

        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_tonic()
            .with_endpoint(format!("http://{address}"))
            .build()
            .unwrap();
        let traces = Traces::with_exporter(exporter, "hello-operator").unwrap();
        let counters = traces.counters.clone();
        spans(&traces, 2);
        traces.shutdown().await;

        let request = received.recv().await.unwrap();
        let resource = request.resource_spans[0].resource.as_ref().unwrap();
        assert!(resource.attributes.iter().any(|attribute| attribute.key == "service.name"));
        assert_eq!(request.resource_spans[0].scope_spans[0].spans.len(), 2);
        assert_eq!(count(&counters, "exported"), 2);
        server.abort();
    }

    #[test]
    fn the_resource_names_program_and_version() {
        let resource = resource("hello-operator");
        let get = |key: &'static str| resource.get(&opentelemetry::Key::from_static_str(key)).map(|v| v.to_string());
        assert_eq!(get("service.name").as_deref(), Some("hello-operator"));
        assert_eq!(get("service.version").as_deref(), Some(env!("CARGO_PKG_VERSION")));
    }
}
