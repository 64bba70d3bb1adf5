//! The manifest of a base backup: written last, so without it there is no backup.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::api::agent::Lsn;

pub use super::digest::Sha256;
use super::layout::{BackupId, FORMAT, SegmentSize};
use super::{Error, Store};

/// A base backup.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// What is told of it without its files.
    #[serde(flatten)]
    pub summary: Summary,
    /// Text of `backup_label`, which PostgreSQL needs to start from it.
    pub backup_label: String,
    /// Its archives.
    pub parts: Vec<Part>,
    /// Its files.
    pub files: Vec<FileEntry>,
    /// Folders in which no file is.
    pub folders: Vec<String>,
}

/// What is told of a backup without its files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Version of the layout.
    pub format: u32,
    /// Whether it stands alone.
    pub kind: BackupKind,
    /// Its name.
    pub id: BackupId,
    /// Who asked for it: uid of the HelloBackup.
    #[serde(default)]
    pub requested_by: String,
    /// `namespace/name` of the cluster.
    pub cluster: String,
    /// Id of the archive to which it belongs.
    pub archive: String,
    /// System identifier of the data.
    pub system_identifier: String,
    /// Version of PostgreSQL, as server_version_num.
    pub server_version: u32,
    /// Its major version.
    pub major: u32,
    /// Who took it.
    pub taken_by: TakenBy,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended: it can be restored to this moment or a later one.
    pub stopped_at: Timestamp,
    /// Timeline of both positions.
    pub timeline: u32,
    /// WAL is needed from here.
    pub start_lsn: Lsn,
    /// WAL is needed at least to here.
    pub stop_lsn: Lsn,
    /// Size of the WAL segments.
    pub segment_size: SegmentSize,
    /// How the archives are compressed.
    pub compression: Compression,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes of all archives.
    pub compressed_bytes: u64,
}

/// Whether a backup stands alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BackupKind {
    /// It does.
    Full,
}

/// How archives are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Compression {
    /// zstd over tar.
    Zstd,
}

/// Who took a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TakenBy {
    /// Name of the instance.
    pub instance: String,
    /// `primary` or `replica`.
    pub role: String,
}

/// An archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Part {
    /// Its object, below the root of the destination.
    pub object: String,
    /// How large it is.
    pub bytes: u64,
    /// Of the object.
    pub sha256: Sha256,
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileEntry {
    /// Where it is below PGDATA.
    pub path: String,
    /// How large it is.
    pub size: u64,
    /// Of its content as it was read (PostgreSQL may have been writing it; the WAL makes it whole).
    pub sha256: Sha256,
    /// Index of its archive in `parts`.
    pub part: u32,
}

/// What every version's manifest begins with.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

impl Manifest {
    /// Reads the manifest of a backup.
    pub async fn read(store: &Store, id: &BackupId) -> Result<Self, Error> {
        let object = id.manifest();
        let manifest = Self::parse(&store.get(&object).await?, &store.place(&object))?;
        if manifest.summary.id != *id {
            let detail = format!("it is that of {}", manifest.summary.id);
            return Err(Error::Corrupt { at: store.place(&object), detail });
        }
        Ok(manifest)
    }

    /// Reads a text; `at` is where it was found.
    pub fn parse(text: &[u8], at: &str) -> Result<Self, Error> {
        let corrupt = |error: serde_json::Error| Error::Corrupt { at: at.to_owned(), detail: error.to_string() };
        let Version { format } = serde_json::from_slice(text).map_err(corrupt)?;
        if format > FORMAT {
            return Err(Error::Refused(format!(
                "{at} has format {format}, and this version knows only {FORMAT}: update the operator"
            )));
        }
        serde_json::from_slice(text).map_err(corrupt)
    }

    /// As it is stored.
    pub fn to_json(&self) -> Result<Vec<u8>, Error> {
        serde_json::to_vec(self).map_err(|error| Error::Refused(format!("the manifest cannot be written: {error}")))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A manifest for tests.
    pub fn example() -> Manifest {
        let id: BackupId = "20261130T180959Z-000000ab".parse().unwrap();
        Manifest {
            summary: Summary {
                format: FORMAT,
                kind: BackupKind::Full,
                id: id.clone(),
                requested_by: "uid".to_owned(),
                cluster: "default/db".to_owned(),
                archive: "7".to_owned(),
                system_identifier: "7".to_owned(),
                server_version: 170_006,
                major: 17,
                taken_by: TakenBy { instance: "db-1".to_owned(), role: "replica".to_owned() },
                started_at: id.at(),
                stopped_at: id.at(),
                timeline: 1,
                start_lsn: Lsn(0x300_0028),
                stop_lsn: Lsn(0x300_0120),
                segment_size: SegmentSize::default(),
                compression: Compression::Zstd,
                bytes: 3,
                compressed_bytes: 9,
            },
            backup_label: "START WAL LOCATION: 0/3000028\n".to_owned(),
            parts: vec![Part { object: id.part(0), bytes: 9, sha256: Sha256::of(b"part") }],
            files: vec![FileEntry { path: "PG_VERSION".to_owned(), size: 3, sha256: Sha256::of(b"17\n"), part: 0 }],
            folders: vec!["pg_wal".to_owned()],
        }
    }

    #[test]
    fn a_manifest_is_flat_and_reads_back() {
        let manifest = example();
        let text = manifest.to_json().unwrap();
        let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(value["startLsn"], "0/3000028");
        assert_eq!(value["kind"], "full");
        assert_eq!(value["startedAt"], "2026-11-30T18:09:59Z");
        assert_eq!(value["segmentSize"], 16 << 20);
        assert_eq!(value["files"][0]["part"], 0);
        assert_eq!(Manifest::parse(&text, "x").unwrap(), manifest);
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        let newer = String::from_utf8(example().to_json().unwrap()).unwrap().replace("\"format\":1", "\"format\":2");
        assert!(
            matches!(Manifest::parse(newer.as_bytes(), "x"), Err(Error::Refused(text)) if text.contains("format 2"))
        );
        for bad in ["", "{}", "{\"format\":1}", "[]"] {
            assert!(matches!(Manifest::parse(bad.as_bytes(), "x"), Err(Error::Corrupt { .. })), "{bad}");
        }
    }
}
