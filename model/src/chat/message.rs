use serde::{Deserialize, Deserializer, Serialize};

/// Who speaks in a chat message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Speaker {
    /// Instructions from outside the dialogue.
    System,
    /// The person served.
    User,
    /// The policy.
    Assistant,
    /// The response to a tool call.
    Tool,
}

/// One tool call of an assistant message. Read from `{id, name, arguments}`, or from the form of OpenAI's chat
/// completions, `{id, type, function: {name, arguments}}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WrittenCall")]
pub struct ToolCall {
    /// Unique in its dialogue.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// JSON text of the arguments, as written; usually an object.
    pub arguments: String,
}

/// A call in either form.
#[derive(Deserialize)]
struct WrittenCall {
    id: String,
    name: Option<String>,
    arguments: Option<String>,
    function: Option<WrittenFunction>,
}

#[derive(Deserialize)]
struct WrittenFunction {
    name: String,
    arguments: String,
}

impl TryFrom<WrittenCall> for ToolCall {
    type Error = &'static str;

    fn try_from(call: WrittenCall) -> Result<Self, Self::Error> {
        let id = call.id;
        match (call.function, call.name, call.arguments) {
            (None, Some(name), Some(arguments)) => Ok(Self { id, name, arguments }),
            (Some(WrittenFunction { name, arguments }), None, None) => Ok(Self { id, name, arguments }),
            _ => Err("a tool call needs `name` and `arguments`, or a `function` that has them"),
        }
    }
}

/// A text; null, as some logs have it beside tool calls, is an empty one.
fn text_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.unwrap_or_default())
}

/// One message of a dialogue, as a chat template sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// Who speaks.
    pub role: Speaker,
    /// Text, without reasoning and without tool calls.
    #[serde(deserialize_with = "text_or_null")]
    pub content: String,
    /// Reasoning of an assistant message, without its tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Calls an assistant message makes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// The call a tool message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The tool a tool message comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl ChatMessage {
    /// A message of text alone.
    pub fn text(role: Speaker, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            reasoning_content: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_in_either_form_and_written_in_one() {
        let flat =
            r#"{"role":"assistant","content":"","tool_calls":[{"id":"c","name":"f","arguments":"{}"}]}"#;
        let nested = r#"{"role": "assistant", "content": null, "tool_calls":
            [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}"#;
        let read = |text: &str| serde_json::from_str::<ChatMessage>(text);
        assert_eq!(read(flat).unwrap(), read(nested).unwrap());
        assert_eq!(serde_json::to_string(&read(nested).unwrap()).unwrap(), flat);
        for wrong in
            [r#"{"id": "c"}"#, r#"{"id": "c", "name": "f"}"#, r#"{"id": "c", "name": "f", "function": {}}"#]
        {
            let text = format!(r#"{{"role": "assistant", "content": "", "tool_calls": [{wrong}]}}"#);
            assert!(read(&text).is_err(), "{wrong}");
        }
    }
}
