//! `report`: what helps others to help, in one archive, without what is secret.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{ApiResource, DynamicObject, ListParams, LogParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::error::{Error, call};
use super::look;
use super::session::{Read, Session, answer};
use super::view::redact::Redact;
use super::view::{Paint, next, status, why};
use crate::api::names::{CONTAINER, LABEL_CLUSTER, MANAGED_BY};
use crate::api::spec::{HelloOperator, HelloOperatorSpec};
use crate::config::ctl::ReportArgs;

/// What belongs to a cluster, besides the object: group, version, kind.
const KINDS: [(&str, &str, &str); 10] = [
    ("", "v1", "Pod"),
    ("", "v1", "PersistentVolumeClaim"),
    ("", "v1", "Service"),
    ("", "v1", "ConfigMap"),
    ("", "v1", "ServiceAccount"),
    ("coordination.k8s.io", "v1", "Lease"),
    ("discovery.k8s.io", "v1", "EndpointSlice"),
    ("policy", "v1", "PodDisruptionBudget"),
    ("rbac.authorization.k8s.io", "v1", "Role"),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding"),
];

/// Keys of Secrets that hold nothing secret.
const PUBLIC: [&str; 8] = ["username", "user", "host", "port", "dbname", "ca.crt", "tls.crt", "endpoint"];

/// What goes into the archive, and what could not be read.
#[derive(Default)]
struct Bundle {
    files: BTreeMap<String, String>,
    lacking: Vec<String>,
}

impl Bundle {
    fn add(&mut self, name: impl Into<String>, text: String) {
        self.files.insert(name.into(), text);
    }
    fn lacks(&mut self, error: &Error) {
        self.lacking.push(error.to_string());
    }
}

/// Writes it.
pub async fn report(session: &Session, args: &ReportArgs) -> Result<(), Error> {
    let now = Timestamp::now();
    let read = session.read(&args.name).await?;
    let mut bundle = Bundle::default();
    let redact = secrets(session, &read.object, &mut bundle).await;
    screens(session, &read, now, &mut bundle).await;
    objects(session, &read, &redact, &mut bundle).await;
    logs(session, args, &mut bundle).await;
    let folder = format!("hello-{}-{}", args.name, now.strftime("%Y%m%dT%H%M%SZ"));
    let path = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{folder}.tar.gz")));
    let about = about(session, args, now, &bundle).await;
    bundle.add("README.txt", about);
    write(&path, &folder, &bundle, &redact)?;
    answer(&format!("{} ({} files; secrets are redacted)\n", path.display(), bundle.files.len()))
}

/// What hides the secrets of this cluster. Who may read them has them hidden wherever they stand; the others, by form.
async fn secrets(session: &Session, object: &HelloOperator, bundle: &mut Bundle) -> Redact {
    let secrets = session.api::<Secret>();
    let selector = ListParams::default().labels(&format!("{LABEL_CLUSTER}={}", object.name_any()));
    let mut found =
        match call("Secrets cannot be listed, so what is secret was found by its form alone", secrets.list(&selector))
            .await
        {
            Ok(found) => found.items,
            Err(error) => {
                bundle.lacks(&error);
                Vec::new()
            }
        };
    for name in named(&object.spec) {
        match call(format!("Secret {name}"), secrets.get(&name)).await {
            Ok(secret) => found.push(secret),
            Err(error) => bundle.lacks(&error),
        }
    }
    let mut values = Vec::new();
    let mut listing = String::new();
    for secret in &found {
        let _ = writeln!(listing, "{}", secret.name_any());
        for (key, value) in secret.data.iter().flatten() {
            let _ = writeln!(listing, "  {key}, {} bytes", value.0.len());
            if !PUBLIC.contains(&key.as_str()) {
                values.push(STANDARD.encode(&value.0));
                values.extend(String::from_utf8(value.0.clone()));
            }
        }
    }
    bundle.add("secrets.txt", format!("Names, keys and lengths; no values.\n{listing}"));
    Redact::new(values)
}

/// Names of the user's own Secrets in a spec.
fn named(spec: &HelloOperatorSpec) -> BTreeSet<String> {
    let own = [&spec.secrets.app, &spec.secrets.superuser, &spec.certificates.server];
    let restored = spec.bootstrap.restore.as_ref().and_then(|restore| restore.source.as_ref());
    let stores = spec.backup.destination.iter().chain(restored);
    let keys = stores.flat_map(|store| store.secrets().into_iter().map(str::to_owned));
    own.into_iter().flatten().cloned().chain(keys).collect()
}

/// What the verbs that look would show.
async fn screens(session: &Session, read: &Read, now: Timestamp, bundle: &mut Bundle) {
    let (plain, object) = (Paint::PLAIN, &read.object);
    let seen = look::see(session, object.clone()).await;
    bundle.add("status.txt", status::text(&seen, plain));
    bundle.add("plan.txt", next::text(object, now, plain));
    match look::events(session, &object.name_any()).await {
        Ok(events) => bundle.add("why.txt", why::text(&why::entries(object, &events), None, plain)),
        Err(error) => bundle.lacks(&error),
    }
    if let Ok(backups) = &seen.backups {
        for backup in backups {
            let text = serde_json::to_value(backup).unwrap_or_default();
            bundle.add(format!("objects/HelloBackup/{}.json", backup.name_any()), text.to_string());
        }
    }
}

/// The object and its children, as JSON.
async fn objects(session: &Session, read: &Read, redact: &Redact, bundle: &mut Bundle) {
    let name = read.object.name_any();
    let own = serde_json::to_value(&read.raw).unwrap_or_default();
    bundle.add(format!("objects/HelloOperator/{name}.json"), own.to_string());
    let selector = ListParams::default().labels(&format!("{LABEL_CLUSTER}={name}"));
    for (group, version, kind) in KINDS {
        let resource = ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk(group, version, kind));
        let all: Api<DynamicObject> = Api::namespaced_with(session.client.clone(), &session.namespace, &resource);
        match call(format!("{kind} objects cannot be listed"), all.list(&selector)).await {
            Ok(found) => {
                for object in found {
                    let text = serde_json::to_value(&object).unwrap_or_default();
                    bundle.add(format!("objects/{kind}/{}.json", object.name_any()), text.to_string());
                }
            }
            Err(error) => bundle.lacks(&error),
        }
    }
    // Events of all of it: of Pods and volumes, too.
    let resource = ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk("", "v1", "Event"));
    let events: Api<DynamicObject> = Api::namespaced_with(session.client.clone(), &session.namespace, &resource);
    match call("events cannot be listed", events.list(&ListParams::default())).await {
        Ok(found) => {
            let about = |event: &DynamicObject| {
                let name = event.data.pointer("/involvedObject/name").and_then(Value::as_str).unwrap_or_default();
                name == read.object.name_any() || name.starts_with(&format!("{}-", read.object.name_any()))
            };
            let found: Vec<Value> = found
                .iter()
                .filter(|event| about(event))
                .filter_map(|event| serde_json::to_value(event).ok())
                .collect();
            bundle.add("objects/events.json", json!(found).to_string());
        }
        Err(error) => bundle.lacks(&error),
    }
    // Objects are redacted as such: by the names of their fields, too.
    for (file, text) in &mut bundle.files {
        if file.starts_with("objects/")
            && let Ok(value) = serde_json::from_str::<Value>(text)
        {
            *text = format!("{:#}\n", redact.object(&value));
        }
    }
}

/// Logs of the instances, of the containers before them, and of the operator.
async fn logs(session: &Session, args: &ReportArgs, bundle: &mut Bundle) {
    let pods = session.api::<Pod>();
    match session.pods(&args.name).await {
        Ok(found) => {
            for pod in found {
                log(&pods, &pod, CONTAINER, "logs", args.tail, bundle).await;
            }
        }
        Err(error) => bundle.lacks(&error),
    }
    let operators: Api<Pod> = Api::namespaced(session.client.clone(), &args.operator_namespace);
    let selector = ListParams::default().labels(&format!("app.kubernetes.io/name={MANAGED_BY}"));
    let what = format!("Pods of the operator in {} cannot be listed", args.operator_namespace);
    match call(what, operators.list(&selector)).await {
        Ok(found) => {
            for pod in found {
                let container = pod.spec.as_ref().and_then(|spec| spec.containers.first()).map(|c| c.name.clone());
                log(&operators, &pod, &container.unwrap_or_default(), "operator", args.tail, bundle).await;
            }
        }
        Err(error) => bundle.lacks(&error),
    }
}

async fn log(pods: &Api<Pod>, pod: &Pod, container: &str, folder: &str, tail: u32, bundle: &mut Bundle) {
    let name = pod.name_any();
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    let restarted = statuses.into_iter().flatten().any(|one| one.name == container && one.restart_count > 0);
    for previous in [false, true] {
        if previous && !restarted {
            continue;
        }
        let params = LogParams {
            container: Some(container.to_owned()),
            tail_lines: Some(i64::from(tail)),
            timestamps: true,
            previous,
            ..LogParams::default()
        };
        let suffix = if previous { ".previous" } else { "" };
        match call(format!("the log{suffix} of {name} cannot be read"), pods.logs(&name, &params)).await {
            Ok(text) => bundle.add(format!("{folder}/{name}{suffix}.log"), text),
            Err(error) => bundle.lacks(&error),
        }
    }
}

async fn about(session: &Session, args: &ReportArgs, now: Timestamp, bundle: &Bundle) -> String {
    let version = match call("the version cannot be read", session.client.apiserver_version()).await {
        Ok(version) => version.git_version,
        Err(error) => error.to_string(),
    };
    let mut text = format!(
        "Report of HelloOperator {}/{}, made at {now} by {} {}, Kubernetes {version}.\n\
         Secrets are redacted: read it through all the same before you hand it on. Statements in logs may hold data.\n",
        session.namespace,
        args.name,
        super::PLUGIN,
        env!("CARGO_PKG_VERSION"),
    );
    if !bundle.lacking.is_empty() {
        text.push_str("\nNot in it:\n");
        for lacking in &bundle.lacking {
            let _ = writeln!(text, "- {lacking}");
        }
    }
    text
}

/// One archive, for nobody else to read. Every text passes once more here, whoever made it.
fn write(path: &Path, folder: &str, bundle: &Bundle, redact: &Redact) -> Result<(), Error> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| Error::Refused(format!("{} cannot be written: {error}", path.display())))?;
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    for (name, text) in &bundle.files {
        let text = redact.text(text);
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(u64::try_from(Timestamp::now().as_second()).unwrap_or(0));
        archive.append_data(&mut header, format!("{folder}/{name}"), text.as_bytes())?;
    }
    archive.into_inner()?.finish()?.sync_all()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_the_users_own_are_found_in_the_spec() {
        let spec = json!({"secrets": {"app": "mine"},
            "backup": {"destination": {"s3": {"bucket": "b", "credentials": {"secret": "keys"}, "ca": {"name": "ca", "key": "x"}}}},
            "bootstrap": {"restore": {"source": {"gcs": {"bucket": "b", "credentials": {"name": "keys", "key": "x"}}}}}});
        let found = named(&serde_json::from_value(spec).unwrap());
        assert_eq!(found, ["ca", "keys", "mine"].map(str::to_owned).into());
    }

    #[test]
    fn no_secret_that_is_known_or_has_the_form_of_one_reaches_the_archive() {
        let redact = Redact::new(["known-secret".to_owned()]);
        let mut bundle = Bundle::default();
        bundle
            .add("logs/a.log", "known-secret postgres://app:other-secret@db/app\npassword='third-secret'\nkept".into());
        let folder = std::env::temp_dir().join(format!("hello-report-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("r.tar.gz");
        write(&path, "r", &bundle, &redact).unwrap();
        let mut text = String::new();
        let file = std::fs::File::open(&path).unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
        for entry in archive.entries().unwrap() {
            std::io::Read::read_to_string(&mut entry.unwrap(), &mut text).unwrap();
        }
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(text.contains("kept") && !text.contains("-secret"), "{text}");
    }
}
