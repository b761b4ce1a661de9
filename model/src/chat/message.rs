use serde::{Deserialize, Serialize};

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

/// One tool call of an assistant message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Unique in its dialogue.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// JSON text of the arguments, as written; usually an object.
    pub arguments: String,
}

/// One message of a dialogue, as a chat template sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// Who speaks.
    pub role: Speaker,
    /// Text, without reasoning and without tool calls.
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
