//! Reads the tool response in what the rehearsal role wrote, and writes well-formed ones.

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::parse_calls::{ParseMode, delimited_blocks};
use super::python_json::{Dumps, PyValue};
use super::text::{Stretch, THINK_CLOSE, THINK_OPEN, divide, without_fence};

/// Opens a tool response.
pub const RESULT_OPEN: &str = "<execution_result>";
/// Closes a tool response.
pub const RESULT_CLOSE: &str = "</execution_result>";

/// How a rehearsal output breaks its format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResultFault {
    /// Nothing but reasoning.
    EmptyOutput,
    /// No opening tag.
    NoTag,
    /// An opening tag, but no closing one; in reference mode, tags that do not stand on lines of their own.
    TagMalformed,
    /// What lies between the tags is no JSON.
    JsonDecodeError,
    /// The JSON is a text, a number, a truth value or null; in reference mode, or `{}`.
    InvalidType,
}

impl ResultFault {
    /// The code that stands in tables.
    pub const fn code(self) -> &'static str {
        match self {
            Self::EmptyOutput => "EMPTY_SIMULATOR_OUTPUT",
            Self::NoTag => "NO_EXECUTION_RESULT_TAG_FOUND",
            Self::TagMalformed => "EXECUTION_RESULT_TAG_MALFORMED",
            Self::JsonDecodeError => "SIMULATOR_JSON_DECODE_ERROR",
            Self::InvalidType => "INVALID_EXECUTION_RESULT_TYPE",
        }
    }

    /// What is wrong, in words.
    pub const fn message(self) -> &'static str {
        match self {
            Self::EmptyOutput => "the output holds no response",
            Self::NoTag => "the output holds no <execution_result>",
            Self::TagMalformed => "the tags of the response are malformed",
            Self::JsonDecodeError => "the response is not valid JSON",
            Self::InvalidType => "the response is neither a JSON object nor a JSON array",
        }
    }
}

/// The response in a rehearsal output: JSON text of an object or an array.
///
/// In tolerant mode it is the body of the first block as written (reasoning is taken away first, a Markdown fence
/// inside the tags is taken off); in reference mode it is written anew, as the reference implementation does.
///
/// # Errors
/// [`ResultFault`]: how the output breaks the format.
pub fn parse_result(text: &str, mode: ParseMode) -> Result<String, ResultFault> {
    match mode {
        ParseMode::Tolerant => parse_tolerant(text),
        ParseMode::Reference => parse_reference(text),
    }
}

/// A well-formed rehearsal output that answers with `response`, a recorded response text.
///
/// A response that is no JSON object or array is wrapped, as `{"result": …}`, since the format allows no other.
pub fn format_result(response: &str) -> String {
    let response = response.trim();
    let body = match serde_json::from_str::<&RawValue>(response) {
        Ok(value) if value.get().starts_with(['{', '[']) => value.get().to_owned(),
        Ok(value) => format!("{{\"result\": {}}}", value.get()),
        Err(_) => json!({ "result": response }).to_string(),
    };
    format!("{RESULT_OPEN}\n{body}\n{RESULT_CLOSE}")
}

/// The response that reports an error: `{"error": {"code": …, "message": …}}`, with the key that `mode` has.
pub fn error_response(mode: ParseMode, code: &str, message: &str) -> String {
    let value = json!({ (mode.error_key()): { "code": code, "message": message } });
    match mode {
        ParseMode::Tolerant => value.to_string(),
        ParseMode::Reference => PyValue::from(&value).dumps(Dumps::ASCII),
    }
}

/// The code of the error a response is, if it is one: a JSON object with the key `error` or `error_tool_call`.
///
/// An error without a code of its own reads `ERROR`.
pub fn error_code_of(response: &str) -> Option<String> {
    let Ok(Value::Object(fields)) = serde_json::from_str(response) else { return None };
    let error =
        fields.get("error_tool_call").or_else(|| fields.get("error").filter(|error| !is_no_error(error)))?;
    let code =
        error.get("code").and_then(Value::as_str).or_else(|| fields.get("code").and_then(Value::as_str));
    Some(code.unwrap_or("ERROR").to_owned())
}

/// Whether `response` is a JSON object with the top-level key `error_tool_call`: what ends an episode of the
/// reference implementation.
pub fn is_reference_error(response: &str) -> bool {
    PyValue::parse(response).is_ok_and(|value| value.get("error_tool_call").is_some())
}

fn is_no_error(value: &Value) -> bool {
    matches!(value, Value::Null | Value::Bool(false)) || value.as_str() == Some("")
}

fn parse_tolerant(text: &str) -> Result<String, ResultFault> {
    let stretches = divide(text, RESULT_OPEN, RESULT_CLOSE);
    let block = stretches.iter().find_map(|stretch| match stretch {
        Stretch::Block { body, is_closed } => Some((*body, *is_closed)),
        _ => None,
    });
    let Some((body, is_closed)) = block else {
        let is_visible =
            |stretch: &Stretch<'_>| matches!(stretch, Stretch::Plain(text) if !text.trim().is_empty());
        return Err(if stretches.iter().any(is_visible) {
            ResultFault::NoTag
        } else {
            ResultFault::EmptyOutput
        });
    };
    if !is_closed {
        return Err(ResultFault::TagMalformed);
    }
    let body = without_fence(body);
    match serde_json::from_str::<Value>(body) {
        Err(_) => Err(ResultFault::JsonDecodeError),
        Ok(Value::Object(_) | Value::Array(_)) => Ok(body.to_owned()),
        Ok(_) => Err(ResultFault::InvalidType),
    }
}

fn parse_reference(text: &str) -> Result<String, ResultFault> {
    let text = without_closed_thinking(text);
    if text.trim().is_empty() {
        return Err(ResultFault::EmptyOutput);
    }
    if !text.contains(RESULT_OPEN) {
        return Err(ResultFault::NoTag);
    }
    let blocks = delimited_blocks(&text, RESULT_OPEN, RESULT_CLOSE);
    let block = blocks.first().ok_or(ResultFault::TagMalformed)?;
    let value = PyValue::parse(block.body.trim()).map_err(|_| ResultFault::JsonDecodeError)?;
    match &value {
        PyValue::List(_) => Ok(value.dumps(Dumps::PLAIN)),
        PyValue::Dict(entries) if !entries.is_empty() => Ok(value.dumps(Dumps::PLAIN)),
        _ => Err(ResultFault::InvalidType),
    }
}

/// `text` without any `<think>…</think>`; a think tag that is not closed stays.
fn without_closed_thinking(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(THINK_OPEN) {
        let Some(length) = rest[start..].find(THINK_CLOSE) else { break };
        kept.push_str(&rest[..start]);
        rest = &rest[start + length + THINK_CLOSE.len()..];
    }
    kept.push_str(rest);
    kept
}

#[cfg(test)]
mod tests;
