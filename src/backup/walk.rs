//! What of PGDATA belongs in a base backup. The same that pg_basebackup leaves out is left out: what PostgreSQL makes anew at
//! its start, what belongs to this instance only, and the WAL, which the archive has.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirEntry, FileType};
use std::path::Path;

use super::Error;

/// Read after all others, because the WAL is replayed from where it says.
pub(super) const CONTROL_FILE: &str = "global/pg_control";

/// Folders that are kept without what is in them.
const EMPTIED: [&str; 8] =
    ["pg_dynshmem", "pg_notify", "pg_replslot", "pg_serial", "pg_snapshots", "pg_stat_tmp", "pg_subtrans", "pg_wal"];
/// Folders that PostgreSQL expects where their parent is emptied.
const EXPECTED: [&str; 1] = ["pg_wal/archive_status"];
/// Files of the first level that are left out. A backup's label is in its manifest.
const LEFT_OUT: [&str; 9] = [
    "backup_label",
    "backup_label.old",
    "backup_manifest",
    "current_logfiles.tmp",
    "lost+found",
    "postgresql.auto.conf.tmp",
    "postmaster.opts",
    "postmaster.pid",
    "tablespace_map",
];
/// What is left out everywhere, by the beginning of its name.
const LEFT_OUT_PREFIXES: [&str; 3] = ["pgsql_tmp", "pg_internal.init", "tablespace_map.old"];

/// A file to take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// Its path below PGDATA.
    pub path: String,
    /// How large it was when it was found.
    pub size: u64,
}

/// What is to be taken.
#[derive(Debug, Default)]
pub(super) struct Walked {
    /// Files, in the order in which they were found, without [`CONTROL_FILE`].
    pub files: Vec<Found>,
    /// [`CONTROL_FILE`], if it is there.
    pub control: Option<Found>,
    /// Folders in which no file is.
    pub folders: Vec<String>,
    /// Links, sockets and the like, which are not taken.
    pub skipped: Vec<String>,
}

/// Looks for what belongs in a backup. `exclude` are more paths below the root that do not, with all that is in them.
pub(super) fn walk(root: &Path, exclude: &[String]) -> Result<Walked, Error> {
    let mut walk = Walk { root, exclude: exclude.iter().map(String::as_str).collect(), result: Walked::default() };
    walk.folder("")?;
    let mut result = walk.result;
    result.folders.extend(EXPECTED.iter().map(|&folder| folder.to_owned()));
    result.folders.sort();
    result.folders.dedup();
    Ok(result)
}

struct Walk<'a> {
    root: &'a Path,
    exclude: BTreeSet<&'a str>,
    result: Walked,
}

impl Walk<'_> {
    fn folder(&mut self, folder: &str) -> Result<(), Error> {
        let entries = match self.entries(folder) {
            Ok(entries) => entries,
            // Dropped databases vanish while we look; PGDATA itself does not.
            Err(error) if !folder.is_empty() && error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(Error::io("read", self.root.join(folder))(error)),
        };
        let unlogged = unlogged(entries.keys().map(String::as_str));
        let before = self.result.files.len() + self.result.folders.len();
        for (name, (entry, kind)) in &entries {
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            if self.left_out(&path, name) || relation(name).is_some_and(|(oid, init)| !init && unlogged.contains(oid)) {
                continue;
            }
            if EMPTIED.contains(&path.as_str()) {
                // A link, too: where the WAL is on a volume of its own.
                self.result.folders.push(path);
            } else if kind.is_dir() {
                self.folder(&path)?;
            } else if kind.is_file() {
                match entry.metadata() {
                    Ok(meta) if path == CONTROL_FILE => self.result.control = Some(Found { path, size: meta.len() }),
                    Ok(meta) => self.result.files.push(Found { path, size: meta.len() }),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                    Err(error) => return Err(Error::io("look at", entry.path())(error)),
                }
            } else if kind.is_symlink() && folder == "pg_tblspc" {
                return Err(Error::Refused(format!(
                    "the tablespace {name} is outside the data directory, and backups hold only that; move its tables to \
                     pg_default and drop it"
                )));
            } else {
                self.result.skipped.push(path);
            }
        }
        let holds_control = folder == "global" && self.result.control.is_some();
        if !folder.is_empty() && !holds_control && self.result.files.len() + self.result.folders.len() == before {
            self.result.folders.push(folder.to_owned());
        }
        Ok(())
    }

    /// By name, so that a backup of the same data has the same order.
    fn entries(&mut self, folder: &str) -> std::io::Result<BTreeMap<String, (DirEntry, FileType)>> {
        let mut entries = BTreeMap::new();
        for entry in std::fs::read_dir(self.root.join(folder))? {
            let entry = entry?;
            let kind = entry.file_type()?;
            match entry.file_name().into_string() {
                Ok(name) => drop(entries.insert(name, (entry, kind))),
                // PostgreSQL's own names are ASCII.
                Err(name) => self.result.skipped.push(format!("{folder}/{}", name.to_string_lossy())),
            }
        }
        Ok(entries)
    }

    fn left_out(&self, path: &str, name: &str) -> bool {
        self.exclude.contains(path)
            || LEFT_OUT.contains(&path)
            || LEFT_OUT_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || temporary_relation(name)
    }
}

/// Relations of a folder that are unlogged: those with an init fork, from which PostgreSQL makes them anew.
fn unlogged<'a>(names: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    names.filter_map(relation).filter(|(_, init)| *init).map(|(oid, _)| oid.to_owned()).collect()
}

/// Number of the relation to which a file belongs (`16384`, `16384.1`, `16384_fsm`), and whether it is its init fork.
fn relation(name: &str) -> Option<(&str, bool)> {
    let digits = name.find(|c: char| !c.is_ascii_digit()).unwrap_or(name.len());
    let (oid, rest) = name.split_at_checked(digits)?;
    let fork = rest.split('.').next().unwrap_or_default();
    match fork {
        _ if oid.is_empty() => None,
        "_init" => Some((oid, true)),
        "" | "_fsm" | "_vm" => Some((oid, false)),
        _ => None,
    }
}

/// `t3_16384`: a temporary table of a session.
fn temporary_relation(name: &str) -> bool {
    let Some((session, rest)) = name.strip_prefix('t').and_then(|rest| rest.split_once('_')) else { return false };
    !session.is_empty() && session.bytes().all(|byte| byte.is_ascii_digit()) && relation(rest).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("hello-walk-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn what_pg_basebackup_leaves_out_is_left_out() {
        let root = folder("rules");
        for path in [
            "PG_VERSION",
            "global/pg_control",
            "global/1262",
            "global/pg_internal.init",
            "base/5/1259",
            "base/5/1259_fsm",
            "base/5/16384",
            "base/5/16384.1",
            "base/5/16384_vm",
            "base/5/16384_init",
            "base/5/t3_16999",
            "base/5/t3_16999_fsm",
            "base/5/pg_internal.init.77",
            "base/pgsql_tmp/pgsql_tmp1.0",
            "pg_wal/000000010000000000000001",
            "pg_wal/archive_status/x",
            "pg_replslot/s/state",
            "pg_notify/0000",
            "pg_stat_tmp/x",
            "postmaster.pid",
            "postmaster.opts",
            "backup_label",
            "tablespace_map",
            "hello_archive_id",
            "staging/x",
            "base/6/keep",
        ] {
            std::fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            std::fs::write(root.join(path), "x").unwrap();
        }
        for path in ["pg_tblspc", "pg_twophase", "base/7/empty"] {
            std::fs::create_dir_all(root.join(path)).unwrap();
        }
        std::os::unix::fs::symlink("/etc/passwd", root.join("link")).unwrap();
        let walked = walk(&root, &["hello_archive_id".to_owned(), "staging".to_owned()]).unwrap();
        let files: Vec<_> = walked.files.iter().map(|found| found.path.as_str()).collect();
        assert_eq!(
            files,
            ["PG_VERSION", "base/5/1259", "base/5/1259_fsm", "base/5/16384_init", "base/6/keep", "global/1262"]
        );
        assert_eq!(walked.control, Some(Found { path: CONTROL_FILE.to_owned(), size: 1 }));
        let folders = [
            "base/7/empty",
            "pg_notify",
            "pg_replslot",
            "pg_stat_tmp",
            "pg_tblspc",
            "pg_twophase",
            "pg_wal",
            "pg_wal/archive_status",
        ];
        assert_eq!(walked.folders, folders);
        assert_eq!(walked.skipped, ["link"]);
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_tablespace_elsewhere_is_refused_in_words() {
        let root = folder("tablespace");
        std::fs::create_dir(root.join("pg_tblspc")).unwrap();
        std::os::unix::fs::symlink("/tmp", root.join("pg_tblspc/16400")).unwrap();
        let Err(Error::Refused(text)) = walk(&root, &[]) else { panic!() };
        assert!(text.contains("16400"), "{text}");
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn files_of_relations_are_told_by_name() {
        for (name, want) in [
            ("16384", Some(("16384", false))),
            ("16384.12", Some(("16384", false))),
            ("16384_fsm.1", Some(("16384", false))),
            ("16384_init", Some(("16384", true))),
            ("PG_VERSION", None),
            ("_init", None),
            ("16384_x", None),
            ("", None),
        ] {
            assert_eq!(relation(name), want, "{name}");
        }
        assert!(temporary_relation("t12_16384_vm") && !temporary_relation("t_1") && !temporary_relation("tx_1"));
    }
}
