//! Grades the final reply of a user turn.

use regex::Regex;
use serde_json::Value;

use super::Outcome;
use super::expected::{Expectation, Ledger, Source};
use super::values::{number_occurs, occurs, shortened, shown};
use crate::score::{GraderKind, GraderSpec, ReplyCase};

/// Grades `reply` as `spec` says; `None` if `spec` is not about the reply.
pub(super) fn grade_reply(
    ledger: &Ledger<'_>,
    graders: &[GraderSpec],
    spec: &GraderSpec,
    reply: Option<&str>,
) -> Option<Outcome> {
    let check = |test: &dyn Fn(&str) -> Outcome| {
        Some(reply.map_or_else(|| Outcome::failed("there is no final reply"), test))
    };
    match &spec.kind {
        GraderKind::ReplyContains { texts } => check(&|reply| contains(reply, texts)),
        GraderKind::ReplyEquals { text } => check(&|reply| {
            if reply.trim() == text.trim() {
                return Outcome::passed();
            }
            Outcome::failed(format!("the reply is {:?}", shortened(reply.trim())))
        }),
        GraderKind::ReplyMatches { pattern } => check(&|reply| match Regex::new(pattern) {
            Ok(regex) if regex.is_match(reply) => Outcome::passed(),
            Ok(_) => Outcome::failed(format!("the reply holds no match of {pattern:?}")),
            Err(error) => Outcome::ungraded(format!("{pattern:?} is no regular expression: {error}")),
        }),
        GraderKind::ReplyNumber { value, tolerance } => check(&|reply| {
            if number_occurs(reply, *value, *tolerance) {
                return Outcome::passed();
            }
            Outcome::failed(format!("the reply holds no number within {tolerance} of {value}"))
        }),
        GraderKind::ReplyConsistent { call, path } => check(&|reply| {
            let expectation = ledger.of_turn(spec.user_turn);
            consistent(reply, ledger.value(spec.user_turn, expectation, *call, path))
        }),
        GraderKind::ReplyBranch { replies } => {
            check(&|reply| branch(ledger, graders, spec.user_turn, reply, replies))
        }
        _ => None,
    }
}

fn contains(reply: &str, texts: &[String]) -> Outcome {
    match texts.iter().find(|text| !occurs(reply, text)) {
        None => Outcome::passed(),
        Some(text) => Outcome::failed(format!("the reply does not hold {:?}", shortened(text))),
    }
}

fn consistent(reply: &str, source: Source<'_>) -> Outcome {
    let values = match source {
        Source::Values(values) => values,
        Source::Unknown(reason) => return Outcome::ungraded(reason),
        Source::NotMade(reason) => return Outcome::failed(reason),
    };
    let mut outcome = Outcome::ungraded("the response holds no value");
    for (_, value) in values {
        match value_occurs(reply, value) {
            Some(true) => return Outcome::passed(),
            Some(false) => {
                outcome = Outcome::failed(format!(
                    "the reply does not hold {}, which the response says",
                    shown(value)
                ));
            }
            None if outcome.is_passed.is_none() => {
                outcome = Outcome::ungraded(format!("a reply cannot be compared with {}", shown(value)));
            }
            None => {}
        }
    }
    outcome
}

/// Whether the reply holds `value`: a text, a number, or a list with all of its elements; `None` for anything
/// else, which has no form in prose that can be looked for.
fn value_occurs(reply: &str, value: &Value) -> Option<bool> {
    match value {
        Value::String(text) if !text.trim().is_empty() => Some(occurs(reply, text)),
        Value::Number(number) => Some(number_occurs(reply, number.as_f64()?, 0.0)),
        Value::Array(values) if !values.is_empty() => {
            values.iter().try_fold(true, |all, value| Some(all && value_occurs(reply, value)?))
        }
        _ => None,
    }
}

fn branch(
    ledger: &Ledger<'_>,
    graders: &[GraderSpec],
    user_turn: usize,
    reply: &str,
    replies: &[ReplyCase],
) -> Outcome {
    let is_branch =
        |spec: &&GraderSpec| spec.user_turn == user_turn && matches!(spec.kind, GraderKind::Branch { .. });
    let Some(spec) = graders.iter().find(is_branch) else {
        return Outcome::ungraded("the user turn has no `branch` grader");
    };
    let expectation = ledger.expectation(user_turn, &spec.kind);
    let index = match &expectation {
        Expectation::Undecided(outcome) => return outcome.clone(),
        Expectation::Calls(expected) => expected.case,
        Expectation::None => None,
    };
    let Some(case) = index.and_then(|index| replies.get(index)) else {
        return Outcome::ungraded("the grader says nothing of the case that applies");
    };
    let mut outcomes = vec![contains(reply, &case.texts)];
    for value in &case.values {
        outcomes.push(consistent(reply, ledger.value(user_turn, &expectation, value.call, &value.path)));
    }
    let worst = outcomes.into_iter().min_by_key(|outcome| match outcome.is_passed {
        Some(false) => 0,
        None => 1,
        Some(true) => 2,
    });
    worst.unwrap_or_else(Outcome::passed)
}
