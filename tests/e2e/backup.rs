//! Archive, backup and restore as users meet them, with an S3 server that checks signatures.

use std::time::Duration;

use hello_operator::api::backup::{BackupPhase, HelloBackupStatus};
use hello_operator::api::{HelloBackup, HelloOperator};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use serde_json::{Value, json};

use crate::cluster::{Signal, eventually};
use crate::harness::{Case, ClientPod, READY, Result, SOON, Store, Suite, case};

#[tokio::test]
async fn a_table_dropped_by_mistake_comes_back_in_another_cluster() -> Result {
    case("backup", story).await
}

async fn story(_: &'static Suite, case: Case) -> Result {
    let store = Store::start(&case).await?;
    case.running("db", json!({"backup": {"destination": store.destination("team/db")}})).await?;
    let primary = case.primary("db").await?;
    case.sql(&primary, "create table history (n int primary key, at timestamptz default clock_timestamp())").await?;
    case.sql(&primary, "insert into history select generate_series(1, 1000)").await?;

    let taken = back_up(&case, "first", json!({"cluster": "db"})).await?;
    assert_eq!(taken.role.as_deref(), Some("replica"), "{taken:?}");
    assert!(taken.stored_bytes.unwrap_or(0) > 0 && taken.total_bytes == taken.done_bytes, "{taken:?}");
    case.event("db", "BackupCompleted", "first").await?;

    // A known history around a known moment.
    case.sql(&primary, "insert into history select generate_series(1001, 2000)").await?;
    let moment = case
        .sql(&primary, "select to_char(clock_timestamp() at time zone 'utc', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')")
        .await?;
    case.sql(&primary, "select pg_sleep(0.01); insert into history values (2001)").await?;
    case.sql(&primary, "drop table history; create table after_it (n int)").await?;
    archived(&case, &primary).await?;

    // While the source lives: the moment before the mistake, with replicas; and the latest moment, by the name of the backup.
    let restored = json!({"bootstrap": {"restore": {"source": store.destination("team/db"), "targetTime": moment}}});
    let latest = json!({"instances": 1, "bootstrap": {"restore": {"backup": "first"}},
        "backup": {"destination": store.destination("team/latest")}});
    case.hello("back", restored).await?;
    case.hello("latest", latest).await?;
    case.ready("back").await?;
    let back = case.primary("back").await?;
    case.sql_gives(&back, "select count(*), min(n), max(n) from history", "2000|1|2000").await?;
    case.sql(&back, "insert into history values (-1)").await?;
    for replica in case.replicas("back").await? {
        case.sql_gives(&replica, "select count(*) from history", "2001").await?;
    }
    case.ready("latest").await?;
    let latest = case.primary("latest").await?;
    case.sql_gives(&latest, "select to_regclass('history') is null, count(*) from after_it", "t|0").await?;

    // What was restored has an archive of its own, from which it is restored again: before and after the fork.
    case.sql(&latest, "insert into after_it values (1)").await?;
    back_up(&case, "second", json!({"cluster": "latest"})).await?;
    case.sql(&latest, "insert into after_it values (2)").await?;
    archived(&case, &latest).await?;
    let again = json!({"instances": 1, "bootstrap": {"restore": {"source": store.destination("team/latest")}}});
    case.running("again", again).await?;
    case.sql_gives(&case.primary("again").await?, "select count(*) from after_it", "2").await?;

    // A destination that is another cluster's.
    case.hello("thief", json!({"instances": 1, "backup": {"destination": store.destination("team/db")}})).await?;
    case.ready("thief").await?;
    case.says("thief", "BackupHealthy", false, "belongs to").await?;
    case.says("db", "BackupHealthy", true, "").await?;
    Ok(())
}

#[tokio::test]
async fn the_newest_backup_is_proven_and_a_damaged_one_is_found() -> Result {
    case("verify", verify).await
}

async fn verify(_: &'static Suite, case: Case) -> Result {
    let store = Store::start(&case).await?;
    let proof = json!({"schedule": "* * * * *", "query": "select 1 / count(*) from t"});
    let backup = json!({"destination": store.destination("db"), "verify": proof});
    case.running("db", json!({"instances": 1, "backup": backup})).await?;
    case.sql(&case.primary("db").await?, "create table t (n int); insert into t values (1)").await?;
    let taken = back_up(&case, "first", json!({"cluster": "db"})).await?;
    let status = |object: &HelloOperator| {
        object.status.as_ref().and_then(|status| status.backup.clone()).ok_or("no status of backups")
    };
    let proven = case.until(2 * READY, "db", "proven", |object| {
        let status = status(object)?;
        if status.last_verified.is_some() { Ok(()) } else { Err(format!("{status:?}")) }
    });
    let proven = proven.await?;
    assert_eq!(status(&proven)?.last_verified.map(|proof| proof.backup_id), taken.backup_id);
    case.says("db", "BackupHealthy", true, "").await?;

    store.damage(&format!("db/base/{}/part-0000.tar.zst", taken.backup_id.ok_or("its id")?)).await?;
    case.until(2 * READY, "db", "found to be damaged", |object| match status(object)?.verification_error {
        Some(error) if error.contains("damaged") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await?;
    case.says("db", "BackupHealthy", false, "damaged").await?;
    case.gone::<Pod>("db-verify").await
}

#[tokio::test]
async fn a_store_that_is_away_holds_up_no_write_and_is_caught_up_with() -> Result {
    case("archive", away).await
}

async fn away(_: &'static Suite, case: Case) -> Result {
    let store = Store::start(&case).await?;
    let spec = json!({"instances": 1, "backup": {"destination": store.destination("db"), "archiveTimeoutSeconds": 10}});
    let (client, running) = tokio::join!(ClientPod::start(&case), case.running("db", spec));
    let client = client?;
    running?;
    let primary = case.primary("db").await?;
    case.sql(&primary, "create table t (n int)").await?;
    let taken = back_up(&case, "first", json!({"cluster": "db"})).await?;
    case.says("db", "BackupHealthy", true, "").await?;

    store.signal(Signal::Stop).await?;
    let writer = client.write(&case.uri("db").await?).await?;
    for _ in 0..5 {
        case.sql(&primary, "select pg_logical_emit_message(true, 'a', 'b'), pg_switch_wal()").await?;
    }
    case.says("db", "BackupHealthy", false, "").await?;
    writer.writes_on().await?;
    store.signal(Signal::Continue).await?;
    case.says("db", "BackupHealthy", true, "").await?;
    let (rows, _) = writer.end().await?;
    assert!(rows > 0);
    archived(&case, &primary).await?;

    // A Secret that is changed is taken over without a restart, in both directions.
    let started = case.sql(&primary, "select pg_postmaster_start_time()").await?;
    store.allow(&case, "wrong").await?;
    eventually(2 * SOON, "the refusal to be told", || async {
        switch(&case, &primary).await?;
        let object = case.api::<HelloOperator>().get("db").await.map_err(|error| error.to_string())?;
        let found = crate::harness::condition(&object, "BackupHealthy")
            .map(|found| (found.status.clone(), found.message.clone()));
        match found {
            Some((status, message)) if status == "False" && message.contains("credentials") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    store.allow(&case, crate::harness::STORE_KEY).await?;
    case.says("db", "BackupHealthy", true, "").await?;
    assert_eq!(case.sql(&primary, "select pg_postmaster_start_time()").await?, started);

    // What is cancelled leaves nothing.
    case.change("db", json!({"backup": {"maxBytesPerSecond": "64Ki"}})).await?;
    create(&case, "slow", json!({"cluster": "db"})).await?;
    phase(&case, "slow", BackupPhase::Running).await?;
    eventually(SOON, "something of it in the store", || async {
        let objects = store.objects("db/base").await.map_err(|error| error.to_string())?;
        let status = status(&case, "slow").await.map_err(|error| error.to_string())?;
        if status.done_bytes.unwrap_or(0) > 0 { Ok(()) } else { Err(format!("{objects:?} {status:?}")) }
    })
    .await?;
    case.kubectl(&["delete", "hellobk", "slow"]).await?.ok()?;
    eventually(SOON, "nothing of it in the store", || async {
        let objects = store.objects("db/base").await.map_err(|error| error.to_string())?;
        let first = taken.backup_id.as_deref().unwrap_or("?");
        if objects.iter().all(|object| object.starts_with(first)) { Ok(()) } else { Err(format!("{objects:?}")) }
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_backup_that_is_interrupted_fails_in_words_and_the_next_one_succeeds() -> Result {
    case("interrupted", interrupted).await
}

async fn interrupted(_: &'static Suite, case: Case) -> Result {
    let store = Store::start(&case).await?;
    let slow = json!({"backup": {"maxBytesPerSecond": "256Ki"}});
    let fast = json!({"backup": {"maxBytesPerSecond": null}});
    let backup = json!({"destination": store.destination("db"), "maxBytesPerSecond": "256Ki"});
    case.running("db", json!({"backup": backup})).await?;
    let primary = case.primary("db").await?;
    case.sql(&primary, "create table t (n int); insert into t values (1)").await?;

    // The agent that takes it goes away.
    create(&case, "lost", json!({"cluster": "db"})).await?;
    let taken = under_way(&case, "lost").await?;
    case.kubectl(&["delete", "pod", &taken.instance.ok_or("who takes it")?, "--grace-period=0", "--force"])
        .await?
        .ok()?;
    phase(&case, "lost", BackupPhase::Failed).await?;
    case.ready("db").await?;

    // The primary that takes it hands over, and the rest of the database does not mind.
    create(&case, "handed-over", json!({"cluster": "db", "target": "Primary"})).await?;
    let taken = under_way(&case, "handed-over").await?;
    assert_eq!(taken.instance.as_deref(), Some(primary.as_str()));
    let next = case.replicas("db").await?.into_iter().next().ok_or("a replica")?;
    case.change("db", json!({"primary": next})).await?;
    phase(&case, "handed-over", BackupPhase::Failed).await?;
    case.ready("db").await?;

    // Neither counts, and the next one succeeds.
    case.change("db", fast).await?;
    let good = back_up(&case, "good", json!({"cluster": "db"})).await?;
    let manifests: Vec<_> =
        store.objects("db/base").await?.into_iter().filter(|object| object.ends_with("manifest.json")).collect();
    assert_eq!(manifests, [format!("{}/manifest.json", good.backup_id.unwrap_or_default())]);

    // A cluster that hibernates has archived its last row.
    case.change("db", slow).await?;
    let primary = case.primary("db").await?;
    case.sql(&primary, "insert into t values (2)").await?;
    case.change("db", json!({"state": "Hibernated"})).await?;
    eventually(READY, "its Pods to be gone", || async {
        let pods = case.pods("db").await.map_err(|error| error.to_string())?;
        if pods.is_empty() { Ok(()) } else { Err(format!("{} are left", pods.len())) }
    })
    .await?;
    let restore = json!({"restore": {"source": store.destination("db")}});
    case.running("copy", json!({"instances": 1, "bootstrap": restore})).await?;
    case.sql_gives(&case.primary("copy").await?, "select count(*) from t", "2").await
}

#[tokio::test]
async fn a_volume_takes_backups_and_gives_them_back() -> Result {
    case("volume", volume).await
}

async fn volume(_: &'static Suite, case: Case) -> Result {
    // The volumes of the local cluster are a node's own, so one instance has it, and what is restored lands on the same node.
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "backups"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    case.apply(&claim).await?.ok()?;
    let to = |path: &str| json!({"volume": {"claim": "backups", "path": path}});
    case.running("db", json!({"instances": 1, "backup": {"destination": to("db")}})).await?;
    let primary = case.primary("db").await?;
    case.sql(&primary, "create table t (n int); insert into t values (1)").await?;
    let taken = back_up(&case, "first", json!({"cluster": "db"})).await?;
    assert_eq!(taken.role.as_deref(), Some("primary"), "{taken:?}");
    case.sql(&primary, "insert into t values (2)").await?;
    archived(&case, &primary).await?;
    case.says("db", "BackupHealthy", true, "").await?;
    let restore = json!({"instances": 1, "bootstrap": {"restore": {"source": to("db")}}});
    case.running("copy", restore).await?;
    case.sql_gives(&case.primary("copy").await?, "select count(*) from t", "2").await
}

/// A HelloBackup that has begun to read.
pub async fn under_way(case: &Case, name: &str) -> Result<HelloBackupStatus> {
    let what = format!("the backup {name} to be under way");
    let found = eventually(READY, &what, || async {
        let status = status(case, name).await.map_err(|error| error.to_string())?;
        let begun = status.phase == BackupPhase::Running && status.done_bytes.unwrap_or(0) > 0;
        if begun { Ok(status) } else { Err(format!("{status:?}")) }
    });
    Ok(found.await?)
}

pub async fn create(case: &Case, name: &str, spec: Value) -> Result {
    let object = json!({"apiVersion": "terry.com/v1", "kind": "HelloBackup", "metadata": {"name": name}, "spec": spec});
    case.apply(&object).await?.ok().map(drop)
}

/// A HelloBackup that is complete.
pub async fn back_up(case: &Case, name: &str, spec: Value) -> Result<HelloBackupStatus> {
    create(case, name, spec).await?;
    phase(case, name, BackupPhase::Completed).await
}

pub async fn status(case: &Case, name: &str) -> Result<HelloBackupStatus> {
    let objects: Api<HelloBackup> = case.api();
    Ok(objects.get(name).await?.status.unwrap_or_default())
}

pub async fn phase(case: &Case, name: &str, wanted: BackupPhase) -> Result<HelloBackupStatus> {
    let what = format!("the backup {name} to be {wanted:?}");
    let found = eventually(READY, &what, || async {
        let status = status(case, name).await.map_err(|error| error.to_string())?;
        if status.phase == wanted { Ok(status) } else { Err(format!("{status:?}")) }
    });
    Ok(found.await?)
}

async fn switch(case: &Case, primary: &str) -> Result<String, String> {
    let sql = "select pg_logical_emit_message(true, 'a', 'b'); select pg_walfile_name(pg_switch_wal())";
    case.sql(primary, sql).await.map_err(|error| error.to_string())
}

/// Everything up to now is in the archive.
pub async fn archived(case: &Case, primary: &str) -> Result {
    let said = switch(case, primary).await?;
    let segment = said.lines().last().unwrap_or_default().to_owned();
    let sql = format!("select last_archived_wal >= '{segment}' from pg_stat_archiver");
    let what = format!("{segment} to be archived");
    let done = eventually(SOON + Duration::from_secs(30), &what, || async {
        let answer = case.sql(primary, &sql).await.map_err(|error| error.to_string())?;
        if answer == "t" { Ok(()) } else { Err(answer) }
    });
    Ok(done.await?)
}
