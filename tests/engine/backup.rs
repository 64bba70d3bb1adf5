//! Archive, base backup and restore with a real PostgreSQL and a store on this machine's disk.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hello_operator::agent::archive::stores::Stores;
use hello_operator::agent::archive::{Archive, Wish, Written, socket};
use hello_operator::agent::base_backup::{self, Order};
use hello_operator::agent::conf::Archiver;
use hello_operator::agent::peers::Peers;
use hello_operator::agent::postmaster::Postmaster;
use hello_operator::agent::restore::{self, restore};
use hello_operator::agent::sql::{Session, Socket};
use hello_operator::agent::tls::Tls;
use hello_operator::agent::verify::{Scratch, verify};
use hello_operator::agent::{Error, keep};
use hello_operator::api::agent::Lsn;
use hello_operator::api::archive::CatalogEntry;
use hello_operator::api::config::RestoreOrder;
use hello_operator::api::spec::{BackupVolume, Destination, S3};
use hello_operator::api::verify::VerifyOrder;
use hello_operator::backup::base::Progress;
use hello_operator::backup::layout::BackupId;
use hello_operator::backup::target::{AwsIdentity, CloudIdentity};
use hello_operator::core::backup::Policy;
use hello_operator::engine::postgres::settings::Archiving;
use k8s_openapi::jiff::Timestamp;

use super::alone;
use super::world::{Instance, World, isolated, until};

/// Each is another HelloBackup's.
static TAKEN: AtomicU32 = AtomicU32::new(1);
pub const ROOT: &str = "tests/db";

/// An archive in a folder, and the agent's socket before it.
pub struct Store {
    pub archive: Arc<Archive>,
    archiver: Archiver,
    destination: Destination,
    pub mount: PathBuf,
}

fn client() -> kube::Client {
    // A volume needs no Secret, so nobody is asked.
    let nobody = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    kube::Client::try_from(nobody).unwrap()
}

impl Store {
    pub fn new(world: &World, name: &str) -> Self {
        Self::of(world, name, CloudIdentity::default())
    }

    fn of(world: &World, name: &str, cloud: CloudIdentity) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let mount = world.root.join("store");
        std::fs::create_dir_all(&mount).unwrap();
        let stores = Stores::new(client(), "tests", cloud);
        let archive = Arc::new(Archive::new(stores, &mount, world.root.join(format!("{name}-fetched"))));
        // A primary's archiver hands over what is full, wherever it stands.
        archive.written(Some(Written { timeline: 1, end: Lsn(0), standby: false }));
        let socket = world.root.join(format!("{name}.sock"));
        socket::serve(archive.clone(), &socket).unwrap();
        let destination =
            Destination { volume: Some(BackupVolume { claim: "store".into(), path: None }), ..Destination::default() };
        Self { archive, archiver: Archiver { program: world.program.clone(), socket }, destination, mount }
    }

    fn wish(&self, system_id: &str, archive: &str) -> Wish {
        Wish {
            destination: Some(self.destination.clone()),
            root: ROOT.into(),
            wal: true,
            cluster: "tests/db".into(),
            archive: Some(archive.into()),
            system_id: Some(system_id.into()),
            primary: true,
            hurry: false,
        }
    }

    pub fn archiving(&self) -> Archiving {
        Archiving { command: self.archiver.archive_command(), timeout: 60 }
    }

    pub fn restore(&self, world: &World, order: RestoreOrder) -> restore::Wish {
        restore::Wish {
            member: "restored".into(),
            order,
            own: None,
            source: self.destination.place(ROOT),
            mount: self.mount.clone(),
            database: "app".into(),
            owner: "app".into(),
            private: world.root.join("private"),
            restore_command: self.archiver.fetch_command(),
        }
    }

    pub fn order(&self) -> RestoreOrder {
        RestoreOrder {
            source: self.destination.clone(),
            root: ROOT.into(),
            backup_id: None,
            target_time: None,
            target_lsn: None,
            target_name: None,
            target_timeline: None,
        }
    }
}

pub async fn back_up(world: &World, store: &Store, instance: &Instance) -> Result<CatalogEntry, Error> {
    back_up_at(world, store, instance, None).await
}

async fn back_up_at(
    world: &World,
    store: &Store,
    instance: &Instance,
    max_bytes_per_second: Option<u64>,
) -> Result<CatalogEntry, Error> {
    let requested_by = format!("uid-{}", TAKEN.fetch_add(1, Ordering::Relaxed));
    take(world, store, instance, &requested_by, max_bytes_per_second).await
}

/// The one that this HelloBackup asks for.
pub async fn back_up_for(
    world: &World,
    store: &Store,
    instance: &Instance,
    requested_by: &str,
) -> Result<CatalogEntry, Error> {
    take(world, store, instance, requested_by, None).await
}

async fn take(
    world: &World,
    store: &Store,
    instance: &Instance,
    requested_by: &str,
    max_bytes_per_second: Option<u64>,
) -> Result<CatalogEntry, Error> {
    let order = Order {
        requested_by: requested_by.to_owned(),
        id: BackupId::new(Timestamp::now(), rand::random()),
        instance: instance.name.clone(),
        primary: None,
        pgdata: instance.layout.pgdata(),
        socket: instance.socket.clone(),
        max_bytes_per_second,
        start: Arc::default(),
    };
    let peers = Peers::new(client(), "tests", Tls::load(&world.identity_of("operator")).unwrap());
    base_backup::take(&store.archive, &world.processes, &peers, &order, &Arc::new(Progress::default())).await
}

pub async fn archived(store: &Store, session: &Session) {
    let before = store.archive.report().archived;
    let row = session.run("the next segment", "SELECT pg_logical_emit_message(true, 'a', 'b'); SELECT pg_switch_wal()");
    row.await.unwrap();
    until("a segment is archived", async || store.archive.report().archived > before).await;
}

/// Starts what was restored, and says which rows it has.
pub async fn rows(world: &World, instance: &mut Instance, archiving: Archiving, table: &str) -> Vec<String> {
    instance.layout.go_live(&instance.lock).unwrap();
    world.write_archiving(instance, alone(), &[], archiving);
    let (postmaster, session) = world.start(instance).await;
    let seen = values(&instance.socket, table).await;
    drop(session);
    postmaster.stop(&world.processes, std::time::Duration::from_secs(30)).await;
    seen
}

async fn values(socket: &Socket, table: &str) -> Vec<String> {
    let out = tokio::process::Command::new("psql")
        .arg("-h")
        .arg(&socket.folder)
        .args(["-p", &socket.port.to_string(), "-U", "postgres", "-d", "app", "-Atc"])
        .arg(format!("SELECT v FROM {table} ORDER BY v"))
        .output()
        .await
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).lines().map(str::to_owned).collect()
}

pub async fn primary(world: &World, store: &Store) -> (Instance, Session) {
    let (instance, session, _postmaster, _) = primary_with(world, store).await;
    (instance, session)
}

/// A primary that archives, with what its archive was told.
pub async fn primary_with(world: &World, store: &Store) -> (Instance, Session, Postmaster, Wish) {
    let mut instance = world.instance("db-1");
    world.bootstrap(&mut instance).await;
    let system_id =
        hello_operator::agent::bootstrap::control(&world.processes, &instance.layout.pgdata()).await.unwrap().system_id;
    let wish = store.wish(&system_id, &system_id);
    store.archive.wish(wish.clone());
    world.write_archiving(&instance, alone(), &[], store.archiving());
    let (postmaster, _) = world.start(&instance).await;
    let session = instance.socket.open("app").await.unwrap();
    (instance, session, postmaster, wish)
}

#[test]
fn a_dropped_table_comes_back_and_a_cluster_is_restored_several_times_from_one_archive() {
    isolated(
        "backup::a_dropped_table_comes_back_and_a_cluster_is_restored_several_times_from_one_archive",
        async |world| {
            let store = Store::new(&world, "db-1");
            let (instance, session) = primary(&world, &store).await;
            session.run("rows", "CREATE TABLE t(v text); INSERT INTO t VALUES ('before')").await.unwrap();
            let entry = back_up(&world, &store, &instance).await.unwrap();
            assert_eq!((entry.requested_by.as_str(), entry.role.as_str(), entry.timeline), ("uid-1", "primary", 1));
            session.run("rows", "INSERT INTO t VALUES ('after')").await.unwrap();
            session.run("a point", "SELECT pg_create_restore_point('the point')").await.unwrap();
            session.run("rows", "INSERT INTO t VALUES ('later')").await.unwrap();
            let moment = moment(&session).await;
            session
                .run("the mistake", "DROP TABLE t; CREATE TABLE u(v text); INSERT INTO u VALUES ('last')")
                .await
                .unwrap();
            archived(&store, &session).await;

            let report = keep::look(&store.archive, &Policy::default(), &[]).await;
            assert_eq!((report.error, report.backups), (None, vec![entry.clone()]));

            // While the source lives: to a time, to a name, to the end.
            let restored = async |name: &str, order: RestoreOrder, table: &str| {
                let mut target = world.instance(name);
                let wish = store.restore(&world, order);
                let staged =
                    restore(&world.processes, &store.archive, &target.layout, &wish, &Arc::default(), &mut |_| {})
                        .await
                        .unwrap();
                assert!(staged.timeline > 1, "a restored cluster writes a history of its own");
                rows(&world, &mut target, Archiving::none(), table).await
            };
            let to_time = RestoreOrder { target_time: Some(moment), ..store.order() };
            assert_eq!(restored("to-time", to_time, "t").await, ["after", "before", "later"]);
            let to_name = RestoreOrder { target_name: Some("the point".into()), ..store.order() };
            assert_eq!(restored("to-name", to_name, "t").await, ["after", "before"]);
            assert_eq!(restored("to-end", store.order(), "u").await, ["last"]);
        },
    );
}

#[test]
fn a_shutdown_does_not_wait_for_a_store_that_hangs() {
    isolated("backup::a_shutdown_does_not_wait_for_a_store_that_hangs", async |world| {
        // A server that takes the connection and says nothing.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", silent.local_addr().unwrap());
        // Already who we are has to be asked there.
        let token = world.root.join("token");
        std::fs::write(&token, "token").unwrap();
        let aws = AwsIdentity {
            container_credentials_full_uri: Some(format!("{endpoint}/who")),
            container_authorization_token_file: Some(token.to_string_lossy().into_owned()),
            ..AwsIdentity::default()
        };
        let store = Store::of(&world, "db-1", CloudIdentity { aws, ..CloudIdentity::default() });
        let s3 = S3 { bucket: "b".into(), endpoint: Some(endpoint), region: "r".into(), ..S3::default() };
        let mut instance = world.instance("db-1");
        world.bootstrap(&mut instance).await;
        let wish =
            Wish { destination: Some(Destination { s3: Some(s3), ..Destination::default() }), ..store.wish("1", "1") };
        store.archive.wish(wish.clone());
        world.write_archiving(&instance, alone(), &[], store.archiving());
        let (postmaster, session) = world.start(&instance).await;
        session.run("the next segment", "SELECT pg_switch_wal()").await.unwrap();
        let asked = "SELECT FROM pg_stat_activity WHERE backend_type = 'archiver' AND wait_event = 'ArchiveCommand'";
        until("the archiver waits", async || session.exists(asked).await.unwrap()).await;
        drop(session);
        let wish_again = wish.clone();
        store.archive.wish(Wish { hurry: true, ..wish });
        let begun = std::time::Instant::now();
        assert!(postmaster.stop(&world.processes, std::time::Duration::from_secs(40)).await, "in order");
        println!("stopped after {:?}", begun.elapsed());
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "it did not wait for the store");
        assert_eq!(store.archive.report().failures, 0, "and nothing failed");
        // A store that hangs is told of long before the push is given up.
        store.archive.wish(wish_again);
        let (_postmaster, _session) = world.start(&instance).await;
        until("the hanging store is told of", async || store.archive.report().failing_since.is_some()).await;
    });
}

#[test]
fn a_recovery_takes_a_store_that_is_away_for_a_failure_and_not_for_the_end_of_the_wal() {
    isolated(
        "backup::a_recovery_takes_a_store_that_is_away_for_a_failure_and_not_for_the_end_of_the_wal",
        async |world| {
            let store = Store::new(&world, "db-1");
            let (instance, session) = primary(&world, &store).await;
            back_up(&world, &store, &instance).await.unwrap();
            archived(&store, &session).await;
            archived(&store, &session).await;
            // All is there when it is looked at; one segment cannot be read when recovery asks for it.
            let folder = store.mount.join(ROOT).join("wal/00000001");
            let mut segments: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
            segments.sort();
            let last = segments.pop().unwrap();
            let bytes = std::fs::read(&last).unwrap();
            std::fs::write(&last, &bytes[..bytes.len() / 2]).unwrap();
            let target = world.instance("target");
            let wish = store.restore(&world, store.order());
            let refused =
                restore(&world.processes, &store.archive, &target.layout, &wish, &Arc::default(), &mut |_| {}).await;
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains("could not restore file"), "{refused}");
            std::fs::write(&last, &bytes).unwrap();
            restore(&world.processes, &store.archive, &target.layout, &wish, &Arc::default(), &mut |_| {})
                .await
                .unwrap();
        },
    );
}

#[test]
fn nothing_is_removed_while_a_backup_cannot_be_read() {
    isolated("backup::nothing_is_removed_while_a_backup_cannot_be_read", async |world| {
        let store = Store::new(&world, "db-1");
        let (instance, session) = primary(&world, &store).await;
        archived(&store, &session).await;
        let old = back_up(&world, &store, &instance).await.unwrap();
        let new = back_up(&world, &store, &instance).await.unwrap();
        let manifest = store.mount.join(ROOT).join("base").join(&new.backup_id).join("manifest.json");
        let good = std::fs::read(&manifest).unwrap();
        std::fs::write(&manifest, &good[..good.len() / 2]).unwrap();
        let one = Policy { keep_last: Some(1), ..Policy::default() };
        let oldest = store.mount.join(ROOT).join("wal/00000001/000000010000000000000001.zst");
        assert!(oldest.exists());
        let report = keep::look(&store.archive, &one, &[]).await;
        assert!(report.error.is_some_and(|error| error.message.contains("nothing is removed")));
        assert_eq!((report.backups, oldest.exists()), (vec![old], true));
        // Once it can be read, the older one goes, with the WAL that only it needed.
        std::fs::write(&manifest, good).unwrap();
        let report = keep::look(&store.archive, &one, &[]).await;
        assert_eq!((report.error, report.backups), (None, vec![new]));
        assert!(!oldest.exists());
    });
}

#[test]
fn a_backup_ends_with_the_session_that_began_it() {
    isolated("backup::a_backup_ends_with_the_session_that_began_it", async |world| {
        let store = Store::new(&world, "db-1");
        let (instance, session) = primary(&world, &store).await;
        let begun = std::time::Instant::now();
        // At this pace it would take minutes.
        let (outcome, ()) = tokio::join!(back_up_at(&world, &store, &instance, Some(64 << 10)), async {
            let its =
                "pg_stat_activity WHERE query LIKE '%pg_backup_start%' AND state = 'idle' AND pid <> pg_backend_pid()";
            until("it reads", async || session.exists(&format!("SELECT FROM {its}")).await.unwrap()).await;
            session.run("the end", &format!("SELECT pg_terminate_backend(pid) FROM {its}")).await.unwrap();
        });
        let said = outcome.unwrap_err().to_string();
        assert!(said.contains("PostgreSQL stopped"), "{said}");
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{:?}", begun.elapsed());
    });
}

#[test]
fn a_verification_finds_a_damaged_backup() {
    isolated("backup::a_verification_finds_a_damaged_backup", async |world| {
        let store = Store::new(&world, "db-1");
        let (instance, session) = primary(&world, &store).await;
        session.run("rows", "CREATE TABLE t(v text); INSERT INTO t VALUES ('a')").await.unwrap();
        let entry = back_up(&world, &store, &instance).await.unwrap();
        archived(&store, &session).await;
        let verified = async |name: &str, query: &str| {
            let data = world.root.join(name);
            std::fs::create_dir_all(data.join("run")).unwrap();
            let scratch = Scratch {
                run: data.join("run"),
                data,
                namespace: "tests".into(),
                mount: store.mount.clone(),
                program: world.program.clone(),
            };
            let order = VerifyOrder {
                source: store.destination.clone(),
                root: ROOT.into(),
                database: "app".into(),
                owner: "app".into(),
                query: Some(query.into()),
            };
            let result = verify(client(), CloudIdentity::default(), &scratch, &order).await;
            println!("{result:?}");
            result
        };
        let good = verified("good", "SELECT 1 / (count(*)) FROM t").await;
        assert!(good.ok, "{}", good.message);
        assert_eq!(good.backup_id.as_deref(), Some(entry.backup_id.as_str()));
        let wrong = verified("wrong", "SELECT 1 / (count(*) - 1) FROM t").await;
        assert!(!wrong.ok && wrong.message.contains("division by zero"), "{}", wrong.message);

        let part = store.mount.join(ROOT).join("base").join(&entry.backup_id).join("part-0000.tar.zst");
        let mut bytes = std::fs::read(&part).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&part, bytes).unwrap();
        let damaged = verified("damaged", "SELECT 1").await;
        assert!(!damaged.ok && damaged.message.contains("damaged"), "{}", damaged.message);
    });
}

#[test]
fn what_cannot_be_restored_is_refused_before_the_volume_is_touched() {
    isolated("backup::what_cannot_be_restored_is_refused_before_the_volume_is_touched", async |world| {
        let store = Store::new(&world, "db-1");
        let target = world.instance("target");
        std::fs::create_dir_all(target.layout.staging()).unwrap();
        let refused = async |wish: &restore::Wish| {
            let error =
                restore(&world.processes, &store.archive, &target.layout, wish, &Arc::default(), &mut |_| {}).await;
            assert!(target.layout.staging().exists(), "the volume is as it was");
            error.unwrap_err().to_string()
        };
        let said = refused(&store.restore(&world, store.order())).await;
        assert!(said.contains("no backups of a cluster"), "{said}");
        let (instance, session) = primary(&world, &store).await;
        archived(&store, &session).await;
        let said = refused(&store.restore(&world, store.order())).await;
        assert!(said.contains("no complete backup") || said.contains("no backup"), "{said}");
        back_up(&world, &store, &instance).await.unwrap();
        let early = RestoreOrder { target_time: Some("2020-01-01T00:00:00Z".into()), ..store.order() };
        let said = refused(&store.restore(&world, early)).await;
        assert!(said.contains("before"), "{said}");
        let own = store.restore(&world, store.order());
        let said = refused(&restore::Wish { own: Some(own.source.clone()), ..own }).await;
        assert!(said.contains("another path"), "{said}");
    });
}

#[test]
fn another_clusters_archive_is_refused_and_wal_waits_until_the_store_is_back() {
    isolated("backup::another_clusters_archive_is_refused_and_wal_waits_until_the_store_is_back", async |world| {
        let store = Store::new(&world, "db-1");
        let (_instance, session) = primary(&world, &store).await;
        archived(&store, &session).await;

        let other = Store::new(&world, "other");
        other.archive.wish(other.wish("7", "7"));
        let refusal = other.archive.own_store().await.err().unwrap();
        assert!(refusal.to_string().contains("belongs to tests/db"), "{refusal}");

        // The store goes away, and comes back: nothing is lost and nothing is forgotten.
        let hidden = store.mount.with_extension("gone");
        std::fs::rename(&store.mount, &hidden).unwrap();
        session
            .run("the next segment", "SELECT pg_logical_emit_message(true, 'a', 'b'); SELECT pg_switch_wal()")
            .await
            .unwrap();
        until("a failure is told", async || store.archive.report().failing_since.is_some()).await;
        assert!(store.archive.report().error.is_some());
        std::fs::rename(&hidden, &store.mount).unwrap();
        until("it is archived", async || store.archive.report().failing_since.is_none()).await;
        let last = store.archive.report().last.unwrap();
        assert!(store.mount.join(ROOT).join("wal/00000001").join(format!("{last}.zst")).exists());
    });
}

/// Now, as PostgreSQL's commits have it: the next one is later.
async fn moment(session: &Session) -> String {
    session.run("a pause", "SELECT pg_sleep(0.01)").await.unwrap();
    let now = Timestamp::now().to_string();
    session.run("a pause", "SELECT pg_sleep(0.01)").await.unwrap();
    now
}
