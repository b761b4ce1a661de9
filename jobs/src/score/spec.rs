//! How a task declares what it is graded by: the JSON of its `graders` column.

use std::collections::BTreeMap;

use envace_schemas::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::BfclAnswer;

/// One grader item of a task.
///
/// Weights of the items of one user turn should sum to 1; the reward of a trajectory is the mean over its
/// scripted user turns of the weighted share of items passed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GraderSpec {
    /// Name of the item, unique in its user turn.
    pub item: String,
    /// 0-based user turn whose end it looks at.
    pub user_turn: usize,
    /// Share of that user turn's score.
    pub weight: Decimal,
    /// Whether later user turns count only if it passes.
    #[serde(default, rename = "required")]
    pub is_required: bool,
    /// What is checked.
    #[serde(flatten)]
    pub kind: GraderKind,
}

/// What a grader item checks. All look at one user turn of one trajectory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "grader", rename_all = "snake_case")]
pub enum GraderKind {
    /// The tool calls made in the user turn.
    Calls {
        /// How they must match the expected ones.
        order: CallOrder,
        /// The expected ones.
        calls: Vec<ExpectedCall>,
    },
    /// The tool calls made in the user turn, where what is expected depends on the responses they got *in this
    /// trajectory*, imagined or not.
    ///
    /// The first case whose conditions all hold applies, and the item is then graded as [`GraderKind::Calls`]
    /// with that case's calls. If none applies, the item has failed when a call that some condition looks at
    /// was not made, and is ungraded otherwise: the responses were not of a shape that the task foresees.
    Branch {
        /// How the calls must match those of the case that applies.
        order: CallOrder,
        /// The cases, in the order in which they are tried.
        cases: Vec<BranchCase>,
    },
    /// The final reply, given the case that the user turn's [`GraderKind::Branch`] item found to apply.
    ///
    /// If none applies this item has the same verdict as that one.
    ReplyBranch {
        /// What the reply must hold: one for each case, in the order of the cases.
        replies: Vec<ReplyCase>,
    },
    /// The final reply holds each of `texts` (compared without case).
    ReplyContains {
        /// What must occur.
        texts: Vec<String>,
    },
    /// The final reply, without space at its ends, is `text`.
    ReplyEquals {
        /// What it must be.
        text: String,
    },
    /// The final reply holds a match of `pattern`, a regular expression of the Rust crate `regex`.
    ReplyMatches {
        /// The expression; `^` and `$` are the ends of the reply unless it begins with `(?m)`.
        pattern: String,
    },
    /// The calls made in the user turn are right by the rules of the Berkeley function calling leaderboard.
    Bfcl(BfclAnswer),
    /// A program of `score.programs` says so: it is run once, given the trajectory.
    Program {
        /// Its name there.
        program: String,
        /// What it is told beside the trajectory.
        #[serde(default)]
        input: Value,
    },
    /// Some number in the final reply is within `tolerance` of `value`.
    ReplyNumber {
        /// The expected number.
        value: f64,
        /// Largest difference accepted.
        tolerance: f64,
    },
    /// The final reply holds the value at `path` of the response to a call of this trajectory: the reply must
    /// be true to what was seen, imagined or not.
    ReplyConsistent {
        /// The call, as an index into the `calls` of the user turn's `Calls` grader, or of the case of its
        /// `Branch` grader that applies, matched in the trajectory.
        call: usize,
        /// JSON pointer into the response.
        path: String,
    },
    /// Every call of the user turn names a tool of the task and fits its schema; none is malformed. A user turn
    /// without calls passes.
    CallsValid,
    /// The user turn holds at least one well-formed call, of whatever tool.
    CallMade,
}

impl GraderKind {
    /// The tag of the kind in JSON: what verdicts call it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Calls { .. } => "calls",
            Self::Branch { .. } => "branch",
            Self::ReplyBranch { .. } => "reply_branch",
            Self::ReplyContains { .. } => "reply_contains",
            Self::ReplyEquals { .. } => "reply_equals",
            Self::ReplyMatches { .. } => "reply_matches",
            Self::Bfcl(_) => "bfcl",
            Self::Program { .. } => "program",
            Self::ReplyNumber { .. } => "reply_number",
            Self::ReplyConsistent { .. } => "reply_consistent",
            Self::CallsValid => "calls_valid",
            Self::CallMade => "call_made",
        }
    }
}

/// One case of a [`GraderKind::Branch`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BranchCase {
    /// What must hold for the case to apply; nothing: it always does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<Condition>,
    /// All calls expected in the user turn in this case, those that the conditions look at included.
    pub calls: Vec<ExpectedCall>,
}

/// A test of one value in the response to a call.
///
/// The call is the first one made in the user turn that matches the case's expected call at index `call`,
/// whose own references are resolved in the same way. The condition does not hold if that call was not made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Condition {
    /// Index into the `calls` of the case.
    pub call: usize,
    /// JSON pointer into the response.
    pub path: String,
    /// What must be so of the value.
    #[serde(flatten)]
    pub test: ValueTest,
}

/// What a [`Condition`] asks of a value. Values are compared as those of an [`Argument`]; all but `Exists` fail
/// where there is no value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueTest {
    /// It equals this value.
    Is(Value),
    /// It is there and does not equal this value.
    IsNot(Value),
    /// It equals one of these.
    OneOf(Vec<Value>),
    /// It is a number of at most this much.
    AtMost(f64),
    /// It is a number above this.
    Above(f64),
    /// It is there (`true`), or not (`false`).
    Exists(bool),
}

/// What the final reply must hold in one case of a [`GraderKind::Branch`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplyCase {
    /// Texts that must occur, as in [`GraderKind::ReplyContains`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub texts: Vec<String>,
    /// Values of responses that must occur, as in [`GraderKind::ReplyConsistent`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<ResponseValue>,
}

/// A value in the response to an expected call of the user turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResponseValue {
    /// Index into the `calls` of the case that applies.
    pub call: usize,
    /// JSON pointer into the response.
    pub path: String,
}

/// How the calls made must match the expected ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallOrder {
    /// The same calls in the same order, and no others.
    Exact,
    /// The same calls in any order, and no others.
    AnyOrder,
    /// Each expected call is among those made; others are allowed.
    Subset,
}

/// One expected call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExpectedCall {
    /// Name of the tool.
    pub name: String,
    /// What each argument must be. An argument that is not listed must not be given.
    #[serde(default)]
    pub arguments: BTreeMap<String, Argument>,
}

/// What one argument of an expected call must be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Argument {
    /// Equal to this value; numbers by value, texts without case and without space at the ends.
    Is(Value),
    /// Equal to this value, texts byte for byte.
    Exactly(Value),
    /// Equal to one of these.
    OneOf(Vec<Value>),
    /// Left out, or equal to one of these; an empty list accepts anything.
    Optional(Vec<Value>),
    /// Equal to the value found at `path` (a JSON pointer) in the response that `call`, an earlier expected
    /// call, got *in this trajectory*: a recorded id is never demanded where the response was imagined.
    From {
        /// Index into the grader's `calls` (those of the case that applies, if it is a `Branch`), or into
        /// those of the `Calls` or `Branch` grader of `user_turn` if that is given.
        call: usize,
        /// User turn of that call; the item's own if left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user_turn: Option<usize>,
        /// JSON pointer into the response.
        path: String,
    },
}
