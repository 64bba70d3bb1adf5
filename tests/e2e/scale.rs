//! More instances, and fewer.

use hello_operator::api::names::{ANNOTATION_REGISTER, Names};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use serde_json::json;

use crate::cluster::eventually;
use crate::harness::{Case, READY, Result, Suite, case};

#[tokio::test]
async fn scale_up_and_down_and_never_below_the_quorum() -> Result {
    case("scale", scale).await
}

async fn scale(_: &'static Suite, case: Case) -> Result {
    case.running("db", json!({})).await?;
    let primary = case.primary("db").await?;
    case.sql(&primary, "create table t as select generate_series(1, 1000) as n").await?;

    case.scale("db", 5).await?;
    let status = case.ready("db").await?.status.ok_or("a status")?;
    assert_eq!((status.ready.as_deref(), status.instance_count), (Some("5/5"), 5));
    let pods: Vec<_> = case.pods("db").await?.iter().map(ResourceExt::name_any).collect();
    assert_eq!(pods, ["db-1", "db-2", "db-3", "db-4", "db-5"]);
    for pod in &pods {
        case.sql_gives(pod, "select count(*) from t", "1000").await?;
        let expected = if *pod == primary { "f" } else { "t" };
        assert_eq!(case.sql(pod, "select pg_is_in_recovery()").await?, expected, "{pod}");
    }
    let streaming = "select count(*) from pg_stat_replication where state = 'streaming'";
    assert_eq!(case.sql(&primary, streaming).await?, "4");
    // Every one of them counts for a commit.
    rule_of(&case, &primary, 4).await?;

    case.scale("db", 2).await?;
    let status = case.ready("db").await?.status.ok_or("a status")?;
    assert_eq!((status.ready.as_deref(), status.instance_count), (Some("2/2"), 2));
    assert_eq!(case.primary("db").await?, primary, "the primary is never the one that goes");
    for ordinal in 3..=5 {
        case.gone::<PersistentVolumeClaim>(&format!("db-{ordinal}")).await?;
    }
    assert_eq!(case.volumes("db").await?, ["db-1", "db-2"]);
    rule_of(&case, &primary, 1).await?;
    case.sql_gives(&primary, "select count(*) from pg_replication_slots where slot_type = 'physical'", "1").await?;
    case.sql(&primary, "insert into t values (1001)").await?;

    // One instance could never satisfy the quorum: refused, in words, and nothing happens.
    case.scale("db", 1).await?;
    case.says("db", "Degraded", true, "replication.durability: Async").await?;
    case.event("db", "ScalingRefused", "replication.durability: Async").await?;
    assert_eq!(case.pods("db").await?.len(), 2);
    assert_eq!(case.volumes("db").await?.len(), 2);
    case.sql(&primary, "insert into t values (1002)").await?;
    case.change("db", json!({"replication": {"durability": "Async"}})).await?;
    let status = case.ready("db").await?.status.ok_or("a status")?;
    assert_eq!(status.ready.as_deref(), Some("1/1"));
    case.sql(&primary, "insert into t values (1003)").await?;
    assert_eq!(case.sql(&primary, "select count(*) from t").await?, "1003");
    Ok(())
}

/// Waits until the sync rule names so many members, in the Lease and in PostgreSQL alike.
async fn rule_of(case: &Case, primary: &str, members: usize) -> Result {
    let leases = case.api::<Lease>();
    eventually(READY, &format!("a rule of {members} members"), || async {
        let lease = leases.get(&Names::new("db").lease()).await.map_err(|error| error.to_string())?;
        let register = lease.annotations().get(ANNOTATION_REGISTER).cloned().unwrap_or_default();
        let register: serde_json::Value = serde_json::from_str(&register).map_err(|error| error.to_string())?;
        let rules = register.pointer("/rules").and_then(|rules| rules.as_array()).cloned().unwrap_or_default();
        let named: Vec<_> = rules.iter().filter_map(|rule| Some(rule.pointer("/members")?.as_array()?.len())).collect();
        let set = case.sql(primary, "show synchronous_standby_names").await.map_err(|error| error.to_string())?;
        let in_force = set.matches('"').count() / 2;
        if named == [members] && in_force == members { Ok(()) } else { Err(format!("{rules:?}; PostgreSQL has {set}")) }
    })
    .await?;
    Ok(())
}
