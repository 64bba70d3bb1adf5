//! Names that have to exist: fields of the definitions, values of the chart, files.

use serde_json::Value;

use crate::{read, root};

/// Fields of the resources, or values of the chart.
pub struct Schema {
    whole: Value,
    top: Value,
}

impl Schema {
    /// Of a definition, by its short name.
    pub fn of_resource(short: &str) -> Self {
        let name = if short == "hellobk" { "hellobackups" } else { "helloopperators" };
        let text = read(&root().join(format!("crds/{name}.terry.com.yaml")));
        let definition: Value = serde_saphyr::from_str(&text).unwrap();
        let top = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
        Self { whole: Value::Null, top }
    }

    /// Of the chart's values.
    pub fn of_chart() -> Self {
        let text = read(&root().join("charts/hello-operator/values.schema.json"));
        let whole: Value = serde_json::from_str(&text).unwrap();
        Self { top: whole.clone(), whole }
    }

    /// Whether there is a field of this path.
    pub fn has(&self, path: &str) -> bool {
        self.at(path).is_some()
    }

    /// Whether there is one with fields of its own.
    pub fn holds(&self, path: &str) -> bool {
        self.at(path).is_some_and(|field| field["type"] != "string" && field["type"] != "boolean")
    }

    fn at(&self, path: &str) -> Option<&Value> {
        path.split('.').try_fold(&self.top, |at, name| self.below(at, name))
    }

    /// Paths of the fields that a JSON sets and that are not there.
    pub fn unknown(&self, json: &Value) -> Vec<String> {
        let mut paths = Vec::new();
        flatten(json, "", &mut paths);
        paths.retain(|path| path.split('.').next() != Some("metadata") && !self.has(path));
        paths
    }

    fn below<'a>(&'a self, at: &'a Value, name: &str) -> Option<&'a Value> {
        let at = match at["$ref"].as_str() {
            Some(reference) => self.whole.pointer(reference.strip_prefix('#')?)?,
            None => at,
        };
        let name = name.split('[').next()?;
        let at = if at["items"].is_object() { &at["items"] } else { at };
        at["properties"].get(name).or_else(|| Some(&at["additionalProperties"]).filter(|field| field.is_object()))
    }
}

fn flatten(json: &Value, path: &str, paths: &mut Vec<String>) {
    match json {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, field) in fields {
                flatten(field, &if path.is_empty() { name.clone() } else { format!("{path}.{name}") }, paths);
            }
        }
        _ => paths.push(path.to_owned()),
    }
}

/// Whether a word is the path of something in this repository, and whether that exists. None: it is no such path.
pub fn file(word: &str) -> Option<bool> {
    const FOLDERS: [&str; 11] =
        ["charts", "crds", "dashboards", "deploy", "docs", "examples", "hack", "plugins", "src", "target", "tests"];
    let (folder, rest) = word.split_once('/')?;
    if !FOLDERS.contains(&folder) || folder == "target" || word.contains(['<', '*', '$', '…', ' ']) {
        return None;
    }
    // tests/sim/{agent,duties}.rs are several.
    if let Some((before, (inside, after))) = word.split_once('{').and_then(|(a, b)| Some((a, b.split_once('}')?))) {
        return Some(inside.split(',').all(|one| root().join(format!("{before}{one}{after}")).exists()));
    }
    Some(rest.is_empty() || root().join(word).exists())
}
