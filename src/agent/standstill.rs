//! A standby that is brought to a standstill, so that the end of its WAL can be told.

use std::time::Duration;

use super::Error;
use super::postmaster::Postmaster;
use super::process::Processes;
use super::sql::{Replay, Socket};
use super::tool::Tool;
use crate::api::agent::Lsn;
use crate::api::names::SUPERUSER;

/// Between two looks for a WAL receiver.
const LOOK: Duration = Duration::from_millis(5);
/// How long the replay may take to find that there is nothing more; one that takes longer is stuck, or has much to do.
const SETTLE: Duration = Duration::from_millis(300);

/// Stops the WAL receiver by configuration (which must stand and have been read again) and by signal, has seen it gone within
/// `limit`, and tells timeline and end of the WAL on disk. It is the startup process that ends a receiver on a change of the
/// configuration, and that one may be stuck.
pub async fn stand(
    socket: &Socket,
    postmaster: &Postmaster,
    processes: &Processes,
    limit: Duration,
) -> Result<(u32, Lsn), Error> {
    let end = tokio::time::Instant::now() + limit;
    let mut gone_before = false;
    loop {
        // A new one each time: it is born with the configuration that the postmaster has now.
        let session = socket.open("postgres").await?;
        if session.setting("primary_conninfo").await?.is_empty() {
            let receivers = postmaster.end_receivers();
            let gone = receivers == 0 && !session.has_receiver().await?;
            if gone && gone_before {
                break;
            }
            gone_before = gone;
        }
        if tokio::time::Instant::now() >= end {
            return Err(Error::Timeout("the end of the WAL receiver".into()));
        }
        tokio::time::sleep(LOOK).await;
    }
    end_of_wal(socket, processes).await
}

/// Timeline and end of the last record on the disk of a standby that receives none and that has replayed what it had at its start.
/// Where replay is held up, the end of what was received, which may be within a record.
pub async fn end_of_wal(socket: &Socket, processes: &Processes) -> Result<(u32, Lsn), Error> {
    let session = socket.open("postgres").await?;
    let end = tokio::time::Instant::now() + SETTLE;
    let replay = loop {
        let replay = session.replay().await?;
        if replay.at_end || tokio::time::Instant::now() >= end {
            break replay;
        }
        tokio::time::sleep(LOOK).await;
    };
    told(identify(socket, processes).await?, replay)
}

/// The replication protocol tells the timeline that is *replayed*, and what was received only if that is on the same one. Where
/// replay is held up before the first record of a new timeline, everything that was received, and acknowledged, on the new one
/// is missing in it: nothing is told then.
fn told((timeline, end): (u32, Lsn), replay: Replay) -> Result<(u32, Lsn), Error> {
    match (replay.received, replay.replayed) {
        // WAL comes in pieces, and a piece of a record is no reason to be beyond the fork of somebody who never got the rest.
        (_, Some(replayed)) if replay.at_end => Ok((timeline, replayed)),
        (Some(received), _) if received > end => {
            let message = format!("up to {received} was received, and replay has not reached that timeline yet");
            Err(Error::Invalid { what: "the end of the WAL", message })
        }
        _ => Ok((timeline, end)),
    }
}

/// Timeline and position as the replication protocol tells them: no SQL function does after a restart.
async fn identify(socket: &Socket, processes: &Processes) -> Result<(u32, Lsn), Error> {
    let conninfo = format!(
        "host={} port={} user={SUPERUSER} dbname=postgres replication=true connect_timeout=2",
        socket.folder.display(),
        socket.port
    );
    let text = Tool::new("psql").args(["-X", "-A", "-t", "-F", "|", "-c", "IDENTIFY_SYSTEM", "-d"]).arg(conninfo);
    let text = text.silence(Duration::from_secs(2)).run(processes).await?;
    let invalid = || Error::Invalid { what: "the answer to IDENTIFY_SYSTEM", message: text.clone() };
    let mut fields = text.trim().split('|').skip(1);
    let timeline = fields.next().and_then(|field| field.parse().ok()).ok_or_else(invalid)?;
    let end = fields.next().and_then(|field| field.parse().ok()).ok_or_else(invalid)?;
    Ok((timeline, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_acknowledged_is_never_left_out() {
        let here = (1, Lsn(100));
        let held_up = |received| Replay { received, replayed: Some(Lsn(50)), at_end: false };
        assert_eq!(told(here, held_up(None)).unwrap(), here, "nothing was received since the start");
        assert_eq!(told(here, held_up(Some(Lsn(90)))).unwrap(), here, "the start of a segment");
        assert!(told(here, held_up(Some(Lsn(101)))).is_err(), "on a timeline that is not replayed yet");
        let at_end = Replay { received: Some(Lsn(101)), replayed: Some(Lsn(95)), at_end: true };
        assert_eq!(told(here, at_end).unwrap(), (1, Lsn(95)), "the rest is no record");
    }
}
