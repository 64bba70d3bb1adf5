//! The object goes: what stays, what goes with it, and what a new object of the same name finds.

use hello_operator::api::names::Names;
use hello_operator::api::spec::HelloOperator;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service};
use serde_json::json;

use crate::harness::{Case, ClientPod, Result, Suite, case};

#[tokio::test]
async fn lifetime_a_new_object_of_the_same_name_finds_data_and_passwords() -> Result {
    case("retain", retain).await
}

async fn retain(_: &'static Suite, case: Case) -> Result {
    let spec = json!({"instances": 2, "storage": {"onDelete": "Retain"}});
    let (client, running) = tokio::join!(ClientPod::start(&case), case.running("db", spec.clone()));
    running?;
    let client = client?;
    let names = Names::new("db");
    let uri = case.uri("db").await?;
    client.psql(&uri, "create table kept (n int); insert into kept values (42)").await?;
    let system = "select system_identifier from pg_control_system()";
    let identity = case.sql("db-1", system).await?;

    case.kubectl(&["delete", "helloop/db"]).await?.ok()?;
    for pod in ["db-1", "db-2"] {
        case.gone::<Pod>(pod).await?;
    }
    case.gone::<Service>(&names.service_rw()).await?;
    case.gone::<ConfigMap>(&names.config_map()).await?;
    assert_eq!(case.volumes("db").await?, ["db-1", "db-2"]);

    case.running("db", spec).await?;
    assert_eq!(case.sql("db-1", system).await?, identity, "the same database");
    assert_eq!(case.uri("db").await?, uri, "the same password");
    client.psql_gives(&uri, "select n from kept", "42").await?;
    client.psql(&uri, "insert into kept values (43)").await?;
    case.sql_gives("db-2", "select count(*) from kept", "2").await
}

#[tokio::test]
async fn lifetime_delete_takes_the_volumes_along() -> Result {
    case("delete", delete).await
}

async fn delete(_: &'static Suite, case: Case) -> Result {
    case.running("db", json!({"instances": 1, "storage": {"onDelete": "Delete", "walSize": "1Gi"}})).await?;
    assert_eq!(case.volumes("db").await?, ["db-1", "db-1-wal"]);
    assert_eq!(case.sql("db-1", "select count(*) > 0 from pg_ls_waldir()").await?, "t");
    case.kubectl(&["delete", "helloop/db"]).await?.ok()?;
    let names = Names::new("db");
    for volume in ["db-1", "db-1-wal"] {
        case.gone::<PersistentVolumeClaim>(volume).await?;
    }
    for secret in [names.secret_app(), names.secret_superuser(), names.secret_ca()] {
        case.gone::<Secret>(&secret).await?;
    }
    case.gone::<Lease>(&names.lease()).await?;
    case.gone::<HelloOperator>("db").await
}
