//! What is wrong for good has the right kind, says what to do, and shows no secret.

use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use hello_operator::backup::target::{S3Credentials, Target};
use hello_operator::backup::{Error, Kind, Store};
use hyper::body::Bytes;

use crate::world::{BOUNDS, Folder, Server, s3};

async fn kinds(target: &Target) -> Vec<Kind> {
    let store = Store::open_with(target, "db", BOUNDS).unwrap();
    let errors = [
        store.check().await.err(),
        store.get("owner.json").await.err(),
        store.create("owner.json", Bytes::from_static(b"x")).await.err(),
        store.list("base").await.err(),
        store.delete("owner.json").await.err(),
    ];
    errors
        .into_iter()
        .flatten()
        .map(|error| {
            let text = format!("{error} {error:?}");
            assert!(!text.contains("s3cr3t") && !text.contains("Signature="), "{text}");
            error.kind()
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_characters_in_a_secret_are_right_and_a_wrong_secret_is_told() {
    let server = Server::start();
    assert!(kinds(&server.target(server.address)).await.contains(&Kind::NotFound), "the right secret");
    let mut wrong = s3(server.address);
    let S3Credentials::Key { secret_access_key, .. } = &mut wrong.credentials else { unreachable!() };
    *secret_access_key = "s3cr3t".into();
    assert_eq!(kinds(&Target::S3(wrong)).await, [Kind::Unauthorized; 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_is_not_there_is_told() {
    let server = Server::start();
    let mut other = s3(server.address);
    other.bucket = "nothing-here".to_owned();
    let store = Store::open_with(&Target::S3(other), "db", BOUNDS).unwrap();
    let error = store.check().await.unwrap_err();
    assert!(matches!(error, Error::NoBucket { .. }), "{error}");
    assert!(error.to_string().contains("s3://nothing-here/db"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_who_listens_and_a_wrong_protocol_are_told_in_time() {
    let nobody = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let began = Instant::now();
    assert_eq!(kinds(&Target::S3(s3(nobody))).await, [Kind::Unavailable; 5]);
    assert!(began.elapsed() < Duration::from_secs(20));

    let server = Server::start();
    let mut tls = s3(server.address);
    tls.endpoint = Some(format!("https://{}", server.address));
    assert_eq!(kinds(&Target::S3(tls)).await, [Kind::Unavailable; 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_cannot_be_written_says_why() {
    let folder = Folder::new();
    // A file stands where a folder should be made.
    std::fs::write(folder.join("db"), "").unwrap();
    let store = Store::open_with(&Target::Volume { folder: folder.0.clone() }, "db", BOUNDS).unwrap();
    let error = store.create("owner.json", Bytes::from_static(b"x")).await.unwrap_err();
    assert!(matches!(&error, Error::Io { path, .. } if path.ends_with("db/owner.json")), "{error:?}");
}
