//! Answers that are there already: of earlier attempts, and of this one before it was stopped.

use std::collections::{BTreeMap, BTreeSet};

use envace_pipeline::{Execution, StageOutput};
use envace_schemas::Table;
use envace_schemas::tables::JudgeCallRow;

use crate::context::RunContext;
use crate::error::JobError;

/// Folder of the notes that hold answers until the commit.
const NOTES: &str = "judge";

/// Which questions are asked again although they have an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Refresh {
    /// None.
    #[default]
    Nothing,
    /// Those whose calls failed, or whose answers could not be read.
    Failed,
    /// All.
    All,
}

/// The tries of each question, by its hash, in order.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    tries: BTreeMap<String, Vec<JudgeCallRow>>,
    /// How many tries there were before those that count now.
    n_before: BTreeMap<String, i32>,
    /// Questions that are asked again although they have tries.
    asked_again: BTreeSet<String>,
}

/// Whether the last of some tries has an answer.
fn is_answered(tries: &[JudgeCallRow]) -> bool {
    tries.last().is_some_and(|last| last.is_passed.is_some())
}

impl Recorded {
    /// Those of all attempts of a stage at a step, the latest standing for itself; then those of the execution.
    ///
    /// # Errors
    /// If the store fails, or holds a damaged table.
    pub async fn load(ctx: &RunContext, execution: &Execution) -> Result<Self, JobError> {
        let id = execution.id();
        let mut recorded = Self::default();
        for manifest in ctx.store.attempts(&ctx.run, &id.stage, id.step).await? {
            if !manifest.outputs.contains_key(&Table::JudgeCalls) || manifest.n_rows(Table::JudgeCalls) == 0 {
                continue;
            }
            recorded.replace(StageOutput::new(&ctx.store, manifest).read_all().await?);
        }
        if ctx.refresh == Refresh::All {
            let next = |tries: Vec<JudgeCallRow>| tries.last().map_or(0, |last| last.try_index + 1);
            let tries = std::mem::take(&mut recorded.tries).into_iter();
            recorded.n_before = tries.map(|(hash, tries)| (hash, next(tries))).collect();
        }
        let mut of_execution = Vec::new();
        for note in execution.notes(NOTES).await? {
            // A line cut short by a loss of power was never counted on.
            let lines = note.split(|byte| *byte == b'\n');
            of_execution.extend(lines.filter_map(|line| serde_json::from_slice::<JudgeCallRow>(line).ok()));
        }
        recorded.replace(of_execution);
        if ctx.refresh == Refresh::Failed {
            let failed = recorded.tries.iter().filter(|(_, tries)| !is_answered(tries));
            recorded.asked_again = failed.map(|(hash, _)| hash.clone()).collect();
        }
        Ok(recorded)
    }

    /// Puts the tries of `rows` in place of those that are there of the same questions.
    fn replace(&mut self, rows: Vec<JudgeCallRow>) {
        let mut tries: BTreeMap<String, BTreeMap<i32, JudgeCallRow>> = BTreeMap::new();
        for row in rows {
            // Transcripts that are alike share a question; its tries are the same in all of them.
            tries.entry(row.request_hash.clone()).or_default().insert(row.try_index, row);
        }
        self.tries.extend(tries.into_iter().map(|(hash, tries)| (hash, tries.into_values().collect())));
    }

    /// The tries of a question; `None` if it is to be asked.
    pub fn get(&self, hash: &str) -> Option<&[JudgeCallRow]> {
        self.tries.get(hash).filter(|_| !self.asked_again.contains(hash)).map(Vec::as_slice)
    }

    /// The index of the next try of a question that is to be asked.
    pub fn next_index(&self, hash: &str) -> i32 {
        let last = self.tries.get(hash).and_then(|tries| tries.last());
        last.map_or_else(|| self.n_before.get(hash).copied().unwrap_or(0), |last| last.try_index + 1)
    }

    /// Adds the tries of a question that was asked to those before, which it failed in.
    pub fn insert(&mut self, tries: Vec<JudgeCallRow>) {
        if let Some(hash) = tries.first().map(|first| first.request_hash.clone()) {
            self.asked_again.remove(&hash);
            self.tries.entry(hash).or_default().extend(tries);
        }
    }

    /// Tokens of requests and answers, and how many answers reported them.
    pub fn n_tokens(&self) -> (i64, i64, i64) {
        let rows = self.tries.values().flatten();
        let known = rows.filter_map(|row| Some((row.n_request_tokens?, row.n_response_tokens?)));
        known.fold((0, 0, 0), |(n, asked, answered), (a, b)| (n + 1, asked + a, answered + b))
    }
}

/// Keeps tries beside the parts under way, so that a kill costs no call.
///
/// # Errors
/// If the store fails.
pub(super) async fn keep(execution: &Execution, tries: &[JudgeCallRow]) -> Result<(), JobError> {
    let mut lines = Vec::new();
    for row in tries {
        let what = || "judge call".to_owned();
        serde_json::to_writer(&mut lines, row).map_err(|source| JobError::Json { what: what(), source })?;
        lines.push(b'\n');
    }
    // Named by what it holds, so that two processes never write one file.
    let name = format!("{}.jsonl", blake3::hash(&lines).to_hex());
    Ok(execution.keep_note(NOTES, &name, lines).await?)
}
