//! Single-turn prompts.

use envace_schemas::Decimal;
use serde_json::Value;

use super::answer::expected_calls;
use super::{Parts, Prompt, opening, spec};
use crate::score::{CallOrder, GraderKind};

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
            let is_parallel = category.contains("parallel");
            let order = if is_parallel { CallOrder::AnyOrder } else { CallOrder::Exact };
            GraderKind::Calls { order, calls: expected_calls(answer)? }
        }
    };
    let graders = vec![spec(kind.name(), 0, Decimal::ONE, true, kind)];
    Ok(Parts { opening: opening(messages)?, later_user_turns: Vec::new(), functions, graders })
}
