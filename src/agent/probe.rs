//! Whether PostgreSQL answers, its disks write, and its data is there: asked beside the loop and beside SQL, since whatever asks
//! by a session that is open learns nothing of a postmaster that stands still, and waits for a disk that hangs.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{mpsc as tokio_mpsc, watch};

use super::Error;
use super::process::boottime;
use super::sql::Socket;
use super::volume::Layout;

/// How often everything is looked at.
const TICK: Duration = Duration::from_millis(500);
/// At most so much of the time between two looks counts as watched: who slept himself saw nobody sleep.
const WATCHED: Duration = Duration::from_secs(1);
/// How often a connection is tried, and how long it may take. Several are under way at a time.
const ASK: Duration = Duration::from_secs(1);
const ANSWER: Duration = Duration::from_secs(6);
/// A postmaster that answers none of the connections for so long is frozen. To answer it only forks; that took below 10 ms, and
/// 0.2 s with ten busy processes to each core.
const FROZEN: Duration = Duration::from_secs(4);
/// How often something is written, in place and with nothing but its own block.
const WRITE: Duration = Duration::from_secs(2);
/// A write that takes so long hangs, if its device completed nothing at all meanwhile or cannot be asked.
const STUCK: Duration = Duration::from_secs(4);
/// With a device that works a disk is only slow, up to this.
const SLOW: Duration = Duration::from_secs(30);
/// The data is gone when so many looks in a row missed it.
const MISSED: u32 = 2;

/// How PostgreSQL is, as far as it can be seen from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Health {
    /// Nothing is wrong, or there is no PostgreSQL.
    #[default]
    Well,
    /// The postmaster answers no connection.
    Frozen,
    /// A volume does not complete a write, or refuses it.
    DiskHangs,
    /// The data directory vanished, or another one stands in its place.
    DataGone,
}

/// A health, and since when: on CLOCK_BOOTTIME, for an ill one from its first sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Verdict {
    /// How it is.
    pub health: Health,
    /// Since when.
    pub since: Duration,
}

/// What is watched.
#[derive(Debug, Clone)]
pub struct Watched {
    /// Where PostgreSQL listens.
    pub socket: Socket,
    /// Where its data lies.
    pub layout: Layout,
}

/// Watches for the life of the agent, while `running` says that there is a PostgreSQL.
pub async fn watch(
    watched: Watched,
    running: watch::Receiver<bool>,
    verdicts: watch::Sender<Verdict>,
) -> Result<(), Error> {
    let mut look = Look::new(&watched.layout);
    watch_with(watched.socket, move |fresh, device| look.look(fresh, device), running, verdicts).await
}

/// The same with another way to look at the disks, which may block; `true` says that PostgreSQL has just started.
pub async fn watch_with(
    socket: Socket,
    look: impl FnMut(bool, &Device) -> Disk + Send + 'static,
    running: watch::Receiver<bool>,
    verdicts: watch::Sender<Verdict>,
) -> Result<(), Error> {
    let mut disks = Disks::start(look)?;
    let answers = Arc::new(AtomicU64::new(0));
    let mut judge = Judge::default();
    let (mut seen, mut fresh, mut last) = (0, true, boottime());
    let (mut ask_at, mut write_at) = (Duration::ZERO, Duration::ZERO);
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !verdicts.is_closed() {
        tick.tick().await;
        let now = boottime();
        let passed = now.saturating_sub(std::mem::replace(&mut last, now));
        let runs = *running.borrow();
        if runs && now >= ask_at {
            ask_at = now + ASK;
            let (socket, answers) = (socket.clone(), answers.clone());
            tokio::spawn(async move {
                if tokio::time::timeout(ANSWER, answered(&socket)).await == Ok(true) {
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        if runs && now >= write_at && disks.ask(fresh) {
            (write_at, fresh) = (now + WRITE, false);
        }
        fresh |= !runs;
        let count = answers.load(Ordering::Relaxed);
        let answered = std::mem::replace(&mut seen, count) != count;
        let verdict = judge.judge(now, Facts { passed, runs, answered, disk: disks.now() });
        verdicts.send_if_modified(|present| std::mem::replace(present, verdict) != verdict);
    }
    Ok(())
}

/// Asks for TLS, as a client does first. That the answer is no does not matter: whoever was forked for this connection gave it.
/// Where nobody listens, nobody is frozen.
async fn answered(socket: &Socket) -> bool {
    const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
    let path = socket.folder.join(format!(".s.PGSQL.{}", socket.port));
    let mut stream = match UnixStream::connect(path).await {
        Ok(stream) => stream,
        // The queue of those that wait to be accepted is full.
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return false,
        Err(_) => return true,
    };
    stream.write_all(&SSL_REQUEST).await.is_ok() && stream.read_u8().await.is_ok()
}

/// What a look at the disks found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Disk {
    /// It was written to, and the data is there.
    #[default]
    Well,
    /// It is full: that helps nobody who takes over.
    Full,
    /// It refuses to be written to.
    Refuses,
    /// The data is not there.
    Missing,
}

/// One thread that looks, so that never more than one look hangs.
struct Disks {
    ask: mpsc::SyncSender<bool>,
    ended: tokio_mpsc::Receiver<Disk>,
    busy: bool,
    device: Device,
    completed: Option<u64>,
}

impl Disks {
    fn start(mut look: impl FnMut(bool, &Device) -> Disk + Send + 'static) -> Result<Self, Error> {
        let (ask, asked) = mpsc::sync_channel(1);
        let (sender, ended) = tokio_mpsc::channel(1);
        let device = Device::default();
        let used = device.clone();
        std::thread::Builder::new()
            .name("disks".into())
            .stack_size(128 * 1024)
            .spawn(move || {
                while let Ok(fresh) = asked.recv() {
                    if sender.blocking_send(look(fresh, &used)).is_err() {
                        return;
                    }
                }
            })
            .map_err(Error::io("start a thread", "disks"))?;
        Ok(Self { ask, ended, busy: false, device, completed: None })
    }

    /// False while a look is under way.
    fn ask(&mut self, fresh: bool) -> bool {
        if self.busy || self.ask.try_send(fresh).is_err() {
            return false;
        }
        self.busy = true;
        true
    }

    fn now(&mut self) -> DiskNow {
        let ended = self.ended.try_recv().ok();
        self.busy &= ended.is_none();
        let before = self.completed.take();
        if self.busy {
            self.completed = self.device.completed();
        }
        DiskNow { ended, busy: self.busy, progress: before.is_some() && self.completed > before }
    }
}

/// The device that a look waits for; 0 where it is not known.
#[derive(Debug, Clone, Default)]
pub struct Device(Arc<AtomicU64>);

impl Device {
    /// What is asked next is asked of this one.
    pub fn is(&self, device: u64) {
        self.0.store(device, Ordering::Relaxed);
    }

    /// How much it has completed, if the kernel says so: not for a network's file system.
    fn completed(&self) -> Option<u64> {
        let device = self.0.load(Ordering::Relaxed);
        completed(
            &std::fs::read_to_string("/proc/diskstats").ok()?,
            rustix::fs::major(device),
            rustix::fs::minor(device),
        )
    }
}

/// Completed reads and writes of a device, in the text of /proc/diskstats.
fn completed(text: &str, major: u32, minor: u32) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        if fields.next()?.parse() != Ok(major) || fields.next()?.parse() != Ok(minor) {
            return None;
        }
        let reads: u64 = fields.nth(1)?.parse().ok()?;
        Some(reads + fields.nth(3)?.parse::<u64>().ok()?)
    })
}

/// The volumes of an instance. All of this may block.
struct Look {
    pgdata: PathBuf,
    /// Where something is written, on each volume.
    folders: Vec<PathBuf>,
    /// Which directory the data was in when PostgreSQL started.
    identity: Option<(u64, u64)>,
}

impl Look {
    fn new(layout: &Layout) -> Self {
        let mut folders = vec![layout.data().join("agent")];
        if layout.wal() != layout.data() {
            folders.push(layout.wal().to_owned());
        }
        Self { pgdata: layout.pgdata(), folders, identity: None }
    }

    fn look(&mut self, fresh: bool, device: &Device) -> Disk {
        match self.is_there(fresh) {
            Ok(true) => {}
            Ok(false) => return Disk::Missing,
            Err(error) => return refusal(&error),
        }
        for folder in &self.folders {
            if let Err(error) = write(folder, device) {
                return refusal(&error);
            }
        }
        device.is(self.identity.map_or(0, |(device, _)| device));
        Disk::Well
    }

    fn is_there(&mut self, fresh: bool) -> std::io::Result<bool> {
        let seen = match std::fs::metadata(&self.pgdata) {
            Ok(seen) => (seen.dev(), seen.ino()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        if fresh {
            self.identity = Some(seen);
        }
        let complete =
            self.pgdata.join("PG_VERSION").try_exists()? && self.pgdata.join("global/pg_control").try_exists()?;
        Ok(complete && self.identity == Some(seen))
    }
}

/// Writes one block in place, as a commit does, and waits for the disk.
fn write(folder: &Path, device: &Device) -> std::io::Result<()> {
    device.is(std::fs::metadata(folder)?.dev());
    let file = std::fs::File::options().create(true).truncate(false).write(true).open(folder.join("probe"))?;
    file.write_all_at(&[0; 512], 0)?;
    file.sync_data()
}

fn refusal(error: &std::io::Error) -> Disk {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Disk::Full,
        // A folder of ours is away, and the data is not.
        std::io::ErrorKind::NotFound => Disk::Well,
        _ => Disk::Refuses,
    }
}

/// What is known of the disks now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct DiskNow {
    /// The look that ended since the last time.
    ended: Option<Disk>,
    /// Whether one is under way.
    busy: bool,
    /// Whether its device completed something since the last time.
    progress: bool,
}

/// What was seen since the last time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Facts {
    /// How long that is.
    passed: Duration,
    /// Whether there is a PostgreSQL.
    runs: bool,
    /// Whether it answered a connection.
    answered: bool,
    disk: DiskNow,
}

/// Judges by what was seen so far; all times are watched ones.
#[derive(Debug, Default)]
struct Judge {
    /// Without an answer.
    silent: Duration,
    /// A look at the disks is under way.
    busy: Duration,
    /// The same, and its device completes nothing.
    stuck: Duration,
    /// A disk refuses.
    refused: Option<Duration>,
    /// Looks in a row that missed the data, and the time since the first.
    missed: Option<(u32, Duration)>,
    verdict: Verdict,
}

impl Judge {
    fn judge(&mut self, now: Duration, facts: Facts) -> Verdict {
        let passed = facts.passed.min(WATCHED);
        self.silent = if facts.runs && !facts.answered { self.silent + passed } else { Duration::ZERO };
        let DiskNow { ended, busy, progress } = facts.disk;
        self.busy = if busy { self.busy + passed } else { Duration::ZERO };
        self.stuck = if busy && !progress { self.stuck + passed } else { Duration::ZERO };
        self.refused = self.refused.map(|time| time + passed);
        self.missed = self.missed.map(|(looks, time)| (looks, time + passed)).filter(|_| facts.runs);
        if let Some(ended) = ended {
            self.refused = (ended == Disk::Refuses).then(|| self.refused.unwrap_or_default());
            self.missed = (ended == Disk::Missing && facts.runs)
                .then(|| self.missed.map_or((1, Duration::ZERO), |(looks, time)| (looks + 1, time)));
        }
        let refused = self.refused.unwrap_or_default();
        let (health, time) = match self.missed {
            _ if !facts.runs => (Health::Well, Duration::ZERO),
            Some((looks, time)) if looks >= MISSED => (Health::DataGone, time),
            _ if self.stuck >= STUCK || self.busy >= SLOW => (Health::DiskHangs, self.busy),
            _ if refused >= STUCK => (Health::DiskHangs, refused),
            _ if self.silent >= FROZEN => (Health::Frozen, self.silent),
            _ => (Health::Well, Duration::ZERO),
        };
        if health != self.verdict.health {
            self.verdict = Verdict { health, since: now.saturating_sub(time) };
        }
        self.verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: Facts =
        Facts { passed: TICK, runs: true, answered: true, disk: DiskNow { ended: None, busy: false, progress: false } };
    const SILENT: Facts = Facts { answered: false, ..WELL };
    const BUSY: Facts = Facts { disk: DiskNow { busy: true, ..WELL.disk }, ..WELL };

    /// The verdict after the same facts so many times.
    fn after(judge: &mut Judge, times: u32, facts: Facts) -> Health {
        (0..times).map(|_| judge.judge(Duration::ZERO, facts).health).last().unwrap_or_default()
    }

    fn ended(disk: Disk) -> Facts {
        Facts { disk: DiskNow { ended: Some(disk), ..WELL.disk }, ..WELL }
    }

    #[test]
    fn a_postmaster_is_frozen_after_silence_that_was_watched() {
        let mut judge = Judge::default();
        assert_eq!(after(&mut judge, 7, SILENT), Health::Well);
        assert_eq!(after(&mut judge, 1, SILENT), Health::Frozen);
        assert_eq!(after(&mut judge, 1, WELL), Health::Well, "any answer will do");
        // The whole machine stood still: one look later nothing is proven.
        let slept = Facts { passed: Duration::from_mins(5), ..SILENT };
        assert_eq!(after(&mut judge, 3, slept), Health::Well);
        assert_eq!(after(&mut judge, 1, slept), Health::Frozen);
        assert_eq!(after(&mut judge, 9, Facts { runs: false, ..SILENT }), Health::Well, "there is none");
        assert_eq!(after(&mut judge, 7, SILENT), Health::Well, "a new one has its time");
    }

    #[test]
    fn a_slow_disk_is_no_hanging_one() {
        let mut judge = Judge::default();
        assert_eq!(after(&mut judge, 7, BUSY), Health::Well);
        assert_eq!(after(&mut judge, 1, BUSY), Health::DiskHangs);
        assert_eq!(after(&mut judge, 1, ended(Disk::Well)), Health::Well);
        let slow = Facts { disk: DiskNow { progress: true, ..BUSY.disk }, ..WELL };
        assert_eq!(after(&mut judge, 59, slow), Health::Well);
        assert_eq!(after(&mut judge, 1, slow), Health::DiskHangs);
    }

    #[test]
    fn a_full_disk_is_well_and_one_that_refuses_is_not() {
        let mut judge = Judge::default();
        assert_eq!(after(&mut judge, 20, ended(Disk::Full)), Health::Well);
        assert_eq!(after(&mut judge, 1, ended(Disk::Refuses)), Health::Well);
        assert_eq!(after(&mut judge, 8, WELL), Health::DiskHangs);
        assert_eq!(after(&mut judge, 1, ended(Disk::Well)), Health::Well);
    }

    #[test]
    fn data_that_two_looks_missed_is_gone_since_the_first() {
        let mut judge = Judge::default();
        assert_eq!(judge.judge(Duration::from_secs(10), ended(Disk::Missing)).health, Health::Well);
        judge.judge(Duration::from_millis(10_500), WELL);
        let verdict = judge.judge(Duration::from_secs(11), ended(Disk::Missing));
        assert_eq!(verdict, Verdict { health: Health::DataGone, since: Duration::from_secs(10) });
        assert_eq!(after(&mut judge, 1, Facts { runs: false, ..WELL }), Health::Well);
        assert_eq!(after(&mut judge, 1, ended(Disk::Missing)), Health::Well, "another PostgreSQL");
    }

    #[test]
    fn a_device_is_found_by_its_number() {
        let text = " 254       0 vda 61 2 3 4 500 6 7 8 0 9 10\n 254      16 vdb 1 0 0 0 2 0 0 0 0 0 0\n";
        assert_eq!(completed(text, 254, 0), Some(561));
        assert_eq!(completed(text, 254, 16), Some(3));
        assert_eq!(completed(text, 0, 0), None);
    }
}
