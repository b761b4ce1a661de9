//! The wording of each section, full and compact.

use envace_model::chat::{ChatMessage, Speaker, ToolCall};
use serde_json::{Value, json};

use crate::rollout::episode::{Whitelist, Wording};
use crate::rollout::parse_calls::{CALL_CLOSE, CALL_OPEN, ParseMode};
use crate::rollout::python_json::{Dumps, PyValue};
use crate::rollout::text::{THINK_CLOSE, THINK_OPEN, sanitize};
use crate::task::{RecordedCall, Task, function_of};

/// How sections are worded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Style {
    pub wording: Wording,
    pub mode: ParseMode,
}

impl Style {
    /// What stands between sections.
    pub const fn separator(self) -> &'static str {
        match self.wording {
            Wording::Full => "\n\n",
            Wording::Compact => "\n",
        }
    }

    /// The user message from its sections; `None` hides one.
    pub fn join(
        self,
        tools: &str,
        examples: Option<&[(String, bool)]>,
        history: Option<&[String]>,
        end: &str,
    ) -> String {
        let examples: Option<Vec<&str>> =
            examples.map(|examples| examples.iter().map(|(text, _)| text.as_str()).collect());
        let history: Option<Vec<&str>> = history.map(|history| history.iter().map(String::as_str).collect());
        let sections = match self.wording {
            Wording::Full => [
                tools.to_owned(),
                listed("# Recorded calls and their responses", "None are available.", examples),
                listed("# Conversation so far", "Nothing was said before.", history),
                end.to_owned(),
            ],
            Wording::Compact => [
                tools.to_owned(),
                examples.unwrap_or_default().join("\n"),
                history.unwrap_or_default().join("\n"),
                end.to_owned(),
            ],
        };
        let sections: Vec<String> = sections.into_iter().filter(|section| !section.is_empty()).collect();
        sections.join(self.separator())
    }

    pub fn tools_section(self, task: &Task, whitelist: Whitelist) -> String {
        let functions: Vec<&Value> = task.tools.iter().map(function_of).collect();
        let names = || functions.iter().filter_map(|function| function["name"].as_str()).collect::<Vec<_>>();
        match (self.wording, whitelist) {
            (_, Whitelist::Called) => String::new(),
            (Wording::Full, Whitelist::Full) if self.mode == ParseMode::Reference => {
                format!("# Tools\n{}", sanitize(&self.json(&Value::from(task.tools.clone()))))
            }
            (Wording::Full, Whitelist::Full) => {
                let schemas: Vec<String> = functions.iter().map(|function| self.json(function)).collect();
                format!("# Tools\n{}", sanitize(&schemas.join("\n")))
            }
            (Wording::Full, Whitelist::Names) => format!("# Tools\n{}", names().join(", ")),
            (Wording::Compact, Whitelist::Full) => {
                functions.iter().map(|function| signature(function)).collect::<Vec<_>>().join("\n")
            }
            (Wording::Compact, Whitelist::Names) => format!("tools: {}", names().join(", ")),
        }
    }

    /// A recorded call and its response.
    pub fn example(self, call: &RecordedCall) -> String {
        let (name, arguments, result) = (&call.name, call.arguments.get(), &call.result);
        let text = match self.wording {
            Wording::Full => format!("Tool: {name}\nArguments: {arguments}\nResponse: {result}"),
            Wording::Compact => format!("seen: {name} {arguments}\nresponse: {result}"),
        };
        sanitize(&text).into_owned()
    }

    /// A message of the conversation.
    pub fn message(self, message: &ChatMessage, show_thinking: bool) -> String {
        let text = match (self.wording, message.role) {
            (_, Speaker::System) => String::new(),
            (Wording::Full, Speaker::User) => format!("User: {}", message.content),
            (Wording::Full, Speaker::Assistant) => {
                format!("Assistant: {}", assistant_text(message, show_thinking))
            }
            (Wording::Full, Speaker::Tool) => {
                format!("Tool[{}]: {}", message.name.as_deref().unwrap_or("error"), message.content)
            }
            (Wording::Compact, Speaker::User) => format!("user: {}", message.content),
            (Wording::Compact, Speaker::Assistant) => compact_assistant(message, show_thinking),
            (Wording::Compact, Speaker::Tool) => format!("response: {}", message.content),
        };
        sanitize(&text).into_owned()
    }

    /// The actor's message that makes the call, with all its calls.
    pub fn latest_message(self, message: &ChatMessage, show_thinking: bool) -> String {
        match self.wording {
            Wording::Full => assistant_text(message, show_thinking),
            Wording::Compact => compact_assistant(message, show_thinking),
        }
    }

    pub fn latest_section(self, latest: &str) -> String {
        match self.wording {
            Wording::Full => format!("# Latest assistant message\n{latest}"),
            Wording::Compact => latest.to_owned(),
        }
    }

    /// The call to answer; the compact wording leaves the schema out where the tools section has it.
    pub fn call_section(self, call: &ToolCall, function: Option<&Value>, is_schema_listed: bool) -> String {
        let ToolCall { name, arguments, .. } = call;
        match self.wording {
            Wording::Full => {
                let schema = function.map_or_else(
                    || "unavailable: there is no tool of this name".to_owned(),
                    |function| {
                        let parameters = function.get("parameters").cloned().unwrap_or_else(|| json!({}));
                        sanitize(&self.json(&parameters)).into_owned()
                    },
                );
                format!("# Call to answer\nTool: {name}\nSchema: {schema}\nArguments: {arguments}")
            }
            Wording::Compact => {
                let schema = match function {
                    Some(_) if is_schema_listed => String::new(),
                    Some(function) => format!("tool: {}\n", signature(function)),
                    None => "tool: unknown\n".to_owned(),
                };
                format!("{schema}answer: {name} {arguments}")
            }
        }
    }

    fn json(self, value: &Value) -> String {
        match self.mode {
            ParseMode::Tolerant => value.to_string(),
            ParseMode::Reference => PyValue::from(value).dumps(Dumps::LINES),
        }
    }
}

fn listed(heading: &str, none: &str, entries: Option<Vec<&str>>) -> String {
    match entries {
        None => String::new(),
        Some(entries) if entries.is_empty() => format!("{heading}\n{none}"),
        Some(entries) => format!("{heading}\n{}", entries.join("\n\n")),
    }
}

/// What an assistant message says, with its calls as the actor writes them.
fn assistant_text(message: &ChatMessage, show_thinking: bool) -> String {
    let mut parts = Vec::new();
    if let (true, Some(reasoning)) = (show_thinking, &message.reasoning_content) {
        parts.push(format!("{THINK_OPEN}\n{reasoning}\n{THINK_CLOSE}\n"));
    }
    if !message.content.is_empty() {
        parts.push(message.content.clone());
    }
    for call in &message.tool_calls {
        let name = Value::from(call.name.as_str());
        parts.push(format!(
            "{CALL_OPEN}\n{{\"name\": {name}, \"arguments\": {}}}\n{CALL_CLOSE}",
            call.arguments
        ));
    }
    parts.join("\n")
}

fn compact_assistant(message: &ChatMessage, show_thinking: bool) -> String {
    let mut lines = Vec::new();
    if let (true, Some(reasoning)) = (show_thinking, &message.reasoning_content) {
        lines.push(format!("{THINK_OPEN}{reasoning}{THINK_CLOSE}"));
    }
    if !message.content.is_empty() {
        lines.push(format!("assistant: {}", message.content));
    }
    lines.extend(message.tool_calls.iter().map(|call| format!("call: {} {}", call.name, call.arguments)));
    lines.join("\n")
}

/// A function schema on one short line, such as `find(title: string, branch?: "Elm"|"Main")`.
pub fn signature(function: &Value) -> String {
    let parameters = &function["parameters"];
    let required: Vec<&str> =
        parameters["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let arguments: Vec<String> = parameters["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, schema)| {
            let mark = if required.contains(&name.as_str()) { "" } else { "?" };
            format!("{name}{mark}: {}", type_text(schema))
        })
        .collect();
    let text = format!("{}({})", function["name"].as_str().unwrap_or_default(), arguments.join(", "));
    sanitize(&text).into_owned()
}

fn type_text(schema: &Value) -> String {
    if let Some(values) = schema["enum"].as_array() {
        return values.iter().map(Value::to_string).collect::<Vec<_>>().join("|");
    }
    match &schema["type"] {
        Value::String(name) if name == "array" && schema.get("items").is_some() => {
            format!("{}[]", type_text(&schema["items"]))
        }
        Value::String(name) => name.clone(),
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("|"),
        _ => "any".to_owned(),
    }
}
