//! A task as the stages see it: the JSON columns of a `tasks` row, parsed.

use envace_model::chat::{ChatMessage, Speaker};
use envace_schemas::tables::TaskRow;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::score::{Checklist, GraderSpec, check_checklist};

/// One problem with its graders.
#[derive(Debug, Clone)]
pub struct Task {
    /// The row it was parsed from.
    pub row: TaskRow,
    /// Messages up to and including the first user message.
    pub opening: Vec<ChatMessage>,
    /// Function schemas, in order: what the chat template and the guards get.
    pub tools: Vec<Value>,
    /// Scripted user messages after the first.
    pub later_user_turns: Vec<String>,
    /// Calls of the recorded dialogue, in order.
    pub recorded_calls: Vec<RecordedCall>,
    /// The whole recorded dialogue, if there is one.
    pub transcript: Option<Vec<ChatMessage>>,
    /// What the trajectory is graded by.
    pub graders: Vec<GraderSpec>,
}

/// A call of the recorded dialogue and the response it got.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecordedCall {
    /// 0-based user turn in which it was made.
    pub user_turn: usize,
    /// Name of the tool.
    pub name: String,
    /// Arguments, byte for byte.
    pub arguments: Box<RawValue>,
    /// Response text, byte for byte; usually JSON.
    pub result: String,
}

/// A `tasks` row that breaks an invariant.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// A JSON column does not parse.
    #[error("task `{task_id}`: column `{column}` is not what it should be")]
    Json {
        /// The task.
        task_id: String,
        /// The column.
        column: &'static str,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// The columns contradict each other.
    #[error("task `{task_id}`: {reason}")]
    Invariant {
        /// The task.
        task_id: String,
        /// What must hold and does not.
        reason: String,
    },
}

impl Task {
    /// Parses the JSON columns of `row` and checks that they fit together.
    ///
    /// # Errors
    /// [`TaskError`] names the task, and the column or the invariant.
    pub fn parse(row: TaskRow) -> Result<Self, TaskError> {
        let task = Self {
            opening: column(&row, "opening", &row.opening)?,
            tools: column(&row, "tools", &row.tools)?,
            later_user_turns: column(&row, "later_user_turns", &row.later_user_turns)?,
            recorded_calls: column(&row, "recorded_calls", &row.recorded_calls)?,
            transcript: row.transcript.as_ref().map(|text| column(&row, "transcript", text)).transpose()?,
            graders: column(&row, "graders", &row.graders)?,
            row,
        };
        task.check()?;
        Ok(task)
    }

    /// Name of the task.
    pub fn id(&self) -> &str {
        &self.row.task_id
    }

    /// User turns the script has, the first included.
    pub fn n_user_turns(&self) -> usize {
        self.later_user_turns.len() + 1
    }

    /// The schema of the tool called `name`: the `function` object of its declaration.
    pub fn tool(&self, name: &str) -> Option<&Value> {
        self.tools.iter().map(function_of).find(|function| function["name"] == name)
    }

    /// What a judge is asked about its trajectories; empty without a checklist.
    ///
    /// # Errors
    /// [`TaskError`] if the column does not parse, or does not fit the user turns.
    pub fn checklist(&self) -> Result<Checklist, TaskError> {
        let Some(text) = &self.row.checklist else { return Ok(Checklist::new()) };
        let checklist = column(&self.row, "checklist", text)?;
        check_checklist(&checklist, self.n_user_turns()).map_err(|reason| TaskError::Invariant {
            task_id: self.id().to_owned(),
            reason: format!("column `checklist`: {reason}"),
        })?;
        Ok(checklist)
    }

    fn check(&self) -> Result<(), TaskError> {
        let wrong = |reason: String| TaskError::Invariant { task_id: self.id().to_owned(), reason };
        if self.opening.last().is_none_or(|message| message.role != Speaker::User) {
            return Err(wrong("`opening` must end with a user message".to_owned()));
        }
        if self.opening.iter().filter(|message| message.role == Speaker::User).count() != 1 {
            return Err(wrong("`opening` must hold exactly one user message".to_owned()));
        }
        for tool in &self.tools {
            if !function_of(tool)["name"].is_string() {
                return Err(wrong("a tool has no `name`".to_owned()));
            }
        }
        for (what, user_turn) in self
            .recorded_calls
            .iter()
            .map(|call| ("recorded call", call.user_turn))
            .chain(self.graders.iter().map(|grader| ("grader", grader.user_turn)))
        {
            if user_turn >= self.n_user_turns() {
                return Err(wrong(format!(
                    "a {what} names user turn {user_turn}, the script has {}",
                    self.n_user_turns()
                )));
            }
        }
        Ok(())
    }
}

/// The function schema inside a tool declaration, which may also stand alone.
pub fn function_of(tool: &Value) -> &Value {
    tool.get("function").unwrap_or(tool)
}

/// The digest of a row's other columns, for its `task_hash`.
pub fn task_hash(row: &TaskRow) -> String {
    let mut hasher = blake3::Hasher::new();
    let columns = [
        Some(&row.task_id),
        Some(&row.split),
        row.family.as_ref(),
        Some(&row.source),
        Some(&row.opening),
        Some(&row.tools),
        Some(&row.later_user_turns),
        Some(&row.recorded_calls),
        row.transcript.as_ref(),
        Some(&row.graders),
        row.checklist.as_ref(),
        row.world.as_ref(),
    ];
    for column in columns {
        match column {
            None => hasher.update(&[0]),
            Some(text) => {
                hasher.update(&[1]).update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes())
            }
        };
    }
    hasher.finalize().to_hex().to_string()
}

fn column<T: DeserializeOwned>(row: &TaskRow, column: &'static str, text: &str) -> Result<T, TaskError> {
    serde_json::from_str(text).map_err(|source| TaskError::Json {
        task_id: row.task_id.clone(),
        column,
        source,
    })
}
