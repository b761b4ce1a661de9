//! The verifiable graders: what a trajectory did, held against what its task declares.

mod conditions;
mod expected;
mod matching;
mod reply;
mod seen;
mod values;

#[cfg(test)]
mod tests;

use envace_schemas::tables::{MessageRow, TrajectoryRow, VerdictRow};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::expected::{Expectation, Ledger};
use self::matching::match_calls;
use self::reply::grade_reply;
use self::seen::{SeenTurn, seen_turns};
use super::bfcl::UNDEFINED;
use super::{BfclAnswer, CallFault, CallOrder, GraderKind, GraderSpec, MadeCall, ToolSchemas};
use crate::task::Task;

/// Reasons to end a trajectory that are not the actor's doing: what they cut off is ungraded, never failed.
const NOT_ITS_FAULT: &[&str] = &["rehearsal_failed", "aborted"];

/// How verifiable graders treat what is not clear-cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GradeOptions {
    /// What becomes of an item that rests on a response of a shape the task does not foresee. Default:
    /// `ungraded`.
    pub unforeseen_response: Unforeseen,
    /// What becomes of the items of a user turn that was cut off by the actor's own doing. Default: `graded`.
    pub partial_user_turn: PartialUserTurn,
}

/// What becomes of an item that rests on a response whose shape the task does not foresee, such as an error
/// where a value was to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unforeseen {
    /// It is ungraded: who only copies values is not to blame for there being none.
    #[default]
    Ungraded,
    /// It has failed, for both roles.
    Failed,
}

/// What becomes of the items of a user turn that ended before its final reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PartialUserTurn {
    /// They are graded as far as it went.
    #[default]
    Graded,
    /// They have failed, whatever was done: the reference does not judge such a user turn.
    Failed,
}

/// Grades the trajectories of one task.
#[derive(Debug)]
pub struct Grader<'t> {
    task: &'t Task,
    schemas: ToolSchemas,
    options: GradeOptions,
}

impl<'t> Grader<'t> {
    /// Prepares to grade trajectories of `task` by the default options: compiles the schemas of its tools.
    pub fn new(task: &'t Task) -> Self {
        Self { task, schemas: ToolSchemas::new(&task.tools), options: GradeOptions::default() }
    }

    /// The same by other options.
    #[must_use]
    pub fn with_options(self, options: GradeOptions) -> Self {
        Self { options, ..self }
    }

    /// One verdict for each item of the task, in the order of the table's grain.
    ///
    /// `messages` is the transcript of `trajectory`, in order. A user turn that the trajectory never reached has
    /// failed, because a reward is the mean over all scripted user turns; and one that was cut off is graded as
    /// far as it went. Where something other than the actor stopped the trajectory, both are ungraded. Indices of
    /// calls in reasons are 0-based among the well-formed calls of the user turn.
    pub fn grade(&self, trajectory: &TrajectoryRow, messages: &[MessageRow]) -> Vec<VerdictRow> {
        let seen = seen_turns(messages, self.task.n_user_turns());
        let mut verdicts = match &seen {
            Ok(seen) => {
                let ledger = Ledger::new(seen, &self.task.graders, self.options.unforeseen_response);
                self.verdicts(trajectory, |spec| {
                    let fate = Fate::of(trajectory, spec.user_turn);
                    fate.outcome(trajectory, self.options).unwrap_or_else(|| {
                        self.outcome(&ledger, spec, seen.get(spec.user_turn), fate == Fate::Partial)
                    })
                })
            }
            Err(reason) => self.verdicts(trajectory, |_| Outcome::ungraded(reason.clone())),
        };
        verdicts.sort_by(|a, b| (a.user_turn, &a.grader, &a.item).cmp(&(b.user_turn, &b.grader, &b.item)));
        verdicts
    }

    /// Whether the required items of `user_turn` all pass, given the transcript up to its end: what decides
    /// during a rollout whether the next scripted user message is sent.
    pub fn gate_is_open(&self, messages: &[MessageRow], user_turn: usize) -> bool {
        let Ok(seen) = seen_turns(messages, self.task.n_user_turns()) else { return false };
        let ledger = Ledger::new(&seen, &self.task.graders, self.options.unforeseen_response);
        let mut required =
            self.task.graders.iter().filter(|spec| spec.is_required && spec.user_turn == user_turn);
        required.all(|spec| self.outcome(&ledger, spec, seen.get(user_turn), false).is_passed == Some(true))
    }

    fn verdicts(
        &self,
        trajectory: &TrajectoryRow,
        outcome: impl Fn(&'t GraderSpec) -> Outcome,
    ) -> Vec<VerdictRow> {
        let verdict = |spec: &'t GraderSpec| {
            let Outcome { is_passed, reason } = outcome(spec);
            VerdictRow {
                task_id: trajectory.task_id.clone(),
                sample: trajectory.sample,
                user_turn: i32::try_from(spec.user_turn).unwrap_or(i32::MAX),
                grader: spec.kind.name().to_owned(),
                item: spec.item.clone(),
                is_passed,
                reason,
                weight: spec.weight,
                is_required: spec.is_required,
                request_hash: None,
            }
        };
        self.task.graders.iter().map(verdict).collect()
    }

    fn outcome<'a>(
        &self,
        ledger: &Ledger<'a>,
        spec: &'a GraderSpec,
        turn: Option<&SeenTurn>,
        is_partial: bool,
    ) -> Outcome
    where
        't: 'a,
    {
        let Some(turn) = turn else { return Outcome::failed("user turn not reached") };
        let reply = turn.reply.as_deref().filter(|_| !is_partial);
        if let Some(outcome) = grade_reply(ledger, &self.task.graders, spec, reply) {
            return outcome;
        }
        match &spec.kind {
            GraderKind::CallsValid => self.calls_valid(turn),
            GraderKind::CallMade if turn.calls.is_empty() => Outcome::failed("no call was made"),
            GraderKind::CallMade => Outcome::passed(),
            GraderKind::Bfcl(answer) => bfcl(answer, turn),
            GraderKind::Program { .. } => Outcome::ungraded("the program has not been run"),
            kind => match ledger.expectation(spec.user_turn, kind) {
                Expectation::Calls(expected) => {
                    match_calls(ledger, spec.user_turn, expected.calls, order_of(kind))
                }
                Expectation::Undecided(outcome) => outcome,
                Expectation::None => Outcome::ungraded("no such grader"),
            },
        }
    }

    fn calls_valid(&self, turn: &SeenTurn) -> Outcome {
        if let Some(reason) = turn.refused.first() {
            return Outcome::failed(reason.clone());
        }
        let mut outcome = Outcome::passed();
        for (index, call) in turn.calls.iter().enumerate() {
            match self.schemas.check(&call.name, &call.arguments) {
                Ok(()) => {}
                Err(CallFault::NoSuchTool) => {
                    return Outcome::failed(format!("call {index}: no tool is called `{}`", call.name));
                }
                Err(CallFault::Arguments(reason)) => {
                    return Outcome::failed(format!("call {index}: {reason}"));
                }
                Err(CallFault::Schema(reason)) => {
                    outcome =
                        Outcome::ungraded(format!("schema of tool `{}` is broken: {reason}", call.name));
                }
            }
        }
        outcome
    }
}

/// How far a trajectory came with a user turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// To its final reply.
    Whole,
    /// It was cut off by the actor's own doing.
    Partial,
    /// It was cut off, or never reached, for a reason that is not the actor's.
    CutOff,
    /// It was never reached.
    Unreached,
}

impl Fate {
    /// That of a user turn in `trajectory`.
    pub(super) fn of(trajectory: &TrajectoryRow, user_turn: usize) -> Self {
        let n_reached = usize::try_from(trajectory.n_user_turns).unwrap_or_default();
        let is_excused = NOT_ITS_FAULT.contains(&trajectory.end_reason.as_str());
        // The last user turn begun is the one that was cut off.
        let is_partial = trajectory.is_partial && user_turn + 1 == n_reached;
        match (user_turn >= n_reached, is_partial) {
            (true, _) | (_, true) if is_excused => Self::CutOff,
            (true, _) => Self::Unreached,
            (false, true) => Self::Partial,
            (false, false) => Self::Whole,
        }
    }

    /// The verdict on every item of such a user turn, if it has one without a look at what was done in it.
    pub(super) fn outcome(self, trajectory: &TrajectoryRow, options: GradeOptions) -> Option<Outcome> {
        let reason = &trajectory.end_reason;
        match self {
            Self::CutOff => Some(Outcome::ungraded(format!("cut off: {reason}"))),
            Self::Unreached => Some(Outcome::failed("user turn not reached")),
            Self::Partial if options.partial_user_turn == PartialUserTurn::Failed => {
                Some(Outcome::failed(format!("user turn cut off: {reason}")))
            }
            Self::Partial | Self::Whole => None,
        }
    }
}

/// Grades one trajectory by the default options; see [`Grader::grade`], which is quicker for several of one task.
pub fn grade(task: &Task, trajectory: &TrajectoryRow, messages: &[MessageRow]) -> Vec<VerdictRow> {
    Grader::new(task).grade(trajectory, messages)
}

/// Whether the gate after `user_turn` is open by the default options; see [`Grader::gate_is_open`].
pub fn passes_gate(task: &Task, user_turn: usize, messages: &[MessageRow]) -> bool {
    Grader::new(task).gate_is_open(messages, user_turn)
}

/// The calls of a user turn by the leaderboard's rules: one that cannot be read, or that nothing answered, is wrong.
fn bfcl(answer: &BfclAnswer, turn: &SeenTurn) -> Outcome {
    if let Some(reason) = turn.refused.first() {
        return Outcome::failed(reason.clone());
    }
    let mut calls = Vec::new();
    for call in &turn.calls {
        let Some(arguments) = call.arguments.as_object() else {
            return Outcome::failed(format!("arguments of `{}` are no object", call.name));
        };
        calls.push(MadeCall { name: call.name.clone(), arguments: arguments.clone() });
    }
    match answer.check(&calls) {
        Ok(()) => Outcome::passed(),
        Err(mismatch) if mismatch.class == UNDEFINED => Outcome::ungraded(mismatch.reason),
        Err(mismatch) => Outcome::failed(format!("{}: {}", mismatch.class, mismatch.reason)),
    }
}

fn order_of(kind: &GraderKind) -> CallOrder {
    match kind {
        GraderKind::Calls { order, .. } | GraderKind::Branch { order, .. } => *order,
        _ => CallOrder::Subset,
    }
}

/// The verdict on one item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outcome {
    /// `None`: ungraded.
    pub(super) is_passed: Option<bool>,
    /// `None`: passed.
    pub(super) reason: Option<String>,
}

impl Outcome {
    pub(super) fn passed() -> Self {
        Self { is_passed: Some(true), reason: None }
    }

    pub(super) fn failed(reason: impl Into<String>) -> Self {
        Self { is_passed: Some(false), reason: Some(reason.into()) }
    }

    pub(super) fn ungraded(reason: impl Into<String>) -> Self {
        Self { is_passed: None, reason: Some(reason.into()) }
    }
}
