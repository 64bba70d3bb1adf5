//! Three instances over three nodes: where rows go, and what a commit waits for.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use hello_operator::api::names::Names;
use serde_json::json;

use crate::cluster::{Process, Signal, eventually};
use crate::harness::{Case, ClientPod, Result, SOON, Suite, case};

#[tokio::test]
async fn replication_over_three_nodes_and_a_commit_waits_for_a_replica() -> Result {
    case("replication", replication).await
}

async fn replication(suite: &'static Suite, case: Case) -> Result {
    let (client, running) = tokio::join!(ClientPod::start(&case), case.running("db", json!({})));
    let client = client?;
    let status = running?.status.ok_or("a status")?;
    assert_eq!(status.ready.as_deref(), Some("3/3"));
    let nodes: BTreeSet<_> = status.instances.iter().filter_map(|instance| instance.node.clone()).collect();
    assert_eq!(nodes.len(), 3, "one instance per node: {:?}", status.instances);

    // As an application: the uri of the Secret, and the certificate checked.
    let names = Names::new("db");
    let authority = client.file("ca.crt", &case.secret(&names.secret_server(), "ca.crt").await?).await?;
    let rw = case.uri("db").await?.replace("sslmode=require", &format!("sslmode=verify-full&sslrootcert={authority}"));
    assert!(rw.contains("verify-full"), "the uri asks for TLS");
    client.psql(&rw, "create table t (n int)").await?;
    client.psql(&rw, "insert into t select generate_series(1, 1000)").await?;
    let plain = client.psql(&rw.replace("verify-full", "disable"), "select 1").await;
    assert!(plain.is_err(), "a connection without TLS was accepted");

    // From each replica by its own name, and from -ro, which never takes a write.
    let primary = case.primary("db").await?;
    let (host, ro) = (format!("{}.{}.svc", names.service_rw(), case.namespace()), names.service_ro());
    for replica in case.replicas("db").await? {
        let own = format!("{replica}.{}.{}.svc", names.service_headless(), case.namespace());
        let uri = rw.replace(&host, &own);
        client.psql_gives(&uri, "select count(*), pg_is_in_recovery() from t", "1000|t").await?;
    }
    let ro = rw.replace(&host, &format!("{ro}.{}.svc", case.namespace()));
    client.psql_gives(&ro, "select count(*), pg_is_in_recovery() from t", "1000|t").await?;
    let refused = client.psql(&ro, "insert into t values (0)").await.err().ok_or("-ro took a write")?.to_string();
    assert!(refused.contains("read-only"), "{refused}");
    let any = rw.replace(&host, &format!("{}.{}.svc", names.service_r(), case.namespace()));
    client.psql_gives(&any, "select count(*) from t", "1000").await?;

    // One replica is enough for a commit, none is not.
    let replicas = case.replicas("db").await?;
    let (first, second) = (replicas.first().ok_or("a replica")?, replicas.get(1).ok_or("two replicas")?);
    let receiver = |pod: &str| suite.cluster().pod(case.namespace(), pod);
    receiver(first).signal("postgres", Process::Matching("walreceiver"), Signal::Stop).await?;
    client.psql(&rw, "insert into t values (1001)").await?;
    receiver(second).signal("postgres", Process::Matching("walreceiver"), Signal::Stop).await?;
    let commit = tokio::spawn({
        let (client, rw) = (client.clone(), rw.clone());
        async move { client.psql(&rw, "insert into t values (1002)").await }
    });
    let waits = "select count(*) from pg_stat_activity where wait_event = 'SyncRep' and query like 'insert into t%'";
    case.sql_gives(&primary, waits, "1").await?;
    let since = Instant::now();
    // What is proven is that nothing happens: it has to be given time not to happen.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!commit.is_finished(), "a commit returned that no replica has");
    assert_eq!(case.sql(&primary, waits).await?, "1");
    assert_eq!(case.sql(&primary, "select count(*) from t where n = 1002").await?, "0", "and nobody sees its row");
    receiver(first).signal("postgres", Process::Matching("walreceiver"), Signal::Continue).await?;
    tokio::time::timeout(SOON, commit).await???;
    println!("a commit without replicas waited for {:.1?}", since.elapsed());
    receiver(second).signal("postgres", Process::Matching("walreceiver"), Signal::Continue).await?;
    eventually(SOON, "every instance to have the row", || async {
        for instance in [&primary, first, second] {
            let count = case.sql(instance, "select count(*) from t where n = 1002").await.map_err(|e| e.to_string())?;
            if count != "1" {
                return Err(format!("{instance}: {count}"));
            }
        }
        Ok(())
    })
    .await?;
    case.ready("db").await?;
    Ok(())
}
