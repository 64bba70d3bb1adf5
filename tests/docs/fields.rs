//! docs/fields.md is made from the definitions that people install.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::{read, root};

/// Types of Kubernetes itself, whose fields are in its own reference.
const KUBERNETES: [&str; 4] =
    ["spec.resources", "spec.pod.affinity", "spec.pod.tolerations", "spec.pod.topologySpreadConstraints"];

const HEAD: &str = "# Every field\n\n\
    Written by `make docs` from [crds/](../crds), which a test holds; `kubectl explain helloop.spec` shows the same. Nothing in\n\
    the spec of a HelloOperator is required. A rule is what the API server checks, in italics what it says when it refuses; what it\n\
    cannot know, the operator says in the condition `Degraded`. `[]` is each item of a list, `*` each key of a map. Fields of types of Kubernetes itself are in [its reference](https://kubernetes.io/docs/reference/kubernetes-api/).\n";

#[test]
#[expect(clippy::disallowed_methods, reason = "whether to accept a change is asked like in the other tests")]
fn every_field_is_documented() {
    let mut page = HEAD.to_owned();
    for name in ["helloopperators.terry.com", "hellobackups.terry.com"] {
        let text = read(&root().join("crds").join(format!("{name}.yaml")));
        let definition: Value = serde_saphyr::from_str(&text).unwrap();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let kind = definition["spec"]["names"]["kind"].as_str().unwrap();
        write!(page, "\n## {kind}\n\n{}\n", plain(schema["description"].as_str().unwrap())).unwrap();
        for rule in rules(schema) {
            write!(page, "\nRule: {rule}.\n").unwrap();
        }
        page += "\n| field | type | default | meaning | rules |\n|---|---|---|---|---|\n";
        Writer::default().write(&mut page, "spec", &schema["properties"]["spec"], true);
        page += "\nThe status is the operator's:\n\n| field | type | meaning |\n|---|---|---|\n";
        Writer::default().write(&mut page, "status", &schema["properties"]["status"], false);
    }
    let path = root().join("docs/fields.md");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    // Not assert_eq!: it would print the page twice.
    assert!(std::fs::read_to_string(&path).unwrap_or_default() == page, "docs/fields.md is old: run 'make docs'");
}

/// Writes rows; fields of an object that stood before under another path are not repeated.
#[derive(Default)]
struct Writer {
    written: Vec<(String, Value)>,
}

impl Writer {
    fn write(&mut self, page: &mut String, path: &str, schema: &Value, spec: bool) {
        let mut meaning = plain(schema["description"].as_str().unwrap_or_default());
        let fields = inner(schema);
        let before = self.written.iter().find(|(_, seen)| *seen == Value::Object(fields.clone()));
        let leaf = if KUBERNETES.contains(&path) {
            true
        } else if let Some((other, _)) = before.filter(|_| fields.len() > 1) {
            write!(meaning, " The same fields as `{other}`.").unwrap();
            true
        } else {
            false
        };
        let row = if spec {
            let default = match &schema["default"] {
                Value::Null => String::new(),
                Value::Object(_) => "by its fields".to_owned(),
                Value::String(text) => format!("`{text}`"),
                other => format!("`{other}`"),
            };
            format!("| `{path}` | {} | {default} | {meaning} | {} |\n", kind(schema), rules(schema).join("; "))
        } else {
            format!("| `{path}` | {} | {meaning} |\n", kind(schema))
        };
        *page += &row.replace("|  |", "| |").replace("|  |", "| |");
        if leaf {
            return;
        }
        self.written.push((path.to_owned(), Value::Object(fields.clone())));
        for (name, field) in &fields {
            self.write(page, &format!("{path}{name}"), field, spec);
        }
    }
}

/// What is below: fields, the items of a list, the values of a map. Where these have nothing to say they have no row.
fn inner(schema: &Value) -> Map<String, Value> {
    let mut all = Map::new();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        all.insert(format!(".{name}"), field.clone());
    }
    for (key, name) in [("items", "[]"), ("additionalProperties", ".*")] {
        let field = &schema[key];
        if field.is_object() && (field["properties"].is_object() || !rules(field).is_empty()) {
            all.insert(name.to_owned(), field.clone());
        }
    }
    all
}

fn kind(schema: &Value) -> String {
    if let Some(values) = schema["enum"].as_array() {
        return values.iter().map(|value| format!("`{}`", value.as_str().unwrap())).collect::<Vec<_>>().join(", ");
    }
    if schema["x-kubernetes-int-or-string"] == Value::Bool(true) {
        return "integer or string".to_owned();
    }
    match schema["type"].as_str().unwrap() {
        "array" => format!("list of {}", kind(&schema["items"])),
        "object" if schema["additionalProperties"].is_object() => {
            format!("map to {}", kind(&schema["additionalProperties"]))
        }
        "object" => "object".to_owned(),
        other if schema["format"] == "date-time" => format!("{other} (time)"),
        other => other.to_owned(),
    }
}

/// What the API server holds a value against, as it tells it itself.
fn rules(schema: &Value) -> Vec<String> {
    let mut all = Vec::new();
    if let Some(required) = schema["required"].as_array() {
        let names: Vec<String> = required.iter().map(|name| format!("`{}`", name.as_str().unwrap())).collect();
        all.push(format!("has {}", names.join(", ")));
    }
    for (key, what) in [("maxLength", "characters"), ("maxItems", "items"), ("maxProperties", "keys")] {
        if let Some(most) = schema[key].as_u64() {
            all.push(format!("at most {most} {what}"));
        }
    }
    if schema["minLength"].as_u64().is_some_and(|least| least > 0) {
        all.push("not empty".to_owned());
    }
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        all.push(format!("*{}*", plain(rule["message"].as_str().unwrap())));
    }
    all
}

/// As text in a table of Markdown.
fn plain(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace('<', "&lt;").replace('|', "\\|").replace('*', "\\*")
}
