//! The volumes: what lies where, who may touch it, and what the agent remembers there.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock, statvfs};
use serde::{Deserialize, Serialize};

use super::Error;
use crate::api::agent::{Disk, Rejoined};
use crate::core::election::{Data, Promise};

/// What lies where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    data: PathBuf,
    wal: Option<PathBuf>,
}

impl Layout {
    /// Volumes mounted here.
    pub fn new(data: impl Into<PathBuf>, wal: Option<PathBuf>) -> Self {
        Self { data: data.into(), wal }
    }
    /// The data volume.
    pub fn data(&self) -> &Path {
        &self.data
    }
    /// The volume that holds the WAL.
    pub fn wal(&self) -> &Path {
        self.wal.as_deref().unwrap_or(&self.data)
    }
    /// The live data directory.
    pub fn pgdata(&self) -> PathBuf {
        self.data.join("pgdata")
    }
    /// A data directory that is being made.
    pub fn staging(&self) -> PathBuf {
        self.data.join("pgdata.new")
    }
    /// A data directory on its way out.
    fn gone(&self) -> PathBuf {
        self.data.join("pgdata.gone")
    }
    /// Where WAL waits that was fetched ahead of a recovery.
    pub fn spare(&self) -> PathBuf {
        self.agent().join("fetched")
    }
    fn agent(&self) -> PathBuf {
        self.data.join("agent")
    }
    fn state(&self) -> PathBuf {
        self.agent().join("state.json")
    }
    /// Where a member keeps its WAL when that has a volume of its own.
    pub fn wal_folder(&self, member: &str) -> Option<PathBuf> {
        self.wal.as_ref().map(|wal| wal.join(member))
    }
    /// Whether there is a data directory. Bootstrap and clone work beside it, so a half-made one is never found here.
    pub fn has_data(&self) -> Result<bool, Error> {
        let path = self.pgdata().join("PG_VERSION");
        // That it cannot be looked at does not say that there is none.
        path.try_exists().map_err(Error::io("look at", path))
    }

    /// Takes the volume for the life of the returned value. postmaster.pid does not protect across PID namespaces.
    pub fn lock(&self) -> Result<VolumeLock, Error> {
        make_private(&self.agent())?;
        let path = self.agent().join("lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(Error::io("open the lock", &path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(VolumeLock { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::Locked(path)),
            Err(errno) => Err(Error::io("lock", path)(errno.into())),
        }
    }

    /// Reads the state and brings it and the volume together after a crash at any moment: finishes or undoes what was
    /// begun, and removes what an interrupted bootstrap, clone or removal left.
    pub fn settle(&self, lock: &VolumeLock) -> Result<State, Error> {
        let before = self.load()?;
        let mut state = before.clone();
        if std::mem::take(&mut state.unfinished) {
            state.hopeless = true;
        }
        if self.has_data()? {
            state.staged = None;
        } else {
            (state.member, state.marker, state.proof) = (None, false, None);
            (state.hopeless, state.fresh) = (false, None);
        }
        let staged = self.staging().join("PG_VERSION");
        if !staged.try_exists().map_err(Error::io("look at", staged))? {
            state.staged = None;
        }
        if state != before {
            self.store(&state)?;
        }
        if state.staged.is_none() {
            remove(&self.staging())?;
        }
        self.tidy(lock, state.member.as_deref().or(state.staged.as_ref().map(|staged| staged.member.as_str())))?;
        Ok(state)
    }

    /// Removes data on its way out, and WAL of members that are no more.
    fn tidy(&self, _lock: &VolumeLock, member: Option<&str>) -> Result<(), Error> {
        remove(&self.gone())?;
        let Some(wal) = &self.wal else { return Ok(()) };
        let entries = fs::read_dir(wal).map_err(Error::io("read", wal))?;
        for entry in entries {
            let entry = entry.map_err(Error::io("read", wal))?;
            let name = entry.file_name();
            let stays = [member, Some("lost+found"), Some(RESERVE)];
            if !stays.contains(&name.to_str()) {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Takes the data away for good: first out of sight in one step, then file by file.
    fn remove_data(&self) -> Result<(), Error> {
        remove(&self.gone())?;
        let pgdata = self.pgdata();
        if pgdata.symlink_metadata().is_ok() {
            fs::rename(&pgdata, self.gone()).map_err(Error::io("move away", &pgdata))?;
            sync_folder(&self.data)?;
        }
        remove(&self.gone())
    }

    /// Makes the staged directory the live one, in one step. Data that stood there goes: the staged copy is complete and on
    /// disk by now.
    pub fn go_live(&self, _lock: &VolumeLock) -> Result<(), Error> {
        self.remove_data()?;
        fs::rename(self.staging(), self.pgdata()).map_err(Error::io("move into place", self.staging()))?;
        sync_folder(&self.data)
    }

    /// What the agent remembers.
    pub fn load(&self) -> Result<State, Error> {
        let path = self.state();
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| Error::Invalid { what: "agent/state.json on the volume", message: error.to_string() }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(State::default()),
            Err(error) => Err(Error::io("read", path)(error)),
        }
    }

    /// Remembers, so that a crash at any moment leaves the old or the new state.
    pub fn store(&self, state: &State) -> Result<(), Error> {
        let bytes = serde_json::to_vec(state)
            .map_err(|error| Error::Invalid { what: "the agent's state", message: error.to_string() })?;
        self.make_room(|| replace_file(&self.state(), &bytes))
    }

    /// Carries out a small write on the data volume; where that is full, a slice of the reserve makes room for it.
    pub fn make_room<T>(&self, write: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
        match write() {
            Err(error) if error.disk_is_full() && self.reserve().give_slice() => write(),
            outcome => outcome,
        }
    }

    /// What is held back on the data volume.
    pub fn reserve(&self) -> ReserveFile {
        ReserveFile(self.agent().join(RESERVE))
    }

    /// What is held back on the volume of the WAL, where it has one.
    pub fn wal_reserve(&self) -> Option<ReserveFile> {
        self.wal.as_ref().map(|wal| ReserveFile(wal.join(RESERVE)))
    }
}

/// Name of the file that holds room back.
const RESERVE: &str = "reserve";
/// So much of it is given up for a small file of the agent's.
const SLICE: u64 = 1024 * 1024;

/// A file that holds room back on a volume, so that a full one still has some for what must be written.
#[derive(Debug, Clone)]
pub struct ReserveFile(PathBuf);

impl ReserveFile {
    /// How much it holds back.
    pub fn size(&self) -> u64 {
        self.0.metadata().map_or(0, |found| found.len())
    }

    /// Holds back so much, really: a file with holes would hold back nothing.
    pub fn make(&self, size: u64) -> Result<(), Error> {
        let before = self.size();
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&self.0)
            .map_err(Error::io("open the reserve", &self.0))?;
        let made = fallocate(&file, FallocateFlags::empty(), 0, size);
        if let Err(errno) = made {
            let _ = file.set_len(before);
            return Err(Error::io("hold back room in", &self.0)(errno.into()));
        }
        file.sync_all().map_err(Error::io("sync", &self.0))
    }

    /// Gives up what is more than this.
    pub fn give_up(&self, left: u64) -> Result<(), Error> {
        if self.size() <= left {
            return Ok(());
        }
        let shrunk = File::options().write(true).open(&self.0).and_then(|file| file.set_len(left));
        shrunk.map_err(Error::io("give up the reserve", &self.0))
    }

    /// Gives up a little; false if there is nothing left.
    fn give_slice(&self) -> bool {
        let size = self.size();
        size > 0 && self.give_up(size.saturating_sub(SLICE)).is_ok()
    }
}

/// The right to work on a volume, until dropped.
#[derive(Debug)]
pub struct VolumeLock {
    _file: File,
}

/// What the agent remembers beside the data.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// The member: id of the data directory.
    #[serde(default)]
    pub member: Option<String>,
    /// Whether the data may answer elections: it holds everything that it ever acknowledged.
    #[serde(default)]
    pub marker: bool,
    /// The Lease's holder string under which this data was last writable.
    #[serde(default)]
    pub proof: Option<String>,
    /// What this member promised candidates.
    #[serde(default)]
    pub promise: Option<Promise>,
    /// What it promised the holder.
    #[serde(default)]
    pub hold: Option<Hold>,
    /// A rewind was begun and did not end: the data is neither the old nor the new.
    #[serde(default)]
    pub unfinished: bool,
    /// Only a fresh clone helps.
    #[serde(default)]
    pub hopeless: bool,
    /// The data was cloned or rewound from the holder of this term, and has not been consistent since.
    #[serde(default)]
    pub fresh: Option<i64>,
    /// What of the data is not in the primary's history and is given up, in a sentence: noted before it is.
    #[serde(default)]
    pub gives_up: Option<String>,
    /// How the copy was last made fit to follow again.
    #[serde(default)]
    pub rejoined: Option<Rejoined>,
    /// When the agent last began, in milliseconds of wall time: which container is this start's is told by it.
    #[serde(default)]
    pub began: Option<i64>,
    /// The last restart command that was carried out.
    #[serde(default)]
    pub restarted_for: Option<String>,
    /// The settings with which PostgreSQL last started, or which it read again without a complaint.
    #[serde(default)]
    pub accepted: Option<Chosen>,
    /// A bootstrap that is complete in the staging folder, and synced.
    #[serde(default)]
    pub staged: Option<Staged>,
}

/// A promise to answer no freeze and to take no Lease for a while.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hold {
    /// The boot of the machine whose clock `until` is on.
    pub boot: String,
    /// Until when, in milliseconds on CLOCK_BOOTTIME.
    pub until: u64,
}

/// What the user chose of PostgreSQL's settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Chosen {
    /// Generation of the object that said so.
    pub generation: i64,
    /// Settings.
    pub parameters: BTreeMap<String, String>,
    /// Lines of pg_hba.conf.
    pub hba: Vec<String>,
}

impl Chosen {
    /// Whether both say the same, whenever they said it.
    pub fn says_the_same(&self, other: &Self) -> bool {
        self.parameters == other.parameters && self.hba == other.hba
    }
}

/// A complete bootstrap in the staging folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Staged {
    /// Its member id.
    pub member: String,
    /// Its system identifier.
    pub system_id: String,
    /// Its timeline: 1, unless it was restored.
    #[serde(default = "first_timeline")]
    pub timeline: u32,
}

fn first_timeline() -> u32 {
    1
}

impl Staged {
    /// As the election sees it.
    pub fn data(&self) -> Data {
        Data::Staged { system_id: self.system_id.clone(), member: self.member.clone(), timeline: self.timeline }
    }
}

/// Space on a volume.
pub fn disk(path: &Path) -> Result<Disk, Error> {
    let seen = statvfs(path).map_err(|errno| Error::io("measure", path)(errno.into()))?;
    Ok(Disk { free: seen.f_bavail.saturating_mul(seen.f_frsize), total: seen.f_blocks.saturating_mul(seen.f_frsize) })
}

/// Writes a file so that a crash at any moment leaves the old or the new one.
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    let mut file = File::create(&temporary).map_err(Error::io("write", &temporary))?;
    file.write_all(bytes).map_err(Error::io("write", &temporary))?;
    file.sync_all().map_err(Error::io("sync", &temporary))?;
    fs::rename(&temporary, path).map_err(Error::io("replace", path))?;
    sync_folder(folder)
}

/// Makes a folder that only we can enter, as PostgreSQL wants it.
pub fn make_private(path: &Path) -> Result<(), Error> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(Error::io("make", path))
}

fn sync_folder(path: &Path) -> Result<(), Error> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(Error::io("sync", path))
}

/// Removes a file, a link or a whole folder; that there is none is fine.
pub fn remove(path: &Path) -> Result<(), Error> {
    let result = match path.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match result {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(name: &str) -> Layout {
        let root = std::env::temp_dir().join(format!("hello-volume-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("wal")).unwrap();
        fs::create_dir_all(root.join("data")).unwrap();
        Layout::new(root.join("data"), Some(root.join("wal")))
    }

    #[test]
    fn a_volume_is_taken_once() {
        let layout = layout("lock");
        let lock = layout.lock().unwrap();
        assert!(matches!(layout.lock(), Err(Error::Locked(_))));
        drop(lock);
        assert!(layout.lock().is_ok());
    }

    #[test]
    fn state_survives_and_a_broken_one_is_no_empty_one() {
        let layout = layout("state");
        let _lock = layout.lock().unwrap();
        assert_eq!(layout.load().unwrap(), State::default());
        let state = State { member: Some("m".into()), marker: true, proof: Some("h".into()), ..State::default() };
        layout.store(&state).unwrap();
        assert_eq!(layout.load().unwrap(), state);
        fs::write(layout.state(), "{").unwrap();
        assert!(layout.load().is_err());
    }

    #[test]
    fn the_reserve_holds_room_back_and_outlives_a_restart() {
        use std::os::unix::fs::MetadataExt;
        let layout = layout("reserve");
        let lock = layout.lock().unwrap();
        let reserves = [layout.reserve(), layout.wal_reserve().unwrap()];
        for reserve in &reserves {
            assert_eq!(reserve.size(), 0);
            reserve.make(3 * SLICE).unwrap();
            assert!(reserve.0.metadata().unwrap().blocks() * 512 >= 3 * SLICE, "no holes");
        }
        layout.settle(&lock).unwrap();
        let [reserve, of_wal] = reserves;
        assert_eq!((reserve.size(), of_wal.size()), (3 * SLICE, 3 * SLICE));
        of_wal.give_up(SLICE).unwrap();
        of_wal.give_up(2 * SLICE).unwrap();
        assert_eq!(of_wal.size(), SLICE, "giving up makes nothing");

        // A write that finds the volume full is tried again for each slice that is left, and then not any more.
        let full = || Err::<(), _>(Error::io("write", "x")(std::io::ErrorKind::StorageFull.into()));
        for left in [2, 1, 0, 0] {
            assert!(layout.make_room(full).is_err());
            assert_eq!(reserve.size(), left * SLICE);
        }
        let other = || Err::<(), _>(Error::io("write", "x")(std::io::ErrorKind::PermissionDenied.into()));
        reserve.make(SLICE).unwrap();
        assert!(layout.make_room(other).is_err());
        assert_eq!(reserve.size(), SLICE, "only room helps against a full volume");
    }

    #[test]
    fn what_was_interrupted_is_never_data_and_is_tidied_away() {
        let layout = layout("tidy");
        let lock = layout.lock().unwrap();
        let stage = || {
            make_private(&layout.staging()).unwrap();
            fs::write(layout.staging().join("PG_VERSION"), "17").unwrap();
        };
        stage();
        for member in ["old", "mine"] {
            make_private(&layout.wal_folder(member).unwrap()).unwrap();
        }
        layout.store(&State { member: Some("lost".into()), proof: Some("h".into()), ..State::default() }).unwrap();
        assert_eq!(layout.settle(&lock).unwrap(), State::default(), "no data: no member and no proof");
        assert!(!layout.staging().exists() && !layout.wal_folder("old").unwrap().exists());

        let staged = Staged { member: "mine".into(), system_id: "1".into(), timeline: 1 };
        let state = State { staged: Some(staged), ..State::default() };
        stage();
        make_private(&layout.wal_folder("mine").unwrap()).unwrap();
        layout.store(&state).unwrap();
        assert_eq!(layout.settle(&lock).unwrap(), state, "a complete bootstrap stays");
        assert!(layout.staging().exists() && layout.wal_folder("mine").unwrap().exists());

        layout.store(&State { member: Some("mine".into()), ..state }).unwrap();
        layout.go_live(&lock).unwrap();
        let settled = layout.settle(&lock).unwrap();
        assert_eq!((settled.member.as_deref(), settled.staged), (Some("mine"), None));
        assert!(layout.has_data().unwrap() && layout.wal_folder("mine").unwrap().exists());
        layout.remove_data().unwrap();
        assert!(!layout.has_data().unwrap() && !layout.gone().exists());
    }
}
