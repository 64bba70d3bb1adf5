//! A proxy between us and the S3 server that goes wrong as it is told.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Body = BoxBody<Bytes, Failure>;

/// What goes wrong with a request.
#[derive(Debug, Clone)]
pub enum Fault {
    /// It is not passed on; this is the answer.
    Answer(u16, &'static str),
    /// It is not passed on, and there is no answer.
    Hang,
    /// It is not passed on, and the connection ends after its first bytes.
    Break,
    /// It is carried out, and the connection ends before the answer.
    Lose,
    /// It is carried out, and the answer's body ends after so many bytes.
    Cut(usize),
    /// It is carried out, and the answer's body comes in small pieces with pauses.
    Slow(usize, Duration),
    /// It is carried out, and a byte of the answer's body is another, so many from its end.
    Damage(usize),
    /// It is carried out so much later, its body unread until then.
    Delay(Duration),
    /// It waits until another one does, too; then they are carried out one after the other.
    Meet,
}

struct Rule {
    method: &'static str,
    part: &'static str,
    times: usize,
    fault: Fault,
}

/// What the proxy knows.
#[derive(Default)]
pub struct Plan {
    rules: Mutex<Vec<Rule>>,
    seen: Mutex<Vec<String>>,
    waiting: Mutex<usize>,
    met: Notify,
    one: tokio::sync::Mutex<()>,
}

impl Plan {
    /// The next so many requests of this method ("" is every one) with this in their address go wrong.
    pub fn fault(&self, method: &'static str, part: &'static str, times: usize, fault: Fault) {
        self.rules.lock().unwrap().push(Rule { method, part, times, fault });
    }
    /// Nothing goes wrong any more.
    pub fn heal(&self) {
        self.rules.lock().unwrap().clear();
    }
    /// Requests so far that hold this.
    pub fn seen(&self, part: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|request| request.contains(part)).count()
    }
    /// All requests so far, for a failure's text.
    pub fn history(&self) -> String {
        self.seen.lock().unwrap().join("\n")
    }
    fn next(&self, method: &str, address: &str) -> Option<Fault> {
        self.seen.lock().unwrap().push(format!("{method} {address}"));
        let mut rules = self.rules.lock().unwrap();
        let rule = rules.iter_mut().find(|rule| {
            rule.times > 0 && (rule.method.is_empty() || rule.method == method) && address.contains(rule.part)
        })?;
        rule.times -= 1;
        Some(rule.fault.clone())
    }
}

/// A running proxy; it ends with its test.
pub struct Proxy {
    pub address: SocketAddr,
    pub plan: Arc<Plan>,
    task: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub async fn before(server: SocketAddr) -> Proxy {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let plan = Arc::new(Plan::default());
    let client: Client<HttpConnector, Body> = Client::builder(TokioExecutor::new()).build_http();
    let shared = Arc::clone(&plan);
    let task = tokio::spawn(async move {
        loop {
            let Ok((connection, _)) = listener.accept().await else { return };
            let (client, plan) = (client.clone(), Arc::clone(&shared));
            tokio::spawn(async move {
                let service = service_fn(move |request| pass(client.clone(), Arc::clone(&plan), server, request));
                // An error of the service is how a connection is ended without an answer.
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(connection), service)
                    .await;
            });
        }
    });
    Proxy { address, plan, task }
}

async fn pass(
    client: Client<HttpConnector, Body>,
    plan: Arc<Plan>,
    server: SocketAddr,
    request: Request<Incoming>,
) -> Result<Response<Body>, Failure> {
    let path = request.uri().path_and_query().unwrap().to_string();
    let fault = plan.next(request.method().as_str(), &path);
    match fault {
        Some(Fault::Answer(status, body)) => {
            // Read to its end, so that the answer is not lost in a connection that is reset.
            let _ = request.into_body().collect().await;
            let body = Full::new(Bytes::from_static(body.as_bytes())).map_err(never).boxed();
            return Ok(Response::builder().status(StatusCode::from_u16(status)?).body(body)?);
        }
        Some(Fault::Hang) => return std::future::pending().await,
        Some(Fault::Break) => {
            let _ = request.into_body().frame().await;
            return Err("broken on purpose".into());
        }
        Some(Fault::Delay(pause)) => tokio::time::sleep(pause).await,
        _ => {}
    }
    let turn = match fault {
        Some(Fault::Meet) => {
            let met = plan.met.notified();
            let second = {
                let mut waiting = plan.waiting.lock().unwrap();
                *waiting += 1;
                *waiting > 1
            };
            if second {
                plan.met.notify_waiters()
            } else {
                met.await
            }
            Some(plan.one.lock().await)
        }
        _ => None,
    };
    let (mut parts, body) = request.into_parts();
    parts.uri = format!("http://{server}{path}").parse()?;
    let answer = client.request(Request::from_parts(parts, body.map_err(Failure::from).boxed())).await?;
    drop(turn);
    let (parts, body) = answer.into_parts();
    let body = match fault {
        Some(Fault::Lose) => {
            body.collect().await?;
            return Err("lost on purpose".into());
        }
        Some(Fault::Cut(length)) => {
            let all = body.collect().await?.to_bytes();
            let pieces = vec![Ok(Frame::data(all.slice(..length.min(all.len())))), Err("cut on purpose".into())];
            StreamBody::new(Pieces(pieces.into_iter())).boxed()
        }
        Some(Fault::Damage(from_end)) => {
            let mut all = body.collect().await?.to_bytes().to_vec();
            if let Some(byte) = all.len().checked_sub(from_end + 1) {
                all[byte] ^= 0x55;
            }
            Full::new(Bytes::from(all)).map_err(never).boxed()
        }
        Some(Fault::Slow(size, pause)) => {
            let all = body.collect().await?.to_bytes();
            let pieces: Vec<_> = all.chunks(size).map(Bytes::copy_from_slice).collect();
            let stream = futures::stream::unfold(pieces.into_iter(), move |mut pieces| async move {
                tokio::time::sleep(pause).await;
                Some((Ok(Frame::data(pieces.next()?)), pieces))
            });
            StreamBody::new(
                Box::pin(stream) as Pin<Box<dyn futures::Stream<Item = Result<Frame<Bytes>, Failure>> + Send + Sync>>
            )
            .boxed()
        }
        _ => body.map_err(Failure::from).boxed(),
    };
    Ok(Response::from_parts(parts, body))
}

fn never(never: Infallible) -> Failure {
    match never {}
}

/// A stream of what is there already, of which hyper takes one piece at a time.
struct Pieces(std::vec::IntoIter<Result<Frame<Bytes>, Failure>>);

impl futures::Stream for Pieces {
    type Item = Result<Frame<Bytes>, Failure>;
    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.0.next())
    }
}
