//! Tools in the system message, for chat templates that know none.

use envace_model::chat::{ChatMessage, Speaker};
use serde_json::Value;

const INTRODUCTION: &str = "You can call these tools. Each line is the JSON schema of one:";
const RULE: &str = "To call one, write a JSON object with its name and arguments between tags:\n\
    <tool_call>\n{\"name\": \"…\", \"arguments\": {…}}\n</tool_call>\n\
    Its response follows. When nothing is left to call, answer the user.";

/// The dialogue with the tools in its system message and each call in the text of the message that makes it.
pub fn with_tools_in_prompt(messages: &[ChatMessage], tools: &[Value]) -> Vec<ChatMessage> {
    let mut messages: Vec<ChatMessage> = messages.iter().map(with_calls_in_text).collect();
    if tools.is_empty() {
        return messages;
    }
    let lines: Vec<String> = tools.iter().map(Value::to_string).collect();
    let block = format!("{INTRODUCTION}\n{}\n\n{RULE}", lines.join("\n"));
    match messages.first_mut().filter(|message| message.role == Speaker::System) {
        Some(system) => system.content = format!("{}\n\n{block}", system.content),
        None => messages.insert(0, ChatMessage::text(Speaker::System, block)),
    }
    messages
}

fn with_calls_in_text(message: &ChatMessage) -> ChatMessage {
    let mut content = message.content.clone();
    for call in &message.tool_calls {
        if !content.is_empty() {
            content.push('\n');
        }
        let name = Value::from(call.name.as_str());
        content.push_str(&format!(
            "<tool_call>\n{{\"name\": {name}, \"arguments\": {}}}\n</tool_call>",
            call.arguments
        ));
    }
    ChatMessage { content, tool_calls: Vec::new(), ..message.clone() }
}

#[cfg(test)]
mod tests {
    use envace_model::chat::ToolCall;
    use serde_json::json;

    use super::*;

    #[test]
    fn tools_join_the_system_message_or_make_one() {
        let user = ChatMessage::text(Speaker::User, "hi");
        let tools = [json!({"name": "look"}), json!({"name": "take"})];
        let made = with_tools_in_prompt(std::slice::from_ref(&user), &tools);
        assert_eq!(made.len(), 2);
        assert!(made[0].content.contains("{\"name\":\"look\"}\n{\"name\":\"take\"}"));
        let system = ChatMessage::text(Speaker::System, "Be kind.");
        let joined = with_tools_in_prompt(&[system, user.clone()], &tools);
        assert_eq!(joined.len(), 2);
        assert!(joined[0].content.starts_with("Be kind.\n\n"));
        assert_eq!(joined[1], user);
    }

    #[test]
    fn calls_become_text() {
        let call =
            ToolCall { id: "c".to_owned(), name: "look".to_owned(), arguments: "{\"a\": 1}".to_owned() };
        let message =
            ChatMessage { tool_calls: vec![call], ..ChatMessage::text(Speaker::Assistant, "Well.") };
        let made = with_tools_in_prompt(&[message], &[]);
        assert_eq!(
            made[0].content,
            "Well.\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"a\": 1}}\n</tool_call>"
        );
        assert!(made[0].tool_calls.is_empty());
    }
}
