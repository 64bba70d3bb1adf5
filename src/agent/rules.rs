//! Proof that a sync rule is in force. A change of the setting is not: a backend that was released under the old one may
//! still acknowledge.

use std::time::Duration;

use super::Error;
use super::sql::Socket;
use crate::core::election::rules::{in_force, ready_for_marker};
use crate::core::election::{Evidence, Rule, Walsender};

/// How long the members have for each step, before the whole proof is tried again.
const PATIENCE: Duration = Duration::from_millis(2500);
/// How long a commit under the new rule may take.
const COMMIT: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(30);
const CHECKPOINT: Duration = Duration::from_mins(10);

/// Proves that `rule` is in force, with `setting` as synchronous_standby_names. `from_empty`: before it, commits waited
/// for nobody. Ok(false): not yet; the caller tries again.
pub async fn confirm(socket: &Socket, rule: &Rule, setting: &str, from_empty: bool) -> Result<bool, Error> {
    // A new session shows the new value: the postmaster has it.
    let session = socket.open("postgres").await?;
    if session.setting("synchronous_standby_names").await? != setting {
        return Ok(false);
    }
    if rule.k == 0 {
        return Ok(true);
    }
    // From nothing to names, only the checkpointer's own reload makes backends wait.
    if from_empty {
        session.run_within("a checkpoint", "CHECKPOINT", CHECKPOINT).await?;
    }
    let position = session.write_marker().await?;
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        let senders: Vec<_> = session.walsenders().await?.into_iter().filter(|sender| !sender.backup).collect();
        let known: Vec<Walsender> = senders
            .iter()
            .map(|sender| Walsender {
                member: sender.name.clone(),
                written: sender.written.unwrap_or_default(),
                flushed: sender.flushed.unwrap_or_default(),
            })
            .collect();
        let mut evidence =
            Evidence { shown: true, position, from_empty, checkpointed: true, walsenders: &known, committed: false };
        if ready_for_marker(rule, &evidence) {
            evidence.committed = marker_commit(socket).await?;
            return Ok(in_force(rule, &evidence));
        }
        if tokio::time::Instant::now() >= end {
            // Every walsender has read the new value once it has passed a position that was written after it.
            for sender in senders.iter().filter(|sender| sender.written.unwrap_or_default() < position) {
                tracing::info!(member = %sender.name, "its stream does not get on and is ended, so that the new sync rule can be proven");
                session.terminate(sender.pid).await?;
            }
            return Ok(false);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// A commit that waits under the new rule. What an older backend acknowledges later lies below it.
async fn marker_commit(socket: &Socket) -> Result<bool, Error> {
    let session = socket.open("postgres").await?;
    let backend = session.backend().await?;
    let commit = "SET synchronous_commit = on; SELECT pg_logical_emit_message(true, 'hello-operator', 'rule')";
    match session.run_within("a commit under the new sync rule", commit, COMMIT).await {
        Ok(()) => Ok(true),
        Err(Error::Timeout(_)) => {
            // A cancelled wait would be a success with a warning; the end of the session is not. It must end: a backend in
            // this wait does not notice that nobody listens.
            socket.open("postgres").await?.terminate(backend).await?;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}
