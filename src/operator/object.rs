//! A HelloOperator as it is kept: thousands of them must fit in a few megabytes. Of the spec only what differs from the
//! defaults is kept, and the whole body only until it was logged.

use kube::api::DynamicObject;
use serde_json::Value;

use super::mirror::{ClusterKey, Facts};
use crate::api::names::{
    ANNOTATION_ACCEPT_LOSS, ANNOTATION_RESTART, ANNOTATION_RESTART_ONE, ANNOTATION_ROTATE_PASSWORDS, MAX_INSTANCES,
    Names,
};
use crate::api::spec::{HelloOperatorSpec, State};
use crate::api::status::HelloOperatorStatus;
use crate::core::world::ObjectFacts;

/// The spec as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Spec {
    /// There was none.
    Absent,
    /// What differs from the defaults, as JSON.
    Text(Box<str>),
    /// It does not fit our types; why.
    Unreadable(Box<str>),
}

/// One object.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its uid.
    pub uid: Box<str>,
    /// Its resourceVersion.
    pub version: Box<str>,
    /// Its generation.
    pub generation: i64,
    /// Whether nothing is to be touched.
    pub paused: bool,
    /// Whether its first line was logged.
    pub greeted: bool,
    /// The object as JSON, until its first line was logged.
    pub body: Option<Box<str>>,
    spec: Spec,
    restart: Option<Box<str>>,
    restart_one: Box<[(u8, Box<str>)]>,
    rotate: Option<Box<str>>,
    accept_loss: Option<Box<str>>,
    status: Option<Box<str>>,
}

impl Facts for Entry {
    fn differs(&self, next: &Self) -> bool {
        // Our own writes of the status are no news.
        (&self.uid, self.generation, &self.spec, &self.restart, &self.restart_one, &self.rotate, &self.accept_loss)
            != (
                &next.uid,
                next.generation,
                &next.spec,
                &next.restart,
                &next.restart_one,
                &next.rotate,
                &next.accept_loss,
            )
            || (self.status.is_some() && next.status.is_none())
    }
}

impl Entry {
    /// From the watch.
    pub fn read(mut object: DynamicObject) -> Option<(ClusterKey, Self)> {
        let key = ClusterKey::new(object.metadata.namespace.take()?, object.metadata.name.take()?);
        object.metadata.namespace = Some(key.namespace.to_string());
        object.metadata.name = Some(key.name.to_string());
        object.metadata.managed_fields = None;
        let annotation =
            |name: &str| object.metadata.annotations.as_ref().and_then(|all| all.get(name)).map(|v| v.as_str().into());
        let parsed = match object.data.get("spec") {
            None | Some(Value::Null) => Ok(None),
            Some(spec) => serde_json::from_value::<HelloOperatorSpec>(spec.clone()).map(Some),
        };
        let paused = matches!(&parsed, Ok(Some(spec)) if spec.state == State::Paused);
        let status: Option<HelloOperatorStatus> =
            object.data.get("status").and_then(|status| serde_json::from_value(status.clone()).ok());
        let status = status.filter(HelloOperatorStatus::written);
        if status.is_none()
            && let Some(data) = object.data.as_object_mut()
        {
            // Nobody wrote it.
            data.remove("status");
        }
        let greeted = status.as_ref().is_some_and(|status| status.observed_generation.is_some());
        let entry = Self {
            uid: object.metadata.uid.as_deref().unwrap_or_default().into(),
            version: object.metadata.resource_version.as_deref().unwrap_or_default().into(),
            generation: object.metadata.generation.unwrap_or(0),
            paused,
            greeted,
            restart: annotation(ANNOTATION_RESTART),
            restart_one: (1..=MAX_INSTANCES)
                .filter_map(|ordinal| Some((ordinal, annotation(&format!("{ANNOTATION_RESTART_ONE}{ordinal}"))?)))
                .collect(),
            rotate: annotation(ANNOTATION_ROTATE_PASSWORDS),
            accept_loss: annotation(ANNOTATION_ACCEPT_LOSS),
            spec: match parsed {
                Ok(None) => Spec::Absent,
                Ok(Some(spec)) => Spec::Text(slim(&spec).to_string().into()),
                Err(error) => Spec::Unreadable(error.to_string().into()),
            },
            status: status.and_then(|status| serde_json::to_string(&status).ok()).map(Into::into),
            body: if greeted { None } else { serde_json::to_string(&object).ok().map(Into::into) },
        };
        Some((key, entry))
    }

    /// The spec.
    fn spec(&self) -> Option<HelloOperatorSpec> {
        match &self.spec {
            Spec::Text(text) => serde_json::from_str(text).ok(),
            Spec::Absent | Spec::Unreadable(_) => None,
        }
    }

    /// The status as it was last read or written.
    pub fn status(&self) -> Option<HelloOperatorStatus> {
        self.status.as_ref().and_then(|text| serde_json::from_str(text).ok())
    }

    /// The status was written.
    pub fn wrote(&mut self, status: &HelloOperatorStatus, version: Option<&str>) {
        self.status = serde_json::to_string(status).ok().map(Into::into);
        if let Some(version) = version {
            self.version = version.into();
        }
    }

    /// What decisions need.
    pub fn facts(&self, key: &ClusterKey) -> ObjectFacts {
        ObjectFacts {
            names: Names::new(&*key.name),
            namespace: key.namespace.to_string(),
            uid: self.uid.to_string(),
            generation: self.generation,
            spec: self.spec(),
            unreadable: match &self.spec {
                Spec::Unreadable(why) => Some(why.to_string()),
                Spec::Absent | Spec::Text(_) => None,
            },
            restart: self.restart.as_deref().map(Into::into),
            restart_one: self.restart_one.iter().map(|(ordinal, value)| (*ordinal, value.to_string())).collect(),
            rotate_passwords: self.rotate.as_deref().map(Into::into),
            accept_loss: self.accept_loss.as_deref().map(Into::into),
            status: self.status(),
        }
    }

    /// What changed, in words; None when nothing that people write did.
    pub fn change(&self, next: &Self) -> Option<String> {
        let mut changes = Vec::new();
        if self.spec != next.spec {
            let value = |spec: &Spec| match spec {
                Spec::Text(text) => serde_json::from_str(text).unwrap_or(Value::Null),
                Spec::Absent | Spec::Unreadable(_) => Value::Null,
            };
            differences("spec", &value(&self.spec), &value(&next.spec), &mut changes);
        }
        for (name, before, after) in [
            (ANNOTATION_RESTART, &self.restart, &next.restart),
            (ANNOTATION_ROTATE_PASSWORDS, &self.rotate, &next.rotate),
            (ANNOTATION_ACCEPT_LOSS, &self.accept_loss, &next.accept_loss),
        ] {
            if before != after {
                changes.push(format!("annotation {name}"));
            }
        }
        if self.restart_one != next.restart_one {
            changes.push(format!("annotation {ANNOTATION_RESTART_ONE}<number>"));
        }
        (!changes.is_empty()).then(|| changes.join(", "))
    }
}

/// What of a spec differs from the defaults.
fn slim(spec: &HelloOperatorSpec) -> Value {
    let default = serde_json::from_str::<HelloOperatorSpec>("{}").ok().and_then(|spec| serde_json::to_value(spec).ok());
    let value = serde_json::to_value(spec).unwrap_or(Value::Null);
    subtract(value, &default.unwrap_or(Value::Null)).unwrap_or_else(|| Value::Object(serde_json::Map::new()))
}

fn subtract(value: Value, default: &Value) -> Option<Value> {
    match (value, default) {
        (value, default) if value == *default => None,
        (Value::Object(fields), Value::Object(defaults)) => {
            let kept = fields
                .into_iter()
                .filter_map(|(key, value)| {
                    let default = defaults.get(&key).unwrap_or(&Value::Null);
                    subtract(value, default).map(|value| (key, value))
                })
                .collect();
            Some(Value::Object(kept))
        }
        (value, _) => Some(value),
    }
}

/// The paths at which two values differ, with both.
fn differences(path: &str, before: &Value, after: &Value, out: &mut Vec<String>) {
    if before == after {
        return;
    }
    if let (Value::Object(old), Value::Object(new)) = (before, after) {
        let keys: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        for key in keys {
            let path = format!("{path}.{key}");
            differences(&path, old.get(key).unwrap_or(&Value::Null), new.get(key).unwrap_or(&Value::Null), out);
        }
        return;
    }
    let show = |value: &Value| if value.is_null() { "the default".to_owned() } else { value.to_string() };
    out.push(format!("{path} from {} to {}", show(before), show(after)));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(spec: &Value) -> Entry {
        let object = json!({"apiVersion": "terry.com/v1", "kind": "HelloOperator",
            "metadata": {"name": "db", "namespace": "shop", "uid": "u", "generation": 1, "managedFields": [{}]}, "spec": spec});
        Entry::read(serde_json::from_value(object).unwrap()).unwrap().1
    }

    #[test]
    fn a_spec_full_of_defaults_is_kept_as_nothing_and_read_back_as_it_was() {
        let full = serde_json::to_value(serde_json::from_str::<HelloOperatorSpec>("{}").unwrap()).unwrap();
        assert_eq!(entry(&full).spec, Spec::Text("{}".into()));
        let mut changed = full;
        changed["instances"] = json!(5);
        changed["storage"]["size"] = json!("2Gi");
        let wanted: HelloOperatorSpec = serde_json::from_value(changed.clone()).unwrap();
        let kept = entry(&changed);
        assert_eq!(kept.spec(), Some(wanted));
        assert_eq!(kept.spec, Spec::Text(r#"{"instances":5,"storage":{"size":"2Gi"}}"#.into()));
    }

    #[test]
    fn a_change_is_told_by_its_path() {
        let (a, b) = (entry(&json!({})), entry(&json!({"instances": 5, "pod": {"priorityClassName": "high"}})));
        assert_eq!(
            a.change(&b).as_deref(),
            Some("spec.instances from the default to 5, spec.pod from the default to {\"priorityClassName\":\"high\"}")
        );
        assert_eq!(a.change(&a.clone()), None);
    }

    #[test]
    fn an_unreadable_spec_is_an_object_all_the_same() {
        let broken = entry(&json!({"instances": "many"}));
        let facts = broken.facts(&ClusterKey::new("shop", "db"));
        assert!(facts.spec.is_none() && facts.unreadable.is_some());
        assert!(!broken.body.unwrap().contains("managedFields"));
    }
}
