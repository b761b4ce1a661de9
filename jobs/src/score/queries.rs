//! Graders that are queries: rows of `verdicts` from the tables of a rollout.

use std::collections::BTreeSet;
use std::path::Path;

use arrow::array::RecordBatch;
use envace_schemas::tables::{GenerationRow, MessageRow, TaskRow, TrajectoryRow, VerdictRow};
use envace_schemas::{Table, batches_of, rows_of};
use envace_sql::QuerySession;

use crate::error::JobError;

/// A grader's query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GraderQuery {
    /// Its file.
    file: String,
    text: String,
}

impl GraderQuery {
    /// Those of some files.
    ///
    /// # Errors
    /// [`JobError::File`] for one that cannot be read.
    pub fn load(files: &[String]) -> Result<Vec<Self>, JobError> {
        let load = |file: &String| {
            let text = fs_err::read_to_string(file)
                .map_err(JobError::file("cannot read a grader's query", Path::new(file)))?;
            Ok(Self { file: file.clone(), text })
        };
        files.iter().map(load).collect()
    }

    /// Hex digest of its text: what counts in a stage's key.
    pub fn digest(&self) -> String {
        blake3::hash(self.text.as_bytes()).to_hex().to_string()
    }

    /// Whether it can be run and makes `verdicts`, before there are rows.
    ///
    /// # Errors
    /// [`JobError::Sql`] if not.
    pub async fn check(&self) -> Result<(), JobError> {
        let inputs = [Table::Tasks, Table::Trajectories, Table::Messages, Table::Generations];
        Ok(QuerySession::default().check_query(&self.file, &self.text, &inputs, &[], Table::Verdicts).await?)
    }

    /// The verdicts it makes of a part.
    ///
    /// # Errors
    /// [`JobError::Sql`] if it fails or makes another table; [`JobError::Refused`] if it names a trajectory or user turn
    /// that is not there.
    pub async fn verdicts(
        &self,
        session: QuerySession,
        part: &PartTables<'_>,
    ) -> Result<Vec<VerdictRow>, JobError> {
        let inputs: [(Table, Vec<RecordBatch>); 4] = [
            (Table::Tasks, batches_of(&part.tasks)?),
            (Table::Trajectories, batches_of(part.trajectories)?),
            (Table::Messages, batches_of(part.messages)?),
            (Table::Generations, batches_of(part.generations)?),
        ];
        let batches = session.run_query(&self.file, &self.text, &inputs, &[], Table::Verdicts).await?;
        let rows: Vec<VerdictRow> = rows_of(&batches)?;
        let known: BTreeSet<(&str, i32, i32)> = part
            .trajectories
            .iter()
            .flat_map(|row| {
                (0..row.n_scripted_user_turns).map(|turn| (row.task_id.as_str(), row.sample, turn))
            })
            .collect();
        let unknown =
            rows.iter().find(|row| !known.contains(&(row.task_id.as_str(), row.sample, row.user_turn)));
        match unknown {
            None => Ok(rows),
            Some(row) => Err(JobError::refused(
                format!(
                    "the query {} has a verdict on user turn {} of sample {} of task `{}`, which is not there",
                    self.file, row.user_turn, row.sample, row.task_id
                ),
                "take `task_id`, `sample` and `user_turn` from `trajectories` or `messages`",
            )),
        }
    }
}

/// What a grader's query can read of a part.
#[derive(Debug, Clone)]
pub(super) struct PartTables<'a> {
    /// The tasks of its trajectories.
    pub tasks: Vec<TaskRow>,
    /// See [`Table::Trajectories`].
    pub trajectories: &'a [TrajectoryRow],
    /// See [`Table::Messages`].
    pub messages: &'a [MessageRow],
    /// See [`Table::Generations`].
    pub generations: &'a [GenerationRow],
}
