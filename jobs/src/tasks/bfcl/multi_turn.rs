//! Multi-turn prompts.

use envace_schemas::Decimal;
use serde_json::{Map, Value};

use super::python_call::{PythonCall, parse_call};
use super::{Library, Message, Parts, Prompt, opening, spec};
use crate::score::{Argument, CallOrder, ExpectedCall, GraderKind, GraderSpec};

/// Shares of a user turn's score, in billionths: the expected calls, and that every call is valid.
const CALLS_WEIGHT: i64 = 800_000_000;
const VALID_WEIGHT: i64 = 200_000_000;

/// A user turn and the calls expected in it.
struct UserTurn<'p> {
    messages: &'p [Message],
    calls: Vec<ExpectedCall>,
}

pub(super) fn parts(prompt: &Prompt, library: &Library, answer: Option<&Value>) -> Result<Parts, String> {
    if prompt.involved_classes.is_empty() {
        return Err("it has neither `function` nor `involved_classes`".to_owned());
    }
    let mut functions = Vec::new();
    for class in &prompt.involved_classes {
        let documented = library.functions.get(class.as_str());
        let documented = documented.ok_or_else(|| format!("there is no documentation of class `{class}`"))?;
        functions.extend(documented.iter().cloned());
    }
    let turns = user_turns(prompt, &functions, answer)?;
    let Some((first, later)) = turns.split_first() else {
        return Err("its prompt has no user turn".to_owned());
    };
    let later_user_turns = later.iter().map(|turn| match turn.messages {
        [message] if message.role == "user" => Ok(message.content.clone()),
        _ => Err("a later user turn must be one user message".to_owned()),
    });
    let graders =
        turns.iter().enumerate().map(|(index, turn)| graders(index, &turn.calls)).collect::<Vec<_>>();
    Ok(Parts {
        opening: opening(first.messages)?,
        later_user_turns: later_user_turns.collect::<Result<_, _>>()?,
        functions,
        graders: graders.into_iter().flatten().collect(),
    })
}

/// Joins prompt and answer; a user turn without a message adds its calls to the one before.
fn user_turns<'p>(
    prompt: &'p Prompt,
    functions: &[Value],
    answer: Option<&Value>,
) -> Result<Vec<UserTurn<'p>>, String> {
    let answer = match answer {
        None => None,
        Some(Value::Array(answers)) if answers.len() == prompt.question.len() => Some(answers),
        Some(_) => return Err("its possible answer has another number of user turns".to_owned()),
    };
    let mut turns: Vec<UserTurn<'p>> = Vec::new();
    for (index, messages) in prompt.question.iter().enumerate() {
        let calls = match answer.and_then(|answers| answers.get(index)) {
            Some(calls) => {
                expected_calls(calls, functions).map_err(|reason| format!("user turn {index}: {reason}"))?
            }
            None => Vec::new(),
        };
        match turns.last_mut() {
            Some(turn) if messages.is_empty() => turn.calls.extend(calls),
            _ => turns.push(UserTurn { messages, calls }),
        }
    }
    Ok(turns)
}

fn expected_calls(calls: &Value, functions: &[Value]) -> Result<Vec<ExpectedCall>, String> {
    let calls = calls.as_array().ok_or_else(|| "its ground truth is no list".to_owned())?;
    let read = |call: &Value| {
        let text = call.as_str().ok_or_else(|| "a call of its ground truth is no text".to_owned())?;
        expected_call(parse_call(text)?, functions)
    };
    calls.iter().map(read).collect()
}

/// The call with its arguments by name; one whose documented default is the expected value may be left out, and
/// any other may be given with its default.
fn expected_call(call: PythonCall, functions: &[Value]) -> Result<ExpectedCall, String> {
    let named = |function: &&Value| function.get("name").and_then(Value::as_str) == Some(&call.name);
    let function = functions.iter().find(named);
    let function =
        function.ok_or_else(|| format!("its ground truth calls an unknown function: {}", call.name))?;
    let none = Map::new();
    let properties = function.pointer("/parameters/properties").and_then(Value::as_object).unwrap_or(&none);
    let mut given = Vec::new();
    let mut names = properties.keys();
    for value in call.positional {
        let name =
            names.next().ok_or_else(|| format!("too many arguments in its call of `{}`", call.name))?;
        given.push((name.clone(), value));
    }
    given.extend(call.named);
    let default_of = |name: &str| properties.get(name).and_then(|property| property.get("default"));
    let mut arguments: std::collections::BTreeMap<String, Argument> = given
        .into_iter()
        .map(|(name, value)| {
            let is_default = default_of(&name) == Some(&value);
            let argument = if is_default { Argument::Optional(vec![value]) } else { Argument::Is(value) };
            (name, argument)
        })
        .collect();
    for name in properties.keys() {
        if let Some(default) = default_of(name) {
            arguments.entry(name.clone()).or_insert_with(|| Argument::Optional(vec![default.clone()]));
        }
    }
    Ok(ExpectedCall { name: call.name, arguments })
}

fn graders(user_turn: usize, calls: &[ExpectedCall]) -> Vec<GraderSpec> {
    let weight = |scaled| Decimal::from_scaled(scaled).unwrap_or_default();
    let valid = GraderKind::CallsValid;
    if calls.is_empty() {
        return vec![spec(valid.name(), user_turn, Decimal::ONE, true, valid)];
    }
    let kind = GraderKind::Calls { order: CallOrder::Subset, calls: calls.to_vec() };
    vec![
        spec(kind.name(), user_turn, weight(CALLS_WEIGHT), true, kind),
        spec(valid.name(), user_turn, weight(VALID_WEIGHT), false, valid),
    ]
}
