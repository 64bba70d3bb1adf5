//! `psql`: a session in a Pod of the cluster.

use std::process::ExitCode;

use futures::SinkExt as _;
use futures::channel::mpsc::Sender;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{AttachParams, AttachedProcess, TerminalSize};
use tokio::io::AsyncWriteExt as _;
use tokio::signal::unix::{SignalKind, signal};

use super::error::{Error, call};
use super::session::{Session, tell};
use super::terminal::{self, Raw};
use crate::api::names::{CONTAINER, SECRETS_MOUNT, SOCKET_DIR, SUPERUSER};
use crate::api::spec::HelloOperator;
use crate::config::ctl::PsqlArgs;

/// As the application's user: over TCP, as the application itself, with the name and the password that the Pod has. So
/// whoever may exec needs no right to read Secrets.
const AS_APP: &str = r#"export PGUSER="$(cat "$1/username")" PGPASSWORD="$(cat "$1/password")" PGHOST=localhost PGSSLMODE=require; shift; exec psql "$@""#;

/// Opens it. The code is psql's own.
pub async fn psql(session: &Session, args: &PsqlArgs, kind: Option<String>) -> Result<ExitCode, Error> {
    let object = session.read(&args.name).await?.object;
    let pod = if args.replica { replica(&object)? } else { primary(session, &object).await? };
    let tty = terminal::interactive();
    let command = command(args, &object.spec.postgresql.database, kind.filter(|_| tty));
    let params = AttachParams {
        container: Some(CONTAINER.into()),
        stdin: true,
        stdout: true,
        // A terminal has one stream.
        stderr: !tty,
        tty,
        ..AttachParams::default()
    };
    if tty {
        let who = if args.superuser { "the superuser" } else { "the application's user" };
        tell(&format!("{pod}, as {who}"));
    }
    let pods = session.api::<Pod>();
    let process = call(format!("psql cannot be started in {pod}"), pods.exec(&pod, command, &params)).await?;
    attend(process, tty).await
}

fn command(args: &PsqlArgs, database: &str, kind: Option<String>) -> Vec<String> {
    let mut command = vec!["env".to_owned(), format!("PGDATABASE={database}"), "PSQL_HISTORY=/dev/null".to_owned()];
    command.extend(kind.map(|kind| format!("TERM={kind}")));
    if args.superuser {
        command.extend([format!("PGHOST={SOCKET_DIR}"), format!("PGUSER={SUPERUSER}"), "psql".to_owned()]);
    } else {
        command.extend(["sh", "-c", AS_APP, "psql"].map(str::to_owned));
        command.push(format!("{SECRETS_MOUNT}/app"));
    }
    command.extend(args.arguments.iter().cloned());
    command
}

/// Who holds the Lease; what the status says where that cannot be read.
async fn primary(session: &Session, object: &HelloOperator) -> Result<String, Error> {
    let name = object.metadata.name.clone().unwrap_or_default();
    let holder = match session.lease(&name).await {
        Ok(lease) => lease.and_then(|lease| lease.spec?.holder_identity),
        Err(error) if error.code() == Some(403) => None,
        Err(error) => return Err(error),
    };
    let held = holder.as_deref().and_then(|holder| holder.split('/').next()).filter(|pod| !pod.is_empty());
    let status = object.status.as_ref().and_then(|status| status.primary.as_ref());
    let pod = held.map(str::to_owned).or_else(|| status.map(|primary| primary.instance.clone()));
    pod.ok_or_else(|| Error::Refused(format!("{name} has no primary now: kubectl hello status {name}")))
}

fn replica(object: &HelloOperator) -> Result<String, Error> {
    let instances = object.status.iter().flat_map(|status| &status.instances);
    let ready = instances.filter(|instance| instance.role == "replica" && instance.ready);
    ready.map(|instance| instance.name.clone()).next().ok_or_else(|| {
        Error::Refused(format!("{} has no replica that is ready", object.metadata.name.as_deref().unwrap_or_default()))
    })
}

/// Carries bytes in both directions until it ends.
async fn attend(mut process: AttachedProcess, tty: bool) -> Result<ExitCode, Error> {
    let raw = if tty { Raw::begin() } else { None };
    let ended = process.take_status();
    if let Some(sizes) = process.terminal_size() {
        tokio::spawn(resize(sizes));
    }
    if let Some(mut to) = process.stdin() {
        tokio::spawn(async move {
            // It ends with the input, or with psql; the end of the input is told by the drop.
            let _ = tokio::io::copy(&mut tokio::io::stdin(), &mut to).await;
            let _ = to.shutdown().await;
        });
    }
    let (out, err) = (process.stdout(), process.stderr());
    let out = async {
        if let Some(mut out) = out {
            tokio::io::copy(&mut out, &mut tokio::io::stdout()).await?;
        }
        tokio::io::stdout().flush().await
    };
    let err = async {
        if let Some(mut err) = err {
            tokio::io::copy(&mut err, &mut tokio::io::stderr()).await?;
        }
        tokio::io::stderr().flush().await
    };
    let (out, err) = tokio::join!(out, err);
    let status = match ended {
        Some(ended) => ended.await,
        None => None,
    };
    drop(raw);
    out?;
    err?;
    code(status)
}

/// psql's own exit code, from what the kubelet says at the end.
fn code(status: Option<Status>) -> Result<ExitCode, Error> {
    let Some(status) = status else { return Err(Error::Refused("the connection to the Pod was lost".into())) };
    if status.status.as_deref() == Some("Success") {
        return Ok(ExitCode::SUCCESS);
    }
    let causes = status.details.and_then(|details| details.causes).unwrap_or_default();
    let said = causes.into_iter().find(|cause| cause.reason.as_deref() == Some("ExitCode")).and_then(|c| c.message);
    match said.and_then(|code| code.parse::<u8>().ok()) {
        Some(code) => Ok(ExitCode::from(code)),
        None => Err(Error::Refused(status.message.unwrap_or_else(|| "psql could not be run".into()))),
    }
}

/// Tells how large the terminal is, now and whenever that changes.
async fn resize(mut sizes: Sender<TerminalSize>) {
    let Ok(mut changed) = signal(SignalKind::window_change()) else { return };
    while let Some(size) = terminal::size() {
        if sizes.send(size).await.is_err() || changed.recv().await.is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(superuser: bool) -> PsqlArgs {
        let arguments = vec!["-c".to_owned(), "select 'a b'".to_owned()];
        PsqlArgs { name: "db".into(), superuser, replica: false, arguments }
    }

    #[test]
    fn arguments_reach_psql_as_they_are() {
        let as_app = command(&args(false), "app", Some("xterm".into()));
        assert_eq!(as_app[..4], ["env", "PGDATABASE=app", "PSQL_HISTORY=/dev/null", "TERM=xterm"]);
        assert_eq!(as_app[7..], ["psql", "/etc/hello/app", "-c", "select 'a b'"]);
        let as_superuser = command(&args(true), "app", None);
        assert_eq!(as_superuser[3..], ["PGHOST=/var/run/postgresql", "PGUSER=postgres", "psql", "-c", "select 'a b'"]);
    }

    #[test]
    fn the_exit_code_is_the_programs_own() {
        let status = |value: serde_json::Value| Some(serde_json::from_value::<Status>(value).unwrap());
        let shown = |status| format!("{:?}", code(status).unwrap());
        assert_eq!(shown(status(serde_json::json!({"status": "Success"}))), format!("{:?}", ExitCode::SUCCESS));
        let failed = serde_json::json!({"status": "Failure", "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": "3"}]}});
        assert_eq!(shown(status(failed)), format!("{:?}", ExitCode::from(3)));
        assert!(code(None).is_err());
    }
}
