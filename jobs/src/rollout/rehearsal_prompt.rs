//! What the rehearsal role is asked: an instruction and, for each call, the sections it needs to answer it.

mod sections;

use crate::rollout::episode::{FewShot, RehearsalOptions, Whitelist, Wording};
use crate::rollout::parse_calls::ParseMode;
use crate::task::Task;
use envace_model::chat::{ChatMessage, Speaker, ToolCall};

use sections::Style;
pub use sections::signature;

/// Instruction of the compact wording: 21 words.
pub const COMPACT_INSTRUCTION: &str = "You are the tools. Answer the call with its JSON result, consistent with the \
     conversation. An impossible call gets an error.";

/// Instruction of the full wording; `{error_key}` stands for the key of an error object.
const FULL_INSTRUCTION: &str = "\
You stand in for the tools of an assistant: you write the response that one tool call gets. No tool is run.

You are shown the tools there are, recorded calls with their true responses if there are any, the conversation so \
far, the assistant's latest message, and the call to answer.

First check the call. The first of these that fails is answered with an error object:
1. The latest message holds the call as valid JSON between <tool_call> tags. Code: INVALID_TOOL_CALL_FORMAT
2. The call names one of the tools. Code: TOOL_NOT_AVAILABLE
3. The arguments fit the schema of the tool: required ones are there, types and allowed values are kept. Code: \
INVALID_PARAMETERS, with `details` that list each fault
An error object is {\"{error_key}\": {\"code\": \"...\", \"message\": \"...\"}}.

Then answer the call:
- If a recorded call has the same tool and the same or nearly the same arguments, its response is the answer. \
Repair wrong types in it.
- Else write what the tool would return. Agree with every fact in the conversation and in the recorded responses, \
and keep the form of the recorded responses.

Write one result and nothing else: no comment, no code fence, no word about the recorded calls. The body is a JSON \
object or array.
<execution_result>
...
</execution_result>";

/// What a prompt is made from.
#[derive(Debug, Clone, Copy)]
pub struct RehearsalContext<'a> {
    /// The task.
    pub task: &'a Task,
    /// The current user turn, 0-based.
    pub user_turn: usize,
    /// The conversation before the actor's message that makes the call.
    pub history: &'a [ChatMessage],
    /// The actor's message that makes the call.
    pub latest: &'a ChatMessage,
    /// That message as sampled, reasoning included; written anew from its parts if left out.
    pub latest_raw: Option<&'a str>,
    /// The call to answer.
    pub call: &'a ToolCall,
}

/// What the rehearsal role is asked about one call.
///
/// What is constant comes first, so that a cache of prefixes serves many calls: instruction, tools, recorded
/// calls, conversation, call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RehearsalPrompt {
    /// The system message.
    pub system: String,
    style: Style,
    /// The section of the tools; may be empty.
    tools: String,
    /// Recorded calls as (text, whether of the called tool), in the order recorded; `None` hides the section.
    examples: Option<Vec<(String, bool)>>,
    /// Messages so far; `None` hides the section.
    history: Option<Vec<String>>,
    /// Sections from the latest message on.
    end: String,
}

impl RehearsalPrompt {
    /// The user message.
    pub fn user_text(&self) -> String {
        self.style.join(&self.tools, self.examples.as_deref(), self.history.as_deref(), &self.end)
    }

    /// The prompt as chat messages.
    pub fn messages(&self) -> [ChatMessage; 2] {
        [
            ChatMessage::text(Speaker::System, self.system.clone()),
            ChatMessage::text(Speaker::User, self.user_text()),
        ]
    }

    /// How many recorded calls and messages [`Self::shortened`] can leave out.
    pub fn n_droppable(&self) -> usize {
        self.examples.as_ref().map_or(0, Vec::len) + self.history.as_ref().map_or(0, Vec::len)
    }

    /// The prompt without the `n_dropped` parts that matter least: first the recorded calls of other tools, then
    /// messages, then recorded calls of the called tool, each from the oldest on. Instruction, tools and call stay.
    #[must_use]
    pub fn shortened(&self, n_dropped: usize) -> Self {
        let mut prompt = self.clone();
        let mut n_left = n_dropped;
        let drop_examples =
            |examples: &mut Option<Vec<(String, bool)>>, of_called_tool: bool, n_left: &mut usize| {
                if let Some(examples) = examples {
                    examples.retain(|(_, is_called_tool)| {
                        let is_dropped = *n_left > 0 && *is_called_tool == of_called_tool;
                        *n_left -= usize::from(is_dropped);
                        !is_dropped
                    });
                }
            };
        drop_examples(&mut prompt.examples, false, &mut n_left);
        if let Some(history) = &mut prompt.history {
            let n_messages = n_left.min(history.len());
            history.drain(..n_messages);
            n_left -= n_messages;
        }
        drop_examples(&mut prompt.examples, true, &mut n_left);
        prompt
    }
}

/// Asks for the response to one call.
///
/// `draw` is uniform in [0, 1) and belongs to the call: below `few_shot_dropout`, no recorded call is shown.
pub fn rehearsal_prompt(
    context: RehearsalContext<'_>,
    options: &RehearsalOptions,
    mode: ParseMode,
    draw: f64,
) -> RehearsalPrompt {
    let style = Style { wording: options.wording, mode };
    let system = match options.wording {
        Wording::Full => FULL_INSTRUCTION.replace("{error_key}", mode.error_key()),
        Wording::Compact => COMPACT_INSTRUCTION.to_owned(),
    };
    let history = options.history.then(|| {
        let shown: Vec<&ChatMessage> =
            context.history.iter().filter(|message| message.role != Speaker::System).collect();
        let n_hidden = match options.history_limit {
            0 => 0,
            limit => shown.len().saturating_sub(limit),
        };
        shown.iter().skip(n_hidden).map(|message| style.message(message, options.show_thinking)).collect()
    });
    let mut end = Vec::new();
    if options.latest_message {
        let latest = match context.latest_raw {
            Some(raw) if options.show_thinking => raw.trim().to_owned(),
            _ => style.latest_message(context.latest, options.show_thinking),
        };
        end.push(style.latest_section(&latest));
    }
    let function = context.task.tool(&context.call.name);
    let is_schema_listed = options.whitelist == Whitelist::Full;
    end.push(style.call_section(context.call, function, is_schema_listed));
    if !options.suffix.is_empty() {
        end.push(options.suffix.clone());
    }
    RehearsalPrompt {
        system,
        tools: style.tools_section(context.task, options.whitelist),
        examples: examples(context, options, style, draw),
        history,
        end: end
            .into_iter()
            .filter(|section| !section.is_empty())
            .collect::<Vec<_>>()
            .join(style.separator()),
        style,
    }
}

/// The recorded calls that are shown, in the order recorded.
fn examples(
    context: RehearsalContext<'_>,
    options: &RehearsalOptions,
    style: Style,
    draw: f64,
) -> Option<Vec<(String, bool)>> {
    let is_shown = |user_turn: usize| match options.few_shot {
        FewShot::Past => user_turn <= context.user_turn,
        FewShot::All => true,
        FewShot::None => false,
    };
    if options.few_shot == FewShot::None && style.wording == Wording::Compact {
        return None;
    }
    if draw < options.few_shot_dropout {
        return Some(Vec::new());
    }
    let mut calls: Vec<_> =
        context.task.recorded_calls.iter().filter(|call| is_shown(call.user_turn)).enumerate().collect();
    if options.few_shot_limit > 0 {
        calls.sort_by_key(|(index, call)| (call.name != context.call.name, std::cmp::Reverse(*index)));
        calls.truncate(options.few_shot_limit);
        calls.sort_by_key(|(index, _)| *index);
    }
    // The reference groups recorded calls by tool, in the order in which tools first occur.
    if style.mode == ParseMode::Reference {
        let first_of = |name: &str| context.task.recorded_calls.iter().position(|call| call.name == name);
        calls.sort_by_key(|(index, call)| (first_of(&call.name), *index));
    }
    Some(calls.into_iter().map(|(_, call)| (style.example(call), call.name == context.call.name)).collect())
}

#[cfg(test)]
mod tests;
