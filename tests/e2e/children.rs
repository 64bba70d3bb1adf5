//! Each child is deleted in turn and comes back, while an application writes.

use std::fmt::Debug;

use hello_operator::api::names::Names;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::Resource;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cluster::eventually;
use crate::harness::{Case, ClientPod, READY, Result, SOON, Suite, case};

#[tokio::test]
async fn children_come_back_and_no_row_is_lost() -> Result {
    case("children", children).await
}

async fn children(_: &'static Suite, case: Case) -> Result {
    let (client, running) = tokio::join!(ClientPod::start(&case), case.running("db", json!({})));
    running?;
    let client = client?;
    let names = Names::new("db");
    let writer = client.write(&case.uri("db").await?).await?;

    // What no byte of the data path hangs on.
    case.replaced::<ConfigMap>(&names.config_map()).await?;
    case.replaced::<PodDisruptionBudget>(&names.pdb()).await?;
    case.replaced::<RoleBinding>(&names.agent_account()).await?;
    case.replaced::<Role>(&names.agent_account()).await?;
    case.replaced::<ServiceAccount>(&names.agent_account()).await?;
    case.ready("db").await?;
    writer.writes_on().await?;

    // The way to it.
    for service in [names.service_rw(), names.service_ro(), names.service_r(), names.service_headless()] {
        case.replaced::<Service>(&service).await?;
    }
    // What somebody changes by hand, or takes away, is put back.
    undone::<Service>(&case, &names.service_rw(), json!({"spec": {"ports": [{"port": 5432, "name": "mine"}]}})).await?;
    undone::<Service>(&case, &names.service_r(), json!({"spec": {"selector": null}})).await?;
    undone::<ConfigMap>(&case, &names.config_map(), json!({"data": null})).await?;
    undone::<Role>(&case, &names.agent_account(), json!({"rules": []})).await?;
    undone::<PodDisruptionBudget>(&case, &names.pdb(), json!({"spec": {"minAvailable": 0}})).await?;
    for slice in [names.endpoints_rw(), names.endpoints_ro()] {
        case.replaced::<EndpointSlice>(&slice).await?;
        has_addresses(&case, &slice).await?;
    }
    writer.writes_on().await?;

    // Certificates: made anew by the same authority, then by another one. The old ones end with the connections.
    for secret in [names.secret_server(), names.secret_replication(), names.secret_ca()] {
        case.replaced::<Secret>(&secret).await?;
        streams(&case).await?;
        writer.writes_on().await?;
    }
    case.ready("db").await?;

    // The register: made anew from what every member says of itself.
    case.replaced::<Lease>(&names.lease()).await?;
    case.ready("db").await?;
    writer.writes_on().await?;

    // Instances: a replica, a replica with its volume, the primary.
    let primary = case.primary("db").await?;
    let replicas = case.replicas("db").await?;
    let (first, second) = (replicas.first().ok_or("a replica")?, replicas.get(1).ok_or("two replicas")?);
    case.replaced::<Pod>(first).await?;
    case.ready("db").await?;
    let volumes = case.api::<PersistentVolumeClaim>();
    let before = volumes.get_metadata(second).await?.metadata.uid;
    volumes.delete(second, &DeleteParams::default()).await?;
    eventually(READY, "the replica to be cloned to a new volume", || async {
        match volumes.get_metadata_opt(second).await {
            Ok(Some(claim)) if claim.metadata.uid != before => Ok(()),
            Ok(_) => Err("not yet".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await?;
    case.ready("db").await?;
    case.replaced::<Pod>(&primary).await?;
    case.ready("db").await?;
    writer.writes_on().await?;
    let (rows, longest) = writer.end().await?;
    for instance in case.replicas("db").await? {
        let all = format!("select count(*) >= {rows} from acknowledged");
        case.sql_gives(&instance, &all, "t").await?;
    }

    // Passwords: new ones, in the Secrets and in the database.
    for (secret, database) in [(names.secret_app(), "app"), (names.secret_superuser(), "postgres")] {
        let before = case.secret(&secret, "password").await?;
        case.replaced::<Secret>(&secret).await?;
        assert_ne!(case.secret(&secret, "password").await?, before);
        let uri = case.secret(&secret, "uri").await?;
        client.psql_gives(&uri, "select current_database()", database).await?;
    }
    case.ready("db").await?;
    println!("{rows} rows, longest wait {longest:.1?}");
    Ok(())
}

async fn has_addresses(case: &Case, slice: &str) -> Result {
    let slices = case.api::<EndpointSlice>();
    eventually(SOON, &format!("addresses in {slice}"), || async {
        let found = slices.get(slice).await.map_err(|error| error.to_string())?;
        let count: usize = found.endpoints.into_iter().flatten().map(|endpoint| endpoint.addresses.len()).sum();
        if count > 0 { Ok(()) } else { Err("none".to_owned()) }
    })
    .await?;
    Ok(())
}

/// Waits until a replica streams to a connection that is made now: with the certificates of now.
async fn streams(case: &Case) -> Result {
    let primary = case.primary("db").await?;
    case.sql(&primary, "select pg_terminate_backend(pid) from pg_stat_replication").await?;
    let streaming = "select count(*) from pg_stat_replication where state = 'streaming'";
    case.sql_gives(&primary, streaming, "2").await
}

/// Changes an object as a person does, and waits until what it is for is as before.
async fn undone<K>(case: &Case, name: &str, patch: Value) -> Result
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Serialize + Debug,
{
    let objects = case.api::<K>();
    let content = |object: &K| -> Result<Value> {
        let mut value = serde_json::to_value(object)?;
        if let Some(fields) = value.as_object_mut() {
            fields.retain(|key, _| key != "metadata" && key != "status");
        }
        Ok(value)
    };
    let before = content(&objects.get(name).await?)?;
    let params = PatchParams { field_manager: Some("kubectl-edit".into()), ..PatchParams::default() };
    let changed = content(&objects.patch(name, &params, &Patch::Merge(&patch)).await?)?;
    assert_ne!(changed, before, "{name}: {patch} changes nothing");
    let what = format!("{} {name} to be as it was", K::kind(&()));
    eventually(SOON, &what, || async {
        let now = objects.get(name).await.map_err(|error| error.to_string())?;
        let now = content(&now).map_err(|error| error.to_string())?;
        if now == before { Ok(()) } else { Err(now.to_string()) }
    })
    .await?;
    Ok(())
}
