//! Canonical JSON, differences between two values, and files of JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::PipelineError;

/// Where two JSON values differ: a JSON pointer and both values, `None` where one has nothing.
pub(crate) type JsonDifference = (String, Option<Value>, Option<Value>);

/// The same value with the keys of every object sorted.
pub(crate) fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(name, _)| *name);
            Value::Object(entries.into_iter().map(|(name, value)| (name.clone(), sorted(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

/// One line without spaces, keys sorted: equal values give equal text.
pub(crate) fn canonical(value: &Value) -> String {
    sorted(value).to_string()
}

/// All places where `was` and `now` differ, in the order of their pointers.
pub(crate) fn differences(was: &Value, now: &Value) -> Vec<JsonDifference> {
    let mut found = Vec::new();
    collect(&mut found, String::new(), Some(was), Some(now));
    found
}

fn collect(found: &mut Vec<JsonDifference>, pointer: String, was: Option<&Value>, now: Option<&Value>) {
    match (was, now) {
        (Some(Value::Object(was)), Some(Value::Object(now))) => {
            let mut names: Vec<_> = keys(was).chain(keys(now)).collect();
            names.sort_unstable();
            names.dedup();
            for name in names {
                let escaped = name.replace('~', "~0").replace('/', "~1");
                collect(found, format!("{pointer}/{escaped}"), was.get(name), now.get(name));
            }
        }
        (Some(Value::Array(was)), Some(Value::Array(now))) if was.len() == now.len() => {
            for (index, (was, now)) in was.iter().zip(now).enumerate() {
                collect(found, format!("{pointer}/{index}"), Some(was), Some(now));
            }
        }
        (was, now) if was == now => {}
        (was, now) => found.push((pointer, was.cloned(), now.cloned())),
    }
}

fn keys(map: &Map<String, Value>) -> impl Iterator<Item = &str> {
    map.keys().map(String::as_str)
}

/// Pretty JSON with a newline at its end.
pub(crate) fn to_bytes(path: &str, value: &impl Serialize) -> Result<Vec<u8>, PipelineError> {
    let json = |source| PipelineError::Json { path: path.to_owned(), source };
    let mut bytes = serde_json::to_vec_pretty(value).map_err(json)?;
    bytes.push(b'\n');
    Ok(bytes)
}

pub(crate) fn from_bytes<T: DeserializeOwned>(path: &str, bytes: &[u8]) -> Result<T, PipelineError> {
    serde_json::from_slice(bytes).map_err(|source| PipelineError::Json { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn differences_are_named_by_pointer() {
        let was = json!({"a": {"b/c": 1, "d~": 2}, "same": [1, 2], "list": [1, 2], "gone": null});
        let now = json!({"same": [1, 2], "a": {"d~": 3, "b/c": 1, "new": true}, "list": [1, 5]});
        assert_eq!(
            differences(&was, &now),
            [
                ("/a/d~0".to_owned(), Some(json!(2)), Some(json!(3))),
                ("/a/new".to_owned(), None, Some(json!(true))),
                ("/gone".to_owned(), Some(Value::Null), None),
                ("/list/1".to_owned(), Some(json!(2)), Some(json!(5))),
            ]
        );
        assert_eq!(
            differences(&json!([1]), &json!([1, 2])),
            [(String::new(), Some(json!([1])), Some(json!([1, 2])))]
        );
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-c/~]{0,3}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec(("[a-c/~]{0,2}", inner), 0..4)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    /// The same value with every object's keys in reverse order.
    fn reversed(value: &Value) -> Value {
        match value {
            Value::Object(map) => map.iter().rev().map(|(k, v)| (k.clone(), reversed(v))).collect(),
            Value::Array(items) => items.iter().map(reversed).collect(),
            other => other.clone(),
        }
    }

    proptest! {
        #[test]
        fn canonical_text_does_not_depend_on_key_order(value in values()) {
            prop_assert_eq!(canonical(&value), canonical(&reversed(&value)));
        }

        #[test]
        fn values_differ_exactly_when_a_difference_is_named(was in values(), now in values()) {
            let equal = canonical(&was) == canonical(&now);
            prop_assert_eq!(differences(&was, &now).is_empty(), equal);
            for (pointer, old, new) in differences(&was, &now) {
                prop_assert_eq!(was.pointer(&pointer).cloned(), old);
                prop_assert_eq!(now.pointer(&pointer).cloned(), new);
            }
        }
    }
}
