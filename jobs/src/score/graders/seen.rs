//! What a grader sees of a trajectory: per user turn, the calls made, their responses and the final reply.

use std::collections::BTreeMap;

use envace_model::chat::ToolCall;
use envace_schemas::tables::MessageRow;
use serde_json::Value;

/// One user turn.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SeenTurn {
    /// Well-formed calls, in order, without those that were turned away before anything could answer them.
    pub calls: Vec<SeenCall>,
    /// Malformed calls and those turned away; in words.
    pub refused: Vec<String>,
    /// Text of the last message, if that is an actor's without calls.
    pub reply: Option<String>,
}

/// One well-formed call.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SeenCall {
    /// 0-based turn in the trajectory.
    pub turn: i32,
    /// Name of the tool.
    pub name: String,
    /// Arguments; text that is no JSON is a JSON string.
    pub arguments: Value,
    /// What came back.
    pub response: Response,
}

/// The response to a call.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Response {
    /// None came: the trajectory was cut off before.
    Missing,
    /// Text that is no JSON.
    Text,
    /// JSON.
    Json(Value),
    /// An error report: nothing answered the call.
    TurnedAway,
}

/// Sorts `messages`, the transcript of one trajectory in order, into `n_user_turns` user turns.
///
/// # Errors
/// A reason, if the rows contradict each other.
pub(super) fn seen_turns(messages: &[MessageRow], n_user_turns: usize) -> Result<Vec<SeenTurn>, String> {
    let mut turns = vec![SeenTurn::default(); n_user_turns];
    // Place in its user turn of each call of the latest actor message, by call id.
    let mut waiting: BTreeMap<String, usize> = BTreeMap::new();
    for message in messages {
        let user_turn = usize::try_from(message.user_turn).ok();
        let turn = user_turn.and_then(|user_turn| turns.get_mut(user_turn)).ok_or_else(|| {
            format!("message {} lies in user turn {}", message.message_index, message.user_turn)
        })?;
        turn.reply = None;
        match message.speaker.as_str() {
            "assistant" => {
                waiting.clear();
                actor_message(turn, &mut waiting, message)?;
            }
            "tool" => {
                let place = message.call_id.as_ref().and_then(|id| waiting.get(id));
                let call = place.and_then(|place| turn.calls.get_mut(*place));
                tool_message(call, &mut turn.refused, message);
            }
            _ => {}
        }
    }
    for turn in &mut turns {
        turn.calls.retain(|call| call.response != Response::TurnedAway);
    }
    Ok(turns)
}

fn actor_message(
    turn: &mut SeenTurn,
    waiting: &mut BTreeMap<String, usize>,
    message: &MessageRow,
) -> Result<(), String> {
    let calls = calls_of(message)?;
    match &message.error_code {
        Some(code) => turn.refused.push(format!("malformed call: {code}")),
        None if calls.is_empty() => turn.reply = Some(message.text.clone()),
        None => {}
    }
    for call in calls {
        let arguments =
            serde_json::from_str(&call.arguments).unwrap_or_else(|_| Value::String(call.arguments.clone()));
        waiting.insert(call.id, turn.calls.len());
        turn.calls.push(SeenCall {
            turn: message.turn.unwrap_or_default(),
            name: call.name,
            arguments,
            response: Response::Missing,
        });
    }
    Ok(())
}

fn tool_message(call: Option<&mut SeenCall>, refused: &mut Vec<String>, message: &MessageRow) {
    // An error report by the loop itself stands where no tool, real or imagined, ever saw the call.
    let report = message.error_code.as_ref().filter(|_| message.written_by == "envace");
    match (call, report) {
        (Some(call), Some(code)) => {
            refused.push(format!("call of `{}` turned away: {code}", call.name));
            call.response = Response::TurnedAway;
        }
        (None, Some(code)) => {
            let text = format!("malformed call: {code}");
            // The message that made the call says it already.
            if refused.last() != Some(&text) {
                refused.push(text);
            }
        }
        (Some(call), None) => {
            call.response = serde_json::from_str(&message.text).map_or(Response::Text, Response::Json);
        }
        (None, None) => {}
    }
}

fn calls_of(message: &MessageRow) -> Result<Vec<ToolCall>, String> {
    let Some(text) = &message.tool_calls else { return Ok(Vec::new()) };
    serde_json::from_str(text)
        .map_err(|error| format!("`tool_calls` of message {} do not parse: {error}", message.message_index))
}
