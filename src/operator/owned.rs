//! Whether somebody changed what we set: the API server says which fields are ours, and a field that another writer changes
//! or removes is ours no more. Nothing of the object itself has to be kept for that.
//!
//! Source: <https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management>.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};

use crate::api::names::FIELD_MANAGER;

/// The fields of one object that are ours, as digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Owned {
    /// Of those that are ours now.
    now: u64,
    /// Of those that were ours after our last write.
    whole: u64,
    /// When that was, by the API server's clock.
    written: Option<Timestamp>,
}

impl Owned {
    /// Of an object that is seen for the first time.
    ///
    /// Who wrote after us, while nobody looked, may have changed what is ours; it is written once more then.
    pub fn of(meta: &ObjectMeta) -> Self {
        let all = meta.managed_fields.iter().flatten().filter(|entry| entry.subresource.is_none());
        let (ours, others): (Vec<_>, Vec<_>) = all.partition(|entry| entry.manager.as_deref() == Some(FIELD_MANAGER));
        let written = ours.iter().filter_map(|entry| entry.time.as_ref()).map(|time| time.0).max();
        let mut hasher = DefaultHasher::new();
        for entry in ours {
            entry.operation.hash(&mut hasher);
            entry.fields_v1.as_ref().map(|fields| fields.0.to_string()).hash(&mut hasher);
        }
        let now = hasher.finish();
        let later = |entry: &&ManagedFieldsEntry| entry.time.as_ref().map(|time| time.0) > written;
        let whole = if others.into_iter().any(|entry| later(&entry) && beyond_metadata(entry)) { !now } else { now };
        Self { now, whole, written }
    }

    /// With what was known of the object before.
    pub fn after(self, before: Self) -> Self {
        if self.written == before.written {
            Self { whole: before.whole, ..self }
        } else {
            Self { whole: self.now, ..self }
        }
    }

    /// Our write is done: what is ours now is all there is to have.
    pub fn settle(&mut self) {
        self.whole = self.now;
    }

    /// Whether somebody changed what we set.
    pub fn edited(self) -> bool {
        self.now != self.whole
    }
}

/// Labels and annotations of others are their own matter.
fn beyond_metadata(entry: &ManagedFieldsEntry) -> bool {
    let fields = entry.fields_v1.as_ref().and_then(|fields| fields.0.as_object());
    fields.is_some_and(|fields| fields.keys().any(|key| key != "f:metadata"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn meta(entries: &[(&str, &str, Value)]) -> ObjectMeta {
        let entry = |(manager, time, fields): &(&str, &str, Value)| json!({"manager": manager, "operation": "Apply", "time": time, "fieldsType": "FieldsV1", "fieldsV1": fields});
        let entries: Vec<Value> = entries.iter().map(entry).collect();
        serde_json::from_value(json!({"managedFields": entries})).unwrap()
    }

    const THEN: &str = "2026-11-30T10:00:00Z";
    const LATER: &str = "2026-11-30T11:00:00Z";

    fn whole() -> Value {
        json!({"f:spec": {"f:selector": {}, "f:type": {}}})
    }

    #[test]
    fn a_field_that_is_ours_no_more_was_changed_until_we_write_again() {
        let before = Owned::of(&meta(&[(FIELD_MANAGER, THEN, whole())]));
        assert!(!before.edited());
        // Removed: nobody has it.
        let removed = Owned::of(&meta(&[(FIELD_MANAGER, THEN, json!({"f:spec": {"f:type": {}}}))])).after(before);
        assert!(removed.edited());
        let unrelated = Owned::of(&meta(&[(FIELD_MANAGER, THEN, json!({"f:spec": {"f:type": {}}}))])).after(removed);
        assert!(unrelated.edited(), "as long as we have not written");
        let repaired = Owned::of(&meta(&[(FIELD_MANAGER, LATER, whole())])).after(unrelated);
        assert!(!repaired.edited());
    }

    #[test]
    fn what_was_changed_while_nobody_looked_is_written_once() {
        let edit = ("kubectl-edit", LATER, json!({"f:spec": {"f:selector": {}}}));
        let mut found = Owned::of(&meta(&[(FIELD_MANAGER, THEN, whole()), edit.clone()]));
        assert!(found.edited());
        // The write changed nothing, so the API server tells of nothing.
        found.settle();
        assert!(!found.edited());
        let again = Owned::of(&meta(&[(FIELD_MANAGER, THEN, whole()), edit])).after(found);
        assert!(!again.edited());
    }

    #[test]
    fn labels_status_and_older_writes_of_others_are_no_concern() {
        let label = ("kubectl-label", LATER, json!({"f:metadata": {"f:labels": {"f:team": {}}}}));
        assert!(!Owned::of(&meta(&[(FIELD_MANAGER, THEN, whole()), label])).edited());
        let older = ("kubectl-edit", THEN, json!({"f:spec": {"f:externalName": {}}}));
        assert!(!Owned::of(&meta(&[(FIELD_MANAGER, LATER, whole()), older])).edited());
        let mut status = meta(&[(FIELD_MANAGER, THEN, whole()), ("controller", LATER, json!({"f:status": {}}))]);
        status.managed_fields.as_mut().unwrap()[1].subresource = Some("status".into());
        assert!(!Owned::of(&status).edited());
    }
}
