//! The local cluster with our image on every node and our chart in it, once for all cases.

use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::ListParams;
use tokio::sync::OnceCell;

use super::program::{Said, run};
use super::{Result, SOON};
use crate::cluster::{Cluster, eventually};
use hello_operator::api::names::CRD_NAME;

/// Name of the release, and of its Deployment.
pub const OPERATOR: &str = "hello-operator";
/// Where the operator runs.
pub const OPERATOR_NAMESPACE: &str = "hello-system";

/// A build from nothing is part of the first run.
const BUILD: Duration = Duration::from_secs(30 * 60);

static SUITE: OnceCell<Result<Suite, String>> = OnceCell::const_new();

/// What is there for the whole run.
pub struct Suite {
    cluster: Cluster,
    image: String,
    archive: PathBuf,
    kubectl: PathBuf,
    helm: PathBuf,
    keep: bool,
}

impl Suite {
    /// Made by the first case that asks; a failure is everybody's.
    pub async fn get() -> Result<&'static Self> {
        let made = SUITE.get_or_init(|| async { Self::start().await.map_err(|error| error.to_string()) }).await;
        made.as_ref().map_err(|error| format!("the suite did not start: {error}").into())
    }

    async fn start() -> Result<Self> {
        let profile = variable("HELLO_PROFILE").unwrap_or_else(|| "release".to_owned());
        let profile = [profile.as_str()];
        let (cluster, built, helm) = tokio::join!(
            Cluster::up(),
            script("hack/image", &profile),
            script("tests/cluster/build", &["--path", "helm"]),
        );
        let (cluster, built, helm) = (cluster?, built?, PathBuf::from(helm?).join("helm"));
        let (image, archive) = built.split_once('\n').ok_or("hack/image prints two lines")?;
        let archive = PathBuf::from(archive);
        cluster.load_image(&archive).await?;
        let kubectl = cluster.kubeconfig().with_file_name("bin").join("kubectl");
        let keep = variable("HELLO_KEEP").is_some();
        let suite = Self { cluster, image: image.to_owned(), archive, kubectl, helm, keep };
        suite.clear().await?;
        suite.install(&[]).await?;
        Ok(suite)
    }

    /// Removes what an interrupted run left in a cluster that was kept.
    async fn clear(&self) -> Result {
        let old = ["delete", "namespaces", "-l", "hello-operator/e2e", "--ignore-not-found", "--wait=false"];
        self.kubectl(&old, "").await?.ok().map(drop)
    }

    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Name of our image.
    pub fn image(&self) -> &str {
        &self.image
    }

    /// The OCI archive of our image.
    pub fn archive(&self) -> &Path {
        &self.archive
    }

    /// Whether the namespace of a failed case stays.
    pub fn keeps(&self) -> bool {
        self.keep
    }

    /// The helm that everything is installed with.
    pub fn helm(&self) -> &Path {
        &self.helm
    }

    /// Runs kubectl as the administrator.
    pub async fn kubectl(&self, arguments: &[&str], input: &str) -> Result<Said> {
        let kubeconfig = self.cluster.kubeconfig().to_string_lossy().into_owned();
        let arguments = ["--kubeconfig", &kubeconfig].into_iter().chain(arguments.iter().copied());
        run(2 * SOON, &self.kubectl, arguments, input).await
    }

    /// Installs or upgrades our chart with further `--set` arguments, and waits until the operator is ready.
    pub async fn install(&self, settings: &[&str]) -> Result {
        let (repository, tag) = self.image.rsplit_once(':').ok_or("an image with a tag")?;
        let kubeconfig = self.cluster.kubeconfig().to_string_lossy().into_owned();
        let chart = root().join("charts/hello-operator").to_string_lossy().into_owned();
        let (repository, tag) = (format!("image.repository={repository}"), format!("image.tag={tag}"));
        let mut arguments = vec!["--kubeconfig", &kubeconfig, "upgrade", "--install", OPERATOR, &chart];
        arguments.extend(["--namespace", OPERATOR_NAMESPACE, "--create-namespace", "--wait", "--timeout", "90s"]);
        arguments.extend(["--set", &repository, "--set-string", &tag]);
        arguments.extend(settings.iter().flat_map(|setting| ["--set", setting]));
        let said = run(2 * SOON, &self.helm, arguments, "").await?;
        if said.success {
            return Ok(());
        }
        let folder = super::dump::write(self, "install", &[]).await;
        Err(format!("helm: {}\nwhat was there at that moment: {}", said.stderr, folder.display()).into())
    }

    /// Ends the operator's Pods, so that another one can act.
    pub async fn stop_operator(&self) -> Result {
        let target = format!("deployment/{OPERATOR}");
        self.kubectl(&["-n", OPERATOR_NAMESPACE, "scale", &target, "--replicas=0"], "").await?.ok()?;
        let selector = format!("app.kubernetes.io/name={OPERATOR}");
        let wait = ["-n", OPERATOR_NAMESPACE, "wait", "pods", "-l", &selector, "--for=delete", "--timeout=60s"];
        self.kubectl(&wait, "").await?.ok().map(drop)
    }

    /// The Pods of the operator.
    pub async fn operator_pods(&self) -> Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.cluster.client().await?, OPERATOR_NAMESPACE);
        Ok(pods.list(&ListParams::default().labels(&format!("app.kubernetes.io/name={OPERATOR}"))).await?.items)
    }

    /// Nodes have power and network, and the API server answers.
    pub async fn heal(&self) -> Result {
        script("tests/cluster/lc", &["up"]).await.map(drop)
    }

    /// Nodes have power and network, the CRD is ours, and the operator runs as the chart says by default.
    pub async fn restore(&self) -> Result {
        self.heal().await?;
        let client = self.cluster.client().await?;
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        let ours = |crd: &CustomResourceDefinition| {
            crd.spec.versions.first().is_some_and(|version| version.subresources.is_some())
        };
        if !crds.get_opt(CRD_NAME).await?.as_ref().is_some_and(ours) {
            // Whatever stands there goes, with every object: nobody else has any while this runs.
            self.kubectl(&["delete", "crd", CRD_NAME, "--ignore-not-found", "--timeout=60s"], "").await?.ok()?;
        }
        self.install(&[]).await?;
        // A Deployment that was scaled by hand is not helm's to scale back.
        let target = format!("deployment/{OPERATOR}");
        self.kubectl(&["-n", OPERATOR_NAMESPACE, "scale", &target, "--replicas=2"], "").await?.ok()?;
        let deployments: Api<Deployment> = Api::namespaced(client, OPERATOR_NAMESPACE);
        eventually(SOON, "both operators to be ready", || async {
            let status = deployments.get(OPERATOR).await.map_err(|error| error.to_string())?.status;
            let ready = status.and_then(|status| status.ready_replicas).unwrap_or(0);
            if ready == 2 { Ok(()) } else { Err(format!("{ready} are")) }
        })
        .await?;
        Ok(())
    }

    /// Our binary, from the image's layer: what is tested on a terminal is what is shipped.
    pub async fn binary(&self) -> Result<PathBuf> {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("image");
        let binary = folder.join("hello-operator");
        let extract = r#"
            rm -rf "$2" && mkdir -p "$2" && cd "$2" && tar -xf "$1"
            blob() { tr -d '"' | sed 's,^sha256:,blobs/sha256/,'; }
            manifest=$(jq -r '.manifests[0].digest' index.json | blob)
            layer=$(jq -r '.layers[0].digest' "$manifest" | blob)
            tar -xf "$layer" hello-operator && rm -rf blobs index.json oci-layout"#;
        let (archive, folder) = (self.archive.to_string_lossy(), folder.to_string_lossy());
        run(SOON, Path::new("bash"), ["-euc", extract, "extract", &archive, &folder], "").await?.ok()?;
        Ok(binary)
    }
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs a script of this repository; its progress is shown.
pub async fn script(path: &str, arguments: &[&str]) -> Result<String> {
    let said = run(BUILD, &root().join(path), arguments, "").await?;
    said.ok().map_err(|error| format!("{path}: {error}").into())
}

#[allow(clippy::disallowed_methods, reason = "the place where tests read their environment")]
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
