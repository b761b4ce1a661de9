//! Single-turn prompts.

use envace_schemas::Decimal;
use serde_json::{Map, Value, json};

use super::super::records::json_reason;
use super::{Parts, Prompt, opening, spec};
use crate::score::{BfclAnswer, CallOrder, GraderKind, Language, Matching};

pub(super) fn parts(
    prompt: &Prompt,
    category: &str,
    functions: &Value,
    answer: Option<&Value>,
) -> Result<Parts, String> {
    let [messages] = &prompt.question[..] else {
        return Err(format!("a single-turn prompt must have one user turn: {}", prompt.question.len()));
    };
    let functions = match functions {
        Value::Array(functions) => functions.clone(),
        function => vec![function.clone()],
    };
    let kind = match answer {
        _ if category.ends_with("irrelevance") => {
            GraderKind::Calls { order: CallOrder::Exact, calls: Vec::new() }
        }
        _ if category.ends_with("relevance") => GraderKind::CallMade,
        None => GraderKind::CallsValid,
        Some(answer) => {
            let expected: Vec<Map<String, Value>> = serde_json::from_value(answer.clone())
                .map_err(|error| json_reason("its ground truth is no list of calls", &error))?;
            if expected.iter().any(|call| call.len() != 1) {
                return Err("a call of its ground truth is no object of one function".to_owned());
            }
            let language = match category {
                _ if category.contains("javascript") => Language::JavaScript,
                _ if category.contains("java") => Language::Java,
                _ => Language::Python,
            };
            GraderKind::Bfcl(BfclAnswer {
                functions: functions.iter().map(declaration).collect(),
                expected,
                matching: Matching::of_category(category),
                language,
                dots_are_underscores: false,
            })
        }
    };
    let graders = vec![spec(kind.name(), 0, Decimal::ONE, true, kind)];
    Ok(Parts { opening: opening(messages)?, later_user_turns: Vec::new(), functions, graders })
}

/// What the rules read of a declaration: its name, and the types of its parameters.
fn declaration(function: &Value) -> Value {
    let parameters = &function["parameters"];
    let bare = |declared: &Value| {
        let mut bare = Map::new();
        bare.insert("type".to_owned(), declared["type"].clone());
        if let Some(items) = declared["items"].get("type") {
            bare.insert("items".to_owned(), json!({"type": items}));
        }
        Value::Object(bare)
    };
    let properties: Map<String, Value> = parameters["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, declared)| (name.clone(), bare(declared)))
        .collect();
    json!({
        "name": function["name"],
        "parameters": {"properties": properties, "required": parameters["required"]},
    })
}
