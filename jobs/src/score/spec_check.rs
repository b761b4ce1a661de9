//! Checks that grader declarations make sense before anything is graded by them.

use std::collections::{BTreeMap, BTreeSet};

use envace_schemas::Decimal;
use regex::Regex;

use super::{Argument, ExpectedCall, GraderKind, GraderSpec};

/// How far weights of a user turn may miss 1, in billionths.
const WEIGHT_TOLERANCE: i64 = 1_000;

/// Checks the graders of a task of `n_user_turns` user turns.
///
/// Every user turn must have items, of unique names, whose weights are not negative and sum to 1 (to 1e-6). A
/// reference must lead to an expected call before the one that makes it, by a JSON pointer.
///
/// # Errors
/// The first fault, in words.
pub fn check_graders(graders: &[GraderSpec], n_user_turns: usize) -> Result<(), String> {
    let mut weights: BTreeMap<usize, i64> = (0..n_user_turns).map(|user_turn| (user_turn, 0)).collect();
    let mut names = BTreeSet::new();
    for spec in graders {
        let Some(sum) = weights.get_mut(&spec.user_turn) else {
            return Err(format!(
                "grader `{}` names user turn {}, the script has {n_user_turns}",
                spec.item, spec.user_turn
            ));
        };
        if spec.weight < Decimal::ZERO {
            return Err(format!("weight of grader `{}` is negative: {}", spec.item, spec.weight));
        }
        *sum = sum.saturating_add(spec.weight.scaled());
        if !names.insert((spec.user_turn, spec.item.as_str())) {
            return Err(format!("two graders of user turn {} are called `{}`", spec.user_turn, spec.item));
        }
        check_kind(graders, spec)
            .map_err(|reason| format!("grader `{}` of user turn {}: {reason}", spec.item, spec.user_turn))?;
    }
    for (user_turn, sum) in weights {
        if (sum - Decimal::ONE.scaled()).abs() > WEIGHT_TOLERANCE {
            let sum = Decimal::from_scaled(sum).unwrap_or_default();
            return Err(format!("weights of user turn {user_turn} must sum to 1: {sum}"));
        }
    }
    Ok(())
}

fn check_kind(graders: &[GraderSpec], spec: &GraderSpec) -> Result<(), String> {
    match &spec.kind {
        GraderKind::Calls { calls, .. } => check_calls(graders, spec, calls),
        GraderKind::Branch { cases, .. } => {
            if cases.is_empty() {
                return Err("the branch has no case".to_owned());
            }
            cases.iter().try_for_each(|case| {
                check_calls(graders, spec, &case.calls)?;
                case.when.iter().try_for_each(|condition| {
                    check_pointer(&condition.path)?;
                    in_range(condition.call, case.calls.len())
                })
            })
        }
        GraderKind::ReplyBranch { replies } => {
            let cases = graders.iter().find_map(|other| match &other.kind {
                GraderKind::Branch { cases, .. } if other.user_turn == spec.user_turn => Some(cases),
                _ => None,
            });
            let Some(cases) = cases else {
                return Err("the user turn has no `branch` grader".to_owned());
            };
            if cases.len() != replies.len() {
                return Err(format!("there are {} cases, but {} replies", cases.len(), replies.len()));
            }
            cases
                .iter()
                .zip(replies)
                .flat_map(|(case, reply)| reply.values.iter().map(move |value| (case, value)))
                .try_for_each(|(case, value)| {
                    check_pointer(&value.path)?;
                    in_range(value.call, case.calls.len())
                })
        }
        GraderKind::ReplyConsistent { call, path } => {
            check_pointer(path)?;
            in_range(*call, n_expected(graders, spec.user_turn)?)
        }
        GraderKind::ReplyNumber { value, tolerance } => {
            let is_sound = value.is_finite() && tolerance.is_finite() && *tolerance >= 0.0;
            if is_sound { Ok(()) } else { Err(format!("tolerance must not be negative: {tolerance}")) }
        }
        GraderKind::ReplyContains { texts } if texts.is_empty() => Err("`texts` is empty".to_owned()),
        GraderKind::Bfcl(answer) => {
            let is_whole = !answer.expected.is_empty() && answer.expected.iter().all(|call| call.len() == 1);
            if is_whole { Ok(()) } else { Err("each of `expected` must name one function".to_owned()) }
        }
        GraderKind::ReplyMatches { pattern } => Regex::new(pattern)
            .map(drop)
            .map_err(|error| format!("`pattern` is no regular expression: {error}")),
        GraderKind::Program { program, .. } if program.is_empty() => Err("`program` is empty".to_owned()),
        GraderKind::Program { .. }
        | GraderKind::ReplyContains { .. }
        | GraderKind::ReplyEquals { .. }
        | GraderKind::CallsValid
        | GraderKind::CallMade => Ok(()),
    }
}

fn check_calls(graders: &[GraderSpec], spec: &GraderSpec, calls: &[ExpectedCall]) -> Result<(), String> {
    for (index, call) in calls.iter().enumerate() {
        for (name, argument) in &call.arguments {
            let Argument::From { call: source, user_turn, path } = argument else { continue };
            let n_before = match user_turn {
                Some(other) if *other > spec.user_turn => {
                    return Err(format!("argument `{name}` of call {index} refers to a later user turn"));
                }
                Some(other) if *other < spec.user_turn => n_expected(graders, *other)?,
                _ => index,
            };
            check_pointer(path)?;
            in_range(*source, n_before)
                .map_err(|reason| format!("argument `{name}` of call {index}: {reason}"))?;
        }
    }
    Ok(())
}

/// Expected calls that references to `user_turn` may name: those of its first grader of calls, and of a branch
/// those of the case that has fewest.
fn n_expected(graders: &[GraderSpec], user_turn: usize) -> Result<usize, String> {
    let n_calls =
        graders.iter().filter(|spec| spec.user_turn == user_turn).find_map(|spec| match &spec.kind {
            GraderKind::Calls { calls, .. } => Some(calls.len()),
            GraderKind::Branch { cases, .. } => cases.iter().map(|case| case.calls.len()).min(),
            _ => None,
        });
    n_calls.ok_or_else(|| format!("no grader of user turn {user_turn} expects calls"))
}

fn in_range(index: usize, len: usize) -> Result<(), String> {
    if index < len { Ok(()) } else { Err(format!("there is no expected call {index} before it")) }
}

fn check_pointer(path: &str) -> Result<(), String> {
    if path.is_empty() || path.starts_with('/') {
        Ok(())
    } else {
        Err(format!("a JSON pointer starts with `/`: {path}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(graders: Value, n_user_turns: usize) -> Result<(), String> {
        check_graders(&serde_json::from_value::<Vec<GraderSpec>>(graders).unwrap(), n_user_turns)
    }

    #[test]
    fn sound_graders_pass() {
        let graders = json!([
            {"item": "a", "user_turn": 0, "weight": "0.5", "required": true, "grader": "calls", "order": "subset",
             "calls": [{"name": "f", "arguments": {"x": {"is": 1}}},
                       {"name": "g", "arguments": {"y": {"from": {"call": 0, "path": "/id"}}}}]},
            {"item": "b", "user_turn": 0, "weight": 0.5, "grader": "reply_consistent", "call": 1, "path": ""},
            {"item": "a", "user_turn": 1, "weight": 1, "grader": "branch", "order": "exact", "cases": [
                {"when": [{"call": 0, "path": "/open", "is": true}],
                 "calls": [{"name": "h", "arguments": {"z": {"from": {"call": 1, "user_turn": 0, "path": "/id"}}}}]}]},
            {"item": "b", "user_turn": 1, "weight": 0, "grader": "reply_branch",
             "replies": [{"values": [{"call": 0, "path": "/id"}]}]},
        ]);
        assert_eq!(check(graders, 2), Ok(()));
    }

    #[test]
    fn faults_are_named() {
        let call = |extra: Value| {
            let mut spec = json!({"item": "a", "user_turn": 0, "weight": 1});
            for (key, value) in extra.as_object().unwrap() {
                spec[key] = value.clone();
            }
            json!([spec])
        };
        let from = |source: Value| {
            call(json!({"grader": "calls", "order": "exact",
                "calls": [{"name": "f"}, {"name": "g", "arguments": {"x": {"from": source}}}]}))
        };
        let valid =
            |weight: Value| json!({"item": "v", "user_turn": 0, "weight": weight, "grader": "calls_valid"});
        let cases: &[(Value, usize, &str)] = &[
            (json!([valid(json!("0.9"))]), 1, "weights of user turn 0 must sum to 1: 0.9"),
            (json!([valid(json!(1))]), 2, "weights of user turn 1 must sum to 1: 0"),
            (json!([valid(json!(2)), valid(json!(-1))]), 1, "weight of grader `v` is negative: -1"),
            (json!([valid(json!(1)), valid(json!(0))]), 1, "two graders of user turn 0 are called `v`"),
            (
                json!([{"item": "v", "user_turn": 1, "weight": 1, "grader": "call_made"}]),
                1,
                "grader `v` names user turn 1, the script has 1",
            ),
            (
                from(json!({"call": 1, "path": "/id"})),
                1,
                "grader `a` of user turn 0: argument `x` of call 1: there is no expected call 1 before it",
            ),
            (
                from(json!({"call": 0, "path": "id"})),
                1,
                "grader `a` of user turn 0: a JSON pointer starts with `/`: id",
            ),
            (
                from(json!({"call": 0, "user_turn": 1, "path": ""})),
                2,
                "grader `a` of user turn 0: argument `x` of call 1 refers to a later user turn",
            ),
            (
                call(json!({"grader": "reply_consistent", "call": 0, "path": ""})),
                1,
                "grader `a` of user turn 0: no grader of user turn 0 expects calls",
            ),
            (
                call(json!({"grader": "reply_branch", "replies": []})),
                1,
                "grader `a` of user turn 0: the user turn has no `branch` grader",
            ),
            (
                call(json!({"grader": "branch", "order": "exact", "cases": []})),
                1,
                "grader `a` of user turn 0: the branch has no case",
            ),
            (
                call(json!({"grader": "reply_number", "value": 1, "tolerance": -1})),
                1,
                "grader `a` of user turn 0: tolerance must not be negative: -1",
            ),
            (
                call(json!({"grader": "reply_contains", "texts": []})),
                1,
                "grader `a` of user turn 0: `texts` is empty",
            ),
        ];
        for (graders, n_user_turns, expected) in cases {
            assert_eq!(check(graders.clone(), *n_user_turns), Err((*expected).to_owned()), "{graders}");
        }
    }
}
