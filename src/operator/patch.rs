//! JSON merge patches.

use serde_json::Value;

/// A JSON merge patch that turns `before` into `after`; None when they are equal.
pub fn merge_patch(before: &Value, after: &Value) -> Option<Value> {
    if before == after {
        return None;
    }
    let (Value::Object(old), Value::Object(new)) = (before, after) else { return Some(after.clone()) };
    let mut patch = serde_json::Map::new();
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in new {
        match old.get(key) {
            None => {
                patch.insert(key.clone(), value.clone());
            }
            Some(before) => {
                if let Some(difference) = merge_patch(before, value) {
                    patch.insert(key.clone(), difference);
                }
            }
        }
    }
    Some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_patch_removes_what_is_gone() {
        let (a, b) = (json!({"a": 1, "b": {"c": 1, "d": 2}}), json!({"b": {"c": 1, "d": 3}, "e": []}));
        assert_eq!(merge_patch(&a, &b), Some(json!({"a": null, "b": {"d": 3}, "e": []})));
        assert_eq!(merge_patch(&a, &a), None);
    }
}
