//! Traces of an agent. It learns while it runs where they go, and goes on without a restart when that changes: so there is no
//! layer of `tracing`, and spans are made here one by one. It begins no trace of its own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{BatchConfigBuilder, SdkTracer, SdkTracerProvider};
use prometheus::{IntCounterVec, Registry};

use super::hand_over::root;
use super::{Step, context, counters, flush, otlp, provider, resource};
use crate::api::config::Collector;

const SERVICE: &str = "hello-operator-agent";
/// An agent must be small: this many spans wait at most.
const QUEUE: usize = 256;
const BATCH: usize = 64;
/// A span waits no longer: the Pod may end soon.
const DELAY: Duration = Duration::from_secs(2);
/// How long the end of the agent waits for spans to leave.
const FLUSH: Duration = Duration::from_millis(500);
/// Most steps that are told of one hand-over: where nobody can be elected, elections are held for as long as that lasts.
const MOST_STEPS: u32 = 64;

/// Where this agent's spans go, if anywhere.
#[derive(Clone)]
pub struct AgentTraces(Arc<Shared>);

struct Shared {
    about: Vec<KeyValue>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    wanted: Option<Collector>,
    running: Option<(SdkTracerProvider, SdkTracer)>,
    /// They count on from one collector to the next.
    counters: Option<IntCounterVec>,
    /// Steps that were told of the hand-over that begins this term.
    told: (i64, u32),
}

impl AgentTraces {
    /// Of this instance; nothing is sent yet.
    pub fn new(namespace: &str, cluster: &str, instance: &str) -> Self {
        let about = vec![
            KeyValue::new("k8s.namespace.name", namespace.to_owned()),
            KeyValue::new("k8s.pod.name", instance.to_owned()),
            KeyValue::new("cluster", cluster.to_owned()),
        ];
        Self(Arc::new(Shared { about, state: Mutex::default() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tracer(&self) -> Option<SdkTracer> {
        self.state().running.as_ref().map(|(_, tracer)| tracer.clone())
    }

    /// Sends them there from now on, or nowhere.
    pub fn follow(&self, wanted: Option<&Collector>) {
        let mut state = self.state();
        if state.wanted.as_ref() == wanted {
            return;
        }
        state.wanted = wanted.cloned();
        if let Some((before, _)) = state.running.take() {
            tokio::spawn(flush(before, FLUSH));
        }
        let Some(collector) = wanted else {
            tracing::info!("no traces are sent any more");
            return;
        };
        match self.begin(&mut state, collector) {
            Ok(()) => tracing::info!(endpoint = collector.endpoint, "sends traces"),
            Err(error) => tracing::warn!(error, "there are no traces"),
        }
    }

    fn begin(&self, state: &mut State, collector: &Collector) -> Result<(), String> {
        let counters = match &state.counters {
            Some(counters) => counters.clone(),
            None => counters("hello_pg_trace_spans_total").map_err(|error| error.to_string())?,
        };
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(QUEUE)
            .with_max_export_batch_size(BATCH)
            .with_scheduled_delay(DELAY)
            .build();
        let exporter = otlp::Exporter::new(collector, &[])?;
        let provider = provider(exporter, &counters, resource(SERVICE, &self.0.about), batches);
        let tracer = provider.tracer(SERVICE);
        (state.counters, state.running) = (Some(counters), Some((provider, tracer)));
        Ok(())
    }

    /// Adds the counter of spans, once there were any.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        self.state().counters.clone().map_or(Ok(()), |counters| registry.register(Box::new(counters)))
    }

    /// Tells of a step of a hand-over that ends now.
    pub fn step(&self, step: Step, now: SystemTime) {
        let Some(tracer) = self.tracer() else { return };
        {
            let told = &mut self.state().told;
            if told.0 != step.term {
                *told = (step.term, 0);
            }
            told.1 = told.1.saturating_add(1);
            if told.1 > MOST_STEPS {
                return;
            }
        }
        step.record(&tracer, now);
    }

    /// The context of what is done for the hand-over that begins this term: its log lines name the trace. None without traces.
    pub fn hand_over(&self, uid: &str, term: i64) -> Option<Context> {
        self.tracer().map(|_| Context::new().with_remote_span_context(root(uid, term)))
    }

    /// The context of a request in whose header `traceparent` a span was named: a child of that span.
    pub fn request(&self, path: &str, header: &str) -> Option<Context> {
        let tracer = self.tracer()?;
        let parent = Context::new().with_remote_span_context(context::parse(header)?);
        let span = SpanBuilder::from_name(path.to_owned()).with_kind(SpanKind::Server);
        Some(Context::new().with_span(tracer.build_with_context(span, &parent)))
    }

    /// Sends what waits, for a moment at most.
    pub async fn shutdown(&self) {
        let running = self.state().running.take();
        if let Some((provider, _)) = running {
            flush(provider, FLUSH).await;
        }
    }
}

/// Ends the span of a request.
pub fn answered(context: &Context, status: u16) {
    let span = context.span();
    span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
    if status >= 400 {
        span.set_status(Status::error(""));
    }
    span.end();
}

/// The span that is under way here, to say later what was done because of it.
pub fn current() -> SpanContext {
    Context::map_current(|current| current.span().span_context().clone())
}
