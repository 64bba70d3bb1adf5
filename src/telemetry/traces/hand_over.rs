//! Hand-overs of the primary's role, each as one trace. Nobody stands above the processes that take part, and one of them may
//! be dead, so nothing can be handed from one to the next: each finds the ids of the trace by itself.

use std::cell::Cell;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    Link, Span as _, SpanBuilder, SpanContext, SpanId, Status, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SdkTracer};
use sha2::{Digest, Sha256};

/// The root span of the hand-over that begins a term of a cluster: the parent of each of its steps.
pub fn root(uid: &str, term: i64) -> SpanContext {
    let digest =
        Sha256::new().chain_update("hand-over\0").chain_update(uid).chain_update("\0").chain_update(term.to_be_bytes());
    let digest: [u8; 32] = digest.finalize().into();
    let number = |bytes: &[u8]| bytes.iter().fold(0_u128, |number, byte| number << 8 | u128::from(*byte));
    let (trace, span) = digest.split_at(16);
    let span = u64::try_from(number(span.get(..8).unwrap_or_default())).unwrap_or_default();
    SpanContext::new(
        TraceId::from(number(trace)),
        SpanId::from(span),
        // Nobody can tell the others that it is not recorded.
        TraceFlags::SAMPLED,
        true,
        TraceState::NONE,
    )
}

thread_local! {
    /// The ids of the next span of this thread, where they are not random.
    static NEXT: Cell<Option<(TraceId, SpanId)>> = const { Cell::new(None) };
}

/// Random ids, but for a root whose ids others know already.
#[derive(Debug, Default)]
pub(super) struct Ids(RandomIdGenerator);

impl IdGenerator for Ids {
    fn new_trace_id(&self) -> TraceId {
        NEXT.get().map_or_else(|| self.0.new_trace_id(), |(trace, _)| trace)
    }
    fn new_span_id(&self) -> SpanId {
        NEXT.get().map_or_else(|| self.0.new_span_id(), |(_, span)| span)
    }
}

/// Records hand-overs, which other processes went through.
#[derive(Clone, Default)]
pub struct HandOvers(pub(super) Option<SdkTracer>);

/// A hand-over that is complete.
#[derive(Debug, Clone)]
pub struct HandOver<'a> {
    /// Namespace of the cluster.
    pub namespace: &'a str,
    /// Its name.
    pub cluster: &'a str,
    /// Its uid.
    pub uid: &'a str,
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
    /// The root of its trace and the two halves that the Lease tells of, at the times at which they were. The steps in them are
    /// sent by the agents that made them.
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
        let ids = root(hand_over.uid, hand_over.term);
        let span = SpanBuilder::from_name("hand-over").with_start_time(hand_over.started).with_attributes(attributes);
        // The reconcile that saw it.
        let span = span.with_links(linked(Context::current().span().span_context()));
        NEXT.set(Some((ids.trace_id(), ids.span_id())));
        let span = tracer.build_with_context(span, &Context::new());
        NEXT.set(None);
        let context = Context::new().with_span(span);
        if let Some(taken) = hand_over.taken.filter(|at| (hand_over.started..=hand_over.completed).contains(at)) {
            for (step, from, to) in [("elect", hand_over.started, taken), ("promote", taken, hand_over.completed)] {
                let step = SpanBuilder::from_name(step).with_start_time(from);
                tracer.build_with_context(step, &context).end_with_timestamp(to);
            }
        }
        context.span().end_with_timestamp(hand_over.completed);
    }
}

pub(super) fn linked(to: &SpanContext) -> Vec<Link> {
    if to.is_valid() { vec![Link::new(to.clone(), Vec::new(), 0)] } else { Vec::new() }
}

/// A step of a hand-over that an agent made.
#[derive(Debug)]
pub struct Step {
    /// What it did.
    pub name: &'static str,
    /// Uid of the cluster.
    pub uid: String,
    /// The term that the hand-over begins.
    pub term: i64,
    /// How long it took until now.
    pub took: Duration,
    /// What it came to; Err where it failed.
    pub outcome: Result<String, String>,
    /// The request that asked for it.
    pub asked_by: SpanContext,
}

impl Step {
    pub(super) fn record(self, tracer: &SdkTracer, now: SystemTime) {
        let parent = Context::new().with_remote_span_context(root(&self.uid, self.term));
        let began = now.checked_sub(self.took).unwrap_or(now);
        let builder = SpanBuilder::from_name(self.name).with_start_time(began).with_links(linked(&self.asked_by));
        let mut span = tracer.build_with_context(builder, &parent);
        span.set_attribute(KeyValue::new("term", self.term));
        match self.outcome {
            Ok(outcome) if outcome.is_empty() => {}
            Ok(outcome) => span.set_attribute(KeyValue::new("outcome", outcome)),
            Err(error) => span.set_status(Status::error(error)),
        }
        span.end_with_timestamp(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_finds_the_same_ids_and_each_hand_over_has_its_own() {
        let one = root("uid", 7);
        assert_eq!(root("uid", 7), one);
        assert!(one.is_valid() && one.is_sampled());
        // Agents of another version must find them too.
        assert_eq!(one.trace_id().to_string(), "77101c2637fdc3625408b370521002a0");
        assert_eq!(one.span_id().to_string(), "652f1c5317062f9a");
        for other in [root("uid", 8), root("other", 7)] {
            assert_ne!(other.trace_id(), one.trace_id());
            assert_ne!(other.span_id(), one.span_id());
        }
    }
}
