//! What cannot be is refused by kubectl apply, with a sentence that says what to write instead.

use serde_json::{Value, json};

use crate::harness::{Case, Result, Suite, case};

#[tokio::test]
async fn invalid_objects_are_refused_in_words() -> Result {
    case("invalid", invalid).await
}

async fn invalid(_: &'static Suite, case: Case) -> Result {
    let quorum = json!({"instances": 2, "replication": {"durability": "Quorum", "syncReplicas": 2}});
    let refused = [
        (json!({"instances": 0}), "instances cannot be 0: to stop the Pods and keep the data, say state: Hibernated"),
        (json!({"instances": 10}), "use 1 to 9 instances"),
        (json!({"instances": -1}), "use 1 to 9 instances"),
        (json!({"version": 14}), "use a version that is supported: 15, 16, 17 or 18"),
        (json!({"version": "9.6"}), "use a version that is supported: 15, 16, 17 or 18"),
        (json!({"engine": "mysql"}), "supported values: \"postgresql\""),
        (json!({"uid": 0}), "use an id from 1 to 2147483647; root is not allowed"),
        (json!({"storage": {"size": "1Mi"}}), "use a size of at least 32Mi, such as 10Gi"),
        (json!({"storage": {"size": "much"}}), "use a size of at least 32Mi, such as 10Gi"),
        (quorum, "with durability Quorum, syncReplicas must be smaller than instances"),
        (json!({"postgresql": {"parameters": {"fsync": "off"}}}), "fsync belongs to the operator: remove it"),
        (
            json!({"postgresql": {"parameters": {"synchronous_standby_names": "*"}}}),
            "synchronous_standby_names belongs to the operator: remove it, and use spec.replication",
        ),
        (json!({"postgresql": {"parameters": {"Work_Mem": "1MB"}}}), "use names of settings as PostgreSQL writes them"),
        (json!({"postgresql": {"hba": ["all all all trust"]}}), "write one line of pg_hba.conf"),
        (json!({"postgresql": {"database": "postgres"}}), "that name belongs to PostgreSQL or to the operator"),
        (json!({"state": "Stopped"}), "supported values: \"Running\", \"Hibernated\", \"Paused\""),
        (json!({"instance": 3}), "unknown field \"spec.instance\""),
    ];
    for (spec, sentence) in refused {
        refuses(&case, "db", spec, sentence).await?;
    }
    refuses(&case, &"a".repeat(46), json!({}), "use a name of at most 45 characters").await?;
    refuses(&case, "my.db", json!({}), "use a name that begins with a letter").await?;
    refuses(&case, "1db", json!({}), "use a name that begins with a letter").await?;

    // One that is accepted, and what may not become of it. Paused: it costs no Pod.
    let first = json!({"state": "Paused", "version": 17, "instances": 3, "storage": {"size": "2Gi"}});
    case.hello("db", first).await?;
    let kept = |change: Value| {
        let mut spec = json!({"state": "Paused", "version": 17, "instances": 3, "storage": {"size": "2Gi"}});
        if let (Some(spec), Value::Object(change)) = (spec.as_object_mut(), change) {
            spec.extend(change);
        }
        spec
    };
    let changes = [
        (json!({"version": 16}), "version never goes down"),
        (json!({"version": "16"}), "version never goes down"),
        (json!({"storage": {"size": "1Gi"}}), "storage.size may grow but never shrink"),
        (
            json!({"storage": {"size": "2Gi", "storageClassName": "other"}}),
            "storage.storageClassName cannot be changed",
        ),
        (json!({"storage": {"size": "2Gi", "walSize": "1Gi"}}), "storage.walSize cannot be added or removed"),
        (json!({"postgresql": {"database": "other"}}), "postgresql.database and postgresql.owner cannot be changed"),
    ];
    for (change, sentence) in changes {
        refuses(&case, "db", kept(change), sentence).await?;
    }
    case.hello("db", kept(json!({"version": "17", "storage": {"size": "2049Mi"}}))).await?;
    let said = case.kubectl(&["scale", "helloop/db", "--replicas=0"]).await?.refused()?;
    assert!(said.contains("say state: Hibernated"), "{said}");

    // What kubectl tells of each field.
    let explained = case.kubectl(&["explain", "helloop.spec", "--recursive=false"]).await?.ok()?;
    for field in ["instances", "storage", "replication", "postgresql", "state"] {
        let (_, text) =
            explained.split_once(&format!("  {field}\t")).ok_or_else(|| format!("{field} in {explained}"))?;
        let described = text.lines().nth(1).is_some_and(|line| line.trim().len() > 10);
        assert!(described, "{field} is explained: {explained}");
    }
    let columns = case.kubectl(&["get", "helloop"]).await?.ok()?;
    for column in ["READY", "PRIMARY", "STATUS", "AGE"] {
        assert!(columns.contains(column), "{columns}");
    }
    Ok(())
}

async fn refuses(case: &Case, name: &str, spec: Value, sentence: &str) -> Result {
    let object =
        json!({"apiVersion": "terry.com/v1", "kind": "HelloOperator", "metadata": {"name": name}, "spec": spec});
    let said = case.apply(&object).await?.refused().map_err(|error| format!("{object} was not refused: {error}"))?;
    if said.contains(sentence) { Ok(()) } else { Err(format!("{object}: expected {sentence:?}, got {said}").into()) }
}
