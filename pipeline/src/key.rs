use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{InputRef, json};

/// Longest value shown in a message, in characters.
const MAX_SHOWN_CHARS: usize = 60;

/// Hex digest of all that a stage's output depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StageKey(pub String);

impl fmt::Display for StageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a [`StageKey`] digests, kept so that a difference can be named.
///
/// Paths, clocks, hosts, threads and shards are not in it. The step is, because it is a coordinate of every
/// random draw; the number of parts is, because it is the shape of the output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyParts {
    /// Name of the stage.
    pub stage: String,
    /// Version of the stage.
    pub version: u32,
    /// Step of the run.
    pub step: u64,
    /// Parts of each output table.
    pub n_parts: u32,
    /// What can change the last bits of its numbers, such as device and type; `None` where nothing can.
    pub fingerprint: Option<String>,
    /// Digest of each query's text, by name.
    pub queries: BTreeMap<String, String>,
    /// Digest of each input, by name.
    pub inputs: BTreeMap<String, String>,
    /// The stage's config section, keys sorted.
    pub config: Value,
}

impl KeyParts {
    /// Digests the parts: blake3 over each of them, prefixed with its length.
    pub fn key(&self) -> StageKey {
        let Self { stage, version, step, n_parts, fingerprint, queries, inputs, config } = self;
        let mut hasher = blake3::Hasher::new();
        update_framed(&mut hasher, b"envace stage key 1");
        update_framed(&mut hasher, stage.as_bytes());
        hasher.update(&version.to_le_bytes());
        hasher.update(&step.to_le_bytes());
        hasher.update(&n_parts.to_le_bytes());
        match fingerprint {
            None => update_framed(&mut hasher, b"none"),
            Some(fingerprint) => {
                update_framed(&mut hasher, b"some");
                update_framed(&mut hasher, fingerprint.as_bytes());
            }
        }
        for map in [queries, inputs] {
            hasher.update(&(map.len() as u64).to_le_bytes());
            for (name, digest) in map {
                update_framed(&mut hasher, name.as_bytes());
                update_framed(&mut hasher, digest.as_bytes());
            }
        }
        update_framed(&mut hasher, json::canonical(config).as_bytes());
        StageKey(hasher.finalize().to_hex().to_string())
    }
}

pub(crate) fn update_framed(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

pub(crate) fn hash_hex(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// One field in which two stage keys differ; its `Display` names the field and both values.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum KeyDifference {
    /// Version, step, number of parts or arithmetic fingerprint.
    Field {
        /// The field, in words.
        name: &'static str,
        /// Its value now.
        now: String,
        /// Its value in the output that is there.
        was: String,
    },
    /// The text of a query.
    Query {
        /// Its name.
        name: String,
        /// What happened to it: `has another text`, `is new` or `is gone`.
        change: &'static str,
    },
    /// A setting.
    Config {
        /// JSON pointer into the stage's section.
        pointer: String,
        /// Its value now; `None`: not set.
        now: Option<Value>,
        /// Its value in the output that is there; `None`: not set.
        was: Option<Value>,
    },
    /// An input.
    Input {
        /// Its name.
        name: String,
        /// What it is now.
        now: Option<Box<InputRef>>,
        /// What it was.
        was: Option<Box<InputRef>>,
    },
    /// The output there was put by hand and has no key of its own.
    Other,
}

impl fmt::Display for KeyDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field { name, now, was } => write!(f, "{name} is `{now}`, was `{was}`"),
            Self::Query { name, change } => write!(f, "query `{name}` {change}"),
            Self::Config { pointer, now, was } => {
                let pointer = if pointer.is_empty() { "/" } else { pointer };
                write!(f, "config `{pointer}` is {}, was {}", shown(now.as_ref()), shown(was.as_ref()))
            }
            Self::Input { name, now, was } => {
                let shown = |input: &Option<Box<InputRef>>| {
                    input.as_ref().map_or_else(
                        || "not given".to_owned(),
                        |input| format!("{} ({})", short(&input.digest), input.origin),
                    )
                };
                write!(f, "input `{name}` is {}, was {}", shown(now), shown(was))
            }
            Self::Other => f.write_str("another output is being put there"),
        }
    }
}

fn shown(value: Option<&Value>) -> String {
    let Some(value) = value else { return "not set".to_owned() };
    let text = json::canonical(value);
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or(&text)),
        None => text,
    }
}

/// The first characters of a digest, enough to tell it from others by eye.
pub(crate) fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

/// Names every field in which two keys differ. `was` and `now` each come with the inputs' origins.
pub(crate) fn key_differences(
    (was, was_inputs): (&KeyParts, &[InputRef]),
    (now, now_inputs): (&KeyParts, &[InputRef]),
) -> Vec<KeyDifference> {
    let mut found = Vec::new();
    let mut field = |name, was: String, now: String| {
        if was != now {
            found.push(KeyDifference::Field { name, now, was });
        }
    };
    let fingerprint = |parts: &KeyParts| parts.fingerprint.clone().unwrap_or_else(|| "none".to_owned());
    field("stage", was.stage.clone(), now.stage.clone());
    field("stage version", was.version.to_string(), now.version.to_string());
    field("step", was.step.to_string(), now.step.to_string());
    field("number of parts", was.n_parts.to_string(), now.n_parts.to_string());
    field("arithmetic fingerprint", fingerprint(was), fingerprint(now));
    for name in names(&was.queries, &now.queries) {
        let change = match (was.queries.get(name), now.queries.get(name)) {
            (Some(was), Some(now)) if was == now => continue,
            (Some(_), Some(_)) => "has another text",
            (None, _) => "is new",
            (_, None) => "is gone",
        };
        found.push(KeyDifference::Query { name: name.clone(), change });
    }
    for (pointer, was, now) in json::differences(&was.config, &now.config) {
        found.push(KeyDifference::Config { pointer, now, was });
    }
    let origin = |inputs: &[InputRef], name: &str| {
        inputs.iter().find(|input| input.name == name).cloned().map(Box::new)
    };
    for name in names(&was.inputs, &now.inputs) {
        if was.inputs.get(name) != now.inputs.get(name) {
            let (was, now) = (origin(was_inputs, name), origin(now_inputs, name));
            found.push(KeyDifference::Input { name: name.clone(), now, was });
        }
    }
    found
}

fn names<'a>(a: &'a BTreeMap<String, String>, b: &'a BTreeMap<String, String>) -> Vec<&'a String> {
    let mut names: Vec<_> = a.keys().chain(b.keys()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Origin;

    fn parts() -> KeyParts {
        KeyParts {
            stage: "advantage".to_owned(),
            version: 1,
            step: 3,
            n_parts: 2,
            fingerprint: None,
            queries: [("a.sql".to_owned(), hash_hex(b"SELECT 1"))].into(),
            inputs: [("rewards".to_owned(), "aa".to_owned())].into(),
            config: json!({"scale": false, "group_size": 4}),
        }
    }

    /// Every way to change a key, and what is said about it.
    fn changes() -> Vec<(KeyParts, &'static str)> {
        let p = parts;
        vec![
            (KeyParts { stage: "score".to_owned(), ..p() }, "stage is `score`, was `advantage`"),
            (KeyParts { version: 2, ..p() }, "stage version is `2`, was `1`"),
            (KeyParts { step: 4, ..p() }, "step is `4`, was `3`"),
            (KeyParts { n_parts: 1, ..p() }, "number of parts is `1`, was `2`"),
            (
                KeyParts { fingerprint: Some("cpu".to_owned()), ..p() },
                "arithmetic fingerprint is `cpu`, was `none`",
            ),
            (
                KeyParts { queries: [("a.sql".to_owned(), hash_hex(b"SELECT 2"))].into(), ..p() },
                "query `a.sql` has another text",
            ),
            (KeyParts { queries: BTreeMap::new(), ..p() }, "query `a.sql` is gone"),
            (
                KeyParts { config: json!({"scale": false, "group_size": 8}), ..p() },
                "config `/group_size` is 8, was 4",
            ),
            (KeyParts { config: json!({"group_size": 4}), ..p() }, "config `/scale` is not set, was false"),
            (
                KeyParts { inputs: [("rewards".to_owned(), "bb".to_owned())].into(), ..p() },
                "input `rewards` is bb (`score` of run `r`, step 3, attempt 1), \
                 was aa (`score` of run `r`, step 3, attempt 0)",
            ),
        ]
    }

    fn input(digest: &str, attempt: u32) -> InputRef {
        let id = crate::StageId { run: "r".to_owned(), stage: "score".to_owned(), step: 3, attempt };
        InputRef {
            name: "rewards".to_owned(),
            digest: digest.to_owned(),
            n_rows: None,
            origin: Origin::Table { made_by: id, table: envace_schemas::Table::Rewards },
        }
    }

    #[test]
    fn every_part_is_in_the_key_and_is_named_when_it_differs() {
        let mut keys = vec![parts().key()];
        for (changed, message) in changes() {
            let differences = key_differences((&parts(), &[input("aa", 0)]), (&changed, &[input("bb", 1)]));
            let messages: Vec<_> = differences.iter().map(ToString::to_string).collect();
            assert_eq!(messages, [message]);
            keys.push(changed.key());
        }
        let n_keys = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), n_keys, "two changes gave one key");
    }

    #[test]
    fn the_order_of_settings_does_not_count() {
        let swapped = KeyParts { config: json!({"group_size": 4, "scale": false}), ..parts() };
        assert_eq!(swapped.key(), parts().key());
    }

    #[test]
    fn fields_do_not_run_into_each_other() {
        let map = |name: &str, digest: &str| BTreeMap::from([(name.to_owned(), digest.to_owned())]);
        let one = KeyParts { inputs: map("ab", "c"), ..parts() };
        let other = KeyParts { inputs: map("a", "bc"), ..parts() };
        assert_ne!(one.key(), other.key());
        let query = KeyParts { queries: map("x", "y"), inputs: BTreeMap::new(), ..parts() };
        let input = KeyParts { queries: BTreeMap::new(), inputs: map("x", "y"), ..parts() };
        assert_ne!(query.key(), input.key());
    }

    /// Adds a text with its length before it, as eight bytes.
    fn framed(bytes: &mut Vec<u8>, text: &str) {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    }

    /// The documented layout, byte by byte: a change of it would orphan every output made before.
    #[test]
    fn the_layout_of_a_key_is_stable() {
        let mut bytes = Vec::new();
        framed(&mut bytes, "envace stage key 1");
        framed(&mut bytes, "advantage");
        bytes.extend([1, 0, 0, 0]);
        bytes.extend([3, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend([2, 0, 0, 0]);
        framed(&mut bytes, "some");
        framed(&mut bytes, "cpu");
        bytes.extend([0; 8]);
        bytes.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        framed(&mut bytes, "rewards");
        framed(&mut bytes, "aa");
        framed(&mut bytes, r#"{"group_size":4,"scale":false}"#);
        let parts = KeyParts { fingerprint: Some("cpu".to_owned()), queries: BTreeMap::new(), ..parts() };
        assert_eq!(parts.key(), StageKey(hash_hex(&bytes)));
    }

    #[test]
    fn long_values_are_cut_in_messages() {
        let long = KeyDifference::Config {
            pointer: "/prompt".to_owned(),
            now: Some(json!("é".repeat(90))),
            was: None,
        };
        assert_eq!(long.to_string(), format!("config `/prompt` is \"{}…, was not set", "é".repeat(59)));
    }
}
