//! The object that restores the archive of another one.

use serde_json::{Map, Value, json};

use crate::api::names::{GROUP, KIND, VERSION};
use crate::api::spec::Destination;

/// What is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wish {
    /// Name of the new object.
    pub new: String,
    /// Namespace of both.
    pub namespace: String,
    /// Name of the object whose archive it is.
    pub from: String,
    /// Name of a HelloBackup.
    pub backup: Option<String>,
    /// The last moment.
    pub time: Option<String>,
    /// The last position.
    pub lsn: Option<String>,
    /// The named point.
    pub point: Option<String>,
}

/// What is not taken over: it belongs to the other one alone (its role, its state, addresses and certificates that name it),
/// or to its beginning.
const OWN: [&str; 5] = ["primary", "state", "bootstrap", "services", "certificates"];

/// The object, made of the spec of the one that is restored. In words, where that cannot be.
pub fn object(spec: &Value, wish: &Wish) -> Result<Value, String> {
    let mut spec = spec.as_object().cloned().unwrap_or_default();
    for own in OWN {
        spec.remove(own);
    }
    let destination = spec.get("backup").and_then(|backup| backup.get("destination")).cloned();
    let Some(destination) = destination.filter(Value::is_object) else {
        return Err(format!("{} has no spec.backup.destination, so there is no archive of it", wish.from));
    };
    let mut restore = Map::new();
    match &wish.backup {
        Some(backup) => {
            restore.insert("backup".into(), json!(backup));
        }
        None => {
            restore.insert("source".into(), source(&destination, wish)?);
        }
    }
    for (field, value) in [("targetTime", &wish.time), ("targetLsn", &wish.lsn), ("targetName", &wish.point)] {
        if let Some(value) = value {
            restore.insert(field.into(), json!(value));
        }
    }
    spec.insert("bootstrap".into(), json!({"restore": restore}));
    // An archive belongs to one cluster alone: without a path, the new one's is named after it.
    let stores = spec.get_mut("backup").and_then(|backup| backup.get_mut("destination")).and_then(Value::as_object_mut);
    for store in stores.into_iter().flat_map(|stores| stores.iter_mut()) {
        if let Some(fields) = store.1.as_object_mut() {
            fields.remove("path");
        }
    }
    Ok(json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": KIND,
        "metadata": {"name": wish.new, "namespace": wish.namespace},
        "spec": spec,
    }))
}

/// Where the archive is, with its path written out: the default one would be that of the new object.
fn source(destination: &Value, wish: &Wish) -> Result<Value, String> {
    let typed: Destination = serde_json::from_value(destination.clone())
        .map_err(|error| format!("spec.backup.destination of {} cannot be read: {error}", wish.from))?;
    let root = typed.root(&wish.namespace, &wish.from);
    let mut source = destination.clone();
    for store in source.as_object_mut().into_iter().flat_map(|stores| stores.iter_mut()) {
        if let Some(fields) = store.1.as_object_mut() {
            fields.insert("path".into(), json!(root));
        }
    }
    Ok(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish() -> Wish {
        Wish { new: "copy".into(), namespace: "shop".into(), from: "db".into(), ..Wish::default() }
    }

    #[test]
    fn the_archive_is_named_in_full_and_the_new_one_gets_another() {
        let spec = json!({"instances": 2, "primary": "db-2", "state": "Hibernated", "services": {"rw": {}},
            "backup": {"schedule": "0 3 * * *", "destination": {"s3": {"bucket": "b", "path": "old/place"}}}});
        let made = object(&spec, &wish()).unwrap();
        assert_eq!(
            made["spec"],
            json!({"instances": 2,
                "bootstrap": {"restore": {"source": {"s3": {"bucket": "b", "path": "old/place"}}}},
                "backup": {"schedule": "0 3 * * *", "destination": {"s3": {"bucket": "b"}}}})
        );
        let spec = json!({"backup": {"destination": {"volume": {"claim": "c"}}}});
        let made = object(&spec, &wish()).unwrap();
        assert_eq!(
            made["spec"]["bootstrap"]["restore"]["source"],
            json!({"volume": {"claim": "c", "path": "shop/db"}})
        );
    }

    #[test]
    fn a_backup_and_a_target_are_passed_on() {
        let spec = json!({"backup": {"destination": {"s3": {"bucket": "b"}}}});
        let wish = Wish { backup: Some("nightly".into()), lsn: Some("0/3000148".into()), ..wish() };
        let made = object(&spec, &wish).unwrap();
        assert_eq!(made["spec"]["bootstrap"]["restore"], json!({"backup": "nightly", "targetLsn": "0/3000148"}));
    }

    #[test]
    fn without_an_archive_there_is_nothing_to_restore() {
        let refused = object(&json!({"instances": 1}), &wish()).unwrap_err();
        assert!(refused.contains("db has no spec.backup.destination"), "{refused}");
    }
}
