use serde::{Deserialize, Serialize};

use super::state::differences;
use super::{Api, Difference, State};
use crate::task::Task;

/// The `world` column of a task made from this world.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WorldColumn {
    /// The face that the world shows.
    pub api: Api,
    /// The state in which the dialogue starts.
    pub initial: State,
    /// The state in which it must end.
    pub expected: State,
    /// For each user turn, the texts that its reply must hold.
    pub replies: Vec<Vec<String>>,
}

/// A task that this world cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorldError {
    /// The task has no `world` column.
    #[error("task `{task_id}` has no executable world")]
    NoWorld {
        /// The task.
        task_id: String,
    },
    /// The `world` column is not one of this world.
    #[error("task `{task_id}`: column `world` is not of the bundled world")]
    Json {
        /// The task.
        task_id: String,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// There is no such split.
    #[error("unknown split, expected `train`, `held_out` or `drift`: {split}")]
    UnknownSplit {
        /// What was given.
        split: String,
    },
}

/// The service desk in one task, changed by the calls it executes.
#[derive(Debug, Clone)]
pub struct World {
    column: WorldColumn,
    state: State,
}

/// What [`World::check`] found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckReport {
    /// Where the final state is not the expected one.
    pub differences: Vec<Difference>,
    /// User turn and text, for each text that is missing in a reply.
    pub missing: Vec<(usize, String)>,
}

impl CheckReport {
    /// Whether the task is solved: the expected state is reached and each reply says what it must.
    pub fn is_solved(&self) -> bool {
        self.differences.is_empty() && self.missing.is_empty()
    }
}

impl World {
    /// The world of `task` in its initial state.
    ///
    /// # Errors
    /// [`WorldError`] if the task has no such world.
    pub fn from_task(task: &Task) -> Result<Self, WorldError> {
        let task_id = task.id().to_owned();
        let Some(text) = &task.row.world else { return Err(WorldError::NoWorld { task_id }) };
        let column: WorldColumn =
            serde_json::from_str(text).map_err(|source| WorldError::Json { task_id, source })?;
        let state = column.initial.clone();
        Ok(Self { column, state })
    }

    /// Executes a call and returns the response, a JSON text. What the rules forbid, and what is no call of
    /// this world, gets an object with an `error` and changes nothing.
    pub fn execute(&mut self, name: &str, arguments: &str) -> String {
        self.column.api.execute(&mut self.state, name, arguments)
    }

    /// The state that the calls so far have led to.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Where the state is not the one expected at the end.
    pub fn differences(&self) -> Vec<Difference> {
        differences(&self.column.expected, &self.state)
    }

    /// Hex digest of the state.
    pub fn final_state_hash(&self) -> String {
        blake3::hash(super::text(&self.state).as_bytes()).to_hex().to_string()
    }

    /// Compares the final state and the replies, one for each user turn that was reached, with what the task
    /// expects. Texts are compared without case and as whole words.
    pub fn check<S: AsRef<str>>(&self, replies: &[S]) -> CheckReport {
        let mut missing = Vec::new();
        for (user_turn, texts) in self.column.replies.iter().enumerate() {
            let reply = replies.get(user_turn).map_or("", AsRef::as_ref).to_lowercase();
            for text in texts {
                if !holds(&reply, &text.to_lowercase()) {
                    missing.push((user_turn, text.clone()));
                }
            }
        }
        CheckReport { differences: self.differences(), missing }
    }
}

/// Whether `part` occurs in `text` with no letter or digit right before or after it.
fn holds(text: &str, part: &str) -> bool {
    let is_word = |character: Option<char>| character.is_some_and(char::is_alphanumeric);
    text.match_indices(part).any(|(start, _)| {
        let (before, after) = (text.get(..start), text.get(start + part.len()..));
        !is_word(before.and_then(|text| text.chars().next_back()))
            && !is_word(after.and_then(|text| text.chars().next()))
    })
}

#[cfg(test)]
mod tests {
    use super::holds;

    #[test]
    fn texts_are_whole_words() {
        for (text, part, expected) in [
            ("ticket t12 is closed.", "t12", true),
            ("ticket t12 is closed.", "t1", false),
            ("order o10", "10", false),
            ("o10 costs 10.", "10", true),
            ("", "t12", false),
            ("élan", "lan", false),
        ] {
            assert_eq!(holds(text, part), expected, "{part} in {text}");
        }
    }
}
