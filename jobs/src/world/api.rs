use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::tools::{self, Arguments, Tool};
use super::{Split, State};

/// The face that the world shows: names of tools and arguments, and the shape of responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Api {
    /// The one that is trained on.
    Standard,
    /// The unfamiliar one: most tools and arguments have other names, responses other keys and one more level.
    Drift,
}

impl Api {
    /// The face that tasks of `split` meet.
    pub fn of(split: Split) -> Self {
        match split {
            Split::Train | Split::HeldOut => Self::Standard,
            Split::Drift => Self::Drift,
        }
    }

    /// What this face calls `tool`.
    pub(super) fn tool_name(self, tool: Tool) -> &'static str {
        match (self, tool) {
            (Self::Drift, Tool::GetUser) => "user",
            (Self::Drift, Tool::GetOrder) => "order",
            (Self::Drift, Tool::CancelOrder) => "cancel",
            (Self::Drift, Tool::GetDevice) => "device",
            (Self::Drift, Tool::GetTicket) => "ticket",
            (Self::Drift, Tool::CloseTicket) => "close",
            _ => tool.name(),
        }
    }

    /// What this face calls the argument `name` of `tool`.
    pub(super) fn argument_name(self, tool: Tool, name: &'static str) -> &'static str {
        match self {
            Self::Standard => name,
            Self::Drift if name == tool.subject() && tool != Tool::OpenTicket => "name",
            Self::Drift if name == "user" => "owner",
            Self::Drift => name,
        }
    }

    /// What this face calls the field `key` of a response of `tool`.
    fn key(self, tool: Tool, key: &str) -> &str {
        match (self, key) {
            (Self::Standard, _) => key,
            (Self::Drift, _) if key == tool.subject() => "name",
            (Self::Drift, "user") => "owner",
            (Self::Drift, "owner") => "user",
            (Self::Drift, "status") => "state",
            _ => key,
        }
    }

    /// JSON pointer to the field `key` of a response of `tool`.
    pub(super) fn path(self, tool: Tool, key: &str) -> String {
        match self {
            Self::Drift if key != "error" => format!("/data/{}", self.key(tool, key)),
            _ => format!("/{key}"),
        }
    }

    /// Serves the call of `name` with `arguments`, a JSON text; the response is a JSON text.
    pub(super) fn execute(self, state: &mut State, name: &str, arguments: &str) -> String {
        let Some(tool) = Tool::ALL.into_iter().find(|tool| self.tool_name(*tool) == name) else {
            return json_text(&tools::error("unknown tool"));
        };
        let response = match self.arguments(tool, arguments) {
            None => tools::error("bad arguments"),
            Some(arguments) => tools::execute(state, tool, &arguments),
        };
        json_text(&self.shape(tool, response))
    }

    /// The arguments by their own names; `None` if one is missing, unknown, or no text.
    fn arguments(self, tool: Tool, text: &str) -> Option<Arguments> {
        let given: Map<String, Value> = serde_json::from_str(text).ok()?;
        let mut arguments = Arguments::default();
        for name in tool.arguments() {
            let value = given.get(self.argument_name(tool, name))?.as_str()?;
            arguments.0.insert(name, value.to_owned());
        }
        (given.len() == arguments.0.len()).then_some(arguments)
    }

    fn shape(self, tool: Tool, response: Value) -> Value {
        match response {
            Value::Object(fields) if self == Self::Drift && !fields.contains_key("error") => {
                let renamed: Map<String, Value> =
                    fields.into_iter().map(|(key, value)| (self.key(tool, &key).to_owned(), value)).collect();
                json!({ "data": renamed })
            }
            _ => response,
        }
    }

    /// The function schemas of all tools, in their order.
    pub(super) fn schemas(self) -> Vec<Value> {
        Tool::ALL
            .into_iter()
            .map(|tool| {
                let names: Vec<_> =
                    tool.arguments().iter().map(|name| self.argument_name(tool, name)).collect();
                let properties: Map<String, Value> =
                    names.iter().map(|name| ((*name).to_owned(), json!({"type": "string"}))).collect();
                json!({"type": "function", "function": {
                    "name": self.tool_name(tool),
                    "description": tool.description(),
                    "parameters": {
                        "type": "object",
                        "properties": properties,
                        "required": names,
                        "additionalProperties": false,
                    },
                }})
            })
            .collect()
    }
}

/// JSON text with one space after each comma and colon, as chat templates write it.
pub(super) fn json_text(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(key, value)| format!("{}: {}", Value::from(key.as_str()), json_text(value)))
                .collect();
            format!("{{{}}}", fields.join(", "))
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(json_text).collect();
            format!("[{}]", items.join(", "))
        }
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        State { users: [("Alma".into(), "sales".into())].into(), ..State::default() }
    }

    #[test]
    fn the_unfamiliar_face_renames_and_wraps() {
        let mut state = state();
        assert_eq!(
            Api::Drift.execute(&mut state, "user", r#"{"name": "Alma"}"#),
            r#"{"data": {"name": "Alma", "team": "sales"}}"#
        );
        assert_eq!(
            Api::Drift.execute(&mut state, "user", r#"{"name": "Zoe"}"#),
            r#"{"error": "unknown user"}"#
        );
        assert_eq!(Api::Drift.path(Tool::GetDevice, "owner"), "/data/user");
        assert_eq!(Api::Standard.path(Tool::GetDevice, "owner"), "/owner");
        assert_eq!(Api::Drift.path(Tool::GetDevice, "error"), "/error");
    }

    #[test]
    fn what_does_not_fit_the_schema_is_an_error() {
        for (name, arguments, expected) in [
            ("user", r#"{"user": "Alma"}"#, r#"{"error": "unknown tool"}"#),
            ("get_user", r#"{"user": "Alma"}"#, r#"{"user": "Alma", "team": "sales"}"#),
            ("get_user", r#"{"user": 3}"#, r#"{"error": "bad arguments"}"#),
            ("get_user", r#"{"name": "Alma"}"#, r#"{"error": "bad arguments"}"#),
            ("get_user", r#"{"user": "Alma", "team": "sales"}"#, r#"{"error": "bad arguments"}"#),
            ("get_user", r#"["Alma"]"#, r#"{"error": "bad arguments"}"#),
            ("get_user", "{", r#"{"error": "bad arguments"}"#),
        ] {
            assert_eq!(Api::Standard.execute(&mut state(), name, arguments), expected, "{name} {arguments}");
        }
    }

    #[test]
    fn json_text_has_one_space_after_commas_and_colons() {
        let value = json!({"a": [1, "x, y: z", null], "b": {}, "c": {"d": true}});
        assert_eq!(json_text(&value), r#"{"a": [1, "x, y: z", null], "b": {}, "c": {"d": true}}"#);
    }
}
