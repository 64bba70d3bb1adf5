//! Every major version of PostgreSQL that is offered: three instances, both kinds of hand-over, a backup and what is restored
//! from it. The one of every day is in all other cases.

use std::time::Duration;

use hello_operator::api::HelloOperator;
use kube::ResourceExt;
use serde_json::json;

use crate::backup::{archived, back_up};
use crate::cluster::{Process, Signal, eventually};
use crate::harness::suite::script;
use crate::harness::{Case, READY, Result, SOON, Store, Suite, alone_within};

/// The image is built the first time, and goes to three nodes.
const LONG: Duration = Duration::from_mins(15);

#[tokio::test]
#[ignore = "long: make test-all"]
async fn version_15_of_postgres_hands_over_and_is_backed_up() -> Result {
    alone_within(LONG, "version-15", |suite, case| life(suite, case, 15)).await
}

#[tokio::test]
#[ignore = "long: make test-all"]
async fn version_16_of_postgres_hands_over_and_is_backed_up() -> Result {
    alone_within(LONG, "version-16", |suite, case| life(suite, case, 16)).await
}

#[tokio::test]
#[ignore = "long: make test-all"]
async fn version_18_of_postgres_hands_over_and_is_backed_up() -> Result {
    alone_within(LONG, "version-18", |suite, case| life(suite, case, 18)).await
}

async fn life(suite: &'static Suite, case: Case, version: u16) -> Result {
    let built = script("tests/cluster/build", &["--path", &format!("postgres-{version}")]).await?;
    suite.cluster().load_image(std::path::Path::new(&built).join("image.tar").as_path()).await?;
    let store = Store::start(&case).await?;
    case.running("db", json!({"version": version, "backup": {"destination": store.destination("db")}})).await?;
    let first = case.primary("db").await?;
    let major = "select current_setting('server_version_num')::int / 10000";
    assert_eq!(case.sql(&first, major).await?, version.to_string());
    case.sql(&first, "create table t (n int primary key); insert into t select generate_series(1, 1000)").await?;

    // Somebody asks for it.
    let next = case.replicas("db").await?.into_iter().next().ok_or("a replica")?;
    case.change("db", json!({"primary": next})).await?;
    becomes_primary(&case, &next).await?;
    case.ready("db").await?;
    case.sql(&next, "insert into t values (1001)").await?;
    everybody_has(&case, "1001").await?;

    // Nobody does: the postmaster dies, and what is left of it follows the new one.
    case.change("db", json!({"primary": null})).await?;
    case.ready("db").await?;
    let before = term(&case).await?;
    let postmaster = Process::Matching("^postgres -D ");
    suite.cluster().pod(case.namespace(), &next).signal("postgres", postmaster, Signal::Kill).await?;
    eventually(READY, "another term", || async {
        let term = term(&case).await.map_err(|error| error.to_string())?;
        if term > before { Ok(()) } else { Err(format!("it is {term}")) }
    })
    .await?;
    case.ready("db").await?;
    let primary = case.primary("db").await?;
    case.sql(&primary, "insert into t values (1002)").await?;
    everybody_has(&case, "1002").await?;

    let taken = back_up(&case, "first", json!({"cluster": "db"})).await?;
    assert_eq!(taken.role.as_deref(), Some("replica"), "{taken:?}");
    case.sql(&primary, "insert into t values (1003)").await?;
    archived(&case, &primary).await?;
    let restore =
        json!({"version": version, "instances": 1, "bootstrap": {"restore": {"source": store.destination("db")}}});
    case.running("copy", restore).await?;
    case.sql_gives(&case.primary("copy").await?, "select count(*) from t", "1003").await?;
    case.says("db", "BackupHealthy", true, "").await.map(drop)
}

async fn term(case: &Case) -> Result<i64> {
    let status = case.api::<HelloOperator>().get("db").await?.status;
    Ok(status.and_then(|status| status.primary).ok_or("the status names no primary")?.term)
}

async fn becomes_primary(case: &Case, wanted: &str) -> Result {
    eventually(SOON, &format!("{wanted} to be primary"), || async {
        let primary = case.primary("db").await.map_err(|error| error.to_string())?;
        if primary == wanted { Ok(()) } else { Err(format!("{primary} is")) }
    })
    .await?;
    Ok(())
}

async fn everybody_has(case: &Case, rows: &str) -> Result {
    for pod in case.pods("db").await? {
        case.sql_gives(&pod.name_any(), "select count(*) from t", rows).await?;
    }
    Ok(())
}
