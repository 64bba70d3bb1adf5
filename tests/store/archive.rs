//! The WAL archive and whose it is.

use std::path::Path;

use hello_operator::backup::layout::{SegmentSize, WalFile};
use hello_operator::backup::owner::{claim, read};
use hello_operator::backup::store::Created;
use hello_operator::backup::wal::{self, Pushed};
use hello_operator::backup::{Error, Store};
use hyper::body::Bytes;

use crate::world::{Folder, bytes, claimed, everywhere, owner};

const SEGMENT: &str = "000000010000000000000003";

fn file(name: &str) -> WalFile {
    name.parse().unwrap()
}

async fn push(store: &Store, folder: &Folder, name: &str, content: &[u8]) -> Result<Pushed, Error> {
    let path = folder.join(&format!("{name}-{:x}", rand::random::<u64>()));
    std::fs::write(&path, content).unwrap();
    wal::push(store, &path, &file(name), 3).await
}

async fn fetch(store: &Store, name: &str, dest: &Path) -> Result<bool, Error> {
    wal::fetch(store, &file(name), dest).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_is_stored_once_and_comes_back_as_it_was() {
    everywhere(async |store| {
        claimed(&store).await;
        let folder = Folder::new();
        let content = bytes(16 << 20, 1);
        assert!(matches!(push(&store, &folder, SEGMENT, &content).await, Ok(Pushed::Stored { bytes }) if bytes < 12 << 20));
        assert_eq!(push(&store, &folder, SEGMENT, &content).await.unwrap(), Pushed::AlreadyThere);
        let dest = folder.join("RECOVERYXLOG");
        assert!(fetch(&store, SEGMENT, &dest).await.unwrap());
        assert_eq!(std::fs::read(&dest).unwrap(), content);

        let error = push(&store, &folder, SEGMENT, &bytes(16 << 20, 2)).await.unwrap_err();
        assert!(matches!(&error, Error::Conflict { at, .. } if at.ends_with(&format!("team a/db/wal/00000001/{SEGMENT}.zst"))), "{error}");
        assert!(fetch(&store, SEGMENT, &dest).await.unwrap());
        assert_eq!(std::fs::read(&dest).unwrap(), content, "nothing is overwritten");

        // By hand: zstd -d.
        let object = store.get(&format!("wal/00000001/{SEGMENT}.zst")).await.unwrap();
        assert_eq!(zstd::decode_all(&object[..]).unwrap(), content);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_absent_is_told_apart_from_what_cannot_be_known() {
    everywhere(async |store| {
        let folder = Folder::new();
        let dest = folder.join("RECOVERYXLOG");
        let error = fetch(&store, SEGMENT, &dest).await.unwrap_err();
        assert!(matches!(error, Error::NoBucket { .. }), "nobody's archive: {error}");
        claimed(&store).await;
        assert!(!fetch(&store, SEGMENT, &dest).await.unwrap());
        assert!(!fetch(&store, "00000002.history", &dest).await.unwrap());
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn histories_partials_and_labels_have_rules_of_their_own() {
    everywhere(async |store| {
        claimed(&store).await;
        let folder = Folder::new();
        let history = b"1\t0/3000148\tno recovery target specified\n";
        assert!(matches!(push(&store, &folder, "00000002.history", history).await, Ok(Pushed::Stored { .. })));
        assert_eq!(push(&store, &folder, "00000002.history", history).await.unwrap(), Pushed::AlreadyThere);
        assert!(matches!(push(&store, &folder, "00000002.history", b"1\t0/4\n").await, Err(Error::Conflict { .. })));
        assert_eq!(store.get("wal/history/00000002.history").await.unwrap(), &history[..], "as it is");
        assert_eq!(wal::history(&store, 2).await.unwrap().unwrap().as_bytes(), history);
        assert_eq!(wal::history(&store, 3).await.unwrap(), None);
        let dest = folder.join("RECOVERYHISTORY");
        assert!(fetch(&store, "00000002.history", &dest).await.unwrap());
        assert_eq!(std::fs::read(&dest).unwrap(), history);

        let partial = format!("{SEGMENT}.partial");
        assert!(matches!(push(&store, &folder, &partial, b"one").await, Ok(Pushed::Stored { .. })));
        assert_eq!(push(&store, &folder, &partial, b"one").await.unwrap(), Pushed::AlreadyThere);
        assert_eq!(push(&store, &folder, &partial, b"two").await.unwrap(), Pushed::NotStored);
        let label = format!("{SEGMENT}.00000028.backup");
        assert_eq!(push(&store, &folder, &label, b"label").await.unwrap(), Pushed::NotStored);

        push(&store, &folder, SEGMENT, b"short").await.unwrap();
        push(&store, &folder, "000000020000000000000003", b"").await.unwrap();
        store.create("wal/readme.txt", Bytes::from_static(b"hello")).await.unwrap();
        let listing = wal::list(&store).await.unwrap();
        assert_eq!(
            listing.segments.iter().map(ToString::to_string).collect::<Vec<_>>(),
            [SEGMENT, "000000020000000000000003"]
        );
        assert_eq!(listing.partials.len(), 1);
        assert_eq!(listing.histories.iter().copied().collect::<Vec<_>>(), [2]);
        assert_eq!(listing.strangers, ["wal/readme.txt"]);
        assert_eq!(listing.ranges(SegmentSize::default()).len(), 2);

        wal::remove(&store, &[file(SEGMENT), file(&partial), file("000000020000000000000003")]).await.unwrap();
        wal::remove(&store, &[file(SEGMENT)]).await.unwrap();
        let listing = wal::list(&store).await.unwrap();
        assert!(listing.segments.is_empty() && listing.partials.is_empty() && listing.histories.len() == 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_is_the_first_ones_who_claims_it() {
    everywhere(async |store| {
        assert_eq!(read(&store).await.unwrap(), None);
        let mut later = owner("7");
        assert_eq!(claim(&store, &later).await.unwrap(), later);
        later.cluster = "default/renamed".to_owned();
        assert_eq!(claim(&store, &later).await.unwrap(), owner("7"), "the claim that stands");
        let error = claim(&store, &owner("8")).await.unwrap_err();
        assert!(matches!(error, Error::OtherOwner { .. }));
        let text = error.to_string();
        assert!(text.contains("default/7") && text.contains("archive 8"), "{text}");
        store.delete("owner.json").await.unwrap();
        store.create("owner.json", Bytes::from_static(b"{\"format\": 2")).await.unwrap();
        assert!(matches!(claim(&store, &owner("7")).await, Err(Error::Corrupt { .. })));
    })
    .await;
}

/// On a volume a put-if-absent is one act; the S3 server of the tests looks first and writes then, so it gets this test by the proxy.
#[tokio::test(flavor = "multi_thread")]
async fn two_who_push_at_once_have_one_winner() {
    let volume = Folder::new();
    let target = hello_operator::backup::target::Target::Volume { folder: volume.0.clone() };
    let store = Store::open(&target, "db").unwrap();
    let folder = Folder::new();
    for round in 0..50 {
        let name = format!("0000000100000000{round:08X}");
        let (one, two) = (bytes(100_000, 1), bytes(100_000, 2));
        let (first, second) = tokio::join!(push(&store, &folder, &name, &one), push(&store, &folder, &name, &one));
        let stored = [first.unwrap(), second.unwrap()];
        assert!(
            stored.contains(&Pushed::AlreadyThere)
                && stored.iter().any(|pushed| matches!(pushed, Pushed::Stored { .. }))
        );
        let name = format!("0000000200000000{round:08X}");
        let (first, second) = tokio::join!(push(&store, &folder, &name, &one), push(&store, &folder, &name, &two));
        let dest = folder.join("fetched");
        claimed(&store).await;
        assert!(fetch(&store, &name, &dest).await.unwrap());
        let winner = if first.is_ok() { &one } else { &two };
        assert!(matches!((first, second), (Ok(_), Err(Error::Conflict { .. })) | (Err(Error::Conflict { .. }), Ok(_))));
        assert_eq!(&std::fs::read(&dest).unwrap(), winner);
    }
    assert_eq!(store.create("x", Bytes::new()).await.unwrap(), Created::New);
}
