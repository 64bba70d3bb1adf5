//! Names and places in a destination, format 1; pure. `docs/destination.md` shows the whole.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use crate::api::agent::Lsn;

/// Version of the layout. A destination or a manifest with a higher one is refused.
pub const FORMAT: u32 = 1;
/// The object that says whose the destination is.
pub const OWNER: &str = "owner.json";
/// Folder of the WAL.
pub const WAL: &str = "wal";
/// Folder of the base backups.
pub const BASE: &str = "base";
/// What a WAL object ends with.
const COMPRESSED: &str = ".zst";

/// A name that is none of ours or of PostgreSQL's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the name of {1}")]
pub struct InvalidName(pub String, pub &'static str);

/// How large a WAL segment is (initdb --wal-segsize).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct SegmentSize(u32);

impl SegmentSize {
    /// In bytes: a power of two from 1 MiB to 1 GiB, as PostgreSQL wants it.
    pub fn new(bytes: u32) -> Option<Self> {
        (bytes.is_power_of_two() && (1 << 20..=1 << 30).contains(&bytes)).then_some(Self(bytes))
    }
    /// In bytes.
    pub fn bytes(self) -> u64 {
        self.0.into()
    }
    /// Segments that share the middle part of their names.
    fn per_log(self) -> u64 {
        (1 << 32) / self.bytes()
    }
}

impl Default for SegmentSize {
    fn default() -> Self {
        Self(16 << 20)
    }
}

impl From<SegmentSize> for u32 {
    fn from(size: SegmentSize) -> Self {
        size.0
    }
}

impl TryFrom<u32> for SegmentSize {
    type Error = InvalidName;
    fn try_from(bytes: u32) -> Result<Self, InvalidName> {
        Self::new(bytes).ok_or_else(|| InvalidName(bytes.to_string(), "a size of WAL segments"))
    }
}

/// A WAL segment, by the three parts of its name. Its position follows only with the size of segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Segment {
    /// Timeline on which it was written.
    pub timeline: u32,
    /// High half of its position.
    pub log: u32,
    /// Number within that.
    pub number: u32,
}

impl Segment {
    /// The one in which a position lies. (A position at a segment's first byte belongs to that segment, although the last byte
    /// before it is in the one before.)
    pub fn of(timeline: u32, lsn: Lsn, size: SegmentSize) -> Self {
        let (log, number) = (lsn.0 >> 32, (lsn.0 & 0xFFFF_FFFF) / size.bytes());
        Self {
            timeline,
            log: u32::try_from(log).unwrap_or(u32::MAX),
            number: u32::try_from(number).unwrap_or(u32::MAX),
        }
    }
    /// Position of its first byte.
    pub fn start(self, size: SegmentSize) -> Lsn {
        Lsn((u64::from(self.log) << 32) + u64::from(self.number) * size.bytes())
    }
    /// The one after it on the same timeline; None at the end of all positions.
    pub fn next(self, size: SegmentSize) -> Option<Self> {
        let next = u64::from(self.number) + 1;
        if next < size.per_log() {
            Some(Self { number: u32::try_from(next).ok()?, ..self })
        } else {
            Some(Self { log: self.log.checked_add(1)?, number: 0, ..self })
        }
    }
    /// The same position on another timeline.
    #[must_use]
    pub fn on(self, timeline: u32) -> Self {
        Self { timeline, ..self }
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08X}{:08X}{:08X}", self.timeline, self.log, self.number)
    }
}

impl FromStr for Segment {
    type Err = InvalidName;
    fn from_str(name: &str) -> Result<Self, InvalidName> {
        let invalid = || InvalidName(name.to_owned(), "a WAL segment");
        let part = |range| name.get(range).and_then(hexadecimal).ok_or_else(invalid);
        if name.len() != 24 {
            return Err(invalid());
        }
        Ok(Self { timeline: part(0..8)?, log: part(8..16)?, number: part(16..24)? })
    }
}

/// Eight digits as PostgreSQL writes them: upper case.
fn hexadecimal(text: &str) -> Option<u32> {
    let digits = text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte));
    if digits { u32::from_str_radix(text, 16).ok() } else { None }
}

/// A file that PostgreSQL archives or asks for, by its name in pg_wal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WalFile {
    /// A whole segment.
    Segment(Segment),
    /// The beginning of a segment that a promotion cut short. The next timeline has all of it again.
    Partial(Segment),
    /// The parents of a timeline.
    History(u32),
    /// What PostgreSQL notes of a base backup (`….backup`). Ours note it in the manifest, so it is not stored.
    Label(String),
}

impl WalFile {
    /// Its object; None for what is not stored.
    pub fn object(&self) -> Option<String> {
        match self {
            Self::Segment(segment) => Some(format!("{WAL}/{:08X}/{self}{COMPRESSED}", segment.timeline)),
            Self::Partial(segment) => Some(format!("{WAL}/{:08X}/{self}{COMPRESSED}", segment.timeline)),
            Self::History(_) => Some(format!("{WAL}/history/{self}")),
            Self::Label(_) => None,
        }
    }
    /// The file of an object; None for an object that is not where it would be stored.
    pub fn of_object(object: &str) -> Option<Self> {
        let name = object.rsplit_once('/').map_or(object, |(_, name)| name);
        let file: Self = name.strip_suffix(COMPRESSED).unwrap_or(name).parse().ok()?;
        (file.object().as_deref() == Some(object)).then_some(file)
    }
}

impl fmt::Display for WalFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Segment(segment) => segment.fmt(f),
            Self::Partial(segment) => write!(f, "{segment}.partial"),
            Self::History(timeline) => write!(f, "{timeline:08X}.history"),
            Self::Label(name) => f.write_str(name),
        }
    }
}

impl FromStr for WalFile {
    type Err = InvalidName;
    fn from_str(name: &str) -> Result<Self, InvalidName> {
        let invalid = || InvalidName(name.to_owned(), "a file of PostgreSQL's WAL");
        match name.split_once('.') {
            None => name.parse().map(Self::Segment),
            Some((segment, "partial")) => segment.parse().map(Self::Partial),
            Some((timeline, "history")) => hexadecimal(timeline).map(Self::History).ok_or_else(invalid),
            Some((segment, label)) => {
                let offset = label.strip_suffix(".backup").and_then(hexadecimal);
                segment.parse::<Segment>()?;
                offset.map(|_| Self::Label(name.to_owned())).ok_or_else(invalid)
            }
        }
    }
}

/// Name of a base backup: when it began (UTC), and something random. Ordered by time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BackupId(String);

/// How the time stands in a [`BackupId`].
const ID_TIME: &str = "%Y%m%dT%H%M%SZ";

impl BackupId {
    /// Of a backup that begins now.
    pub fn new(at: Timestamp, random: u32) -> Self {
        Self(format!("{}-{random:08x}", at.strftime(ID_TIME)))
    }
    /// When it began, to the second.
    pub fn at(&self) -> Timestamp {
        time_of(&self.0).unwrap_or(Timestamp::UNIX_EPOCH)
    }
    /// Folder of its objects.
    pub fn folder(&self) -> String {
        format!("{BASE}/{}", self.0)
    }
    /// The object without which there is no backup.
    pub fn manifest(&self) -> String {
        format!("{}/manifest.json", self.folder())
    }
    /// One of its archives, counted from 0.
    pub fn part(&self, number: usize) -> String {
        format!("{}/part-{number:04}.tar.zst", self.folder())
    }
    /// The backup to which an object belongs.
    pub fn of_object(object: &str) -> Option<Self> {
        object.strip_prefix(BASE)?.strip_prefix('/')?.split_once('/')?.0.parse().ok()
    }
}

fn time_of(id: &str) -> Option<Timestamp> {
    let time = DateTime::strptime(ID_TIME, id.split_once('-')?.0).ok()?;
    TimeZone::UTC.to_timestamp(time).ok()
}

impl fmt::Display for BackupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for BackupId {
    type Err = InvalidName;
    fn from_str(name: &str) -> Result<Self, InvalidName> {
        let random = name.split_once('-').and_then(|(_, random)| u32::from_str_radix(random, 16).ok());
        match (time_of(name), random) {
            // Written again it is the same, so that one backup has one name.
            (Some(at), Some(random)) if Self::new(at, random).0 == name => Ok(Self(name.to_owned())),
            _ => Err(InvalidName(name.to_owned(), "a base backup")),
        }
    }
}

impl TryFrom<String> for BackupId {
    type Error = InvalidName;
    fn try_from(name: String) -> Result<Self, InvalidName> {
        name.parse()
    }
}

impl From<BackupId> for String {
    fn from(id: BackupId) -> Self {
        id.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn segments_are_named_as_postgres_names_them() {
        let size = SegmentSize::default();
        let segment = Segment::of(3, Lsn(0x2_FF00_0010), size);
        assert_eq!(segment.to_string(), "0000000300000002000000FF");
        assert_eq!(segment.start(size), Lsn(0x2_FF00_0000));
        assert_eq!(segment.next(size).unwrap().to_string(), "000000030000000300000000");
        assert_eq!(segment.on(4).to_string(), "0000000400000002000000FF");
        let large = SegmentSize::new(1 << 30).unwrap();
        assert_eq!(
            Segment::of(1, Lsn(0xC000_0000), large).next(large).unwrap().to_string(),
            "000000010000000100000000"
        );
        for bad in ["", "0000000300000002000000ff", "0000000300000002000000F", "+000000300000002000000FF", "é"] {
            assert!(bad.parse::<Segment>().is_err(), "{bad}");
        }
        for bytes in [0, 1 << 19, 3 << 20, u32::MAX] {
            assert_eq!(SegmentSize::new(bytes), None);
        }
    }

    #[test]
    fn files_of_the_wal_have_their_objects() {
        for (name, object) in [
            ("0000000300000002000000FF", Some("wal/00000003/0000000300000002000000FF.zst")),
            ("0000000300000002000000FF.partial", Some("wal/00000003/0000000300000002000000FF.partial.zst")),
            ("0000001A.history", Some("wal/history/0000001A.history")),
            ("0000000300000002000000FF.00000028.backup", None),
        ] {
            let file: WalFile = name.parse().unwrap();
            assert_eq!(file.to_string(), name);
            assert_eq!(file.object().as_deref(), object);
            if let Some(object) = object {
                assert_eq!(WalFile::of_object(object), Some(file));
            }
        }
        for bad in
            ["x.history", "0000000300000002000000FF.tmp", "../0000001A.history", "0000000300000002000000FF.x.backup"]
        {
            assert!(bad.parse::<WalFile>().is_err(), "{bad}");
        }
        for stranger in ["wal/00000004/0000000300000002000000FF.zst", "wal/00000003/0000000300000002000000FF", "wal/x"]
        {
            assert_eq!(WalFile::of_object(stranger), None);
        }
    }

    #[test]
    fn a_backup_has_one_name() {
        let id = BackupId::new("2026-11-30T18:09:59.9Z".parse().unwrap(), 0xAB);
        assert_eq!(id.to_string(), "20261130T180959Z-000000ab");
        assert_eq!(id.to_string().parse(), Ok(id.clone()));
        assert_eq!(id.at(), "2026-11-30T18:09:59Z".parse().unwrap());
        assert_eq!(id.part(7), "base/20261130T180959Z-000000ab/part-0007.tar.zst");
        assert_eq!(BackupId::of_object(&id.manifest()), Some(id));
        for bad in
            ["20261130T180959Z-AB", "20261330T180959Z-000000ab", "20261130T180959Z-000000AB", "x", "../x-000000ab"]
        {
            assert!(bad.parse::<BackupId>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_segment_follows_from_its_position(lsn: u64, timeline: u32, shift in 20u32..=30) {
            let size = SegmentSize::new(1 << shift).unwrap();
            let segment = Segment::of(timeline, Lsn(lsn), size);
            prop_assert!(segment.start(size).0 <= lsn && lsn - segment.start(size).0 < size.bytes());
            prop_assert_eq!(segment.to_string().parse(), Ok(segment));
            if let Some(next) = segment.next(size) {
                prop_assert_eq!(next.start(size).0, segment.start(size).0 + size.bytes());
                prop_assert!(next > segment);
            }
        }
    }
}
