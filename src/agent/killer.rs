//! The killer: a second, small process that ends PostgreSQL at the deadline also when the agent cannot, because it is
//! frozen or deadlocked.
//!
//! Nobody can kill PID 1 of a container from within it, so it kills everything else there, and goes on until it gets
//! another order: an agent that was frozen between a decision and its deed would do the deed when it wakes.
//!
//! Agent and killer share a stream socket. An order is a serial number and a deadline on CLOCK_BOOTTIME; the killer answers
//! with the serial number of the last order that it took. The end of the stream is the end of the killer.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, getppid};

use super::Error;
use super::process::{Processes, Reach, boottime, signal, snapshot};

/// It looks at the clock this often while it is armed, because its own waiting stands still while the machine sleeps.
const LOOK: Duration = Duration::from_millis(50);
/// One blow lasts at most so long; then it reads its orders again.
const BLOW: Duration = Duration::from_millis(100);
/// A deadline that never comes.
const NEVER: u64 = u64::MAX;
const ORDER: usize = 16;
const ANSWER: usize = 8;

/// The agent's end: where the orders go.
#[derive(Debug)]
pub struct Link {
    socket: UnixStream,
    pid: i32,
    sent: u64,
    answers: Records<ANSWER>,
    taken: u64,
}

impl Link {
    /// Starts a killer for this process. Whoever gets the child waits for it, and then says so to `processes`.
    pub fn hire(processes: &Processes, program: &Path) -> std::io::Result<(Self, Child)> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut command = Command::new(program);
        command
            .arg0("hello-operator")
            .args(["killer", "--agent"])
            .arg(std::process::id().to_string())
            .env_clear()
            .current_dir("/")
            // What is sent to the agent's group is not meant for it.
            .process_group(0)
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = processes.spawn_killer(&mut command)?;
        let pid = i32::try_from(child.id()).unwrap_or_default();
        Ok((Self { socket: ours, pid, sent: 0, answers: Records::default(), taken: 0 }, child))
    }

    /// Hands it a deadline, or none. False if nobody is there to take it.
    pub fn order(&mut self, deadline: Option<Duration>) -> bool {
        self.sent += 1;
        // The socket holds far more orders than can be under way; one that does not fit has no reader.
        (&self.socket).write(&order(self.sent, deadline)).is_ok_and(|written| written == ORDER)
    }

    /// Whether it has taken the last order; waits up to `limit` for that.
    pub fn has_taken(&mut self, limit: Duration) -> bool {
        let end = boottime() + limit;
        loop {
            match self.answers.read(&mut &self.socket) {
                Ok(Some(answer)) => self.taken = u64::from_le_bytes(answer),
                Ok(None) => {}
                Err(_) => return false,
            }
            let left = end.saturating_sub(boottime());
            if self.taken == self.sent || left.is_zero() {
                return self.taken == self.sent;
            }
            wait(&self.socket, Some(left));
        }
    }

    /// Ends it, because it does not answer.
    pub fn dismiss(&self) {
        signal(self.pid, Signal::KILL);
    }
}

/// The killer itself: returns when its agent has ended.
pub fn run(agent: u32) -> Result<(), Error> {
    let broken = |error: std::io::Error| Error::io("use the agent's socket", "/dev/stdin")(error);
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().map_err(broken)?);
    socket.set_nonblocking(true).map_err(broken)?;
    let me = getpid().as_raw_nonzero().get();
    // Where the agent is PID 1, everything that /proc shows is in its container.
    let reach = Reach { agent, everything: agent == 1 };
    // Everything that a kill needs was in memory once.
    drop(snapshot());
    let mut orders = Records::<ORDER>::default();
    let mut deadline: Option<Duration> = None;
    loop {
        match orders.read(&mut &socket) {
            Ok(Some(record)) => {
                let (serial, at) = parse(record);
                deadline = at;
                // An agent that does not read its answers is frozen, and needs none.
                let _ = (&socket).write(&serial.to_le_bytes());
            }
            Ok(None) => {}
            Err(_) => return Ok(()),
        }
        let left = deadline.map(|at| at.saturating_sub(boottime()));
        if left.is_some_and(|left| left.is_zero()) {
            // Another parent: the agent is gone, and what is below that parent is none of ours.
            if getppid().is_none_or(|parent| u32::try_from(parent.as_raw_nonzero().get()) != Ok(agent)) {
                return Ok(());
            }
            reach.kill(BLOW, || Some(me));
            wait(&socket, Some(LOOK));
        } else {
            wait(&socket, left.map(|left| left.min(LOOK)));
        }
    }
}

/// Waits until there is something to read, but not for longer than `limit`.
fn wait(socket: &UnixStream, limit: Option<Duration>) {
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    // Whether it was that, the limit or a signal, the caller looks again.
    let _ = poll(&mut [PollFd::new(socket, PollFlags::IN)], limit.as_ref());
}

/// Records of one size out of a stream.
#[derive(Debug)]
struct Records<const SIZE: usize> {
    /// The beginning of a record that is not complete.
    part: [u8; SIZE],
    length: usize,
}

impl<const SIZE: usize> Default for Records<SIZE> {
    fn default() -> Self {
        Self { part: [0; SIZE], length: 0 }
    }
}

impl<const SIZE: usize> Records<SIZE> {
    /// Everything that is there; the last complete record of it. An error is the end of the stream as well.
    fn read(&mut self, stream: &mut impl Read) -> std::io::Result<Option<[u8; SIZE]>> {
        let mut last = None;
        loop {
            let Some(rest) = self.part.get_mut(self.length..) else { return Ok(last) };
            match stream.read(rest) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.length += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(last),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if self.length == SIZE {
                (last, self.length) = (Some(self.part), 0);
            }
        }
    }
}

fn order(serial: u64, deadline: Option<Duration>) -> [u8; ORDER] {
    let nanoseconds = deadline.map_or(NEVER, |at| u64::try_from(at.as_nanos()).unwrap_or(NEVER - 1));
    let mut record = [0; ORDER];
    let (first, second) = record.split_at_mut(8);
    first.copy_from_slice(&serial.to_le_bytes());
    second.copy_from_slice(&nanoseconds.to_le_bytes());
    record
}

fn parse(record: [u8; ORDER]) -> (u64, Option<Duration>) {
    let both = u128::from_le_bytes(record);
    let (serial, nanoseconds) = (both & u128::from(u64::MAX), both >> 64);
    let [serial, nanoseconds] = [serial, nanoseconds].map(|half| u64::try_from(half).unwrap_or(NEVER));
    (serial, (nanoseconds != NEVER).then(|| Duration::from_nanos(nanoseconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_arrives_as_it_was_given() {
        for deadline in [None, Some(Duration::ZERO), Some(Duration::from_nanos(1_234_567_890_123))] {
            assert_eq!(parse(order(7, deadline)), (7, deadline));
        }
    }

    #[test]
    fn the_last_complete_record_counts_however_the_stream_is_cut() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let mut records = Records::<ORDER>::default();
        let mut read = || records.read(&mut &theirs);
        assert_eq!(read().unwrap(), None);
        let bytes: Vec<u8> = (1..4).flat_map(|serial| order(serial, None)).collect();
        ours.write_all(&bytes[..20]).unwrap();
        assert_eq!(read().unwrap().map(|record| parse(record).0), Some(1));
        assert_eq!(read().unwrap(), None);
        ours.write_all(&bytes[20..]).unwrap();
        assert_eq!(read().unwrap().map(|record| parse(record).0), Some(3));
        drop(ours);
        assert!(read().is_err());
    }
}
