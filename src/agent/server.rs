//! The agents' API: HTTPS with mutual TLS. The operator may command; the other agents may ask.

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use opentelemetry::Context;
use opentelemetry::context::FutureExt;
use rustls::pki_types::CertificateDer;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

use super::Error;
use super::commands::Command;
use super::report::Shared;
use super::run::Event;
use super::sql::Socket;
use super::tls::{Tls, common_name};
use crate::api::agent::{CommandAnswer, FreezeRequest, HoldRequest, LeaveCommand, RestartCommand, SwitchoverCommand};
use crate::api::archive::{BackupCommand, CancelBackupCommand};
use crate::api::names::{OPERATOR_CN, REPLICATION_USER};
use crate::core::election::NoAnswer;
use crate::https;
use crate::telemetry::traces::agent::{AgentTraces, answered};
use crate::telemetry::traces::context::TRACEPARENT;

const ANSWER: Duration = Duration::from_secs(5);
const MOST_CONNECTIONS: usize = 32;

/// Who asks.
#[derive(Debug, Clone)]
struct Peer(String);

#[derive(Clone)]
struct Ctx {
    shared: Shared,
    events: mpsc::Sender<Event>,
    socket: Socket,
}

/// Serves for the life of the agent.
pub async fn serve(
    address: SocketAddr,
    tls: Tls,
    shared: Shared,
    events: mpsc::Sender<Event>,
    socket: Socket,
    traces: AgentTraces,
) -> Result<(), Error> {
    let listener = TcpListener::bind(address).await.map_err(Error::io("listen on", address.to_string()))?;
    let router = Router::new()
        .route("/v1/report", get(report))
        .route("/v1/restart", post(restart))
        .route("/v1/leave", post(leave))
        .route("/v1/switchover", post(switchover))
        .route("/v1/freeze", post(freeze))
        .route("/v1/hold", post(hold))
        .route("/v1/backup", post(backup))
        .route("/v1/backup/cancel", post(cancel_backup))
        .route("/v1/switch-wal", post(switch_wal))
        .layer(DefaultBodyLimit::max(64 * 1024))
        .layer(from_fn_with_state(traces, traced))
        .with_state(Ctx { shared, events, socket });
    let peer = move |certificate: Option<&CertificateDer<'static>>| {
        let name = certificate.and_then(common_name).unwrap_or_default();
        router.clone().layer(Extension(Peer(name)))
    };
    tokio::spawn(async move { https::serve(listener, MOST_CONNECTIONS, || tls.server(), peer).await });
    Ok(())
}

/// What the operator asks for in a trace of its own is a span of that trace.
async fn traced(
    State(traces): State<AgentTraces>,
    Extension(Peer(name)): Extension<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let parent = request.headers().get(TRACEPARENT).and_then(|value| value.to_str().ok());
    let parent = parent.filter(|_| name == OPERATOR_CN);
    let Some(context) = parent.and_then(|parent| traces.request(request.uri().path(), parent)) else {
        return next.run(request).await;
    };
    let response = next.run(request).with_context(context.clone()).await;
    answered(&context, response.status().as_u16());
    response
}

async fn report(State(ctx): State<Ctx>, Extension(Peer(name)): Extension<Peer>) -> Response {
    if name != OPERATOR_CN && name != REPLICATION_USER {
        return StatusCode::FORBIDDEN.into_response();
    }
    Json(ctx.shared.report()).into_response()
}

async fn restart(
    State(ctx): State<Ctx>,
    Extension(Peer(name)): Extension<Peer>,
    Json(command): Json<RestartCommand>,
) -> Response {
    order(&ctx, &name, |answer| Command::Restart(command, answer)).await
}

async fn leave(
    State(ctx): State<Ctx>,
    Extension(Peer(name)): Extension<Peer>,
    Json(command): Json<LeaveCommand>,
) -> Response {
    order(&ctx, &name, |answer| Command::Leave(command, answer)).await
}

async fn switchover(
    State(ctx): State<Ctx>,
    Extension(Peer(name)): Extension<Peer>,
    Json(command): Json<SwitchoverCommand>,
) -> Response {
    order(&ctx, &name, |answer| Command::Switchover(command, answer)).await
}

async fn backup(
    State(ctx): State<Ctx>,
    Extension(Peer(name)): Extension<Peer>,
    Json(command): Json<BackupCommand>,
) -> Response {
    order(&ctx, &name, |answer| Command::Backup(command, answer)).await
}

async fn cancel_backup(
    State(ctx): State<Ctx>,
    Extension(Peer(name)): Extension<Peer>,
    Json(command): Json<CancelBackupCommand>,
) -> Response {
    order(&ctx, &name, |answer| Command::CancelBackup(command, answer)).await
}

/// A replica that takes a backup needs the segment that is written now: the primary closes it.
async fn switch_wal(State(ctx): State<Ctx>, Extension(Peer(name)): Extension<Peer>) -> Response {
    if name != REPLICATION_USER {
        return StatusCode::FORBIDDEN.into_response();
    }
    let work = async { ctx.socket.open("postgres").await?.run("the next segment", "SELECT pg_switch_wal()").await };
    match work.await {
        Ok(()) => Json(true).into_response(),
        Err(error) => (StatusCode::CONFLICT, Json(error.to_string())).into_response(),
    }
}

async fn freeze(
    State(ctx): State<Ctx>,
    Extension(Peer(name)): Extension<Peer>,
    Json(question): Json<FreezeRequest>,
) -> Response {
    promise(&ctx, &name, |answer| Event::Freeze(question.version, answer)).await
}

async fn hold(
    State(ctx): State<Ctx>,
    Extension(Peer(name)): Extension<Peer>,
    Json(question): Json<HoldRequest>,
) -> Response {
    promise(&ctx, &name, |answer| Event::Hold(question, answer)).await
}

/// Another agent asks this member for a promise. 200 with the answer; 409 with the reason why there is none.
async fn promise<T: Serialize>(
    ctx: &Ctx,
    name: &str,
    question: impl FnOnce(oneshot::Sender<Result<T, NoAnswer>>) -> Event,
) -> Response {
    if name != REPLICATION_USER {
        return StatusCode::FORBIDDEN.into_response();
    }
    let (sender, receiver) = oneshot::channel();
    let unavailable = StatusCode::SERVICE_UNAVAILABLE;
    if tokio::time::timeout(ANSWER, ctx.events.send(question(sender))).await.is_err() {
        return unavailable.into_response();
    }
    match tokio::time::timeout(ANSWER, receiver).await {
        Ok(Ok(Ok(answer))) => Json(answer).into_response(),
        Ok(Ok(Err(why))) => (StatusCode::CONFLICT, Json(why)).into_response(),
        _ => unavailable.into_response(),
    }
}

/// Hands a command of the operator to the loop. 200: done; 202: under way; 409: refused.
async fn order(
    ctx: &Ctx,
    name: &str,
    command: impl FnOnce(oneshot::Sender<Result<CommandAnswer, String>>) -> Command,
) -> Response {
    if name != OPERATOR_CN {
        return StatusCode::FORBIDDEN.into_response();
    }
    let (sender, receiver) = oneshot::channel();
    let unavailable = StatusCode::SERVICE_UNAVAILABLE;
    if tokio::time::timeout(ANSWER, ctx.events.send(Event::Command(command(sender), Context::current()))).await.is_err()
    {
        return unavailable.into_response();
    }
    match tokio::time::timeout(ANSWER, receiver).await {
        Ok(Ok(Ok(answer))) => {
            let status = if answer.done { StatusCode::OK } else { StatusCode::ACCEPTED };
            (status, Json(answer)).into_response()
        }
        Ok(Ok(Err(message))) => (StatusCode::CONFLICT, Json(CommandAnswer { done: false, message })).into_response(),
        _ => unavailable.into_response(),
    }
}
