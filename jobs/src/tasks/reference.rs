//! Records of the reference implementation.

use std::collections::BTreeSet;

use envace_model::chat::Speaker;
use envace_schemas::tables::TaskRow;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::ImportOptions;
use super::dialogue::{Dialogue, read_dialogue};
use super::records::{json_reason, unpacked};
use crate::score::{Checklist, ToolSchemas, check_checklist};
use crate::task::function_of;

#[derive(Deserialize)]
struct Record<'a> {
    uuid: String,
    #[serde(borrow)]
    messages: &'a RawValue,
    #[serde(default)]
    data_source: Option<String>,
    #[serde(borrow)]
    extra_info: &'a RawValue,
}

#[derive(Deserialize)]
struct ExtraInfo<'a> {
    #[serde(default)]
    original_index: Option<String>,
    #[serde(borrow)]
    messages: &'a RawValue,
    #[serde(borrow)]
    tools: &'a RawValue,
    #[serde(borrow)]
    interaction_kwargs: &'a RawValue,
}

#[derive(Deserialize)]
struct Interaction<'a> {
    #[serde(borrow)]
    checklist_list: &'a RawValue,
}

/// One record as a row. Its graders are empty: a judge reads the checklist.
pub(super) fn row(text: &str, options: &ImportOptions) -> Result<TaskRow, String> {
    let record: Record<'_> =
        serde_json::from_str(text).map_err(|error| json_reason("not a record", &error))?;
    let extra_info = unpacked(record.extra_info);
    let extra_info: ExtraInfo<'_> = serde_json::from_str(&extra_info)
        .map_err(|error| json_reason("`extra_info` does not parse", &error))?;
    if let Some(index) = extra_info.original_index.filter(|index| *index != record.uuid) {
        return Err(format!("`extra_info.original_index` must be the `uuid`: {index}"));
    }
    let opening =
        read_dialogue(&unpacked(record.messages)).map_err(|reason| format!("`messages`: {reason}"))?;
    let transcript = read_dialogue(&unpacked(extra_info.messages))
        .map_err(|reason| format!("`extra_info.messages`: {reason}"))?;
    check_opening(&opening, &transcript)?;
    let tools = unpacked(extra_info.tools).into_owned();
    check_tools(&tools, &transcript)?;
    let interaction = unpacked(extra_info.interaction_kwargs);
    let interaction: Interaction<'_> = serde_json::from_str(&interaction)
        .map_err(|error| json_reason("`interaction_kwargs` do not parse", &error))?;
    let checklist = unpacked(interaction.checklist_list).into_owned();
    let user_texts = transcript.user_texts();
    let parsed: Checklist = serde_json::from_str(&checklist)
        .map_err(|error| json_reason("`checklist_list` does not parse", &error))?;
    check_checklist(&parsed, user_texts.len())?;
    let later = user_texts.get(1..).unwrap_or_default();
    let data_source = record.data_source.filter(|source| !source.is_empty());
    let source = options.source.clone().or(data_source).unwrap_or_else(|| "checklist".to_owned());
    Ok(TaskRow {
        task_id: record.uuid,
        split: options.split.clone().unwrap_or_else(|| "train".to_owned()),
        family: None,
        source,
        opening: to_json(&opening.messages)?,
        tools,
        later_user_turns: to_json(&later)?,
        recorded_calls: to_json(&transcript.calls)?,
        transcript: Some(to_json(&transcript.messages)?),
        graders: "[]".to_owned(),
        checklist: Some(checklist),
        world: None,
        task_hash: String::new(),
    })
}

fn to_json<T: serde::Serialize + ?Sized>(value: &T) -> Result<String, String> {
    serde_json::to_string(value).map_err(|error| format!("cannot be written as JSON: {error}"))
}

fn check_opening(opening: &Dialogue, transcript: &Dialogue) -> Result<(), String> {
    let is_opening =
        opening.messages.iter().all(|message| matches!(message.role, Speaker::System | Speaker::User));
    let ends_with_user = opening.messages.last().is_some_and(|message| message.role == Speaker::User);
    let [first] = opening.user_texts()[..] else {
        return Err("`messages` must hold exactly one user message".to_owned());
    };
    if !is_opening || !ends_with_user {
        return Err("`messages` must end with the first user message".to_owned());
    }
    let texts = transcript.user_texts();
    if texts.first() != Some(&first) {
        return Err("`messages` and `extra_info.messages` begin with different user messages".to_owned());
    }
    match texts.iter().position(|text| text.trim().is_empty()) {
        Some(index) => Err(format!("user message {index} is empty")),
        None => Ok(()),
    }
}

fn check_tools(tools: &str, transcript: &Dialogue) -> Result<(), String> {
    let tools: Vec<Value> =
        serde_json::from_str(tools).map_err(|error| json_reason("`tools` do not parse", &error))?;
    let mut names = BTreeSet::new();
    for tool in &tools {
        let name = function_of(tool).get("name").and_then(Value::as_str);
        let name = name.ok_or_else(|| "a tool has no `name`".to_owned())?;
        if !names.insert(name) {
            return Err(format!("two tools are called `{name}`"));
        }
    }
    if let Some((name, reason)) = ToolSchemas::new(&tools).first_broken() {
        return Err(format!("schema of tool `{name}` is broken: {reason}"));
    }
    match transcript.calls.first().filter(|_| tools.is_empty()) {
        Some(call) => Err(format!("`{}` is called, but there are no tools", call.name)),
        None => Ok(()),
    }
}
