//! How a task declares what it is graded by: the JSON of its `graders` column.

use std::collections::BTreeMap;

use envace_schemas::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::Value;

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
        /// The call, as an index into the `calls` of the user turn's `Calls` grader, matched in the trajectory.
        call: usize,
        /// JSON pointer into the response.
        path: String,
    },
    /// Every call of the user turn names a tool of the task and fits its schema.
    CallsValid,
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
    /// Equal to one of these.
    OneOf(Vec<Value>),
    /// Left out, or equal to one of these; an empty list accepts anything.
    Optional(Vec<Value>),
    /// Equal to the value found at `path` (a JSON pointer) in the response that `call`, an earlier expected
    /// call, got *in this trajectory*: a recorded id is never demanded where the response was imagined.
    From {
        /// Index into the grader's `calls`; over all user turns if `user_turn` is given.
        call: usize,
        /// User turn of that call; the item's own if left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user_turn: Option<usize>,
        /// JSON pointer into the response.
        path: String,
    },
}
