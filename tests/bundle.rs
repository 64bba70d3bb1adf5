//! The bundle for the Operator Lifecycle Manager, deploy/olm, is made from what `kubectl apply` installs: deploy/operator.yaml,
//! the definitions and the examples. `make bundle` writes it.
//!
//! Format: <https://olm.operatorframework.io/docs/tasks/creating-operator-bundle/>.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

const FOLDER: &str = "deploy/olm";
const PACKAGE: &str = "hello-operator";
const VERSION: &str = env!("CARGO_PKG_VERSION");
const HEAD: &str = "# Written by `make bundle` from deploy/operator.yaml, crds/ and examples/; a test holds it.\n";

/// Objects of the operator that the manager makes itself, or that belong to nobody in a bundle.
const MADE_OTHERWISE: [&str; 6] =
    ["Namespace", "ServiceAccount", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "Deployment"];

const ABOUT: &str = "A HelloOperator object becomes a highly available PostgreSQL: Pods, volumes, Services, Secrets, certificates, \
    synchronous replication, failover that loses no acknowledged write, switchover, a continuous archive, backups that are \
    proven, and restore to any moment.\n\nDatabases go on, and fail over, while the operator is away.\n";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_default()
}

fn documents(text: &str) -> Vec<Value> {
    text.split("\n---\n").map(|part| serde_saphyr::from_str::<Value>(part).unwrap()).filter(Value::is_object).collect()
}

fn yaml(value: &Value) -> String {
    format!("{HEAD}{}", serde_saphyr::to_string(value).unwrap())
}

/// What users may begin with.
fn examples() -> Vec<Value> {
    let mut examples = documents(&read("examples/my-helloworld.yaml"));
    examples[0]["spec"] = json!({"instances": 3});
    examples.push(json!({
        "apiVersion": "terry.com/v1", "kind": "HelloBackup", "metadata": {"name": "my-backup"},
        "spec": {"cluster": "my-helloworld"},
    }));
    examples
}

fn owned() -> Vec<Value> {
    let about = [
        ("helloopperators.terry.com", "HelloOperator", "A highly available PostgreSQL"),
        ("hellobackups.terry.com", "HelloBackup", "A backup of one, taken once"),
    ];
    about
        .map(|(name, kind, description)| {
            json!({"name": name, "version": "v1", "kind": kind, "displayName": kind, "description": description})
        })
        .to_vec()
}

fn service_version(installed: &[Value]) -> Value {
    let of = |kind: &str| installed.iter().find(|object| object["kind"] == kind).expect(kind);
    let deployment = of("Deployment");
    let account = &deployment["spec"]["template"]["spec"]["serviceAccountName"];
    assert_eq!(&of("ServiceAccount")["metadata"]["name"], account);
    json!({
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": format!("{PACKAGE}.v{VERSION}"),
            // What was tried.
            "labels": {"operatorframework.io/arch.amd64": "supported", "operatorframework.io/os.linux": "supported"},
            "annotations": {
                "alm-examples": serde_json::to_string_pretty(&examples()).unwrap(),
                // Not more: a new major version of PostgreSQL needs a human, and nothing tunes itself.
                "capabilities": "Full Lifecycle",
                "categories": "Database",
                "containerImage": deployment["spec"]["template"]["spec"]["containers"][0]["image"],
                "description": "PostgreSQL, highly available, from one manifest",
            },
        },
        "spec": {
            "displayName": "Hello Operator",
            "description": ABOUT,
            "version": VERSION,
            "maturity": "alpha",
            "minKubeVersion": "1.31.0",
            "keywords": ["postgresql", "database", "high-availability", "backup"],
            "provider": {"name": "Hello Operator"},
            "installModes": [
                {"type": "OwnNamespace", "supported": false}, {"type": "SingleNamespace", "supported": false},
                {"type": "MultiNamespace", "supported": false}, {"type": "AllNamespaces", "supported": true},
            ],
            "customresourcedefinitions": {"owned": owned()},
            "install": {
                "strategy": "deployment",
                "spec": {
                    "clusterPermissions": [{"serviceAccountName": account, "rules": of("ClusterRole")["rules"]}],
                    "deployments": [{
                        "name": deployment["metadata"]["name"],
                        "label": deployment["metadata"]["labels"],
                        "spec": deployment["spec"],
                    }],
                },
            },
        },
    })
}

/// Every file of the bundle, by its path in it.
fn bundle() -> BTreeMap<PathBuf, String> {
    let installed = documents(&read("deploy/operator.yaml"));
    let mut files = BTreeMap::new();
    let mut manifest = |name: String, text: String| files.insert(Path::new("manifests").join(name), text);
    manifest(format!("{PACKAGE}.clusterserviceversion.yaml"), yaml(&service_version(&installed)));
    for name in ["helloopperators.terry.com", "hellobackups.terry.com"] {
        manifest(format!("{name}.yaml"), read(&format!("crds/{name}.yaml")));
    }
    for mut object in installed {
        let kind = object["kind"].as_str().unwrap().to_owned();
        if !MADE_OTHERWISE.contains(&kind.as_str()) {
            object["metadata"].as_object_mut().unwrap().remove("namespace");
            let name = object["metadata"]["name"].as_str().unwrap();
            manifest(format!("{name}.{}.yaml", kind.to_lowercase()), yaml(&object));
        }
    }
    let annotations = json!({"annotations": {
        "operators.operatorframework.io.bundle.mediatype.v1": "registry+v1",
        "operators.operatorframework.io.bundle.manifests.v1": "manifests/",
        "operators.operatorframework.io.bundle.metadata.v1": "metadata/",
        "operators.operatorframework.io.bundle.package.v1": PACKAGE,
        "operators.operatorframework.io.bundle.channels.v1": "alpha",
        "operators.operatorframework.io.bundle.channel.default.v1": "alpha",
    }});
    files.insert("metadata/annotations.yaml".into(), yaml(&annotations));
    let mut image = format!("{HEAD}FROM scratch\n");
    for (key, value) in annotations["annotations"].as_object().unwrap() {
        image += &format!("LABEL {key}={}\n", value.as_str().unwrap());
    }
    image += "COPY manifests /manifests/\nCOPY metadata /metadata/\n";
    files.insert("bundle.Dockerfile".into(), image);
    files
}

fn written() -> BTreeSet<PathBuf> {
    let folder = root().join(FOLDER);
    let list =
        |at: &Path| std::fs::read_dir(at).into_iter().flatten().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let all = list(&folder).into_iter().flat_map(|path| if path.is_dir() { list(&path) } else { vec![path] });
    all.map(|path| path.strip_prefix(&folder).unwrap().to_owned()).collect()
}

#[test]
#[expect(clippy::disallowed_methods, reason = "whether to accept a change is asked like in the other tests")]
fn the_bundle_is_made_from_what_is_installed() {
    let bundle = bundle();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let _ = std::fs::remove_dir_all(root().join(FOLDER));
        for (path, text) in &bundle {
            let path = root().join(FOLDER).join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }
    assert_eq!(written(), bundle.keys().cloned().collect());
    for (path, text) in &bundle {
        // Not assert_eq!: it would print whole definitions twice.
        let path = Path::new(FOLDER).join(path);
        assert!(read(path.to_str().unwrap()) == *text, "{} is old: run 'make bundle'", path.display());
    }
}

/// What no list of files shows: the manager refuses a bundle whose parts do not fit each other.
#[test]
fn its_parts_fit_each_other() {
    let definitions: Vec<Value> = ["helloopperators", "hellobackups"]
        .map(|name| documents(&read(&format!("crds/{name}.terry.com.yaml"))).remove(0))
        .to_vec();
    for (owned, definition) in owned().iter().zip(&definitions) {
        assert_eq!(owned["name"], definition["metadata"]["name"]);
        assert_eq!(owned["kind"], definition["spec"]["names"]["kind"]);
        assert_eq!(owned["version"], definition["spec"]["versions"][0]["name"]);
    }
    let kinds: BTreeSet<String> = owned().iter().map(|owned| owned["kind"].to_string()).collect();
    let shown: BTreeSet<String> = examples().iter().map(|example| example["kind"].to_string()).collect();
    assert_eq!(kinds, shown, "an example of each kind");
    // The definitions are the manager's, and the operator does not repair them against it.
    let deployment =
        documents(&read("deploy/operator.yaml")).into_iter().find(|object| object["kind"] == "Deployment").unwrap();
    let container = deployment["spec"]["template"]["spec"]["containers"][0].to_string();
    assert!(!container.contains("manage-crds") && !container.contains("HELLO_MANAGE_CRDS"));
    let selected = &deployment["spec"]["selector"]["matchLabels"];
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    assert!(selected.as_object().unwrap().iter().all(|(key, value)| labels[key] == *value));
}
