//! Checks tool calls against the schemas a task declares.

use std::collections::BTreeMap;

use jsonschema::Validator;
use serde_json::{Map, Value, json};

use crate::task::function_of;

/// The tools of a task, their argument schemas compiled once.
#[derive(Debug)]
pub struct ToolSchemas {
    tools: BTreeMap<String, Result<Validator, String>>,
}

/// Why a call does not fit the tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallFault {
    /// No tool has that name.
    NoSuchTool,
    /// The arguments break the schema; in words.
    Arguments(String),
    /// The tool's schema is no JSON schema, so the call cannot be checked; in words.
    Schema(String),
}

impl ToolSchemas {
    /// Compiles the schemas of `tools`, each a function declaration or the `function` object of one.
    ///
    /// Type names of the Gorilla dialect (`dict`, `float`, …) are understood. Arguments that the schema does not
    /// name are refused unless it says otherwise by `additionalProperties`, or the tool by `"strict": false`.
    pub fn new(tools: &[Value]) -> Self {
        let tools = tools.iter().map(function_of).filter_map(|tool| {
            let name = tool.get("name")?.as_str()?;
            let schema = argument_schema(tool);
            Some((name.to_owned(), jsonschema::validator_for(&schema).map_err(|error| error.to_string())))
        });
        Self { tools: tools.collect() }
    }

    /// Checks one call.
    ///
    /// # Errors
    /// [`CallFault`] says what is wrong with it.
    pub fn check(&self, name: &str, arguments: &Value) -> Result<(), CallFault> {
        match self.tools.get(name) {
            None => Err(CallFault::NoSuchTool),
            Some(Err(reason)) => Err(CallFault::Schema(reason.clone())),
            Some(Ok(validator)) => validator.validate(arguments).map_err(|error| {
                let place = error.instance_path().to_string();
                let place = if place.is_empty() { String::new() } else { format!(" at `{place}`") };
                CallFault::Arguments(format!("{error}{place}"))
            }),
        }
    }

    /// The first tool whose schema does not compile, and why.
    pub fn first_broken(&self) -> Option<(&str, &str)> {
        self.tools.iter().find_map(|(name, schema)| Some((name.as_str(), schema.as_ref().err()?.as_str())))
    }
}

/// The JSON schema that the arguments of `tool` must fit: an object, closed unless declared open.
fn argument_schema(tool: &Value) -> Value {
    let declared = tool.get("parameters").filter(|parameters| !parameters.is_null());
    let Some(declared) = declared else { return json!({"type": "object"}) };
    let mut schema = json_schema(declared);
    if let Value::Object(fields) = &mut schema {
        fields.entry("type").or_insert_with(|| json!("object"));
        let is_open = tool.get("strict") == Some(&Value::Bool(false));
        if !is_open && fields.contains_key("properties") && !fields.contains_key("additionalProperties") {
            fields.insert("additionalProperties".to_owned(), Value::Bool(false));
        }
    }
    schema
}

/// `schema` with the type names of the Gorilla dialect turned into those of JSON schema.
///
/// A type that accepts anything is left out. A `required` that is no list says nothing in JSON schema and is
/// left out too.
pub fn json_schema(schema: &Value) -> Value {
    let Value::Object(fields) = schema else { return schema.clone() };
    let mut result = Map::new();
    for (key, value) in fields {
        let value = match key.as_str() {
            "type" => match json_type(value) {
                Some(value) => value,
                None => continue,
            },
            "required" if !value.is_array() => continue,
            "properties" | "patternProperties" | "$defs" | "definitions" => match value {
                Value::Object(inner) => {
                    inner.iter().map(|(name, schema)| (name.clone(), json_schema(schema))).collect()
                }
                other => other.clone(),
            },
            "items" | "additionalProperties" | "anyOf" | "oneOf" | "allOf" | "not" | "prefixItems" => {
                match value {
                    Value::Array(schemas) => schemas.iter().map(json_schema).collect(),
                    other => json_schema(other),
                }
            }
            _ => value.clone(),
        };
        result.insert(key.clone(), value);
    }
    Value::Object(result)
}

/// The JSON schema type of a `type` value; `None` if it accepts anything.
fn json_type(value: &Value) -> Option<Value> {
    let name = match value {
        Value::Array(names) => {
            let names: Option<Vec<Value>> = names.iter().map(json_type).collect();
            return names.map(Value::Array);
        }
        Value::String(name) => name.as_str(),
        other => return Some(other.clone()),
    };
    let name = match name {
        "any" | "Any" | "" => return None,
        "dict" | "HashMap" | "Hashtable" => "object",
        "float" | "double" => "number",
        "tuple" | "list" | "Array" | "ArrayList" | "Set" | "Queue" | "Stack" => "array",
        "byte" | "short" | "long" | "int" | "Bigint" => "integer",
        "String" | "char" | "str" => "string",
        "Boolean" | "bool" => "boolean",
        other => other,
    };
    Some(Value::String(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schemas() -> ToolSchemas {
        ToolSchemas::new(&[
            json!({"type": "function", "function": {"name": "find", "parameters": {
                "type": "object",
                "properties": {"title": {"type": "string"}, "pages": {"type": "integer"}},
                "required": ["title"],
            }}}),
            json!({"name": "area", "parameters": {
                "type": "dict",
                "properties": {
                    "base": {"type": "float"},
                    "type": {"type": "String"},
                    "corners": {"type": "tuple", "items": {"type": "dict", "properties": {"x": {"type": "any"}}}},
                },
                "required": ["base"],
            }}),
            json!({"name": "loose", "strict": false, "parameters": {"type": "object", "properties": {}}}),
            json!({"name": "bare"}),
            json!({"name": "broken", "parameters": {"type": "objekt"}}),
        ])
    }

    #[test]
    fn calls_are_checked() {
        let schemas = schemas();
        let cases: &[(&str, Value, bool)] = &[
            ("find", json!({"title": "Dune"}), true),
            ("find", json!({"title": "Dune", "pages": 3.0}), true),
            ("find", json!({"title": "Dune", "pages": 3.5}), false),
            ("find", json!({}), false),
            ("find", json!({"title": "Dune", "author": "x"}), false),
            ("find", json!(["Dune"]), false),
            ("area", json!({"base": 2}), true),
            ("area", json!({"base": true}), false),
            ("area", json!({"base": 2, "type": "square"}), true),
            ("area", json!({"base": 2, "corners": [{"x": null}]}), true),
            ("area", json!({"base": 2, "corners": ["x"]}), false),
            ("loose", json!({"whatever": 1}), true),
            ("bare", json!({"whatever": 1}), true),
            ("bare", json!("text"), false),
        ];
        for (name, arguments, fits) in cases {
            assert_eq!(schemas.check(name, arguments).is_ok(), *fits, "{name} {arguments}");
        }
        assert_eq!(schemas.check("lose", &json!({})), Err(CallFault::NoSuchTool));
        assert!(matches!(schemas.check("broken", &json!({})), Err(CallFault::Schema(_))));
        assert_eq!(schemas.first_broken().map(|(name, _)| name), Some("broken"));
    }

    #[test]
    fn a_fault_names_the_argument() {
        let fault = schemas().check("area", &json!({"base": "two"}));
        assert_eq!(
            fault,
            Err(CallFault::Arguments("\"two\" is not of type \"number\" at `/base`".to_owned()))
        );
    }

    #[test]
    fn gorilla_types_become_json_types() {
        let gorilla = json!({"type": "dict", "required": true, "properties": {
            "a": {"type": "ArrayList", "items": {"type": "long"}},
            "type": {"type": "any", "description": "x"},
            "b": {"type": ["float", "null"], "default": {"type": "dict"}},
        }});
        let expected = json!({"type": "object", "properties": {
            "a": {"type": "array", "items": {"type": "integer"}},
            "type": {"description": "x"},
            "b": {"type": ["number", "null"], "default": {"type": "dict"}},
        }});
        assert_eq!(json_schema(&gorilla), expected);
    }
}
