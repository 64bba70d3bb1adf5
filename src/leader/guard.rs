//! A layer for the lease client that makes kube-leader-election carry out what the state machine decides.
//!
//! The crate reads, decides and writes. This layer shows it the Lease so that its decision comes out as ours, lets only
//! the write through that was decided, and makes it conditional on the version that was read.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use kube::client::Body;
use serde_json::{Map, Value, json};
use tower::{BoxError, Layer, Service};

use super::clock;
use super::elector::Shared;
use super::state::{Record, Seen, Verdict};

/// A Lease is a few hundred bytes.
const MAX_BODY: usize = 1 << 20;

/// The times by which the crate is made to find a Lease expired, or alive, whatever the clock on its wall says.
const LONG_AGO: &str = "2000-01-01T00:00:00.000000Z";
const FAR_AWAY: &str = "9000-01-01T00:00:00.000000Z";

/// A write that was not decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the Lease may not be written now")]
pub(super) struct Undecided;

/// A Lease that is none.
#[derive(Debug, thiserror::Error)]
#[error("the API server's answer is not a Lease")]
struct NotALease;

/// Puts [`Guard`] around the lease client's connection.
#[derive(Clone)]
pub(super) struct GuardLayer {
    shared: Arc<Shared>,
    collection: Arc<str>,
    object: Arc<str>,
}

impl GuardLayer {
    pub(super) fn new(shared: Arc<Shared>, namespace: &str, lease: &str) -> Self {
        let collection = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
        let object = format!("{collection}/{lease}");
        Self { shared, collection: collection.into(), object: object.into() }
    }
}

impl<S> Layer<S> for GuardLayer {
    type Service = Guard<S>;
    fn layer(&self, inner: S) -> Guard<S> {
        Guard { layer: self.clone(), inner }
    }
}

/// See the module.
pub(super) struct Guard<S> {
    layer: GuardLayer,
    inner: S,
}

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;
type Pending = Pin<Box<dyn Future<Output = Result<Answer, BoxError>> + Send>>;

impl<S, B> Service<Request<Body>> for Guard<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Answer;
    type Error = BoxError;
    type Future = Pending;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Pending {
        let on_object = request.uri().path() == &*self.layer.object;
        if request.method() == Method::GET {
            let answer = self.inner.call(request);
            if !on_object {
                // The watch, which only brings reads forward.
                return Box::pin(async move { Ok(answer.await.map_err(Into::into)?.map(boxed)) });
            }
            let shared = Arc::clone(&self.layer.shared);
            return Box::pin(async move { show(answer.await.map_err(Into::into)?, &shared).await });
        }
        let creates = request.method() == Method::POST && request.uri().path() == &*self.layer.collection;
        let patches = request.method() == Method::PATCH && on_object;
        let written = match self.layer.shared.decided() {
            (Verdict::Create, _) if creates => Ok(request),
            (Verdict::Renew | Verdict::Take | Verdict::Release, Some(read)) if patches => conditional(request, &read),
            _ => Err(Undecided.into()),
        };
        match written {
            Ok(request) => {
                let answer = self.inner.call(request);
                Box::pin(async move { Ok(answer.await.map_err(Into::into)?.map(boxed)) })
            }
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
}

fn boxed<B>(body: B) -> UnsyncBoxBody<Bytes, BoxError>
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}

/// Learns from a read of the Lease, and shows the crate what makes it do what is decided.
async fn show<B>(answer: Response<B>, shared: &Shared) -> Result<Answer, BoxError>
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (mut parts, body) = answer.into_parts();
    let bytes = Limited::new(body, MAX_BODY).collect().await?.to_bytes();
    let bytes = match parts.status {
        StatusCode::OK => {
            let mut lease: Value = serde_json::from_slice(&bytes)?;
            let record = record(&lease).ok_or(NotALease)?;
            let verdict = shared.read(Seen::Record(record.clone()));
            present(&mut lease, &record, verdict);
            parts.headers.remove(http::header::CONTENT_LENGTH);
            Bytes::from(serde_json::to_vec(&lease)?)
        }
        StatusCode::NOT_FOUND => {
            shared.read(Seen::Absent);
            bytes
        }
        _ => bytes,
    };
    Ok(Response::from_parts(parts, boxed(Full::new(bytes))))
}

/// What a Lease says; None if it lacks what every stored object has.
pub(super) fn record(lease: &Value) -> Option<Record> {
    let text = |pointer: &str| lease.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let duration = lease.pointer("/spec/leaseDurationSeconds").and_then(Value::as_u64).filter(|seconds| *seconds > 0);
    Some(Record {
        uid: text("/metadata/uid")?,
        version: text("/metadata/resourceVersion")?,
        holder: text("/spec/holderIdentity").unwrap_or_default(),
        duration: duration.map(Duration::from_secs),
    })
}

/// Fills what the crate cannot do without, and sets the time by which it judges.
fn present(lease: &mut Value, record: &Record, verdict: Verdict) {
    let Some(lease) = lease.as_object_mut() else { return };
    let spec = lease.entry("spec").or_insert_with(|| json!({}));
    if !spec.is_object() {
        *spec = json!({});
    }
    let Some(spec) = spec.as_object_mut() else { return };
    let transitions = spec.get("leaseTransitions").and_then(Value::as_i64).unwrap_or_default();
    // The crate adds one to it, in an i32.
    let transitions = if (0..i64::from(i32::MAX)).contains(&transitions) { transitions } else { 0 };
    spec.insert("leaseTransitions".into(), transitions.into());
    spec.insert("leaseDurationSeconds".into(), 1.into());
    spec.insert("holderIdentity".into(), record.holder.as_str().into());
    let renewed = if verdict == Verdict::Take { LONG_AGO } else { FAR_AWAY };
    spec.insert("renewTime".into(), renewed.into());
}

/// Makes a patch fail if the Lease is not the one that was read.
fn conditional(request: Request<Body>, read: &Record) -> Result<Request<Body>, BoxError> {
    let (parts, body) = request.into_parts();
    let bytes = body.try_clone().and_then(whole).ok_or(Undecided)?;
    let mut patch: Map<String, Value> = serde_json::from_slice(&bytes)?;
    let metadata = patch.entry("metadata").or_insert_with(|| json!({}));
    let metadata = metadata.as_object_mut().ok_or(Undecided)?;
    metadata.insert("uid".into(), read.uid.as_str().into());
    metadata.insert("resourceVersion".into(), read.version.as_str().into());
    Ok(Request::from_parts(parts, Body::from(serde_json::to_vec(&patch)?)))
}

/// The bytes of a body that is in memory as a whole, as all of kube's are.
fn whole(body: Body) -> Option<Bytes> {
    let mut body = std::pin::pin!(body);
    match hyper::body::Body::poll_frame(body.as_mut(), &mut Context::from_waker(std::task::Waker::noop())) {
        Poll::Ready(Some(Ok(frame))) => frame.into_data().ok(),
        _ => None,
    }
}

impl Shared {
    /// Takes in a read, now.
    fn read(&self, seen: Seen) -> Verdict {
        let now = clock::now();
        self.update(|machine| {
            machine.read(now, seen);
            machine.verdict(now)
        })
    }

    /// What may be written now, and the version on which that was decided.
    fn decided(&self) -> (Verdict, Option<Record>) {
        self.update(|machine| (machine.verdict(clock::now()), machine.record().cloned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lease: Value) -> (Record, Value) {
        let record = record(&lease).unwrap();
        let mut shown = lease;
        present(&mut shown, &record, Verdict::Take);
        (record, shown)
    }

    #[test]
    fn absent_and_broken_fields_are_filled() {
        let metadata = json!({"uid": "u", "resourceVersion": "7"});
        for spec in [Value::Null, json!({}), json!({"holderIdentity": null, "leaseTransitions": -1})] {
            let (record, shown) = read(json!({"metadata": metadata, "spec": spec}));
            assert_eq!(record, Record { uid: "u".into(), version: "7".into(), holder: String::new(), duration: None });
            assert_eq!(
                shown["spec"],
                json!({"holderIdentity": "", "leaseTransitions": 0, "leaseDurationSeconds": 1, "renewTime": LONG_AGO})
            );
        }
        let (_, shown) = read(json!({"metadata": metadata, "spec": {"leaseTransitions": i32::MAX}}));
        assert_eq!(shown["spec"]["leaseTransitions"], 0, "one more must fit");
        assert!(record(&json!({"kind": "Status"})).is_none());
    }

    #[test]
    fn a_patch_becomes_conditional_on_what_was_read() {
        let record = record(&json!({"metadata": {"uid": "u", "resourceVersion": "7"}})).unwrap();
        let patch = json!({"metadata": {"name": "lease"}, "spec": {"holderIdentity": "me"}});
        let request = Request::patch("/x").body(Body::from(patch.to_string().into_bytes())).unwrap();
        let sent = whole(conditional(request, &record).unwrap().into_body()).unwrap();
        assert_eq!(
            serde_json::from_slice::<Value>(&sent).unwrap(),
            json!({"metadata": {"name": "lease", "uid": "u", "resourceVersion": "7"}, "spec": {"holderIdentity": "me"}})
        );
    }
}
