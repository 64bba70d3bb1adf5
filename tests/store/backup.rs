//! Base backups: taken, listed, unpacked, removed.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hello_operator::backup::base::{self, BackupPlan, Progress};
use hello_operator::backup::catalog::{self, State};
use hello_operator::backup::manifest::Manifest;
use hello_operator::backup::{Error, Store, restore};
use hyper::body::Bytes;

use crate::world::{Folder, Server, back_up, bytes, everywhere, id, manifest, modes, tree, until, write};

/// A data directory with everything odd, and no larger than it must be.
fn odd() -> Folder {
    let folder = Folder::new();
    let long = format!("base/5/{}", "long-name-".repeat(20));
    write(
        &folder.0,
        &[
            ("PG_VERSION", b"17\n"),
            ("global/pg_control", &bytes(8192, 1)),
            ("global/1262", &bytes(8192, 2)),
            ("base/5/16384", &bytes(30 << 20, 3)),
            ("base/5/16384.1", b""),
            ("base/5/with space and ünïcödé \u{1F418}", &bytes(100_000, 4)),
            (&long, b"long"),
            ("base/5/-rf", b"a dash"),
            ("base/5/..hidden", b"dots"),
            ("pg_wal/000000010000000000000001", b"not in a backup"),
            ("postmaster.pid", b"1\n"),
            ("hello_archive_id", b"7"),
        ],
    );
    std::fs::create_dir_all(folder.join("pg_twophase")).unwrap();
    std::fs::create_dir_all(folder.join("pg_notify")).unwrap();
    let sparse = std::fs::File::create(folder.join("base/5/sparse")).unwrap();
    sparse.set_len(50 << 20).unwrap();
    folder
}

fn plan(folder: &Folder, random: u32) -> BackupPlan {
    BackupPlan { exclude: vec!["hello_archive_id".to_owned()], ..BackupPlan::new(id(random), &folder.0) }
}

async fn unpack(store: &Store, manifest: &Manifest, dest: &Folder) -> Result<(), Error> {
    restore::unpack(store, manifest, &dest.join("data"), 2, &Arc::new(Progress::default())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_comes_back_as_it_was() {
    let data = odd();
    everywhere(async |store| {
        let written = back_up(&store, &plan(&data, 1)).await.unwrap();
        let manifest = Manifest::read(&store, &id(1)).await.unwrap();
        assert_eq!(manifest, written);
        assert_eq!(manifest.files.last().unwrap().path, "global/pg_control", "read last");
        assert_eq!(manifest.parts.len(), 3);
        let raw: u64 = manifest.files.iter().map(|file| file.size).sum();
        assert_eq!(manifest.summary.bytes, raw);
        assert!(manifest.summary.compressed_bytes < raw / 2);

        let dest = Folder::new();
        unpack(&store, &manifest, &dest).await.unwrap();
        let dest_data = dest.join("data");
        let mut wanted = tree(&data.0);
        for gone in ["hello_archive_id", "postmaster.pid", "pg_wal/000000010000000000000001"] {
            wanted.remove(gone).unwrap();
        }
        wanted.insert("pg_wal/archive_status".to_owned(), None);
        let mut found = tree(&dest_data);
        let label = found.remove("backup_label").unwrap();
        assert_eq!(label.unwrap().0, manifest.backup_label.len() as u64);
        assert_eq!(found, wanted);
        for (path, mode) in modes(&dest_data) {
            let wanted = if dest_data.join(&path).is_dir() { 0o700 } else { 0o600 };
            assert_eq!(mode, wanted, "{path}");
        }
        let error = unpack(&store, &manifest, &dest).await.unwrap_err();
        assert!(matches!(&error, Error::Refused(text) if text.contains("empty folder")), "{error}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wal_may_be_a_link_on_both_sides() {
    let (data, elsewhere, dest) = (Folder::new(), Folder::new(), Folder::new());
    write(&data.0, &[("PG_VERSION", b"17\n")]);
    symlink(&elsewhere.0, data.join("pg_wal")).unwrap();
    std::fs::create_dir(dest.join("data")).unwrap();
    symlink(&elsewhere.0, dest.join("data/pg_wal")).unwrap();
    everywhere(async |store| {
        let manifest = back_up(&store, &plan(&data, 1)).await.unwrap();
        let _ = std::fs::remove_file(dest.join("data/PG_VERSION"));
        let _ = std::fs::remove_file(dest.join("data/backup_label"));
        unpack(&store, &manifest, &dest).await.unwrap();
        assert!(dest.join("data/pg_wal").is_symlink() && elsewhere.join("archive_status").is_dir());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_catalog_tells_what_can_be_used_and_what_cannot() {
    let data = Folder::new();
    write(&data.0, &[("PG_VERSION", b"17\n"), ("base/1/1", &bytes(50_000, 1))]);
    everywhere(async |store| {
        for random in 1..=4 {
            back_up(&store, &plan(&data, random)).await.unwrap();
        }
        // 2: its manifest is damaged. 3: an archive is gone. 5: it was never finished.
        store.delete(&id(2).manifest()).await.unwrap();
        store.create(&id(2).manifest(), Bytes::from_static(b"{\"format\":1,")).await.unwrap();
        store.delete(&id(3).part(0)).await.unwrap();
        base::take(&store, &plan(&data, 5), &Arc::new(Progress::default())).await.unwrap();
        store.create("base/notes.txt", Bytes::from_static(b"not ours")).await.unwrap();

        let entries = catalog::backups(&store).await.unwrap();
        let states: Vec<_> = entries
            .iter()
            .map(|entry| match &entry.state {
                State::Complete(summary) => format!("{} {}", entry.id == summary.id, summary.bytes),
                State::Unfinished { bytes, .. } => format!("unfinished {}", *bytes > 0),
                State::Broken(Error::Corrupt { at, .. }) => format!("broken {}", at.rsplit('/').next().unwrap()),
                State::Broken(error) => panic!("{error}"),
            })
            .collect();
        assert_eq!(
            states,
            ["true 50003", "broken manifest.json", "broken part-0000.tar.zst", "true 50003", "unfinished true"]
        );

        for random in 1..=5 {
            catalog::remove_backup(&store, &id(random)).await.unwrap();
        }
        catalog::remove_backup(&store, &id(1)).await.unwrap();
        assert!(catalog::backups(&store).await.unwrap().is_empty());
        assert_eq!(store.list("").await.unwrap().len(), 1, "what is not ours stays");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_needs_its_archives_and_its_name() {
    let data = Folder::new();
    write(&data.0, &[("PG_VERSION", b"17\n")]);
    everywhere(async |store| {
        let plan = plan(&data, 1);
        let taken = base::take(&store, &plan, &Arc::new(Progress::default())).await.unwrap();
        let manifest = manifest(&plan.id, &taken);
        let mut other = manifest.clone();
        other.parts[0].bytes += 1;
        assert!(matches!(base::finish(&store, &other).await, Err(Error::Corrupt { .. })));
        assert!(matches!(Manifest::read(&store, &plan.id).await, Err(Error::NotFound { .. })));
        base::finish(&store, &manifest).await.unwrap();
        base::finish(&store, &manifest).await.unwrap();
        other = manifest.clone();
        other.backup_label = "another".to_owned();
        assert!(matches!(base::finish(&store, &other).await, Err(Error::Conflict { .. })));
    })
    .await;
}

/// PostgreSQL goes on while a backup is taken. The pace makes what is read when certain.
#[tokio::test(flavor = "multi_thread")]
async fn files_that_vanish_shrink_and_grow_are_taken_as_they_were_opened() {
    everywhere(async |store| {
        let data = Folder::new();
        write(
            &data.0,
            &[
                ("base/1/1", &bytes(1 << 20, 1)),
                ("base/1/2", &bytes(1 << 20, 2)),
                ("base/1/3", &bytes(1 << 20, 3)),
                ("base/1/4", &bytes(8192, 4)),
                ("global/pg_control", b"old"),
            ],
        );
        let plan = BackupPlan { parallel: 1, max_bytes_per_second: Some(2 << 20), ..plan(&data, 1) };
        let progress = Arc::new(Progress::default());
        let (at, root) = (Arc::clone(&progress), data.0.clone());
        let meddling = async move {
            until("the first file is being read", || at.read() > 0).await;
            // The first is open and longer than one read of it.
            OpenOptions::new().append(true).open(root.join("base/1/1")).unwrap().write_all(b"more").unwrap();
            until("the second file is being read", || at.read() > 1 << 20).await;
            OpenOptions::new().write(true).open(root.join("base/1/2")).unwrap().set_len(8192).unwrap();
            std::fs::remove_file(root.join("base/1/3")).unwrap();
            std::fs::write(root.join("global/pg_control"), "new").unwrap();
        };
        let (taken, ()) = tokio::join!(base::take(&store, &plan, &progress), meddling);
        let taken = taken.unwrap();
        let sizes: Vec<_> = taken.files.iter().map(|file| (file.path.as_str(), file.size)).collect();
        assert_eq!(sizes, [("base/1/1", 1 << 20), ("base/1/2", 1 << 20), ("base/1/4", 8192), ("global/pg_control", 3)]);
        let manifest = manifest(&plan.id, &taken);
        base::finish(&store, &manifest).await.unwrap();
        let dest = Folder::new();
        unpack(&store, &manifest, &dest).await.unwrap();
        assert_eq!(std::fs::read(dest.join("data/base/1/1")).unwrap(), bytes(1 << 20, 1));
        let second = std::fs::read(dest.join("data/base/1/2")).unwrap();
        assert_eq!(second[..8192], bytes(1 << 20, 2)[..8192]);
        assert!(second.ends_with(&[0; 8192]), "the end is zeros");
        assert_eq!(std::fs::read(dest.join("data/global/pg_control")).unwrap(), b"new", "read last");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pace_is_kept() {
    let (data, volume) = (Folder::new(), Folder::new());
    write(&data.0, &[("base/1/1", &bytes(1 << 20, 1)), ("base/1/2", &bytes(1 << 20, 2))]);
    let target = hello_operator::backup::target::Target::Volume { folder: volume.0.clone() };
    let store = Store::open(&target, "db").unwrap();
    let plan = BackupPlan { max_bytes_per_second: Some(2 << 20), ..plan(&data, 1) };
    let began = Instant::now();
    base::take(&store, &plan, &Arc::new(Progress::default())).await.unwrap();
    // A second, less the burst of a quarter.
    assert!(began.elapsed() > Duration::from_millis(700), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_cancelled_leaves_nothing_after_a_removal() {
    let data = Folder::new();
    write(&data.0, &[("base/1/1", &bytes(40 << 20, 1)), ("base/1/2", &bytes(40 << 20, 2))]);
    let server = Server::start();
    let store = server.store("db");
    let plan = BackupPlan { max_bytes_per_second: Some(30 << 20), ..plan(&data, 1) };
    let progress = Arc::new(Progress::default());
    let taking = tokio::spawn({
        let (store, plan, progress) = (store.clone(), plan.clone(), Arc::clone(&progress));
        async move { base::take(&store, &plan, &progress).await.map(drop) }
    });
    until("pieces are sent", || progress.stored() > 10 << 20 && !server.unfinished().is_empty()).await;
    taking.abort();
    assert!(taking.await.unwrap_err().is_cancelled());
    until("the uploads are aborted", || server.unfinished().is_empty()).await;
    catalog::remove_backup(&store, &plan.id).await.unwrap();
    assert_eq!(tree(&server.folder.join(crate::world::BUCKET)).values().flatten().count(), 0);
    let stopped = progress.read();
    assert!(stopped < 80 << 20, "it was in the middle");

    let volume = Folder::new();
    let target = hello_operator::backup::target::Target::Volume { folder: volume.0.clone() };
    let store = Store::open(&target, "db").unwrap();
    let progress = Arc::new(Progress::default());
    let taking = tokio::spawn({
        let (store, plan, progress) = (store.clone(), plan.clone(), Arc::clone(&progress));
        async move { base::take(&store, &plan, &progress).await.map(drop) }
    });
    until("pieces are written", || progress.stored() > 10 << 20).await;
    taking.abort();
    assert!(taking.await.unwrap_err().is_cancelled());
    catalog::remove_backup(&store, &plan.id).await.unwrap();
    until("nothing is left", || tree(&volume.0).values().flatten().count() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_leads_elsewhere_is_refused() {
    let data = Folder::new();
    write(&data.0, &[("base/1/1", b"x"), ("base/1/2", b"y")]);
    everywhere(async |store| {
        let good = back_up(&store, &plan(&data, 1)).await.unwrap();
        for path in ["../escaped", "/tmp/hello-store-escaped", "base/1/2", ""] {
            let mut bad = good.clone();
            bad.files[0].path = path.to_owned();
            let dest = Folder::new();
            assert!(matches!(unpack(&store, &bad, &dest).await, Err(Error::Corrupt { .. })), "{path}");
            assert_eq!(std::fs::read_dir(&dest.0).unwrap().count(), 0, "nothing is begun");
        }
        // An archive that holds what its manifest does not, or not what it says.
        let mut bad = good.clone();
        bad.files.remove(0);
        assert!(matches!(unpack(&store, &bad, &Folder::new()).await, Err(Error::Corrupt { .. })));
        let mut bad = good.clone();
        bad.files[0].sha256.0[0] ^= 1;
        assert!(matches!(unpack(&store, &bad, &Folder::new()).await, Err(Error::Corrupt { .. })));
        let mut bad = good.clone();
        bad.parts[0].sha256.0[0] ^= 1;
        assert!(matches!(unpack(&store, &bad, &Folder::new()).await, Err(Error::Corrupt { .. })));
        catalog::remove_backup(&store, &id(1)).await.unwrap();
    })
    .await;
}

/// What an agent that was killed in the middle of a write leaves on a volume.
#[tokio::test(flavor = "multi_thread")]
async fn what_writes_that_were_cut_short_left_on_a_volume_is_swept() {
    let (data, volume) = (Folder::new(), Folder::new());
    write(&data.0, &[("PG_VERSION", b"17\n")]);
    let target = hello_operator::backup::target::Target::Volume { folder: volume.0.clone() };
    let store = Store::open(&target, "db").unwrap();
    back_up(&store, &plan(&data, 1)).await.unwrap();
    let (one, two) =
        (format!("db/base/{}/part-0000.tar.zst#1", id(2)), format!("db/base/{}/part-0001.tar.zst#12", id(3)));
    write(
        &volume.0,
        &[(&one, b"x"), (&two, b"x"), ("db/wal/00000001/x.zst#1", b"x"), ("db/notes #1.txt", b"not ours")],
    );
    assert_eq!(store.list("base").await.unwrap().len(), 2, "they count for nothing");
    catalog::remove_backup(&store, &id(2)).await.unwrap();
    assert!(!volume.join(&format!("db/base/{}", id(2))).exists());
    let begin = "2020-01-01T00:00:00Z".parse().unwrap();
    assert_eq!(catalog::sweep(&store, begin).await.unwrap(), 0, "they may be at work");
    assert_eq!(catalog::sweep(&store, "2200-01-01T00:00:00Z".parse().unwrap()).await.unwrap(), 2);
    assert_eq!(tree(&volume.0).values().flatten().count(), 3);
}
