//! What helps to understand a failure, in a folder.

use std::path::{Path, PathBuf};

use futures::future::join_all;

use super::suite::{OPERATOR, OPERATOR_NAMESPACE, Suite};

/// Writes what is there now. Secrets appear by name only. What cannot be learnt is left out: this never fails.
pub async fn write(suite: &Suite, case: &str, namespaces: &[String]) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("e2e").join(case);
    let _ = std::fs::remove_dir_all(&folder);
    let _ = std::fs::create_dir_all(&folder);
    let operator = format!("deployment/{OPERATOR}");
    let logs = ["logs", &operator, "--all-pods", "--all-containers", "--prefix", "--tail=4000"];
    let cluster = async {
        tokio::join!(
            save(suite, &folder, "operator.log", OPERATOR_NAMESPACE, &logs),
            save(suite, &folder, "operator-pods.yaml", OPERATOR_NAMESPACE, &["get", "pods", "-o", "yaml"]),
            save(suite, &folder, "nodes.txt", "default", &["get", "nodes", "-o", "wide"]),
            save(
                suite,
                &folder,
                "crd.yaml",
                "default",
                &["get", "crd", hello_operator::api::names::CRD_NAME, "-o", "yaml"]
            ),
            save(suite, &folder, "volumes.txt", "default", &["get", "pv", "-o", "wide"]),
        )
    };
    tokio::join!(cluster, join_all(namespaces.iter().map(|namespace| one(suite, &folder, namespace))));
    folder
}

const KINDS: &str = "helloop,pods,pvc,services,endpointslices,configmaps,leases,pdb,serviceaccounts,roles,rolebindings";

async fn one(suite: &Suite, folder: &Path, namespace: &str) {
    let folder = folder.join(namespace);
    let _ = std::fs::create_dir_all(&folder);
    let (folder, all) = (folder.as_path(), format!("{KINDS},secrets"));
    let all = ["get", all.as_str(), "-o", "wide"];
    tokio::join!(
        save(suite, folder, "objects.txt", namespace, &all),
        save(suite, folder, "objects.yaml", namespace, &["get", KINDS, "-o", "yaml"]),
        save(
            suite,
            folder,
            "events.txt",
            namespace,
            &["get", "events", "--sort-by=.metadata.creationTimestamp", "-o", "wide"]
        ),
    );
    let Ok(said) = suite.kubectl(&["-n", namespace, "get", "pods", "-o", "name"], "").await else { return };
    join_all(said.stdout.lines().map(|pod| async move {
        let file = pod.replace('/', "-");
        let now = ["logs", pod, "--all-containers", "--prefix", "--tail=4000"];
        let before = ["logs", pod, "--all-containers", "--prefix", "--tail=4000", "--previous"];
        let (file, previous) = (format!("{file}.log"), format!("{file}-previous.log"));
        tokio::join!(save(suite, folder, &file, namespace, &now), save(suite, folder, &previous, namespace, &before),);
    }))
    .await;
}

async fn save(suite: &Suite, folder: &Path, file: &str, namespace: &str, arguments: &[&str]) {
    let arguments: Vec<_> =
        ["-n", namespace, "--request-timeout=20s"].into_iter().chain(arguments.iter().copied()).collect();
    let text = match suite.kubectl(&arguments, "").await {
        Ok(said) if said.stdout.is_empty() && !said.success => return,
        Ok(said) => said.stdout,
        Err(error) => error.to_string(),
    };
    let _ = std::fs::write(folder.join(file), text);
}
