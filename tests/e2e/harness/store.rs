//! An S3 server in the cluster, which checks signatures: `s3s-fs`, as `tests/store/install` builds it.

use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Pod, Secret, Service};
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use super::{Case, Result, SOON, program, suite};
use crate::cluster::{Process, Signal, eventually};

const NAME: &str = "s3";
const PORT: u16 = 8014;
const BUCKET: &str = "backups";
const SECRET: &str = "s3-credentials";
/// Secrets have such characters.
pub const KEY: &str = "p@ss/w+rd=&?%20#\"' \\ ünï";
/// Building the server, where it is not in the cache.
const BUILD: Duration = Duration::from_mins(10);

/// The server, in a namespace of its own: it is no Pod of the restricted profile, because its program is the machine's.
pub struct Store {
    case: Case,
    namespace: String,
}

impl Store {
    /// Starts it for a case.
    pub async fn start(case: &Case) -> Result<Self> {
        let install = suite::root().join("tests/store/install");
        let program = program::run(BUILD, &install, std::iter::empty::<&str>(), "").await?.ok()?;
        let folder = PathBuf::from(program.trim()).parent().ok_or("a folder")?.to_owned();
        let namespace = case.new_namespace("s3").await?;
        let all: Api<Namespace> = Api::all(case.client());
        let label = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}});
        all.patch(&namespace, &kube::api::PatchParams::default(), &kube::api::Patch::Merge(label)).await?;
        let server = format!(
            "mkdir -p /data/{BUCKET} && exec /s3/s3s-fs --host 0.0.0.0 --port {PORT} --access-key tester --secret-key \"$KEY\" /data"
        );
        let pod = json!({"metadata": {"name": NAME, "labels": {"app": NAME}}, "spec": {
            "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
            "volumes": [{"name": "data", "emptyDir": {}}, {"name": "s3", "hostPath": {"path": folder, "type": "Directory"}}],
            "containers": [{"name": NAME, "image": "postgres:17", "command": ["bash", "-c", server],
                "env": [{"name": "KEY", "value": KEY}, {"name": "RUST_LOG", "value": "off"}],
                "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "s3", "mountPath": "/s3", "readOnly": true}]}]}});
        let here = case.within(&namespace);
        here.api::<Pod>().create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        let service =
            json!({"metadata": {"name": NAME}, "spec": {"selector": {"app": NAME}, "ports": [{"port": PORT}]}});
        here.api::<Service>().create(&PostParams::default(), &serde_json::from_value(service)?).await?;
        let pods = here.api::<Pod>();
        eventually(SOON, "the S3 server", || async {
            let pod = pods.get(NAME).await.map_err(|error| error.to_string())?;
            let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
            let ready = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
            if ready { Ok(()) } else { Err(format!("{conditions:?}")) }
        })
        .await?;
        let store = Self { case: here, namespace };
        store.allow(case, KEY).await?;
        Ok(store)
    }

    /// Puts its credentials into a namespace, with this secret key.
    pub async fn allow(&self, case: &Case, key: &str) -> Result {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET},
            "stringData": {"accessKeyId": "tester", "secretAccessKey": key}});
        case.apply(&secret).await?.ok()?;
        let _: Secret = case.api().get(SECRET).await?;
        Ok(())
    }

    /// As a `destination` or a `source`.
    pub fn destination(&self, path: &str) -> Value {
        json!({"s3": {"bucket": BUCKET, "path": path, "endpoint": format!("http://{NAME}.{}.svc:{PORT}", self.namespace),
            "credentials": {"secret": SECRET}}})
    }

    /// It answers nobody any more, and again.
    pub async fn signal(&self, signal: Signal) -> Result {
        let pod = self.case.suite().cluster().pod(&self.namespace, NAME);
        Ok(pod.signal(NAME, Process::Matching("s3s-fs"), signal).await?)
    }

    /// Objects below a folder.
    pub async fn objects(&self, path: &str) -> Result<Vec<String>> {
        let pod = self.case.suite().cluster().pod(&self.namespace, NAME);
        let listed = pod
            .run(NAME, &["bash", "-c", &format!("cd /data/{BUCKET}/{path} 2>/dev/null && find . -type f | sort")])
            .await;
        Ok(listed.unwrap_or_default().lines().map(|line| line.trim_start_matches("./").to_owned()).collect())
    }

    /// Changes an object's bytes.
    pub async fn damage(&self, object: &str) -> Result {
        let pod = self.case.suite().cluster().pod(&self.namespace, NAME);
        let path = format!("/data/{BUCKET}/{object}");
        let dd = format!("printf damaged | dd of='{path}' bs=1 seek=1000 conv=notrunc status=none");
        pod.run(NAME, &["bash", "-c", &dd]).await?;
        Ok(())
    }
}
