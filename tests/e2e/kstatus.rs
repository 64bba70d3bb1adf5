//! What tools that know nothing of databases make of our objects: kstatus, the library by which Helm and Flux wait.

use std::path::PathBuf;

use serde_json::json;

use crate::cluster::eventually;
use crate::harness::suite::script;
use crate::harness::{Case, READY, Result, SOON, Suite, case, run};

#[tokio::test]
async fn kstatus_sees_what_is_made_what_is_done_and_what_stands_still() -> Result {
    case("kstatus", look).await
}

async fn look(_: &'static Suite, case: Case) -> Result {
    let program = PathBuf::from(script("tests/cluster/build", &["--path", "kstatus"]).await?).join("kstatus");
    // As they are right after they were made: nobody has looked at them.
    for kind in ["HelloOperator", "HelloBackup"] {
        let spec = json!({"cluster": "nobody"});
        let spec = if kind == "HelloBackup" { spec } else { json!({"instances": 1}) };
        let object = json!({"apiVersion": "terry.com/v1", "kind": kind, "metadata": {"name": "db"}, "spec": spec});
        let made = case.kubectl_with(&["create", "-o", "json", "-f", "-"], &object.to_string()).await?.ok()?;
        let list = format!("{{\"items\": [{made}]}}");
        let said = run(SOON, &program, [""; 0], &list).await?.ok()?;
        assert!(said.starts_with("db InProgress "), "a new {kind}: {said}");
    }
    let said = async |kind: &str| -> Result<String> {
        let list = case.kubectl(&["get", kind, "-o", "json"]).await?.ok()?;
        run(SOON, &program, [""; 0], &list).await?.ok()
    };
    let becomes = async |wanted: &str| {
        let what = format!("kstatus to say {wanted}");
        eventually(READY, &what, || async {
            let said = said("helloop").await.map_err(|error| error.to_string())?;
            if said.starts_with(&format!("db {wanted}")) { Ok(()) } else { Err(said) }
        })
        .await
    };
    becomes("Current").await?;
    case.ready("db").await?;
    assert!(said("hellobk").await?.starts_with("db InProgress "), "a backup of nobody waits");
    case.change("db", json!({"state": "Hibernated"})).await?;
    becomes("Current").await?;
    assert!(case.pods("db").await?.is_empty(), "it sleeps");
    // Last: the API server takes no lower version back.
    case.change("db", json!({"version": 18})).await?;
    becomes("Failed version 18 is wanted").await?;
    Ok(())
}
