//! Traces over OTLP, only when the environment names a collector. What it says of the collector is read in
//! [`crate::config::traces`], the rest (sampler, queue) by the SDK.
//!
//! A collector that is dead or slow costs nothing but a counter and one log line: spans wait in a bounded queue
//! (`OTEL_BSP_MAX_QUEUE_SIZE`, 2048 by default) on a thread of their own, and are dropped when it is full.

pub mod agent;
pub mod context;
mod hand_over;
mod otlp;
#[cfg(test)]
mod tests_otlp;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfig, BatchSpanProcessor, SdkTracerProvider, Span, SpanData, SpanExporter, SpanProcessor,
};
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

pub use hand_over::{HandOver, HandOvers, Step};

use crate::config::traces::Destination;

/// How long the end of the process waits for spans to leave.
const FLUSH: Duration = Duration::from_secs(2);

/// Traces of this process.
pub(super) struct Traces {
    provider: SdkTracerProvider,
    counters: IntCounterVec,
}

impl Traces {
    /// Starts the exporter.
    pub(super) fn start(destination: &Destination, service: &'static str) -> Result<Self, super::Error> {
        let exporter =
            otlp::Exporter::new(&destination.collector, &destination.headers).map_err(super::Error::Exporter)?;
        Ok(Self::with_exporter(exporter, service)?)
    }

    fn with_exporter(exporter: impl SpanExporter + 'static, service: &'static str) -> Result<Self, prometheus::Error> {
        let counters = counters("hello_trace_spans_total")?;
        let provider = provider(exporter, &counters, resource(service, &[]), BatchConfig::default());
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
        flush(self.provider, FLUSH).await;
    }
}

/// Sends what waits, within this time.
async fn flush(provider: SdkTracerProvider, limit: Duration) {
    // It blocks, and the threads for that may all be taken: by a disk that hangs, for instance.
    let flushed = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(limit));
    let flushed = tokio::time::timeout(limit + limit, flushed).await;
    if !matches!(flushed, Ok(Ok(Ok(())))) {
        tracing::debug!("the last spans could not be sent");
    }
}

fn counters(name: &str) -> Result<IntCounterVec, prometheus::Error> {
    let help = "Spans that were recorded, exported, or failed to be exported. Recorded spans that are neither wait or were dropped because the queue was full.";
    IntCounterVec::new(Opts::new(name, help), &["state"])
}

/// What makes spans, counts them, and has a thread send them.
fn provider(
    exporter: impl SpanExporter + 'static,
    counters: &IntCounterVec,
    resource: Resource,
    batches: BatchConfig,
) -> SdkTracerProvider {
    let exporter = Counted {
        inner: exporter,
        exported: counters.with_label_values(&["exported"]),
        failed: counters.with_label_values(&["failed"]),
        failing: AtomicBool::new(false),
    };
    let processor = Counting {
        inner: BatchSpanProcessor::builder(exporter).with_batch_config(batches).build(),
        recorded: counters.with_label_values(&["recorded"]),
    };
    SdkTracerProvider::builder()
        .with_id_generator(hand_over::Ids::default())
        .with_span_processor(processor)
        .with_resource(resource)
        .build()
}

/// What the spans say about their process: the standard variables first, then ours.
fn resource(service: &'static str, further: &[KeyValue]) -> Resource {
    let from_environment = Resource::builder().build();
    let named = from_environment
        .get(&opentelemetry::Key::from_static_str("service.name"))
        .is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    let mut builder = Resource::builder()
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attributes(further.iter().cloned());
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
                        "traces do not reach the collector; spans are dropped and counted until it answers"
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
    use std::sync::{Arc, Mutex};
    use std::time::SystemTime;

    use opentelemetry_sdk::error::OTelSdkError;
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
            uid: "uid",
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
        let ids = hand_over::root("uid", 7);
        assert_eq!((root.span_context.trace_id(), root.span_context.span_id()), (ids.trace_id(), ids.span_id()));
        assert_eq!(root.parent_span_id, opentelemetry::trace::SpanId::INVALID);
        assert_ne!(elect.span_context.span_id(), ids.span_id(), "only the root's ids are known before");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_dead_collector_costs_a_counter() {
        let traces = Traces::with_exporter(Refused, "test").unwrap();
        let counters = traces.counters.clone();
        spans(&traces, 5);
        traces.shutdown().await;
        assert_eq!((count(&counters, "recorded"), count(&counters, "exported"), count(&counters, "failed")), (5, 0, 5));
    }

    #[test]
    fn the_resource_names_program_and_version() {
        let resource = resource("hello-operator", &[KeyValue::new("cluster", "db")]);
        let get = |key: &'static str| resource.get(&opentelemetry::Key::from_static_str(key)).map(|v| v.to_string());
        assert_eq!(get("service.name").as_deref(), Some("hello-operator"));
        assert_eq!(get("cluster").as_deref(), Some("db"));
        assert_eq!(get("service.version").as_deref(), Some(env!("CARGO_PKG_VERSION")));
    }
}
