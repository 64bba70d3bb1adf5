//! A standby that is brought to a standstill, so that the end of its WAL can be told.

use std::time::Duration;

use super::Error;
use super::postmaster::Postmaster;
use super::process::Processes;
use super::sql::Socket;
use super::tool::Tool;
use crate::api::agent::Lsn;
use crate::api::names::SUPERUSER;

/// Between two looks for a WAL receiver.
const LOOK: Duration = Duration::from_millis(5);

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

/// Timeline and end of the WAL on the disk of a standby that receives none and that has replayed what it had at its start.
pub async fn end_of_wal(socket: &Socket, processes: &Processes) -> Result<(u32, Lsn), Error> {
    let received = socket.open("postgres").await?.received().await?;
    told(identify(socket, processes).await?, received)
}

/// The replication protocol tells the timeline that is *replayed*, and what was received only if that is on the same one. Where
/// replay is held up before the first record of a new timeline, everything that was received, and acknowledged, on the new one
/// is missing in it: nothing is told then.
fn told((timeline, end): (u32, Lsn), received: Option<Lsn>) -> Result<(u32, Lsn), Error> {
    match received.filter(|received| *received > end) {
        None => Ok((timeline, end)),
        Some(received) => {
            let message = format!("up to {received} was received, and replay has not reached that timeline yet");
            Err(Error::Invalid { what: "the end of the WAL", message })
        }
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
    fn what_was_received_on_a_timeline_that_is_not_replayed_yet_is_never_left_out() {
        let here = (1, Lsn(100));
        assert_eq!(told(here, None).unwrap(), here, "nothing was received since the start");
        assert_eq!(told(here, Some(Lsn(90))).unwrap(), here, "the start of a segment");
        assert!(told(here, Some(Lsn(101))).is_err());
    }
}
