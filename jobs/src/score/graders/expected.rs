//! What calls a user turn should hold, and which of those made could be which of them.

use serde_json::Value;

use super::conditions::passes;
use super::seen::{Response, SeenCall, SeenTurn};
use super::values::{same, shown};
use super::{Outcome, Unforeseen};
use crate::score::{Argument, BranchCase, Condition, ExpectedCall, GraderKind, GraderSpec};

/// The calls expected in a user turn.
#[derive(Debug)]
pub(super) enum Expectation<'a> {
    /// No grader of the user turn speaks of calls.
    None,
    /// These.
    Calls(ExpectedCalls<'a>),
    /// No case of a branch applies: the verdict on it.
    Undecided(Outcome),
}

/// Expected calls, and for each the calls made that fit it taken by itself.
#[derive(Debug)]
pub(super) struct ExpectedCalls<'a> {
    /// The expected ones.
    pub calls: &'a [ExpectedCall],
    /// Index of the branch's case that applies.
    pub case: Option<usize>,
    /// Per expected call.
    candidates: Vec<Candidates>,
}

#[derive(Debug, Default)]
struct Candidates {
    /// Indices into the calls made.
    made: Vec<usize>,
    /// Why it cannot be known which fit, if so.
    unknown: Option<String>,
}

/// The expectations of every user turn of a trajectory, with what really happened.
#[derive(Debug)]
pub(super) struct Ledger<'a> {
    seen: &'a [SeenTurn],
    unforeseen: Unforeseen,
    turns: Vec<Expectation<'a>>,
}

/// What an expected call of the user turn at hand was found to be.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Slot {
    /// Not made, or not assigned yet.
    Open,
    /// The call made at this index.
    Made(usize),
    /// It rests on a response that cannot be used; why.
    Unknown(String),
}

/// Where references to calls of the user turn at hand are looked up.
#[derive(Clone, Copy)]
enum Lookup<'b> {
    Candidates(&'b [Candidates]),
    Slots(&'b [Slot]),
    /// Nowhere: a reference may lead to anything.
    Anything,
}

/// What a reference to a value of a response leads to.
pub(super) enum Source<'b> {
    /// These values, each with the turn it came in.
    Values(Vec<(i32, &'b Value)>),
    /// The call was made, but its response cannot be used; why.
    Unknown(String),
    /// The call was not made; in words.
    NotMade(String),
}

impl<'a> Ledger<'a> {
    /// Works out the expectation of each user turn in `seen`.
    pub(super) fn new(seen: &'a [SeenTurn], graders: &'a [GraderSpec], unforeseen: Unforeseen) -> Self {
        let mut ledger = Self { seen, unforeseen, turns: Vec::new() };
        for user_turn in 0..seen.len() {
            let speaks_of_calls =
                |kind: &&GraderKind| matches!(kind, GraderKind::Calls { .. } | GraderKind::Branch { .. });
            let mut kinds = graders
                .iter()
                .filter(|spec| spec.user_turn == user_turn)
                .map(|spec| &spec.kind)
                .filter(speaks_of_calls);
            let expectation =
                kinds.next().map_or(Expectation::None, |kind| ledger.expectation(user_turn, kind));
            ledger.turns.push(expectation);
        }
        ledger
    }

    /// The calls made in `user_turn`.
    pub(super) fn made(&self, user_turn: usize) -> &'a [SeenCall] {
        self.seen.get(user_turn).map_or(&[], |turn| turn.calls.as_slice())
    }

    /// The expectation that references to `user_turn` mean: that of its first grader of calls.
    pub(super) fn of_turn(&self, user_turn: usize) -> &Expectation<'a> {
        self.turns.get(user_turn).unwrap_or(&Expectation::None)
    }

    /// What the grader `kind` expects in `user_turn`.
    pub(super) fn expectation(&self, user_turn: usize, kind: &'a GraderKind) -> Expectation<'a> {
        match kind {
            GraderKind::Calls { calls, .. } => Expectation::Calls(self.expected(user_turn, calls, None)),
            GraderKind::Branch { cases, .. } => self.branch(user_turn, cases),
            _ => Expectation::None,
        }
    }

    fn expected(
        &self,
        user_turn: usize,
        calls: &'a [ExpectedCall],
        case: Option<usize>,
    ) -> ExpectedCalls<'a> {
        let mut candidates: Vec<Candidates> = Vec::new();
        for call in calls {
            let lookup = Lookup::Candidates(&candidates);
            let made = self.made(user_turn).iter().enumerate();
            let made = made.filter(|(_, made)| self.fit(user_turn, call, made, lookup).is_ok());
            let made = made.map(|(index, _)| index).collect();
            let unknown = self.unknown_source(user_turn, call, lookup);
            candidates.push(Candidates { made, unknown });
        }
        ExpectedCalls { calls, case, candidates }
    }

    fn branch(&self, user_turn: usize, cases: &'a [BranchCase]) -> Expectation<'a> {
        let mut not_made = None;
        let mut last_reason = "the branch has no case".to_owned();
        for (index, case) in cases.iter().enumerate() {
            let expected = self.expected(user_turn, &case.calls, Some(index));
            let mut applies = true;
            for condition in &case.when {
                match self.holds(user_turn, &expected, condition) {
                    Holds::Yes => {}
                    Holds::No(reason) => {
                        applies = false;
                        last_reason = reason;
                    }
                    Holds::NotMade(reason) => {
                        applies = false;
                        not_made.get_or_insert(reason);
                    }
                    Holds::Unknown(reason) => return Expectation::Undecided(Outcome::ungraded(reason)),
                }
            }
            if applies {
                return Expectation::Calls(expected);
            }
        }
        let reason = format!("no case applies: {last_reason}");
        Expectation::Undecided(match (not_made, self.unforeseen) {
            (Some(reason), _) => Outcome::failed(reason),
            (None, Unforeseen::Failed) => Outcome::failed(reason),
            (None, Unforeseen::Ungraded) => Outcome::ungraded(reason),
        })
    }

    fn holds(&self, user_turn: usize, expected: &ExpectedCalls<'_>, condition: &Condition) -> Holds {
        let candidates = expected.candidates.get(condition.call);
        let name = expected.calls.get(condition.call).map_or("?", |call| call.name.as_str());
        let first = candidates.and_then(|candidates| candidates.made.first());
        let Some(call) = first.and_then(|index| self.made(user_turn).get(*index)) else {
            return match candidates.and_then(|candidates| candidates.unknown.clone()) {
                Some(reason) => Holds::Unknown(reason),
                None => Holds::NotMade(format!("call of `{name}` was not made")),
            };
        };
        let response = match &call.response {
            Response::Json(response) => response,
            Response::Missing => return Holds::NotMade(unanswered(name)),
            _ => return Holds::Unknown(no_json(name)),
        };
        let value = response.pointer(&condition.path);
        if passes(&condition.test, value) {
            return Holds::Yes;
        }
        let value = value.map_or_else(|| "missing".to_owned(), shown);
        Holds::No(format!("`{}` in the response of `{name}` is {value}", condition.path))
    }

    /// Whether `made` is the call `expected` of `user_turn`, given what the others are by `slots`.
    ///
    /// # Errors
    /// The reason why it is not.
    pub(super) fn fits(
        &self,
        user_turn: usize,
        expected: &ExpectedCall,
        made: &SeenCall,
        slots: &[Slot],
    ) -> Result<(), String> {
        self.fit(user_turn, expected, made, Lookup::Slots(slots))
    }

    /// Whether `made` could be the call `expected` of `user_turn`, whatever the references in it lead to.
    pub(super) fn could_fit(&self, user_turn: usize, expected: &ExpectedCall, made: &SeenCall) -> bool {
        self.fit(user_turn, expected, made, Lookup::Anything).is_ok()
    }

    /// Why `expected` rests on a response that cannot be used, if it does.
    pub(super) fn unknown(
        &self,
        user_turn: usize,
        expected: &ExpectedCall,
        slots: &[Slot],
    ) -> Option<String> {
        self.unknown_source(user_turn, expected, Lookup::Slots(slots))
    }

    fn unknown_source(
        &self,
        user_turn: usize,
        expected: &ExpectedCall,
        lookup: Lookup<'_>,
    ) -> Option<String> {
        expected.arguments.values().find_map(|argument| match argument {
            Argument::From { call, user_turn: other, path } => {
                match self.source(user_turn, *call, *other, path, lookup) {
                    Source::Unknown(reason) => Some(reason),
                    _ => None,
                }
            }
            _ => None,
        })
    }

    fn fit(
        &self,
        user_turn: usize,
        expected: &ExpectedCall,
        made: &SeenCall,
        lookup: Lookup<'_>,
    ) -> Result<(), String> {
        if made.name != expected.name {
            return Err(format!("is `{}`, expected `{}`", made.name, expected.name));
        }
        let Value::Object(arguments) = &made.arguments else {
            return Err("the arguments are no object".to_owned());
        };
        for (name, argument) in &expected.arguments {
            let found = arguments.get(name);
            self.argument_fits(user_turn, argument, found, made.turn, lookup)
                .map_err(|reason| format!("argument `{name}` {reason}"))?;
        }
        match arguments.keys().find(|name| !expected.arguments.contains_key(*name)) {
            Some(extra) => Err(format!("argument `{extra}` is not expected")),
            None => Ok(()),
        }
    }

    fn argument_fits(
        &self,
        user_turn: usize,
        argument: &Argument,
        found: Option<&Value>,
        turn: i32,
        lookup: Lookup<'_>,
    ) -> Result<(), String> {
        let one_of = |values: &[Value], exact_text: bool| match found {
            None => Err("is missing".to_owned()),
            Some(found) if values.iter().any(|value| same(found, value, exact_text)) => Ok(()),
            Some(found) => Err(mismatch(found, values.iter())),
        };
        match argument {
            Argument::Is(value) => one_of(std::slice::from_ref(value), false),
            Argument::Exactly(value) => one_of(std::slice::from_ref(value), true),
            Argument::OneOf(values) => one_of(values, false),
            Argument::Optional(values) if found.is_none() || values.is_empty() => Ok(()),
            Argument::Optional(values) => one_of(values, false),
            Argument::From { .. } if matches!(lookup, Lookup::Anything) => {
                found.map(|_| ()).ok_or_else(|| "is missing".to_owned())
            }
            Argument::From { call, user_turn: other, path } => {
                let values = match self.source(user_turn, *call, *other, path, lookup) {
                    Source::Values(values) => values,
                    Source::Unknown(reason) | Source::NotMade(reason) => {
                        return Err(format!("cannot be compared: {reason}"));
                    }
                };
                let Some(found) = found else { return Err("is missing".to_owned()) };
                let earlier: Vec<_> =
                    values.iter().filter(|(came, _)| *came < turn).map(|(_, value)| *value).collect();
                if earlier.iter().any(|value| same(found, value, false)) {
                    Ok(())
                } else if earlier.is_empty() {
                    Err("was given before the response it must come from".to_owned())
                } else {
                    Err(mismatch(found, earlier.into_iter()))
                }
            }
        }
    }

    /// The values a reference made in `user_turn` leads to.
    fn source(
        &self,
        user_turn: usize,
        call: usize,
        other: Option<usize>,
        path: &str,
        lookup: Lookup<'_>,
    ) -> Source<'a> {
        let other = other.filter(|other| *other != user_turn);
        if let Some(other) = other {
            // Only what lies before is worked out, so a reference forward finds nothing.
            return self.value(other, self.turns.get(other).unwrap_or(&Expectation::None), call, path);
        }
        let empty = || Source::NotMade(format!("expected call {call} was not made"));
        match lookup {
            Lookup::Anything => empty(),
            Lookup::Candidates(candidates) => candidates
                .get(call)
                .map_or_else(empty, |candidates| self.value_of(user_turn, candidates, call, path)),
            Lookup::Slots(slots) => match slots.get(call) {
                None | Some(Slot::Open) => empty(),
                Some(Slot::Unknown(reason)) => Source::Unknown(reason.clone()),
                Some(Slot::Made(index)) => {
                    let candidates = Candidates { made: vec![*index], unknown: None };
                    self.value_of(user_turn, &candidates, call, path)
                }
            },
        }
    }

    /// The values at `path` of the responses to what may be expected call `call` of `user_turn`.
    pub(super) fn value(
        &self,
        user_turn: usize,
        expectation: &Expectation<'a>,
        call: usize,
        path: &str,
    ) -> Source<'a> {
        match expectation {
            Expectation::None => Source::Unknown(format!("no grader of user turn {user_turn} expects calls")),
            Expectation::Undecided(outcome) => {
                let reason = outcome.reason.clone().unwrap_or_default();
                if outcome.is_passed.is_none() { Source::Unknown(reason) } else { Source::NotMade(reason) }
            }
            Expectation::Calls(expected) => match expected.candidates.get(call) {
                Some(candidates) => self.value_of(user_turn, candidates, call, path),
                None => Source::Unknown(format!("user turn {user_turn} expects no call {call}")),
            },
        }
    }

    fn value_of(&self, user_turn: usize, candidates: &Candidates, call: usize, path: &str) -> Source<'a> {
        let made = self.made(user_turn);
        let calls: Vec<&SeenCall> = candidates.made.iter().filter_map(|index| made.get(*index)).collect();
        let values: Vec<(i32, &Value)> = calls
            .iter()
            .filter_map(|call| match &call.response {
                Response::Json(response) => Some((call.turn, response.pointer(path)?)),
                _ => None,
            })
            .collect();
        if !values.is_empty() {
            return Source::Values(values);
        }
        match (calls.first(), &candidates.unknown) {
            (None, Some(reason)) => Source::Unknown(reason.clone()),
            (None, None) => {
                Source::NotMade(format!("expected call {call} of user turn {user_turn} was not made"))
            }
            (Some(call), _) if call.response == Response::Missing => Source::NotMade(unanswered(&call.name)),
            (Some(call), _) if !matches!(call.response, Response::Json(_)) => {
                Source::Unknown(no_json(&call.name))
            }
            (Some(call), _) => {
                let reason = format!("the response of `{}` has nothing at `{path}`", call.name);
                match self.unforeseen {
                    Unforeseen::Ungraded => Source::Unknown(reason),
                    Unforeseen::Failed => Source::NotMade(reason),
                }
            }
        }
    }
}

enum Holds {
    Yes,
    No(String),
    NotMade(String),
    Unknown(String),
}

/// Where a response is missing the trajectory was cut off there; that is the actor's doing, or else the user turn
/// is not graded at all.
fn unanswered(name: &str) -> String {
    format!("`{name}` got no response")
}

fn no_json(name: &str) -> String {
    format!("the response of `{name}` is no JSON")
}

fn mismatch<'v>(found: &Value, expected: impl Iterator<Item = &'v Value>) -> String {
    let expected: Vec<String> = expected.take(3).map(shown).collect();
    format!("is {}, expected {}", shown(found), expected.join(" or "))
}
