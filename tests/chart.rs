//! The helm chart: lint, golden renders, refusals by the schema, and agreement with the crate. Without helm in the cache
//! (`tests/cluster/build helm`) the tests say so and pass. `UPDATE_GOLDEN=1` writes what they expect.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "clippy.toml allows these in tests, but does not see that helpers here are tests too"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use hello_operator::api::crd;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

const CHART: &str = "charts/hello-operator";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The pinned helm of the local cluster's cache, if it was built.
fn helm() -> Option<&'static PathBuf> {
    static HELM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = HELM.get_or_init(|| {
        let script = ". tests/cluster/lib/common.sh && . tests/cluster/lib/artifacts.sh && artifact helm";
        let output =
            Command::new("bash").args(["-euc", script, "tests/cluster/build"]).current_dir(root()).output().ok()?;
        let path = Path::new(String::from_utf8(output.stdout).ok()?.trim()).join("helm");
        path.is_file().then_some(path)
    });
    if found.is_none() {
        println!("skipped: helm is not in the cache; 'tests/cluster/build helm' builds it");
    }
    found.as_ref()
}

fn run(helm: &Path, arguments: &[&str]) -> Output {
    Command::new(helm).args(arguments).current_dir(root()).output().unwrap()
}

fn render(helm: &Path, arguments: &[&str]) -> String {
    let output = run(helm, &[&["template", "hello", CHART, "--namespace", "hello-system"], arguments].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The rendered objects, each under a line that names its template.
fn documents(text: &str) -> Vec<Value> {
    text.split("\n---\n")
        .filter_map(|document| {
            let value: Value = serde_saphyr::from_str(document).unwrap();
            value.is_object().then_some(value)
        })
        .collect()
}

fn of_kind<'a>(documents: &'a [Value], kind: &str) -> Vec<&'a Value> {
    documents.iter().filter(|document| document["kind"] == kind).collect()
}

fn golden(name: &str, actual: &str) {
    let path = root().join("tests/golden/chart").join(name);
    #[expect(clippy::disallowed_methods, reason = "a test's own switch")]
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    if update {
        std::fs::write(&path, actual).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    for (number, (expected, actual)) in expected.lines().zip(actual.lines()).enumerate() {
        assert_eq!(actual, expected, "{name} line {}; UPDATE_GOLDEN=1 accepts it", number + 1);
    }
    assert_eq!(actual.lines().count(), expected.lines().count(), "{name}; UPDATE_GOLDEN=1 accepts it");
}

#[test]
fn lint_is_strict() {
    let Some(helm) = helm() else { return };
    let output = run(helm, &["lint", "--strict", CHART]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn defaults_render_as_agreed() {
    let Some(helm) = helm() else { return };
    let text = render(helm, &[]);
    // The definition has a golden of its own (crds/).
    let without_definition: Vec<_> =
        text.split("---\n").filter(|document| !document.contains("kind: CustomResourceDefinition")).collect();
    golden("default.yaml", &without_definition.join("---\n"));
}

#[test]
fn every_value_renders_as_agreed() {
    let Some(helm) = helm() else { return };
    let text = render(helm, &["--values", "tests/golden/chart/full.values.yaml"]);
    // The dashboards have sources of their own.
    let short = |document: &str| match document.split_once("\ndata:\n") {
        Some((head, _)) => format!("{head}\ndata: ...\n"),
        None => document.to_owned(),
    };
    golden("full.yaml", &text.split("---\n").map(short).collect::<Vec<_>>().join("---\n"));
}

#[test]
fn the_dashboards_come_as_they_are() {
    let Some(helm) = helm() else { return };
    let rendered = documents(&render(helm, &["--set", "dashboards.enabled=true"]));
    let maps = of_kind(&rendered, "ConfigMap");
    let found: Vec<_> = maps.iter().flat_map(|map| map["data"].as_object().unwrap()).collect();
    assert_eq!(found.len(), 2);
    for (name, content) in found {
        let file = root().join("dashboards").join(name.trim_start_matches("hello-"));
        let (wanted, content): (Value, Value) = (
            serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap(),
            serde_json::from_str(content.as_str().unwrap()).unwrap(),
        );
        assert!(wanted == content, "{name}");
    }
}

/// For people without helm.
#[test]
fn operator_yaml_is_what_the_chart_renders() {
    let Some(helm) = helm() else { return };
    let path = root().join("deploy/operator.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    let (head, objects) = text.split_once("---\n").unwrap();
    assert!(head.starts_with('#') && head.contains("make manifests"));
    let rendered = render(helm, &["--skip-tests", "--set", "crds.keep=false"]);
    let (wanted, found) = (documents(&rendered), documents(objects));
    let (namespace, found) = found.split_first().unwrap();
    assert_eq!((&namespace["kind"], &namespace["metadata"]["name"]), (&"Namespace".into(), &"hello-system".into()));
    // Nobody manages it with helm.
    let label = |object: &Value| object["metadata"]["labels"]["app.kubernetes.io/managed-by"].clone();
    assert!(found.iter().all(|object| label(object) != "Helm"));
    let plain = |object: &Value| {
        let mut object = object.clone();
        for labels in ["/metadata/labels", "/spec/template/metadata/labels"] {
            if let Some(Value::Object(labels)) = object.pointer_mut(labels) {
                labels.retain(|key, _| {
                    !["app.kubernetes.io/managed-by", "helm.sh/chart", "app.kubernetes.io/instance"].contains(&&**key)
                });
            }
        }
        object
    };
    let same = wanted.iter().map(plain).eq(found.iter().map(plain));
    assert!(same, "deploy/operator.yaml is not what the chart renders: run 'make manifests'");
}

#[test]
fn namespaces_render_as_agreed_and_ask_for_nothing_beyond_them() {
    let Some(helm) = helm() else { return };
    let text = render(helm, &["--set", "watchNamespaces={shop,bank}", "--set", "crds.enabled=false"]);
    golden("namespaces.yaml", &text);
    let rendered = documents(&text);
    for kind in ["ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"] {
        assert!(of_kind(&rendered, kind).is_empty(), "{kind}");
    }
    // The same rights as in the whole cluster, but for what belongs to all of it.
    let whole = documents(&render(helm, &[]));
    let whole = of_kind(&whole, "ClusterRole")[0]["rules"].as_array().unwrap().clone();
    let beyond = ["apiextensions.k8s.io", "storage.k8s.io"];
    let inside: Vec<_> =
        whole.into_iter().filter(|rule| !beyond.iter().any(|group| rule["apiGroups"][0] == *group)).collect();
    for namespace in ["shop", "bank"] {
        let roles = of_kind(&rendered, "Role");
        let role = roles.iter().find(|role| role["metadata"]["namespace"] == namespace).unwrap();
        assert_eq!(role["rules"].as_array().unwrap(), &inside);
    }
}

#[test]
fn every_value_has_an_effect_and_is_set_in_the_full_values() {
    let Some(helm) = helm() else { return };
    let read =
        |path: &str| -> Value { serde_saphyr::from_str(&std::fs::read_to_string(root().join(path)).unwrap()).unwrap() };
    let (defaults, full) = (read("charts/hello-operator/values.yaml"), read("tests/golden/chart/full.values.yaml"));
    for (path, value) in leaves("", &full) {
        assert_ne!(defaults.pointer(&path), Some(&value), "{path} is the default");
        let key = path.trim_start_matches('/').replace('.', "\\.").replace('/', ".");
        // The rest of what is off by default has an effect where that is on.
        let group = key.split('.').next().unwrap();
        let on = match group {
            "tracing" if key != "tracing.endpoint" => {
                vec!["--set".to_owned(), format!("{group}.endpoint=http://c:4317")]
            }
            _ if OFF.contains(&group) && key != format!("{group}.enabled") => {
                vec!["--set".to_owned(), format!("{group}.enabled=true")]
            }
            _ => Vec::new(),
        };
        let mut arguments: Vec<&str> = on.iter().map(String::as_str).collect();
        let before = render(helm, &arguments);
        let changed = format!("{key}={value}");
        arguments.extend(["--set-json", &changed]);
        let after = render(helm, &arguments);
        assert_ne!(before, after, "{path} changes nothing");
    }
    let set: BTreeSet<_> = leaves("", &full).into_iter().map(|(path, _)| path).collect();
    for (path, _) in leaves("", &defaults) {
        // Namespaces of its own change what is rendered as a whole: they have a golden of their own.
        let apart = path.starts_with("/resources/") || path == "/watchNamespaces";
        assert!(set.contains(&path) || apart, "{path} is not in full.values.yaml");
    }
}

const GROUPS: [&str; 8] =
    ["/image", "/crds", "/logging", "/tracing", "/monitors", "/alerts", "/dashboards", "/networkPolicy"];

/// Groups of values that are off by default.
const OFF: [&str; 4] = ["monitors", "alerts", "dashboards", "networkPolicy"];

/// Every value that is not an object with keys, with its JSON pointer; resources, selectors and lists are values.
fn leaves(path: &str, value: &Value) -> Vec<(String, Value)> {
    match value {
        Value::Object(map) if path.is_empty() || GROUPS.contains(&path) => {
            map.iter().flat_map(|(key, value)| leaves(&format!("{path}/{key}"), value)).collect()
        }
        _ => vec![(path.to_owned(), value.clone())],
    }
}

#[test]
fn the_schema_refuses_what_has_no_meaning() {
    let Some(helm) = helm() else { return };
    for (setting, complaint) in [
        ("replicas=0", "replicas"),
        ("replicas=two", "replicas"),
        ("replica=3", "replica"),
        ("image.tags=1", "tags"),
        ("image.tag=a b", "tag"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("crds.managed=true", "managed"),
        ("logging.format=xml", "format"),
        ("watchNamespaces={Shop}", "watchNamespaces"),
        ("networkPolicy.from[0].pod=x", "pod"),
        ("priorityClassName=High Priority", "priorityClassName"),
        ("tracing.endpoint=collector:4317", "endpoint"),
        ("tracing.endpoint=https://user:password@collector:4317", "endpoint"),
        ("tracing.protocol=http/json", "protocol"),
        ("tracing.headers=authorization=Bearer x", "headers"),
        ("tracing.authority=A B", "authority"),
        ("tracing.environment.PATH=x", "PATH"),
        ("resources.limit.memory=1Gi", "limit"),
        ("imagePullSecrets[0]=my-registry", "imagePullSecrets"),
        ("monitors.interval=often", "interval"),
        ("alerts.disabled[0]=HelloNobody", "disabled"),
        ("alerts.overrides.HelloNobody.for=1m", "HelloNobody"),
        ("alerts.overrides.HelloReplicaDown.expr=1", "expr"),
        ("alerts.overrides.HelloReplicaDown.for=soon", "for"),
        ("alerts.runbooks=", "runbooks"),
        ("dashboards.label=a", "label"),
    ] {
        let output = run(helm, &["template", "hello", CHART, "--set", setting]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{setting} was accepted");
        assert!(text.contains(complaint), "{setting}: {text}");
    }
}

#[test]
fn what_needs_the_whole_cluster_is_refused_in_words_with_namespaces() {
    let Some(helm) = helm() else { return };
    let settings = ["--set", "watchNamespaces={shop}", "--set", "crds.manage=true"];
    let output = run(helm, &[&["template", "hello", CHART], &settings[..]].concat());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("leave it out with watchNamespaces"), "{text}");
}

#[test]
fn alerts_are_changed_and_left_out_by_name() {
    let Some(helm) = helm() else { return };
    let rules = |settings: &[&str]| {
        let mut arguments = vec!["--set", "alerts.enabled=true"];
        arguments.extend(settings.iter().flat_map(|setting| ["--set", setting]));
        let documents = documents(&render(helm, &arguments));
        of_kind(&documents, "PrometheusRule")[0]["spec"]["groups"][0]["rules"].as_array().unwrap().clone()
    };
    let find = |rules: &[Value], name: &str| rules.iter().find(|rule| rule["alert"] == name).cloned();
    let all = rules(&[]);
    let name = "HelloReplicaLagging";
    let override_of = |key: &str, value: &str| format!("alerts.overrides.{name}.{key}={value}");
    let settings = [override_of("for", "7m"), override_of("severity", "info"), override_of("threshold", "9")];
    let changed = rules(&settings.each_ref().map(String::as_str));
    let rule = find(&changed, name).unwrap();
    assert_eq!((&rule["for"], &rule["labels"]["severity"]), (&"7m".into(), &"info".into()));
    assert!(rule["expr"].as_str().unwrap().ends_with("> 9 * 1024 * 1024"), "{rule}");
    let others = |rules: &[Value]| rules.iter().filter(|rule| rule["alert"] != name).cloned().collect::<Vec<_>>();
    assert_eq!(others(&changed), others(&all), "and nothing else");
    assert!(all.iter().all(|rule| !rule["expr"].as_str().unwrap().contains('$')), "a threshold is missing");

    let fewer = rules(&[&format!("alerts.disabled[0]={name}")]);
    assert_eq!((find(&fewer, name), others(&fewer)), (None, others(&all)));

    let unknown = ["template", "hello", CHART, "--set", "alerts.enabled=true", "--set"];
    let output = run(helm, &[&unknown[..], &["alerts.overrides.HelloReplicaDown.threshold=1"]].concat());
    assert!(String::from_utf8_lossy(&output.stderr).contains("this alert has no threshold"));
}

#[test]
fn the_chart_has_the_definitions_of_the_crate() {
    for definition in crd::all() {
        let name = definition.metadata.name.clone().unwrap();
        let path = root().join(CHART).join("files/crds").join(format!("{name}.yaml"));
        let file: CustomResourceDefinition = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        // Not assert_eq!: it would print the whole definition twice.
        assert!(file == definition, "the chart's {name} is not the crate's: run 'make crds'");
    }

    let Some(helm) = helm() else { return };
    let rendered = |arguments: &[&str]| -> Vec<CustomResourceDefinition> {
        let documents = documents(&render(helm, arguments));
        of_kind(&documents, "CustomResourceDefinition")
            .into_iter()
            .map(|document| serde_json::from_value(document.clone()).unwrap())
            .collect()
    };
    let definitions = rendered(&[]);
    assert_eq!(definitions.len(), crd::all().len());
    for mut definition in definitions {
        assert!(definition.metadata.labels.take().is_some());
        let annotations = definition.metadata.annotations.take().unwrap();
        assert_eq!(annotations["helm.sh/resource-policy"], "keep");
        assert!(crd::all().contains(&definition), "helm changed {:?}", definition.metadata.name);
    }

    let unkept = rendered(&["--set", "crds.keep=false"]);
    assert!(unkept.iter().all(|definition| definition.metadata.annotations.is_none()));
    assert!(rendered(&["--set", "crds.enabled=false"]).is_empty());
}

#[test]
fn versions_agree() {
    let chart: Value =
        serde_saphyr::from_str(&std::fs::read_to_string(root().join(CHART).join("Chart.yaml")).unwrap()).unwrap();
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn rights_stay_narrow() {
    let Some(helm) = helm() else { return };
    let rendered = documents(&render(helm, &["--set", "crds.manage=true"]));
    let role = of_kind(&rendered, "ClusterRole")[0];
    for rule in role["rules"].as_array().unwrap() {
        let has = |key: &str, value: &str| rule[key].as_array().unwrap().iter().any(|found| found == value);
        for verb in ["*", "escalate", "bind", "impersonate", "deletecollection"] {
            assert!(!has("verbs", verb), "{rule}");
        }
        assert!(!has("resources", "*") && !has("apiGroups", "*"), "{rule}");
        if has("resources", "secrets") {
            assert!(!has("verbs", "list") && !has("verbs", "watch"), "{rule}");
        }
        if has("resources", "customresourcedefinitions") {
            assert!(!has("verbs", "delete"), "{rule}");
        }
    }
}
