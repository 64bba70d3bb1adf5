//! The operator comes, is replaced by the next version and goes, while a database runs: nobody notices.

use std::path::{Path, PathBuf};

use hello_operator::api::names::{CRD_NAME, CRD_NAME_BACKUP};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::cluster::eventually;
use crate::harness::suite::{root, script};
use crate::harness::{Case, ClientPod, Result, SOON, Suite, alone_within, run};

#[tokio::test]
#[ignore = "long: make test-all"]
async fn an_upgrade_and_an_uninstall_touch_no_database() -> Result {
    alone_within(10 * SOON, "upgrade", upgrade).await
}

async fn upgrade(suite: &'static Suite, case: Case) -> Result {
    // There is no release yet: an older one is this chart under an older version and an older definition, and this operator under another name.
    let profile = suite.image().rsplit_once(':').and_then(|(_, tag)| tag.split_once('-')).ok_or("a tag")?.0;
    let built = script("hack/image", &[profile, "older"]).await?;
    let (_, archive) = built.split_once('\n').ok_or("hack/image prints two lines")?;
    suite.cluster().load_image(Path::new(archive)).await?;
    let older = older_chart()?;
    helm(
        suite,
        &[
            "upgrade",
            "hello-operator",
            &older.to_string_lossy(),
            "--reuse-values",
            "--set",
            "image.tag=older",
            "--wait",
        ],
    )
    .await?;

    let (client, running) = tokio::join!(ClientPod::start(&case), case.running("db", json!({})));
    running?;
    let writer = client?.write(&case.uri("db").await?).await?;
    let before = lives(&case).await?;
    let refused = helm(suite, &["test", "hello-operator"]).await;
    assert!(refused.is_err(), "the definitions are not those of this binary: {refused:?}");

    suite.install(&[]).await?;
    case.ready("db").await?;
    helm(suite, &["test", "hello-operator"]).await?;
    writer.writes_on().await?;
    assert_eq!(lives(&case).await?, before, "the upgrade restarted a database");
    assert!(suite.operator_pods().await?.iter().all(|pod| !format!("{:?}", pod.spec).contains("older")));

    helm(suite, &["uninstall", "hello-operator", "--wait", "--timeout", "90s"]).await?;
    writer.writes_on().await?;
    assert_eq!(lives(&case).await?, before, "the uninstallation restarted a database");
    let crds: Api<CustomResourceDefinition> = Api::all(case.client());
    for name in [CRD_NAME, CRD_NAME_BACKUP] {
        crds.get(name).await?;
    }
    case.kubectl(&["get", "helloop/db"]).await?.ok()?;
    writer.end().await?;

    // Nobody is there who could take a finalizer away.
    case.kubectl(&["delete", "helloop/db", "--timeout=30s"]).await?.ok()?;
    eventually(2 * SOON, "its Pods to be gone", || async {
        let pods = case.pods("db").await.map_err(|error| error.to_string())?;
        if pods.is_empty() { Ok(()) } else { Err(format!("{} are left", pods.len())) }
    })
    .await?;
    let claims = case.api::<PersistentVolumeClaim>().list(&ListParams::default()).await?;
    assert_eq!(claims.items.len(), 3, "the data stays");
    Ok(())
}

/// This chart as an older version, whose definitions do not fill in a status.
fn older_chart() -> Result<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("older-chart");
    let _ = std::fs::remove_dir_all(&folder);
    let copy =
        std::process::Command::new("cp").arg("-r").arg(root().join("charts/hello-operator")).arg(&folder).status()?;
    assert!(copy.success());
    let change = |file: &str, of: &dyn Fn(&str) -> String| -> Result {
        let path = folder.join(file);
        let text = std::fs::read_to_string(&path)?;
        let changed = of(&text);
        assert_ne!(changed, text, "{file}");
        Ok(std::fs::write(path, changed)?)
    };
    change("Chart.yaml", &|text| {
        text.lines().map(|line| line.replace("version: 0.1.0", "version: 0.0.1") + "\n").collect()
    })?;
    for name in [CRD_NAME, CRD_NAME_BACKUP] {
        let filled_in = "            default:\n              observedGeneration: -1\n";
        change(&format!("files/crds/{name}.yaml"), &|text| text.replace(filled_in, ""))?;
    }
    Ok(folder)
}

async fn helm(suite: &Suite, arguments: &[&str]) -> Result<String> {
    let kubeconfig = suite.cluster().kubeconfig().to_string_lossy().into_owned();
    let all = ["--kubeconfig", &kubeconfig, "-n", "hello-system"].into_iter().chain(arguments.iter().copied());
    run(3 * SOON, suite.helm(), all, "").await?.ok()
}

/// Each Pod of the database, and how often its containers began.
async fn lives(case: &Case) -> Result<Vec<(String, Option<String>, i32)>> {
    let restarts = |pod: &Pod| {
        let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
        statuses.into_iter().flatten().map(|status| status.restart_count).sum()
    };
    Ok(case.pods("db").await?.iter().map(|pod| (pod.name_any(), pod.uid(), restarts(pod))).collect())
}
