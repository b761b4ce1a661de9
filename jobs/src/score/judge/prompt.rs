//! What a judge is shown: a template, and the transcript as lines of JSON.

use std::path::Path;

use envace_model::chat::ToolCall;
use envace_schemas::tables::MessageRow;
use minijinja::{Environment, UndefinedBehavior, context};
use serde::Serialize;
use serde_json::Value;

use crate::error::JobError;
use crate::score::ChecklistItem;
use crate::task::Task;

/// The built-in prompt about a checklist item.
pub const CHECKLIST_PROMPT: &str = include_str!("../../../assets/judge/checklist.jinja");
/// The prompt about an item of the rehearsal role's checklist.
const REHEARSAL_PROMPT: &str = include_str!("../../../assets/judge/rehearsal_checklist.jinja");

/// Name of the template in messages.
const NAME: &str = "prompt of the judge";

/// The prompts of a judge.
#[derive(Debug)]
pub(super) struct Prompts {
    checklist: Environment<'static>,
    rehearsal: Environment<'static>,
    text: String,
}

/// What is put into a prompt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Material<'a> {
    pub item: &'a ChecklistItem,
    pub task: &'a Task,
    pub earlier: &'a str,
    pub current: &'a str,
}

impl Prompts {
    /// The built-in prompts; that of the checklist from the file at `path`, if it is not empty.
    ///
    /// # Errors
    /// [`JobError::File`] if the file cannot be read; [`JobError::Refused`] if it is no template.
    pub fn load(path: &str) -> Result<Self, JobError> {
        let text = match path {
            "" => CHECKLIST_PROMPT.to_owned(),
            path => fs_err::read_to_string(path)
                .map_err(JobError::file("cannot read the judge's prompt", Path::new(path)))?,
        };
        let checklist = environment(&text).map_err(|error| refused(path, &error))?;
        let rehearsal = environment(REHEARSAL_PROMPT).map_err(|error| refused("", &error))?;
        Ok(Self { checklist, rehearsal, text })
    }

    /// Hex digest of the prompts that are used: part of the stage's key.
    pub fn digest(&self, with_rehearsal: bool) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.text.as_bytes());
        if with_rehearsal {
            hasher.update(&[0]).update(REHEARSAL_PROMPT.as_bytes());
            hasher.update(&[0]).update(super::rehearsal::CHECKLIST.as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }

    /// The question about an item of a task's checklist.
    ///
    /// # Errors
    /// [`JobError::Refused`] if the template fails on it.
    pub fn checklist(&self, material: Material<'_>) -> Result<String, JobError> {
        render(&self.checklist, material)
    }

    /// The question about an item of the rehearsal role's checklist.
    ///
    /// # Errors
    /// [`JobError::Refused`] if the template fails on it.
    pub fn rehearsal(&self, material: Material<'_>) -> Result<String, JobError> {
        render(&self.rehearsal, material)
    }
}

fn environment(text: &str) -> Result<Environment<'static>, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.add_template_owned(NAME, text.to_owned())?;
    Ok(environment)
}

fn render(environment: &Environment<'_>, material: Material<'_>) -> Result<String, JobError> {
    let Material { item, task, earlier, current } = material;
    let snippets: Vec<String> = item.evidence.iter().map(|evidence| evidence.snippet.clone()).collect();
    let records: Vec<String> = task.recorded_calls.iter().map(line).collect();
    let values = context! {
        question => &item.question,
        focus => item.focus_on.in_words(),
        pass_condition => &item.pass_condition,
        failure_examples => &item.failure_examples,
        evidence => snippets,
        earlier,
        current,
        tools => task.tools.iter().map(Value::to_string).collect::<Vec<_>>().join("\n"),
        records => records.join("\n"),
    };
    let rendered = environment.get_template(NAME).and_then(|template| template.render(values));
    rendered.map_err(|error| refused("", &error))
}

fn refused(path: &str, error: &minijinja::Error) -> JobError {
    let file = if path.is_empty() { String::new() } else { format!(" in {path}") };
    JobError::refused(
        format!("the judge's prompt{file} is no template that can be filled in: {error}"),
        "`envace-jobs score --print-prompt` prints the built-in one, with all that can be put in",
    )
}

/// One message of the transcript.
#[derive(Serialize)]
struct Line<'a> {
    message: i32,
    from: &'a str,
    #[serde(flatten)]
    body: Body<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Body<'a> {
    Assistant {
        reasoning: Option<&'a str>,
        reply: Option<&'a str>,
        tool_calls: Option<Value>,
        error: Option<&'a str>,
    },
    Tool {
        tool: Option<&'a str>,
        response: &'a str,
        written_by: &'static str,
        error: Option<&'a str>,
    },
    Other {
        text: &'a str,
    },
}

/// The messages, one JSON object a line: no text in them can pass for another message.
pub(super) fn transcript<'a>(messages: impl IntoIterator<Item = &'a MessageRow>) -> String {
    messages.into_iter().map(|message| line(&line_of(message))).collect::<Vec<_>>().join("\n")
}

fn line(value: &impl Serialize) -> String {
    // Maps of texts and numbers always have a JSON form.
    serde_json::to_string(value).unwrap_or_default()
}

fn line_of(message: &MessageRow) -> Line<'_> {
    let error = message.error_code.as_deref();
    let body = match message.speaker.as_str() {
        "assistant" => Body::Assistant {
            reasoning: message.reasoning.as_deref(),
            reply: Some(message.text.as_str()).filter(|text| !text.trim().is_empty()),
            tool_calls: message.tool_calls.as_deref().map(calls),
            error,
        },
        "tool" => Body::Tool {
            tool: message.tool_name.as_deref(),
            response: &message.text,
            written_by: writer(&message.written_by),
            error,
        },
        _ => Body::Other { text: &message.text },
    };
    Line { message: message.message_index, from: &message.speaker, body }
}

/// The calls of a message with their arguments as JSON, where they are.
fn calls(text: &str) -> Value {
    let Ok(calls) = serde_json::from_str::<Vec<ToolCall>>(text) else {
        return Value::String(text.to_owned());
    };
    let calls = calls.into_iter().map(|call| {
        let arguments = serde_json::from_str(&call.arguments).unwrap_or(Value::String(call.arguments));
        serde_json::json!({"name": call.name, "arguments": arguments})
    });
    calls.collect()
}

fn writer(written_by: &str) -> &'static str {
    match written_by {
        "rehearsal" => "imagined",
        "replay" => "recorded",
        "world" => "executed",
        _ => "loop",
    }
}
