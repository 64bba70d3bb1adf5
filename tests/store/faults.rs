//! Everything that an object store and the way to it do wrong: nothing half-written counts, and all recovers or says why not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hello_operator::backup::base::{self, BackupPlan, Progress};
use hello_operator::backup::catalog;
use hello_operator::backup::layout::WalFile;
use hello_operator::backup::manifest::Manifest;
use hello_operator::backup::owner::claim;
use hello_operator::backup::store::{Bounds, Created};
use hello_operator::backup::wal::{self, Pushed};
use hello_operator::backup::{Error, Kind, Store, restore};
use hyper::body::Bytes;

use crate::proxy::{Fault, Plan, Proxy, before};
use crate::world::{BOUNDS, BUCKET, Folder, Server, back_up, bytes, claimed, id, owner, tree, until, write};

const SEGMENT: &str = "000000010000000000000003";
const SLOW_DOWN: &str =
    "<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>";
const DENIED: &str = "<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>";
const EXPIRED: &str =
    "<?xml version=\"1.0\"?><Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>";
const NO_KEY: &str = "<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code><Message>No.</Message></Error>";
const NO_BUCKET: &str = "<?xml version=\"1.0\"?><Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message></Error>";

struct World {
    server: Server,
    proxy: Proxy,
    store: Store,
    folder: Folder,
}

impl World {
    async fn new() -> Self {
        let server = Server::start();
        let proxy = before(server.address).await;
        let store = Store::open_with(&server.target(proxy.address), "db", BOUNDS).unwrap();
        let folder = Folder::new();
        write(&folder.0, &[("segment", &bytes(16 << 20, 1))]);
        write(
            &folder.join("data"),
            &[
                ("PG_VERSION", b"17\n"),
                ("base/1/1", &bytes(20 << 20, 2)),
                ("base/1/2", &bytes(20 << 20, 3)),
                ("global/pg_control", &bytes(8192, 4)),
            ],
        );
        claimed(&store).await;
        Self { server, proxy, store, folder }
    }
    fn plan(&self) -> &Plan {
        &self.proxy.plan
    }
    async fn push(&self) -> Result<Pushed, Error> {
        wal::push(&self.store, &self.folder.join("segment"), &SEGMENT.parse().unwrap(), 3).await
    }
    async fn fetch(&self) -> Result<bool, Error> {
        let dest = self.folder.join("fetched");
        let _ = std::fs::remove_file(&dest);
        let result = wal::fetch(&self.store, &SEGMENT.parse().unwrap(), &dest).await;
        if matches!(result, Ok(true)) {
            assert_eq!(std::fs::read(&dest).unwrap(), bytes(16 << 20, 1));
        } else {
            assert!(!dest.exists(), "nothing half-written");
        }
        let left =
            std::fs::read_dir(&self.folder.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert!(!left.into_iter().any(|name| name.ends_with(".tmp")), "nothing is left");
        result
    }
    async fn back_up(&self, random: u32) -> Result<Manifest, Error> {
        back_up(&self.store, &BackupPlan::new(id(random), self.folder.join("data"))).await
    }
    async fn unpack(&self, manifest: &Manifest) -> Result<(), Error> {
        let dest = Folder::new();
        let result =
            restore::unpack(&self.store, manifest, &dest.join("data"), 2, &Arc::new(Progress::default())).await;
        if result.is_ok() {
            let mut found = tree(&dest.join("data"));
            for added in ["backup_label", "pg_wal", "pg_wal/archive_status"] {
                found.remove(added).unwrap();
            }
            assert_eq!(found, tree(&self.folder.join("data")));
        } else {
            assert!(!dest.join("data/backup_label").exists(), "PostgreSQL would start from it");
        }
        result
    }
    /// Backups that count.
    async fn complete(&self) -> usize {
        let entries = catalog::backups(&self.store).await.unwrap();
        entries.iter().filter(|entry| matches!(entry.state, catalog::State::Complete(_))).count()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_passes_by_itself_is_not_noticed() {
    for fault in
        [Fault::Answer(500, ""), Fault::Answer(503, SLOW_DOWN), Fault::Answer(429, ""), Fault::Break, Fault::Lose]
    {
        let world = World::new().await;
        let told = format!("{fault:?}");
        // Twice each, so that a retry fails, too.
        world.plan().fault("GET", "wal/", 2, fault.clone());
        world.plan().fault("PUT", "wal/", 2, fault.clone());
        let pushed = world.push().await.unwrap_or_else(|error| panic!("{told}: {error}"));
        // What was carried out without our hearing of it is found to be ours.
        let lost = matches!(fault, Fault::Lose);
        assert!(
            if lost { pushed == Pushed::AlreadyThere } else { matches!(pushed, Pushed::Stored { .. }) },
            "{told}: {pushed:?}"
        );
        world.plan().fault("GET", "wal/", 2, fault.clone());
        assert!(world.fetch().await.unwrap_or_else(|error| panic!("{told}: {error}")));

        world.plan().fault("PUT", "partNumber=1", 2, fault.clone());
        world.plan().fault("PUT", "manifest.json", 1, fault.clone());
        world.plan().fault("GET", "prefix=", 1, fault.clone());
        let manifest = world.back_up(1).await.unwrap_or_else(|error| panic!("{told}: {error}"));
        world.plan().fault("GET", "part-", 2, fault.clone());
        world.unpack(&manifest).await.unwrap_or_else(|error| panic!("{told}: {error}"));
        assert_eq!(world.complete().await, 1);

        world.plan().fault("DELETE", "", 2, fault);
        catalog::remove_backup(&world.store, &id(1)).await.unwrap_or_else(|error| panic!("{told}: {error}"));
        assert_eq!(world.complete().await, 0);
    }
}

/// To begin and to end an upload in pieces are calls that cannot be repeated blindly.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_ended_without_our_hearing_of_it_counts() {
    let world = World::new().await;
    world.plan().fault("POST", "uploadId=", 1, Fault::Lose);
    let manifest = world.back_up(1).await.unwrap();
    world.unpack(&manifest).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_while_an_upload_begins_or_ends_is_tried_again() {
    for fault in [Fault::Answer(500, ""), Fault::Answer(503, SLOW_DOWN), Fault::Break] {
        let world = World::new().await;
        world.plan().fault("POST", "uploads", 1, fault.clone());
        world.plan().fault("POST", "uploadId=", 1, fault);
        world.back_up(1).await.unwrap();
        assert_eq!(world.complete().await, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_ends_in_a_timeout() {
    let world = World::new().await;
    world.push().await.unwrap();
    for method in ["GET", "PUT"] {
        world.plan().fault(method, "wal/", usize::MAX, Fault::Hang);
        let began = Instant::now();
        let error = world.push().await.err();
        match method {
            "GET" => assert_eq!(error.unwrap().kind(), Kind::Timeout),
            _ => assert!(error.is_none(), "nothing is put that is there"),
        }
        assert!(began.elapsed() < BOUNDS.call + Duration::from_secs(5));
        world.plan().heal();
    }
    let other: WalFile = "000000010000000000000004".parse().unwrap();
    world.plan().fault("PUT", "wal/", usize::MAX, Fault::Hang);
    let error = wal::push(&world.store, &world.folder.join("segment"), &other, 3).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Timeout, "{error}");
    world.plan().heal();
    assert!(matches!(
        wal::push(&world.store, &world.folder.join("segment"), &other, 3).await,
        Ok(Pushed::Stored { .. })
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_that_breaks_goes_on_where_it_broke() {
    let world = World::new().await;
    world.push().await.unwrap();
    let manifest = world.back_up(1).await.unwrap();
    for cut in [0, 1, 56, 1_000_000, 5_000_000] {
        world.plan().fault("GET", "wal/", 2, Fault::Cut(cut));
        assert!(world.fetch().await.unwrap(), "{cut}");
        world.plan().fault("GET", "part-", 3, Fault::Cut(cut));
        world.unpack(&manifest).await.unwrap();
    }
    world.plan().fault("GET", "wal/", usize::MAX, Fault::Cut(0));
    assert_eq!(world.fetch().await.unwrap_err().kind(), Kind::Unavailable, "no progress at all has an end");
    world.plan().heal();
    world.plan().fault("GET", "", usize::MAX, Fault::Slow(1_000_000, Duration::from_millis(20)));
    assert!(world.fetch().await.unwrap(), "slow is not silent");
    world.unpack(&manifest).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_is_seen_and_read_again_and_said_when_it_stays() {
    let world = World::new().await;
    world.push().await.unwrap();
    let manifest = world.back_up(1).await.unwrap();
    for from_end in [0, 100_000, 8_000_000] {
        world.plan().fault("GET", "wal/", 1, Fault::Damage(from_end));
        assert!(world.fetch().await.unwrap(), "{from_end}");
        world.plan().fault("GET", "part-", 1, Fault::Damage(from_end));
        world.unpack(&manifest).await.unwrap();
        world.plan().fault("GET", "", usize::MAX, Fault::Damage(from_end));
        let error = world.fetch().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
        let error = world.unpack(&manifest).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
        world.plan().heal();
    }
    // At rest.
    let object = world.server.folder.join(&format!("{BUCKET}/db/wal/00000001/{SEGMENT}.zst"));
    let mut content = std::fs::read(&object).unwrap();
    for length in [0, 10, 56, 57, content.len() - 1] {
        std::fs::write(&object, &content[..length]).unwrap();
        assert_eq!(world.fetch().await.unwrap_err().kind(), Kind::Corrupt, "{length}");
    }
    content[20] ^= 1;
    std::fs::write(&object, &content).unwrap();
    assert_eq!(world.fetch().await.unwrap_err().kind(), Kind::Corrupt);
    assert_eq!(world.push().await.unwrap_err().kind(), Kind::Conflict, "it says that it holds something else");
    std::fs::write(&object, b"").unwrap();
    assert_eq!(world.push().await.unwrap_err().kind(), Kind::Corrupt);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_can_be_read_only_later_is_waited_for() {
    let world = World::new().await;
    world.plan().fault("PUT", "wal/", 1, Fault::Lose);
    // The first look is before it is there, the two others are after.
    world.plan().fault("GET", "wal/", 3, Fault::Answer(404, NO_KEY));
    assert_eq!(world.push().await.unwrap(), Pushed::AlreadyThere);
    world.plan().fault("GET", "owner.json", 2, Fault::Answer(404, NO_KEY));
    assert_eq!(claim(&world.store, &owner("7")).await.unwrap(), owner("7"));
    world.plan().fault("GET", "owner.json", 2, Fault::Answer(404, NO_KEY));
    assert_eq!(claim(&world.store, &owner("8")).await.unwrap_err().kind(), Kind::OtherOwner);
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_that_are_revoked_and_buckets_that_vanish_have_their_kinds() {
    for (status, body, kind) in [
        (403, DENIED, Kind::Unauthorized),
        (401, "", Kind::Unauthorized),
        (400, EXPIRED, Kind::Unauthorized),
        (404, NO_BUCKET, Kind::NoBucket),
        (507, "", Kind::Unavailable),
    ] {
        let world = World::new().await;
        world.push().await.unwrap();
        let manifest = world.back_up(1).await.unwrap();
        world.plan().fault("", "", usize::MAX, Fault::Answer(status, body));
        for error in [
            world.push().await.unwrap_err(),
            world.fetch().await.unwrap_err(),
            world.back_up(2).await.unwrap_err(),
            world.unpack(&manifest).await.unwrap_err(),
            wal::list(&world.store).await.unwrap_err(),
            wal::history(&world.store, 2).await.unwrap_err(),
            catalog::backups(&world.store).await.unwrap_err(),
            catalog::remove_backup(&world.store, &id(1)).await.unwrap_err(),
            claim(&world.store, &owner("7")).await.unwrap_err(),
            world.store.check().await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), kind, "{status}: {error}");
        }
        world.plan().heal();
        assert_eq!(world.complete().await, 1, "nothing was lost");
    }
}

/// In the middle of a backup.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_fails_in_the_middle_counts_for_nothing() {
    for (method, part, fault, kind) in [
        ("PUT", "partNumber=2", Fault::Answer(403, DENIED), Kind::Unauthorized),
        ("PUT", "partNumber=2", Fault::Answer(404, NO_BUCKET), Kind::NoBucket),
        ("PUT", "partNumber=2", Fault::Hang, Kind::Timeout),
        ("POST", "uploadId=", Fault::Answer(500, ""), Kind::Unavailable),
        ("PUT", "manifest.json", Fault::Answer(403, DENIED), Kind::Unauthorized),
    ] {
        let world = World::new().await;
        world.plan().fault(method, part, usize::MAX, fault.clone());
        let error = world.back_up(1).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{fault:?} {error}");
        world.plan().heal();
        assert_eq!(world.complete().await, 0);
        until("uploads are aborted", || world.server.unfinished().is_empty()).await;
        catalog::remove_backup(&world.store, &id(1)).await.unwrap();
        assert!(world.store.list("base").await.unwrap().is_empty());
        world.back_up(2).await.unwrap();
        assert_eq!(world.complete().await, 1, "a later one is not blocked");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn archives_that_are_listed_later_are_waited_for() {
    const EMPTY: &str = "<?xml version=\"1.0\"?><ListBucketResult><Name>backups</Name><Prefix></Prefix><KeyCount>0</KeyCount>\
                         <MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated></ListBucketResult>";
    let world = World::new().await;
    let plan = BackupPlan::new(id(1), world.folder.join("data"));
    let taken = base::take(&world.store, &plan, &Arc::new(Progress::default())).await.unwrap();
    world.plan().fault("GET", "prefix=", 2, Fault::Answer(200, EMPTY));
    base::finish(&world.store, &crate::world::manifest(&plan.id, &taken)).await.unwrap();
    assert!(world.plan().seen("GET /backups?") >= 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_who_push_at_once_meet_at_the_store() {
    let world = World::new().await;
    for (seed, name) in [(1, "0000000100000000000000A1"), (2, "0000000100000000000000A2")] {
        let other = world.folder.join("other");
        std::fs::write(&other, bytes(16 << 20, seed)).unwrap();
        let proxy = before(world.server.address).await;
        proxy.plan.fault("PUT", "wal/", 2, Fault::Meet);
        // The first one waits for the second one, who may still be compressing.
        let patient = Bounds { silence: BOUNDS.call, ..BOUNDS };
        let store = Store::open_with(&world.server.target(proxy.address), "db", patient).unwrap();
        let file: WalFile = name.parse().unwrap();
        let ours = world.folder.join("segment");
        let (one, two) = tokio::join!(wal::push(&store, &ours, &file, 3), wal::push(&store, &other, &file, 3));
        // More where the server answered the second one before it had read it, and the connection broke.
        assert!(proxy.plan.seen("PUT ") >= 2, "both found nothing and put:\n{}", proxy.plan.history());
        let mut stored = 0;
        for result in [one, two] {
            match result {
                Ok(Pushed::Stored { .. }) => stored += 1,
                Ok(Pushed::AlreadyThere) => assert_eq!(seed, 1),
                Err(Error::Conflict { .. }) => assert_eq!(seed, 2),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(stored, 1);
    }
    assert_eq!(world.store.create("owner.json", Bytes::new()).await.unwrap(), Created::Exists);
}
