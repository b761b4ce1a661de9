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

/// The tries of one question, by their index.
pub(super) type Tries = BTreeMap<i32, JudgeCallRow>;

/// The tries of each question, by its hash.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    tries: BTreeMap<String, Tries>,
    /// How many tries there were before those that count now.
    n_before: BTreeMap<String, i32>,
    /// Questions that are asked again although they have tries.
    asked_again: BTreeSet<String>,
}

/// Whether the last of some tries has an answer.
fn is_answered(tries: &Tries) -> bool {
    tries.values().next_back().is_some_and(|last| last.is_passed.is_some())
}

fn n_tries(tries: &Tries) -> i32 {
    tries.keys().next_back().map_or(0, |last| last + 1)
}

impl Recorded {
    /// Those of all attempts of a stage at a step, the latest standing for itself, and after them those of the
    /// execution.
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
            let rows: Vec<JudgeCallRow> = StageOutput::new(&ctx.store, manifest).read_all().await?;
            // An attempt holds all the tries it rests on, those of earlier attempts among them.
            recorded.tries.extend(by_question(rows));
        }
        if ctx.refresh == Refresh::All {
            let tries = std::mem::take(&mut recorded.tries).into_iter();
            recorded.n_before = tries.map(|(hash, tries)| (hash, n_tries(&tries))).collect();
        }
        // Notes go on where the attempts end.
        for (hash, tries) in by_question(notes(execution).await?) {
            recorded.tries.entry(hash).or_default().extend(tries);
        }
        if ctx.refresh == Refresh::Failed {
            let failed = recorded.tries.iter().filter(|(_, tries)| !is_answered(tries));
            recorded.asked_again = failed.map(|(hash, _)| hash.clone()).collect();
        }
        Ok(recorded)
    }

    /// The tries of a question; `None` if it is to be asked.
    pub fn get(&self, hash: &str) -> Option<&Tries> {
        self.tries.get(hash).filter(|_| !self.asked_again.contains(hash))
    }

    /// The index of the next try of a question that is to be asked.
    pub fn next_index(&self, hash: &str) -> i32 {
        let before = || self.n_before.get(hash).copied().unwrap_or(0);
        self.tries.get(hash).map_or_else(before, n_tries)
    }

    /// Adds the tries of a question that was asked to those before, which it failed in.
    pub fn insert(&mut self, tries: Vec<JudgeCallRow>) {
        for (hash, tries) in by_question(tries) {
            self.asked_again.remove(&hash);
            self.tries.entry(hash).or_default().extend(tries);
        }
    }

    /// Tokens of requests and answers, and how many answers reported them.
    pub fn n_tokens(&self) -> (i64, i64, i64) {
        let rows = self.tries.values().flat_map(BTreeMap::values);
        let known = rows.filter_map(|row| Some((row.n_request_tokens?, row.n_response_tokens?)));
        known.fold((0, 0, 0), |(n, asked, answered), (a, b)| (n + 1, asked + a, answered + b))
    }
}

/// Rows by their questions: transcripts that are alike share a question, and its tries are the same in all of them.
fn by_question(rows: Vec<JudgeCallRow>) -> BTreeMap<String, Tries> {
    let mut tries: BTreeMap<String, Tries> = BTreeMap::new();
    for row in rows {
        tries.entry(row.request_hash.clone()).or_default().insert(row.try_index, row);
    }
    tries
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

/// What was kept. A line that cannot be read is an answer lost, and its question is asked again.
async fn notes(execution: &Execution) -> Result<Vec<JudgeCallRow>, JobError> {
    let mut rows = Vec::new();
    let mut n_lost = 0;
    for note in execution.notes(NOTES).await? {
        for line in note.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match serde_json::from_slice(line) {
                Ok(row) => rows.push(row),
                Err(_) => n_lost += 1,
            }
        }
    }
    if n_lost > 0 {
        tracing::warn!(n_lost, id = %execution.id(), "kept answers of the judge cannot be read, and are asked for again");
    }
    Ok(rows)
}
