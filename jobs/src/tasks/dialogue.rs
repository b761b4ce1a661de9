//! Recorded dialogues in the shape of the chat completions API.

use envace_model::chat::{ChatMessage, Speaker, ToolCall};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::records::{json_reason, unpacked};
use crate::task::RecordedCall;

/// A recorded dialogue.
#[derive(Debug, Default)]
pub(super) struct Dialogue {
    /// The messages; calls are numbered anew, so that their ids are unique.
    pub messages: Vec<ChatMessage>,
    /// The calls and their responses, in order.
    pub calls: Vec<RecordedCall>,
}

impl Dialogue {
    /// Texts of the user messages, in order.
    pub(super) fn user_texts(&self) -> Vec<&str> {
        let users = self.messages.iter().filter(|message| message.role == Speaker::User);
        users.map(|message| message.content.as_str()).collect()
    }
}

#[derive(Deserialize)]
struct RawMessage<'a> {
    role: String,
    #[serde(default, borrow)]
    content: Option<&'a RawValue>,
    #[serde(default)]
    reasoning_content: Option<String>,
    #[serde(default, borrow)]
    tool_calls: Option<&'a RawValue>,
    #[serde(default)]
    tool_call_id: Option<String>,
    #[serde(default)]
    name: Option<String>,
}

#[derive(Deserialize)]
struct RawCall<'a> {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default, borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(default, borrow)]
    function: Option<RawFunction<'a>>,
}

#[derive(Deserialize)]
struct RawFunction<'a> {
    name: String,
    #[serde(default, borrow)]
    arguments: Option<&'a RawValue>,
}

/// A call that waits for its response.
struct Waiting {
    id: Option<String>,
    call: ToolCall,
    is_answered: bool,
}

/// Reads a JSON list of messages.
///
/// A message with n calls must be followed by exactly n responses, of the role `tool` or `observation`.
pub(super) fn read_dialogue(text: &str) -> Result<Dialogue, String> {
    let raw: Vec<RawMessage<'_>> =
        serde_json::from_str(text).map_err(|error| json_reason("messages do not parse", &error))?;
    let mut dialogue = Dialogue::default();
    let mut waiting: Vec<Waiting> = Vec::new();
    let (mut n_users, mut n_turns) = (0, 0);
    for (index, message) in raw.iter().enumerate() {
        let at = |reason: String| format!("message {index}: {reason}");
        let role = match message.role.as_str() {
            "system" => Speaker::System,
            "user" => Speaker::User,
            "assistant" => Speaker::Assistant,
            "tool" | "observation" => Speaker::Tool,
            other => return Err(at(format!("no such role: {other}"))),
        };
        if role == Speaker::Tool {
            let answer = answer(message, &mut waiting).map_err(at)?;
            let user_turn = usize::checked_sub(n_users, 1);
            let user_turn = user_turn.ok_or_else(|| at("a call comes before any user message".to_owned()))?;
            dialogue.calls.push(RecordedCall {
                user_turn,
                name: answer.name.clone().unwrap_or_default(),
                arguments: RawValue::from_string(answer.arguments)
                    .map_err(|error| at(json_reason("arguments are no JSON", &error)))?,
                result: answer.message.content.clone(),
            });
            dialogue.messages.push(answer.message);
            continue;
        }
        all_answered(&waiting).map_err(at)?;
        waiting.clear();
        let mut chat = ChatMessage::text(role, text_of(message.content, false).map_err(at)?);
        match role {
            Speaker::User => n_users += 1,
            Speaker::Assistant => {
                take_reasoning(&mut chat, message.reasoning_content.clone());
                waiting = calls_of(message.tool_calls, n_turns).map_err(at)?;
                chat.tool_calls = waiting.iter().map(|waiting| waiting.call.clone()).collect();
                n_turns += 1;
            }
            Speaker::System | Speaker::Tool => {}
        }
        dialogue.messages.push(chat);
    }
    all_answered(&waiting).map_err(|reason| format!("the dialogue ends: {reason}"))?;
    Ok(dialogue)
}

struct Answer {
    message: ChatMessage,
    name: Option<String>,
    arguments: String,
}

/// Finds the call that a tool message answers: the one it names, else the first without a response.
fn answer(message: &RawMessage<'_>, waiting: &mut [Waiting]) -> Result<Answer, String> {
    let open = |waiting: &Waiting| !waiting.is_answered;
    let named =
        |waiting: &Waiting| open(waiting) && waiting.id.is_some() && waiting.id == message.tool_call_id;
    let place = waiting.iter().position(named).or_else(|| waiting.iter().position(open));
    let found = place.and_then(|place| waiting.get_mut(place));
    let found = found.ok_or_else(|| "it is the response to no call".to_owned())?;
    found.is_answered = true;
    let mut chat = ChatMessage::text(Speaker::Tool, text_of(message.content, true)?);
    chat.tool_call_id = Some(found.call.id.clone());
    chat.name = Some(message.name.clone().unwrap_or_else(|| found.call.name.clone()));
    Ok(Answer { message: chat, name: Some(found.call.name.clone()), arguments: found.call.arguments.clone() })
}

fn all_answered(waiting: &[Waiting]) -> Result<(), String> {
    let n_answered = waiting.iter().filter(|waiting| waiting.is_answered).count();
    if n_answered == waiting.len() {
        return Ok(());
    }
    Err(format!("{} calls were made, but {n_answered} responses follow", waiting.len()))
}

fn calls_of(raw: Option<&RawValue>, turn: usize) -> Result<Vec<Waiting>, String> {
    let Some(raw) = raw else { return Ok(Vec::new()) };
    let text = unpacked(raw);
    if text.trim() == "\"\"" {
        return Ok(Vec::new());
    }
    let calls: Vec<RawCall<'_>> =
        serde_json::from_str(&text).map_err(|error| json_reason("`tool_calls` do not parse", &error))?;
    let read = |(index, call): (usize, RawCall<'_>)| {
        let (name, arguments) = match call.function {
            Some(function) => (Some(function.name), function.arguments),
            None => (call.name, call.arguments),
        };
        let name =
            name.filter(|name| !name.trim().is_empty()).ok_or_else(|| format!("call {index} has no name"))?;
        let arguments = arguments_of(arguments)
            .map_err(|error| json_reason(&format!("arguments of call {index} are no JSON"), &error))?;
        let id = format!("call_{turn}_{index}");
        Ok(Waiting { id: call.id, call: ToolCall { id, name, arguments }, is_answered: false })
    };
    calls.into_iter().enumerate().map(read).collect()
}

/// JSON text of the arguments, which usually come as a text themselves.
fn arguments_of(raw: Option<&RawValue>) -> Result<String, serde_json::Error> {
    let Some(raw) = raw else { return Ok("{}".to_owned()) };
    let text = match serde_json::from_str::<String>(raw.get()) {
        Ok(text) if text.trim().is_empty() => return Ok("{}".to_owned()),
        Ok(text) => text,
        Err(_) => raw.get().to_owned(),
    };
    RawValue::from_string(text).map(|arguments| arguments.get().to_owned())
}

/// The text of a message: a string, nothing, or a list of text parts; of a tool message, any JSON as it is.
fn text_of(content: Option<&RawValue>, is_tool: bool) -> Result<String, String> {
    #[derive(Deserialize)]
    struct Part {
        text: String,
    }
    let Some(content) = content else { return Ok(String::new()) };
    if let Ok(text) = serde_json::from_str::<String>(content.get()) {
        return Ok(text);
    }
    if let Ok(parts) = serde_json::from_str::<Vec<Part>>(content.get()) {
        return Ok(parts.into_iter().map(|part| part.text).collect());
    }
    match serde_json::from_str::<Value>(content.get()) {
        Ok(_) if is_tool => Ok(content.get().to_owned()),
        Ok(_) => Err("`content` is no text".to_owned()),
        Err(error) => Err(json_reason("`content` is no text", &error)),
    }
}

/// Moves what stands between think tags at the start of the text to the reasoning.
fn take_reasoning(message: &mut ChatMessage, given: Option<String>) {
    if let Some((before, after)) = message.content.split_once("</think>")
        && let Some(reasoning) = before.trim_start().strip_prefix("<think>")
    {
        let reasoning = reasoning.trim_matches('\n');
        message.reasoning_content = (!reasoning.trim().is_empty()).then(|| reasoning.to_owned());
        message.content = after.trim_start_matches('\n').to_owned();
    }
    if let Some(given) = given.filter(|given| !given.is_empty()) {
        message.reasoning_content = Some(given);
    }
}
