//! The rules by which the Berkeley function calling leaderboard (BFCL), version 4, checks calls of a single turn.
//!
//! They differ from those of [`Calls`](super::GraderKind::Calls): a parameter has a table of accepted values, texts are
//! compared without some punctuation, whole numbers and fractions are different types, and calls of Java and
//! JavaScript are written in the notation of the language. Source: the checker of the package `bfcl-eval` 2026.3.23,
//! described in our words; `jobs/tests/golden/bfcl_vectors.py` compares the two.

mod call;
mod java;
mod javascript;
mod notation;
mod values;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use self::call::check_call;

/// The notation that arguments are written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// JSON values.
    #[default]
    Python,
    /// Source text of Java.
    Java,
    /// Source text of JavaScript.
    JavaScript,
}

/// How the calls made are held against the expected ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Matching {
    /// One call, of the only function there is.
    Simple,
    /// One call, of one of several functions.
    Multiple,
    /// Several calls in any order: each expected one takes the first call left that fits.
    Parallel,
}

impl Matching {
    /// That of a category of the leaderboard.
    pub fn of_category(category: &str) -> Self {
        match category {
            _ if category.contains("parallel") => Self::Parallel,
            _ if category.contains("multiple") => Self::Multiple,
            _ => Self::Simple,
        }
    }
}

/// What the calls of a user turn must be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BfclAnswer {
    /// Declarations of the functions in the leaderboard's own types.
    pub functions: Vec<Value>,
    /// For each expected call `{name: {parameter: [accepted values]}}`; `""` among them: it may be left out.
    pub expected: Vec<Map<String, Value>>,
    /// How calls are held against these.
    pub matching: Matching,
    /// The notation of their arguments.
    #[serde(default)]
    pub language: Language,
    /// Whether calls have underscores where names of functions have dots.
    #[serde(default)]
    pub dots_are_underscores: bool,
}

/// A call as it was made.
#[derive(Debug, Clone, PartialEq)]
pub struct MadeCall {
    /// Name of the function.
    pub name: String,
    /// Its arguments, in the order in which they were written.
    pub arguments: Map<String, Value>,
}

/// Why calls are not the expected ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The leaderboard's name for this kind of fault.
    pub class: &'static str,
    /// What is wrong, in words.
    pub reason: String,
}

/// Class of what the leaderboard's checker has no rule for, and stops at.
pub(super) const UNDEFINED: &str = "undefined";

impl Mismatch {
    fn new(class: &'static str, reason: impl Into<String>) -> Self {
        Self { class, reason: reason.into() }
    }

    /// See [`UNDEFINED`].
    fn undefined(reason: impl Into<String>) -> Self {
        Self::new(UNDEFINED, reason)
    }
}

impl BfclAnswer {
    /// Holds calls against the answer.
    ///
    /// # Errors
    /// The first [`Mismatch`].
    pub fn check(&self, calls: &[MadeCall]) -> Result<(), Mismatch> {
        match self.matching {
            Matching::Simple => {
                let [call] = calls else {
                    return Err(Mismatch::new(
                        "simple_function_checker:wrong_count",
                        format!("{} calls were made, 1 is expected", calls.len()),
                    ));
                };
                let (Some(function), Some(expected)) = (self.functions.first(), self.expected.first()) else {
                    return Err(Mismatch::undefined("there is no function or no answer"));
                };
                check_call(self, function, call, expected)
            }
            Matching::Multiple => {
                self.check_count(calls, "multiple_function_checker:wrong_count")?;
                let (Some(call), Some(expected)) = (calls.first(), self.expected.first()) else {
                    return Err(Mismatch::undefined("there is no answer"));
                };
                check_call(self, self.function(expected)?, call, expected)
            }
            Matching::Parallel => {
                self.check_count(calls, "parallel_function_checker_no_order:wrong_count")?;
                let mut left: Vec<&MadeCall> = calls.iter().collect();
                for expected in &self.expected {
                    let function = self.function(expected)?;
                    let mut found = None;
                    for (index, call) in left.iter().enumerate() {
                        match check_call(self, function, call, expected) {
                            Ok(()) => {
                                found = Some(index);
                                break;
                            }
                            Err(mismatch) if mismatch.class == UNDEFINED => return Err(mismatch),
                            Err(_) => {}
                        }
                    }
                    let Some(index) = found else {
                        return Err(Mismatch::new(
                            "parallel_function_checker_no_order:cannot_find_match",
                            format!("no call is the expected one of `{}`", name_of(expected)),
                        ));
                    };
                    left.remove(index);
                }
                Ok(())
            }
        }
    }

    fn check_count(&self, calls: &[MadeCall], class: &'static str) -> Result<(), Mismatch> {
        if calls.len() == self.expected.len() {
            return Ok(());
        }
        let reason = format!("{} calls were made, {} are expected", calls.len(), self.expected.len());
        Err(Mismatch::new(class, reason))
    }

    fn function(&self, expected: &Map<String, Value>) -> Result<&Value, Mismatch> {
        let name = name_of(expected);
        let found = self.functions.iter().find(|function| function["name"] == name);
        found.ok_or_else(|| Mismatch::undefined(format!("no function is called `{name}`")))
    }
}

fn name_of(expected: &Map<String, Value>) -> &str {
    expected.keys().next().map_or("", String::as_str)
}
