//! The answer of a judge: its form, and how it is read.

use serde_json::{Value, json};

/// The fields before the answer: what is written out first is thought over.
const REASONS: &[&str] = &["understanding", "found", "condition", "failures"];
/// The field that counts.
const ANSWER: &str = "answer";

/// JSON schema of an answer, in the subset that strict structured output takes.
pub(super) fn schema() -> Value {
    let mut properties = serde_json::Map::new();
    for name in REASONS {
        properties.insert((*name).to_owned(), json!({"type": "string"}));
    }
    properties.insert(ANSWER.to_owned(), json!({"type": "boolean"}));
    let required: Vec<&str> = REASONS.iter().chain([&ANSWER]).copied().collect();
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

/// The answer in a text: that of one JSON object, alone, in a code fence, or after a block of reasoning.
///
/// # Errors
/// Why there is none. Nothing but `true` and `false` is an answer: a number or a word is a misunderstanding.
pub(super) fn read_answer(text: &str) -> Result<bool, String> {
    let after_reasoning = text.rsplit_once("</think>").map_or(text, |(_, after)| after);
    let object = unfenced(after_reasoning.trim());
    let value: Value =
        serde_json::from_str(object).map_err(|error| format!("the answer is no JSON: {error}"))?;
    match value.get(ANSWER) {
        Some(Value::Bool(answer)) => Ok(*answer),
        Some(other) => Err(format!("`{ANSWER}` must be true or false, and is {other}")),
        None => Err(format!("the answer has no field `{ANSWER}`")),
    }
}

fn unfenced(text: &str) -> &str {
    let Some(inner) = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```")) else { return text };
    inner.strip_prefix("json").unwrap_or(inner).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_true_and_false_are_answers() {
        for (text, answer) in [
            (r#"{"answer": true}"#, true),
            (r#" {"understanding": "u", "answer": false, "more": 1} "#, false),
            ("```json\n{\"answer\": true}\n```", true),
            ("```\n{\"answer\": false}\n```", false),
            ("<think>\n{\"answer\": true}?\n</think>\n{\"answer\": false}", false),
        ] {
            assert_eq!(read_answer(text), Ok(answer), "{text}");
        }
        for (text, reason) in [
            ("", "no JSON"),
            ("yes", "no JSON"),
            (r#"{"answer": tr"#, "no JSON"),
            (r#"{"answer": true} {"answer": false}"#, "no JSON"),
            (r#"Sure: {"answer": true}"#, "no JSON"),
            (r#"{"answer": 7}"#, "is 7"),
            (r#"{"answer": 1}"#, "is 1"),
            (r#"{"answer": "true"}"#, "is \"true\""),
            (r#"{"answer": null}"#, "is null"),
            (r#"{"verdict": true}"#, "no field"),
            ("[true]", "no field"),
        ] {
            assert!(read_answer(text).unwrap_err().contains(reason), "{text}");
        }
    }

    #[test]
    fn the_schema_asks_for_all_fields_and_no_others() {
        let schema = schema();
        assert_eq!(schema["required"], json!(["understanding", "found", "condition", "failures", "answer"]));
        assert_eq!(schema["additionalProperties"], false);
        let fields: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
        assert_eq!(fields, ["understanding", "found", "condition", "failures", "answer"]);
    }
}
