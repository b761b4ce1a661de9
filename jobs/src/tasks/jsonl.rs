//! envace's own task files: one JSON object a line, with the columns of the `tasks` table.

use std::collections::BTreeSet;

use envace_schemas::tables::TaskRow;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::ImportOptions;
use super::records::{json_reason, unpacked};
use crate::score::GraderSpec;

/// A line. JSON columns are JSON here, or a text that holds it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    task_id: String,
    #[serde(default)]
    split: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    family: Option<String>,
    #[serde(default)]
    source: Option<String>,
    opening: Column,
    tools: Column,
    #[serde(default)]
    later_user_turns: Option<Column>,
    #[serde(default)]
    recorded_calls: Option<Column>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    transcript: Option<Column>,
    #[serde(default)]
    graders: Option<Column>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    checklist: Option<Column>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    world: Option<Column>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    task_hash: Option<String>,
}

/// The JSON of a column.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Column(Box<RawValue>);

impl Column {
    fn text(&self) -> String {
        unpacked(&self.0).into_owned()
    }
}

/// One line as a row.
pub(super) fn row(text: &str, options: &ImportOptions) -> Result<TaskRow, String> {
    let line: Line = serde_json::from_str(text).map_err(|error| json_reason("not a task", &error))?;
    let list = |column: Option<Column>| column.map_or_else(|| "[]".to_owned(), |column| column.text());
    let split = line.split.or_else(|| options.split.clone());
    let source = line.source.or_else(|| options.source.clone());
    let row = TaskRow {
        task_id: line.task_id,
        split: split.unwrap_or_else(|| "train".to_owned()),
        family: line.family,
        source: source.unwrap_or_else(|| "jsonl".to_owned()),
        opening: line.opening.text(),
        tools: line.tools.text(),
        later_user_turns: list(line.later_user_turns),
        recorded_calls: list(line.recorded_calls),
        transcript: line.transcript.map(|column| column.text()),
        graders: list(line.graders),
        checklist: line.checklist.map(|column| column.text()),
        world: line.world.map(|column| column.text()),
        task_hash: line.task_hash.unwrap_or_default(),
    };
    check_grader_fields(&row.graders)?;
    Ok(row)
}

/// Refuses fields that no grader has: a misspelt `required` would otherwise go unnoticed.
fn check_grader_fields(graders: &str) -> Result<(), String> {
    let Ok(given) = serde_json::from_str::<Vec<Value>>(graders) else { return Ok(()) };
    for (index, given) in given.iter().enumerate() {
        let spec: GraderSpec =
            serde_json::from_value(given.clone()).map_err(|error| format!("grader {index}: {error}"))?;
        let known = serde_json::to_value(&spec).map_err(|error| format!("grader {index}: {error}"))?;
        if let Some(field) = unknown_field(given, &known) {
            return Err(format!("grader {index} has no such field: {field}"));
        }
    }
    Ok(())
}

/// A field of `given` that reading and writing it again has lost.
fn unknown_field(given: &Value, known: &Value) -> Option<String> {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => {
            let known_keys: BTreeSet<&String> = known.keys().collect();
            given.iter().find_map(|(key, value)| match known.get(key) {
                Some(known) => unknown_field(value, known),
                // Empty and null values of known fields are not written.
                None if value.is_null() || value.as_array().is_some_and(Vec::is_empty) => None,
                None => (!known_keys.contains(key)).then(|| key.clone()),
            })
        }
        (Value::Array(given), Value::Array(known)) => {
            given.iter().zip(known).find_map(|(given, known)| unknown_field(given, known))
        }
        _ => None,
    }
}

/// Writes rows as envace's own JSON lines, which [`super::import`] reads back to equal rows.
///
/// A JSON column stands in its line as it is, or as a text where it holds line ends.
///
/// # Errors
/// If a JSON column of a row is no JSON.
pub fn export_jsonl(rows: &[TaskRow]) -> Result<String, serde_json::Error> {
    let mut text = String::new();
    for row in rows {
        let line = Line {
            task_id: row.task_id.clone(),
            split: Some(row.split.clone()),
            family: row.family.clone(),
            source: Some(row.source.clone()),
            opening: column(&row.opening)?,
            tools: column(&row.tools)?,
            later_user_turns: Some(column(&row.later_user_turns)?),
            recorded_calls: Some(column(&row.recorded_calls)?),
            transcript: row.transcript.as_deref().map(column).transpose()?,
            graders: Some(column(&row.graders)?),
            checklist: row.checklist.as_deref().map(column).transpose()?,
            world: row.world.as_deref().map(column).transpose()?,
            task_hash: Some(row.task_hash.clone()),
        };
        text.push_str(&serde_json::to_string(&line)?);
        text.push('\n');
    }
    Ok(text)
}

fn column(text: &str) -> Result<Column, serde_json::Error> {
    let raw = RawValue::from_string(text.to_owned())?;
    // White space at the ends is no part of a value, and a line end would be the end of the record.
    let is_plain = raw.get() == text && !text.contains(['\n', '\r']);
    let raw = if is_plain { raw } else { RawValue::from_string(serde_json::to_string(text)?)? };
    Ok(Column(raw))
}
