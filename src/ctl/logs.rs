//! `logs`: the logs of all instances, merged by time.

use std::time::Duration;

use futures::{AsyncBufRead, AsyncBufReadExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::LogParams;
use kube::runtime::wait::await_condition;
use tokio::sync::mpsc;

use super::error::{Error, call};
use super::session::{Session, answer, tell};
use super::view::logs::{Line, Merge, text};
use crate::api::names::CONTAINER;
use crate::config::ctl::LogsArgs;

/// Lines of each instance, where nothing else is said.
const TAIL: i64 = 200;
/// How long a line that is followed may wait for an older one.
const WINDOW: Duration = Duration::from_millis(250);
/// Between two attempts at a log that ended: the kubelet may not know yet that its container did.
const AGAIN: Duration = Duration::from_secs(1);

/// Shows them.
pub async fn logs(session: &Session, args: &LogsArgs) -> Result<(), Error> {
    // Says so where there is no such object, in place of showing nothing.
    session.read(&args.name).await?;
    let pods: Vec<String> = session.pods(&args.name).await?.iter().map(kube::ResourceExt::name_any).collect();
    if pods.is_empty() {
        return Err(Error::Refused(format!("{} has no Pods now: kubectl hello status {}", args.name, args.name)));
    }
    let tail = args.tail.map(i64::from).or_else(|| args.since.is_none().then_some(TAIL));
    let begin = LogParams {
        container: Some(CONTAINER.into()),
        follow: args.follow,
        since_time: args.since.and_then(|since| Timestamp::now().checked_sub(since).ok()),
        tail_lines: tail,
        timestamps: true,
        ..LogParams::default()
    };
    let (sender, lines) = mpsc::channel(256);
    for pod in &pods {
        let (api, pod, begin, sender) = (session.api::<Pod>(), pod.clone(), begin.clone(), sender.clone());
        tokio::spawn(async move {
            // An error here is that nobody listens any more.
            let _ = read(&api, &pod, begin, &sender).await;
            let _ = sender.send((pod, None)).await;
        });
    }
    drop(sender);
    show(session, args, Merge::new(pods), lines).await
}

type Lines = mpsc::Receiver<(String, Option<Line>)>;

async fn show(session: &Session, args: &LogsArgs, mut merge: Merge, mut lines: Lines) -> Result<(), Error> {
    let mut ticks = tokio::time::interval(WINDOW);
    while !merge.ended() {
        let now = tokio::select! {
            came = lines.recv() => {
                match came {
                    Some((pod, Some(line))) => merge.add(&pod, line),
                    Some((pod, None)) => merge.end(&pod),
                    None => return Ok(()),
                }
                false
            }
            _ = ticks.tick(), if args.follow => true,
        };
        let mut out = String::new();
        while let Some((pod, line)) = merge.next(now) {
            if args.raw {
                out.push_str(&line.text);
            } else {
                out.push_str(&text(&pod, &line, session.paint));
            }
            out.push('\n');
        }
        if !out.is_empty() {
            answer(&out)?;
        }
    }
    Ok(())
}

/// Nobody listens any more.
struct Unheard;

/// Reads the log of a Pod; when it is followed, of the containers and Pods after it, too.
async fn read(
    pods: &Api<Pod>,
    pod: &str,
    mut params: LogParams,
    to: &mpsc::Sender<(String, Option<Line>)>,
) -> Result<(), Unheard> {
    let mut last: Option<Timestamp> = None;
    loop {
        match call(format!("the log of {pod} cannot be read"), pods.log_stream(pod, &params)).await {
            Ok(stream) => lines(Box::pin(stream), pod, &mut last, to).await?,
            Err(error) if params.follow && !matches!(error.code(), Some(401 | 403)) => {}
            Err(error) => {
                tell(&error.to_string());
                return Ok(());
            }
        }
        if !params.follow {
            return Ok(());
        }
        tokio::select! {
            () = to.closed() => return Err(Unheard),
            () = tokio::time::sleep(AGAIN) => {}
        }
        let running = await_condition(pods.clone(), pod, |pod: Option<&Pod>| {
            let statuses = pod.and_then(|pod| pod.status.as_ref()?.container_statuses.as_ref());
            statuses.is_some_and(|all| {
                all.iter().any(|one| one.name == CONTAINER && one.state.as_ref().is_some_and(|s| s.running.is_some()))
            })
        });
        tokio::select! {
            () = to.closed() => return Err(Unheard),
            // Where the Pod cannot be watched, the next attempt to read says why.
            _ = running => {}
        }
        if let Some(last) = last {
            (params.since_time, params.tail_lines) = (Some(last), None);
        }
    }
}

async fn lines(
    mut stream: impl AsyncBufRead + Unpin,
    pod: &str,
    last: &mut Option<Timestamp>,
    to: &mpsc::Sender<(String, Option<Line>)>,
) -> Result<(), Unheard> {
    let after = *last;
    let mut buffer = Vec::new();
    loop {
        buffer.clear();
        // An error is the end of a connection.
        if stream.read_until(b'\n', &mut buffer).await.unwrap_or(0) == 0 {
            return Ok(());
        }
        let Some(line) = Line::parse(&String::from_utf8_lossy(&buffer)) else { continue };
        // A log that is opened again begins with the second of the last line.
        if after.is_some_and(|after| line.at <= after) {
            continue;
        }
        *last = Some(line.at);
        to.send((pod.to_owned(), Some(line))).await.map_err(|_| Unheard)?;
    }
}
