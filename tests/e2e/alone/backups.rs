//! Backups while what they need is away: the operator at each step, the store for long.

use std::time::Duration;

use hello_operator::api::backup::BackupPhase;
use hello_operator::api::{HelloBackup, HelloOperator};
use kube::Api;
use kube::api::ListParams;
use serde_json::json;

use crate::backup::{archived, back_up, create, phase, status, under_way};
use crate::cluster::{Signal, eventually};
use crate::harness::{Case, ClientPod, READY, Result, Store, Suite, alone_within};

const MINUTE: Duration = Duration::from_mins(1);
/// How long the store is away.
const AWAY: Duration = Duration::from_mins(10);

#[tokio::test]
#[ignore = "long: make test-all"]
async fn an_operator_that_is_killed_at_each_step_of_a_backup_makes_none_twice() -> Result {
    alone_within(15 * MINUTE, "operator-killed", killed).await
}

async fn killed(suite: &'static Suite, case: Case) -> Result {
    let store = Store::start(&case).await?;
    let backup = json!({"destination": store.destination("db"), "maxBytesPerSecond": "4Mi"});
    case.running("db", json!({"backup": backup})).await?;
    // As soon as there is one; as soon as it is written down who takes it; while it is taken; as soon as it is done.
    for step in ["asked", "given", "under-way", "done"] {
        create(&case, step, json!({"cluster": "db"})).await?;
        match step {
            "given" => {
                eventually(READY, "an instance to be chosen", || async {
                    let status = status(&case, step).await.map_err(|error| error.to_string())?;
                    status.instance.ok_or_else(|| "nobody is".to_owned())
                })
                .await?;
            }
            "under-way" => drop(under_way(&case, step).await?),
            "done" => {
                let manifests = || async { manifests(&store).await.map_err(|error| error.to_string()) };
                eventually(READY, "its manifest", || async {
                    let there = manifests().await?;
                    if there.len() == 4 { Ok(()) } else { Err(format!("{there:?}")) }
                })
                .await?;
            }
            _ => {}
        }
        kill_operators(suite).await?;
        let ended = phase(&case, step, BackupPhase::Completed).await?;
        let id = ended.backup_id.ok_or("its id")?;
        let there = manifests(&store).await?;
        assert!(there.contains(&format!("{id}/manifest.json")), "{step} is told to be {id}: {there:?}");
    }
    // Each once.
    assert_eq!(manifests(&store).await?.len(), 4);
    let objects: Api<HelloBackup> = case.api();
    assert_eq!(objects.list(&ListParams::default()).await?.items.len(), 4);
    case.says("db", "BackupHealthy", true, "").await.map(drop)
}

async fn manifests(store: &Store) -> Result<Vec<String>> {
    let mut objects = store.objects("db/base").await?;
    objects.retain(|object| object.ends_with("manifest.json"));
    Ok(objects)
}

/// All at once, so that nobody is left who knows what it was about.
async fn kill_operators(suite: &Suite) -> Result {
    let selector = "app.kubernetes.io/name=hello-operator";
    let all = ["-n", "hello-system", "delete", "pods", "-l", selector, "--grace-period=0", "--force"];
    suite.kubectl(&all, "").await?.ok().map(drop)
}

#[tokio::test]
#[ignore = "long: make test-all"]
async fn a_store_that_is_away_for_ten_minutes_under_load_costs_no_row() -> Result {
    alone_within(35 * MINUTE, "store-away", away).await
}

async fn away(_: &'static Suite, case: Case) -> Result {
    let store = Store::start(&case).await?;
    let backup = json!({"destination": store.destination("db"), "archiveTimeoutSeconds": 10});
    let (client, running) = tokio::join!(ClientPod::start(&case), case.running("db", json!({"backup": backup})));
    let client = client?;
    running?;
    back_up(&case, "first", json!({"cluster": "db"})).await?;
    let primary = case.primary("db").await?;
    case.sql(&primary, "create table load (n bigint, filler text)").await?;
    let writer = client.write(&case.uri("db").await?).await?;
    store.signal(Signal::Stop).await?;
    let began = tokio::time::Instant::now();
    let mut segments = 0;
    while began.elapsed() < AWAY {
        // About two segments at a time.
        let sql = "insert into load select g, repeat(md5(g::text), 8) from generate_series(1, 100000) g; truncate load";
        case.sql(&primary, sql).await?;
        segments += 2;
        writer.writes_on().await?;
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    case.says("db", "BackupHealthy", false, "").await?;
    let object = case.api::<HelloOperator>().get("db").await?;
    println!("{segments} segments or more wait: {:?}", crate::harness::condition(&object, "BackupHealthy"));
    store.signal(Signal::Continue).await?;
    case.says("db", "BackupHealthy", true, "").await?;
    let (rows, _) = writer.end().await?;
    archived(&case, &primary).await?;
    // Every row that was acknowledged, from before, meanwhile and after.
    let (count, most) = {
        let said = case.sql(&primary, "select count(*) || ' ' || max(n) from acknowledged").await?;
        let (count, most) = said.split_once(' ').ok_or("two numbers")?;
        (count.to_owned(), most.to_owned())
    };
    assert!(count.parse::<usize>()? >= rows);
    let restore = json!({"instances": 1, "bootstrap": {"restore": {"source": store.destination("db")}}});
    case.hello("copy", restore).await?;
    case.until(5 * READY, "copy", "restored", |object| {
        let ready = crate::harness::condition(object, "Ready").is_some_and(|found| found.status == "True");
        if ready { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await?;
    let copy = case.primary("copy").await?;
    case.sql_gives(&copy, "select count(*) || ' ' || max(n) from acknowledged", &format!("{count} {most}")).await
}
