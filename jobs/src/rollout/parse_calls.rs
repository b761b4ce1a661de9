//! Reads the tool calls in what the actor wrote.

use std::borrow::Cow;
use std::fmt;

use schemars::JsonSchema;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::python_json::{Dumps, PyValue};
use super::text::{Stretch, divide, join_trimmed, split_reasoning, without_fence};

/// Opens a tool call.
pub const CALL_OPEN: &str = "<tool_call>";
/// Closes a tool call.
pub const CALL_CLOSE: &str = "</tool_call>";

/// How strictly policy outputs are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ParseMode {
    /// Reasoning is taken away first; any white space around a tag; each fault is reported by itself.
    #[default]
    Tolerant,
    /// As the reference implementation: tags on lines of their own, reasoning not told apart, the first fault
    /// voids the whole output.
    Reference,
}

impl ParseMode {
    /// The top-level key of an error object.
    pub const fn error_key(self) -> &'static str {
        match self {
            Self::Tolerant => "error",
            Self::Reference => "error_tool_call",
        }
    }
}

/// A well-formed call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedCall {
    /// Name of the tool, without white space at its ends.
    pub name: String,
    /// JSON text of the arguments: an object, and as written, in tolerant mode; any value, written anew, in
    /// reference mode.
    pub arguments: String,
}

/// What is wrong with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum CallFault {
    /// The tag occurs but no call lies between tags.
    NoToolCallFound,
    /// A block has no closing tag.
    ToolCallNotClosed,
    /// What lies between the tags is no JSON.
    JsonDecodeError,
    /// The arguments are missing or null, or the call is no object.
    NoArguments,
    /// The arguments are no object.
    ArgumentsNotAnObject,
    /// The name is missing, no text, or blank.
    InvalidToolName,
}

impl CallFault {
    /// The code that stands in tables and in what the actor is told.
    pub const fn code(self) -> &'static str {
        match self {
            Self::NoToolCallFound => "NO_TOOL_CALL_FOUND",
            Self::ToolCallNotClosed => "TOOL_CALL_NOT_CLOSED",
            Self::JsonDecodeError => "JSON_DECODE_ERROR",
            Self::NoArguments => "NO_ARGUMENTS",
            Self::ArgumentsNotAnObject => "ARGUMENTS_NOT_AN_OBJECT",
            Self::InvalidToolName => "INVALID_TOOL_NAME",
        }
    }

    /// What the actor is told.
    pub const fn message(self) -> &'static str {
        match self {
            Self::NoToolCallFound => "no call between <tool_call> and </tool_call>",
            Self::ToolCallNotClosed => "</tool_call> is missing",
            Self::JsonDecodeError => "the call is not valid JSON",
            Self::NoArguments => "a call needs a name and arguments, {} if there are none",
            Self::ArgumentsNotAnObject => "arguments must be a JSON object",
            Self::InvalidToolName => "a call needs the name of a tool",
        }
    }
}

/// A call that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MalformedCall {
    /// What is wrong.
    pub fault: CallFault,
    /// The block it stood in, tags included as far as they were there.
    pub block: String,
}

/// What the actor wrote, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedOutput {
    /// Reasoning, without its tags.
    pub reasoning: Option<String>,
    /// What the user sees: neither reasoning nor well-formed calls.
    pub content: String,
    /// The calls in order; empty for a final reply.
    pub calls: Vec<Result<ParsedCall, MalformedCall>>,
}

impl ParsedOutput {
    /// Whether nothing ends the user turn: some call was tried.
    pub const fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// The first fault, if any call is malformed.
    pub fn first_fault(&self) -> Option<CallFault> {
        self.calls.iter().find_map(|call| call.as_ref().err().map(|malformed| malformed.fault))
    }
}

/// Takes apart what the actor wrote.
///
/// In tolerant mode `calls` holds the well-formed and the malformed calls in order; the blocks of malformed ones
/// stay in `content`, because nothing else would show them to a later reader. In reference mode it holds either
/// well-formed calls or one malformed one.
pub fn parse_calls(text: &str, mode: ParseMode) -> ParsedOutput {
    match mode {
        ParseMode::Tolerant => parse_tolerant(text),
        ParseMode::Reference => parse_reference(text),
    }
}

fn parse_tolerant(text: &str) -> ParsedOutput {
    let mut reasoning = Vec::new();
    let mut content = Vec::new();
    let mut calls = Vec::new();
    for stretch in divide(text, CALL_OPEN, CALL_CLOSE) {
        match stretch {
            Stretch::Thinking(text) => reasoning.push(text),
            Stretch::Plain(text) => content.push(Cow::Borrowed(text)),
            Stretch::Block { body, is_closed } => {
                let (found, close) = if is_closed {
                    (calls_of_block(body), CALL_CLOSE)
                } else {
                    (vec![Err(CallFault::ToolCallNotClosed)], "")
                };
                let block = format!("{CALL_OPEN}{body}{close}");
                let malformed = |fault| MalformedCall { fault, block: block.clone() };
                if found.iter().any(Result::is_err) {
                    content.push(Cow::Owned(block.clone()));
                }
                calls.extend(found.into_iter().map(|call| call.map_err(malformed)));
            }
        }
    }
    ParsedOutput {
        reasoning: join_trimmed(&reasoning),
        content: join_trimmed(&content).unwrap_or_default(),
        calls,
    }
}

/// The calls in the body of one block: one if it is an object, several if it is a list.
fn calls_of_block(body: &str) -> Vec<Result<ParsedCall, CallFault>> {
    let body = without_fence(body);
    // The second reading finds what the first leaves unread: numbers out of range, lone surrogates.
    let (Ok(value), Ok(_)) = (serde_json::from_str::<&RawValue>(body), serde_json::from_str::<Value>(body))
    else {
        return vec![Err(CallFault::JsonDecodeError)];
    };
    if !value.get().starts_with('[') {
        return vec![call_of(value)];
    }
    match serde_json::from_str::<Vec<&RawValue>>(value.get()) {
        Ok(items) if items.is_empty() => vec![Err(CallFault::NoToolCallFound)],
        Ok(items) => items.into_iter().map(call_of).collect(),
        Err(_) => vec![Err(CallFault::JsonDecodeError)],
    }
}

fn call_of(value: &RawValue) -> Result<ParsedCall, CallFault> {
    let fields: CallFields<'_> = serde_json::from_str(value.get()).map_err(|_| CallFault::NoArguments)?;
    let arguments = [fields.parameters, fields.arguments]
        .into_iter()
        .flatten()
        .find(|arguments| arguments.get() != "null")
        .ok_or(CallFault::NoArguments)?;
    let name = fields
        .name
        .and_then(|name| serde_json::from_str::<String>(name.get()).ok())
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .ok_or(CallFault::InvalidToolName)?;
    Ok(ParsedCall {
        name,
        arguments: arguments_object(arguments.get()).ok_or(CallFault::ArgumentsNotAnObject)?,
    })
}

/// The object `text` is, or the one its text holds: some models write arguments as a JSON text in JSON.
fn arguments_object(text: &str) -> Option<String> {
    if text.starts_with('{') {
        return Some(text.to_owned());
    }
    let inner: String = serde_json::from_str(text).ok()?;
    let is_object = serde_json::from_str::<Value>(&inner).is_ok_and(|value| value.is_object());
    is_object.then(|| inner.trim().to_owned())
}

/// The fields of a call as written; of equal keys the last one.
#[derive(Default)]
struct CallFields<'a> {
    name: Option<&'a RawValue>,
    arguments: Option<&'a RawValue>,
    parameters: Option<&'a RawValue>,
}

impl<'de> Deserialize<'de> for CallFields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = CallFields<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object with a name and arguments")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = CallFields::default();
                while let Some((key, value)) = map.next_entry::<String, &'de RawValue>()? {
                    match key.as_str() {
                        "name" => fields.name = Some(value),
                        "arguments" => fields.arguments = Some(value),
                        "parameters" => fields.parameters = Some(value),
                        _ => {}
                    }
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

fn parse_reference(text: &str) -> ParsedOutput {
    if !text.contains(CALL_OPEN) {
        return whole(text, Vec::new());
    }
    let blocks = delimited_blocks(text, CALL_OPEN, CALL_CLOSE);
    let Some(first) = blocks.first() else {
        return faulty(text, CallFault::NoToolCallFound);
    };
    let content_end = first.start;
    let mut calls = Vec::new();
    for block in blocks {
        let Ok(value) = PyValue::parse(block.body.trim()) else {
            return faulty(text, CallFault::JsonDecodeError);
        };
        let items = match value {
            PyValue::List(items) => items,
            value => vec![value],
        };
        for item in &items {
            match reference_call(item) {
                Ok(call) => calls.push(Ok(call)),
                Err(fault) => return faulty(text, fault),
            }
        }
    }
    if calls.is_empty() {
        return whole(text, calls);
    }
    let (reasoning, content) = split_reasoning(text.get(..content_end).unwrap_or(""));
    ParsedOutput { reasoning, content, calls }
}

fn reference_call(value: &PyValue) -> Result<ParsedCall, CallFault> {
    let given = |key| value.get(key).filter(|value| !matches!(value, PyValue::Null));
    let arguments = given("parameters").or_else(|| given("arguments")).ok_or(CallFault::NoArguments)?;
    match value.get("name") {
        Some(PyValue::Text(name)) if !name.trim().is_empty() => {
            Ok(ParsedCall { name: name.trim().to_owned(), arguments: arguments.dumps(Dumps::PLAIN) })
        }
        _ => Err(CallFault::InvalidToolName),
    }
}

/// An output that is kept as it is, without a call taken out of it.
fn whole(text: &str, calls: Vec<Result<ParsedCall, MalformedCall>>) -> ParsedOutput {
    let (reasoning, content) = split_reasoning(text);
    ParsedOutput { reasoning, content, calls }
}

fn faulty(text: &str, fault: CallFault) -> ParsedOutput {
    whole(text, vec![Err(MalformedCall { fault, block: text.to_owned() })])
}

/// What lies between two tags that stand on lines of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DelimitedBlock<'a> {
    /// Byte at which the line break before the opening tag stands.
    pub start: usize,
    /// What lies between, without the line breaks next to the tags.
    pub body: &'a str,
}

/// The blocks `\n{open}\n … \n{close}`, shortest first, from left to right, not overlapping.
pub(super) fn delimited_blocks<'a>(text: &'a str, open: &str, close: &str) -> Vec<DelimitedBlock<'a>> {
    let open = format!("\n{open}\n");
    let close = format!("\n{close}");
    let mut blocks = Vec::new();
    let mut from = 0;
    while let Some(start) = text[from..].find(&open).map(|at| from + at) {
        let body_start = start + open.len();
        let Some(length) = text[body_start..].find(&close) else { break };
        blocks.push(DelimitedBlock { start, body: &text[body_start..body_start + length] });
        from = body_start + length + close.len();
    }
    blocks
}

#[cfg(test)]
mod tests;
