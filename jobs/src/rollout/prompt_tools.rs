//! How the actor is shown its tools: by the chat template, or in the system message where the template knows none.

use std::sync::Once;

use envace_model::chat::{ChatFormat, ChatMessage, PromptOptions, Speaker};
use serde_json::Value;

use crate::config::RolloutConfig;
use crate::error::JobError;
use crate::task::Task;

const INTRODUCTION: &str = "You can call these tools. Each line is the JSON schema of one:";
const RULE: &str = "To call one, write a JSON object with its name and arguments between tags:\n\
    <tool_call>\n{\"name\": \"…\", \"arguments\": {…}}\n</tool_call>\n\
    Its response follows. When nothing is left to call, answer the user.";

/// The messages and the options from which the actor's prompt is rendered.
pub fn actor_prompt(
    config: &RolloutConfig,
    messages: &[ChatMessage],
    tools: &[Value],
) -> (Vec<ChatMessage>, PromptOptions) {
    let options = PromptOptions { enable_thinking: config.thinking, ..PromptOptions::default() };
    if config.tools_in_prompt {
        (with_tools_in_prompt(messages, tools), options)
    } else {
        (messages.to_vec(), PromptOptions { tools: tools.to_vec(), ..options })
    }
}

/// Whether the actor's first prompt is another than it would be without tools; so it is if there are none to show.
///
/// # Errors
/// [`JobError::Chat`] if the template refuses the task.
fn shows_tools(format: &ChatFormat, config: &RolloutConfig, task: &Task) -> Result<bool, JobError> {
    let ids = |tools: &[Value]| {
        let (messages, options) = actor_prompt(config, &task.opening, tools);
        format.prompt(&messages, &options).map(|prompt| prompt.ids)
    };
    if task.tools.is_empty() {
        return Ok(true);
    }
    let shown = ids(&task.tools)?;
    // A template that cannot do without tools shows them.
    Ok(ids(&[]).map_or(true, |without| without != shown))
}

/// Warns, once in a process, if the chat template leaves out the tools of the first task that has some.
///
/// # Errors
/// [`JobError::Chat`] if the template refuses the task.
pub fn warn_of_unseen_tools<'a>(
    format: &ChatFormat,
    config: &RolloutConfig,
    mut tasks: impl Iterator<Item = &'a Task>,
) -> Result<(), JobError> {
    static SAID: Once = Once::new();
    let Some(task) = tasks.find(|task| !task.tools.is_empty()) else { return Ok(()) };
    if !shows_tools(format, config, task)? {
        SAID.call_once(|| {
            tracing::warn!(
                task = task.id(),
                "the chat template leaves out the tools, so that the policy is not told of any; set \
                 `rollout.tools_in_prompt = true`, unless the tasks' own messages describe them"
            );
        });
    }
    Ok(())
}

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
    use crate::policy_assets;
    use crate::rollout::test_task::library_task;

    #[test]
    fn a_template_that_leaves_tools_out_is_found() {
        let dir = policy_assets::unpack().unwrap();
        let (mut config, task) = (RolloutConfig::default(), library_task());
        let format = ChatFormat::load(dir.path()).unwrap();
        assert!(shows_tools(&format, &config, &task).unwrap());
        let template = "{% for message in messages %}{{ message.content }}{% endfor %}";
        fs_err::write(dir.path().join("chat_template.jinja"), template).unwrap();
        let format = ChatFormat::load(dir.path()).unwrap();
        assert!(!shows_tools(&format, &config, &task).unwrap());
        config.tools_in_prompt = true;
        assert!(shows_tools(&format, &config, &task).unwrap());
        let without = Task { tools: Vec::new(), ..task };
        assert!(shows_tools(&format, &RolloutConfig::default(), &without).unwrap());
    }

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
