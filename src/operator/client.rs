//! The clients: one for reading, whose watches are seen to make progress, and one for writing, whose writes pass the gate
//! of leadership.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use kube::Client;
use kube::client::{Body, ClientBuilder};
use tower::Service;

use super::error::Error;
use crate::core::world::Kind;
use crate::telemetry::metrics::OperatorMetrics;

/// Longer than a watch, which is silent for as long as nothing happens.
const READ_TIMEOUT: Duration = Duration::from_secs(240);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longer than any single call.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Where the cluster is, and whether this process runs in it.
pub async fn configuration() -> Result<(kube::Config, bool), Error> {
    match kube::Config::incluster() {
        Ok(config) => Ok((config, true)),
        Err(_) => kube::Config::from_kubeconfig(&kube::config::KubeConfigOptions::default())
            .await
            .map(|config| (config, false))
            .map_err(|error| Error::Config(error.to_string())),
    }
}

/// The configuration for single calls.
pub fn bounded(config: &kube::Config) -> kube::Config {
    let mut config = config.clone();
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(CALL_TIMEOUT);
    config.write_timeout = Some(CALL_TIMEOUT);
    config
}

/// The client for watches.
pub fn reader(config: &kube::Config, metrics: Arc<OperatorMetrics>) -> Result<Client, Error> {
    let mut config = config.clone();
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    let builder = ClientBuilder::try_from(config).map_err(|error| Error::Config(error.to_string()))?;
    let spy = tower::layer::layer_fn(move |inner| Spy { inner, metrics: Arc::clone(&metrics) });
    Ok(builder.with_layer(&spy).build())
}

/// The same client, which counts what it asks of the API server. Errors pass as they are.
pub fn counted(client: Client, config: &kube::Config, metrics: Arc<OperatorMetrics>) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, metrics) = (client.clone(), Arc::clone(&metrics));
        let verb = verb(request.method(), request.uri());
        async move {
            let answer = client.send(request).await;
            metrics.asked(verb, answer.as_ref().ok().map(|response| response.status().as_u16()));
            answer
        }
    });
    Client::new(service, config.default_namespace.clone())
}

/// What a request does, as rights name it, as far as its address tells: a list is a get here.
fn verb(method: &http::Method, uri: &http::Uri) -> &'static str {
    match *method {
        http::Method::GET if watched(uri).is_some() => "watch",
        http::Method::GET => "get",
        http::Method::POST => "create",
        http::Method::PUT => "update",
        http::Method::PATCH => "patch",
        http::Method::DELETE => "delete",
        _ => "other",
    }
}

/// Counts each watch that the API server began as progress: bookmarks and renewals are not seen from outside a watcher.
#[derive(Clone)]
struct Spy<S> {
    inner: S,
    metrics: Arc<OperatorMetrics>,
}

impl<S, B> Service<Request<Body>> for Spy<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let watched = watched(request.uri());
        let metrics = Arc::clone(&self.metrics);
        self.inner
            .call(request)
            .map(move |answer| {
                if let (Some(resource), Ok(response)) = (watched, &answer)
                    && response.status().is_success()
                {
                    metrics.watch_progressed(resource);
                }
                answer
            })
            .boxed()
    }
}

/// Name of the resource that a request watches.
fn watched(uri: &http::Uri) -> Option<&'static str> {
    if !uri.query()?.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1")) {
        return None;
    }
    let plural = uri.path().rsplit('/').next()?;
    ["helloopperators", "hellobackups", "customresourcedefinitions", "pods", "persistentvolumeclaims", "leases"]
        .into_iter()
        .chain(Kind::PLAIN.iter().map(|kind| kind.resource().3))
        .find(|resource| *resource == plural)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_is_known_by_its_address() {
        let watched = |uri: &str| watched(&uri.parse().unwrap());
        assert_eq!(watched("/api/v1/pods?labelSelector=a&watch=true&timeoutSeconds=9"), Some("pods"));
        assert_eq!(watched("/apis/terry.com/v1/helloopperators?&watch=true"), Some("helloopperators"));
        assert_eq!(watched("/api/v1/pods?limit=5"), None);
    }

    #[tokio::test]
    async fn requests_are_counted_by_their_answer_and_errors_pass_as_they_are() {
        use crate::leader::NotLeader;
        let answers = |request: Request<Body>| async move {
            match request.uri().path() {
                "/refused" => Err(tower::BoxError::from(NotLeader::Refused)),
                _ => Ok(Response::builder().status(404).body(Body::empty())?),
            }
        };
        let metrics = Arc::new(OperatorMetrics::new().unwrap());
        let config = kube::Config::new("http://localhost".parse().unwrap());
        let client = counted(Client::new(tower::service_fn(answers), "default"), &config, Arc::clone(&metrics));
        let ask = |method: &str, path: &str| {
            let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
            let client = client.clone();
            async move { client.send(request).await }
        };
        assert_eq!(ask("GET", "/api/v1/pods?watch=true").await.unwrap().status(), 404);
        let refused = ask("PATCH", "/refused").await.err().unwrap();
        assert_eq!(NotLeader::find(&refused), Some(NotLeader::Refused));
        let text = metrics.encode().unwrap();
        for line in ["{code=\"404\",verb=\"watch\"} 1", "{code=\"none\",verb=\"patch\"} 1"] {
            assert!(text.contains(&format!("hello_operator_api_requests_total{line}")), "{text}");
        }
    }
}
