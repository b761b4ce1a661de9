//! Calls that are answered without the environment: by a check of the call, or from the recorded dialogue.

use std::collections::BTreeMap;

use jsonschema::Validator;
use serde_json::{Value, json};

use super::episode::{Environment, EpisodeOptions};
use super::python_json::canonical;
use crate::task::{Task, function_of};

/// The code a call gets that names no tool of the task.
pub const TOOL_NOT_AVAILABLE: &str = "TOOL_NOT_AVAILABLE";
/// The code a call gets whose arguments are no object.
pub const INVALID_PARAMETERS: &str = "INVALID_PARAMETERS";
/// The code a call gets whose arguments do not fit the tool's schema.
pub const SCHEMA_VALIDATION_FAILED: &str = "SCHEMA_VALIDATION_FAILED";
/// The code a call gets that was not recorded, where only the recorded dialogue answers.
pub const NOT_RECORDED: &str = "NOT_RECORDED";

/// Schema faults that are told, at most.
const MAX_FAULTS: usize = 3;

/// What the guards make of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guarded {
    /// The environment answers.
    Passed,
    /// The recorded response.
    Replayed(String),
    /// An error.
    Refused {
        /// Its code.
        code: &'static str,
        /// What is wrong.
        message: String,
    },
}

/// The guards of one episode.
#[derive(Debug)]
pub struct Guards {
    has_whitelist: bool,
    /// Validators of the tools whose schema can be compiled; `None` if schemas are not checked.
    validators: Option<BTreeMap<String, Validator>>,
    /// Recorded responses by name and canonical arguments, in the order recorded; `None` if none is given.
    recorded: Option<BTreeMap<(String, String), Vec<String>>>,
    /// Whether nothing else answers.
    is_replay_only: bool,
    n_replayed: BTreeMap<(String, String), usize>,
}

impl Guards {
    /// The guards that `options` turn on.
    pub fn new(task: &Task, options: &EpisodeOptions) -> Self {
        let is_replay_only = options.environment == Environment::Replay;
        Self {
            has_whitelist: options.guards.whitelist,
            validators: options.guards.schema.then(|| validators_of(task)),
            recorded: (options.guards.replay || is_replay_only).then(|| recorded_of(task)),
            is_replay_only,
            n_replayed: BTreeMap::new(),
        }
    }

    /// Checks one call: whitelist, arguments, recorded dialogue, schema, in this order.
    ///
    /// Of several recordings of one call the n-th answers when it is made the n-th time, the last one from then
    /// on.
    pub fn check(&mut self, task: &Task, name: &str, arguments: &str) -> Guarded {
        if self.has_whitelist && task.tool(name).is_none() {
            return Guarded::Refused {
                code: TOOL_NOT_AVAILABLE,
                message: format!("there is no tool `{name}`"),
            };
        }
        let parsed = serde_json::from_str::<Value>(arguments).ok();
        if self.validators.is_some() && !parsed.as_ref().is_some_and(Value::is_object) {
            return Guarded::Refused {
                code: INVALID_PARAMETERS,
                message: "arguments must be a JSON object".to_owned(),
            };
        }
        if let Some(response) = self.replay(name, arguments) {
            return Guarded::Replayed(response);
        }
        if let (Some(validators), Some(parsed)) = (&self.validators, &parsed)
            && let Some(validator) = validators.get(name)
        {
            let faults: Vec<String> =
                validator.iter_errors(parsed).take(MAX_FAULTS).map(|fault| fault_text(&fault)).collect();
            if !faults.is_empty() {
                return Guarded::Refused { code: SCHEMA_VALIDATION_FAILED, message: faults.join("; ") };
            }
        }
        if self.is_replay_only {
            return Guarded::Refused { code: NOT_RECORDED, message: "this call was not recorded".to_owned() };
        }
        Guarded::Passed
    }

    fn replay(&mut self, name: &str, arguments: &str) -> Option<String> {
        let key = (name.to_owned(), canonical(arguments)?);
        let responses = self.recorded.as_ref()?.get(&key)?;
        let n_before = self.n_replayed.entry(key).or_default();
        let response = responses.get(*n_before).or(responses.last())?;
        *n_before += 1;
        Some(response.clone())
    }
}

fn fault_text(fault: &jsonschema::ValidationError<'_>) -> String {
    let place = fault.instance_path().to_string();
    if place.is_empty() { fault.to_string() } else { format!("{place}: {fault}") }
}

fn recorded_of(task: &Task) -> BTreeMap<(String, String), Vec<String>> {
    let mut recorded: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for call in &task.recorded_calls {
        if let Some(arguments) = canonical(call.arguments.get()) {
            recorded.entry((call.name.clone(), arguments)).or_default().push(call.result.clone());
        }
    }
    recorded
}

fn validators_of(task: &Task) -> BTreeMap<String, Validator> {
    let mut validators = BTreeMap::new();
    for function in task.tools.iter().map(function_of) {
        let Some(name) = function.get("name").and_then(Value::as_str) else { continue };
        match jsonschema::validator_for(&arguments_schema(function)) {
            Ok(validator) => {
                validators.insert(name.to_owned(), validator);
            }
            Err(fault) => tracing::warn!(task = task.id(), tool = name, %fault, "schema left unchecked"),
        }
    }
    validators
}

/// The JSON schema of a function's arguments.
///
/// Arguments that are not listed are refused unless the schema says otherwise (`additionalProperties`, or
/// `strict: false` on the function). The type names of BFCL (`dict`, `float`, `tuple`, `any`) are understood.
pub fn arguments_schema(function: &Value) -> Value {
    let mut schema = function.get("parameters").cloned().unwrap_or_else(|| json!({ "type": "object" }));
    normalize_types(&mut schema);
    let is_strict = function.get("strict") != Some(&Value::Bool(false));
    if let Value::Object(fields) = &mut schema
        && is_strict
        && fields.contains_key("properties")
        && !fields.contains_key("additionalProperties")
    {
        fields.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    schema
}

fn normalize_types(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            let known = match fields.get("type").and_then(Value::as_str) {
                Some("dict") => Some("object"),
                Some("float") => Some("number"),
                Some("tuple") => Some("array"),
                Some("any") => {
                    fields.shift_remove("type");
                    None
                }
                _ => None,
            };
            if let Some(name) = known {
                fields.insert("type".to_owned(), Value::from(name));
            }
            for value in fields.values_mut() {
                normalize_types(value);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(normalize_types),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::test_task::library_task;

    fn guards(change: impl FnOnce(&mut EpisodeOptions)) -> (Task, Guards) {
        let task = library_task();
        let mut options = EpisodeOptions::default();
        change(&mut options);
        let guards = Guards::new(&task, &options);
        (task, guards)
    }

    fn code(guarded: &Guarded) -> &str {
        match guarded {
            Guarded::Passed => "passed",
            Guarded::Replayed(response) => response,
            Guarded::Refused { code, .. } => code,
        }
    }

    #[test]
    fn all_guards_are_off_by_default() {
        let (task, mut guards) = guards(|_| {});
        assert_eq!(guards.check(&task, "nothing", "5"), Guarded::Passed);
    }

    #[test]
    fn whitelist_and_schema() {
        let (task, mut guards) = guards(|options| {
            options.guards.whitelist = true;
            options.guards.schema = true;
        });
        for (name, arguments, expected) in [
            ("find_copy", r#"{"title": "Dune"}"#, "passed"),
            ("find_copy", r#"{"title": "Dune", "branch": "Elm St"}"#, "passed"),
            ("find_book", r#"{"title": "Dune"}"#, TOOL_NOT_AVAILABLE),
            ("find_copy", r#"["Dune"]"#, INVALID_PARAMETERS),
            ("find_copy", r#"{"branch": "Elm St"}"#, SCHEMA_VALIDATION_FAILED),
            ("find_copy", r#"{"title": 7}"#, SCHEMA_VALIDATION_FAILED),
            ("find_copy", r#"{"title": "Dune", "shelf": 1}"#, SCHEMA_VALIDATION_FAILED),
            ("find_copy", r#"{"title": "Dune", "branch": "Oak Rd"}"#, SCHEMA_VALIDATION_FAILED),
            ("place_hold", r#"{"copy_id": "c9", "card": 771}"#, "passed"),
            ("place_hold", r#"{"copy_id": "c9", "card": 771.5}"#, "passed"),
            ("place_hold", r#"{"copy_id": "c9", "card": true}"#, SCHEMA_VALIDATION_FAILED),
        ] {
            assert_eq!(code(&guards.check(&task, name, arguments)), expected, "{name} {arguments}");
        }
        let Guarded::Refused { message, .. } = guards.check(&task, "find_copy", r#"{"title": 7}"#) else {
            panic!("the title is no text")
        };
        assert_eq!(message, "/title: 7 is not of type \"string\"");
    }

    #[test]
    fn replay_compares_arguments_by_meaning() {
        let (task, mut guards) = guards(|options| options.guards.replay = true);
        let first = guards.check(&task, "find_copy", "{\"branch\":\"Elm St\",\n\"title\":\"Dune\"}");
        assert_eq!(code(&first), r#"{"copy_id": "c9", "status": "in"}"#);
        assert_eq!(code(&guards.check(&task, "find_copy", r#"{"title":"Emma"}"#)), "passed");
        assert_eq!(
            code(&guards.check(&task, "place_hold", r#"{"title":"Dune","branch":"Elm St"}"#)),
            "passed"
        );
    }

    #[test]
    fn repeated_calls_get_their_recordings_in_order() {
        let (task, mut guards) = guards(|options| options.environment = Environment::Replay);
        let mut ask = || code(&guards.check(&task, "hold_status", r#"{"hold": "h1"}"#)).to_owned();
        assert_eq!([ask(), ask(), ask()], [r#"["waiting"]"#, r#"["ready"]"#, r#"["ready"]"#]);
        assert_eq!(code(&guards.check(&task, "hold_status", r#"{"hold": "h2"}"#)), NOT_RECORDED);
    }

    #[test]
    fn bfcl_types_are_understood() {
        let function = json!({"name": "f", "parameters": {"type": "dict", "properties": {
            "x": {"type": "float"}, "y": {"type": "any"}, "z": {"type": "tuple", "items": {"type": "integer"}}
        }}});
        let validator = jsonschema::validator_for(&arguments_schema(&function)).unwrap();
        assert!(validator.is_valid(&json!({"x": 1.5, "y": "a", "z": [1]})));
        assert!(!validator.is_valid(&json!({"z": ["a"]})));
        assert!(!validator.is_valid(&json!({"w": 1})));
        let lax = json!({"name": "f", "strict": false, "parameters": {"type": "object", "properties": {}}});
        assert!(jsonschema::is_valid(&arguments_schema(&lax), &json!({"w": 1})));
    }
}
