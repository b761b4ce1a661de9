use std::fmt;

use envace_schemas::{Query, Table};
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use crate::PipelineError;

/// Longest name of a run or a task set, in characters.
pub const MAX_NAME_CHARS: usize = 100;

/// What a stage reads, writes and depends on. The runner checks all of it.
#[derive(Debug, Clone, Copy)]
pub struct StageSpec {
    /// Stable name: the subcommand and the output folder.
    pub name: &'static str,
    /// Bumped when the output changes but nothing else in the stage key does.
    pub version: u32,
    /// Tables it reads.
    pub inputs: &'static [Table],
    /// Tables it makes. `timings` may always be written and need not be declared.
    pub outputs: &'static [Table],
    /// Queries it runs.
    pub queries: &'static [Query],
    /// The config section it is given, all of which enters the stage key.
    pub config: &'static str,
}

/// Which output of which stage: the coordinates of its tables and its manifest.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StageId {
    /// The run, or the name of a task set or an imported model.
    pub run: String,
    /// The stage.
    pub stage: String,
    /// 0-based step of the run.
    pub step: u64,
    /// 0-based attempt; the latest one counts.
    pub attempt: u32,
}

impl fmt::Display for StageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, stage, step, attempt } = self;
        write!(f, "`{stage}` of run `{run}`, step {step}, attempt {attempt}")
    }
}

impl StageId {
    /// The same stage at another attempt.
    #[must_use]
    pub fn with_attempt(&self, attempt: u32) -> Self {
        Self { attempt, ..self.clone() }
    }

    /// Where a part of a table lies.
    pub fn part_path(&self, table: Table, part: u32) -> Path {
        self.table_dir(table).join(part_name(part).as_str())
    }

    /// Where the parts of a table lie: a folder of Hive partitions.
    pub fn table_dir(&self, table: Table) -> Path {
        Path::from_iter([
            "tables",
            table.name(),
            &format!("run={}", self.run),
            &format!("stage={}", self.stage),
            &step_name(self.step),
            &attempt_name(self.attempt),
        ])
    }

    /// Where its manifest lies.
    pub fn manifest_path(&self) -> Path {
        self.attempt_dir().join("manifest.json")
    }

    /// The record that an attempt is being committed, and from which key.
    pub(crate) fn claim_path(&self) -> Path {
        self.attempt_dir().join("claim.json")
    }

    pub(crate) fn staging_dir(&self, key: &str) -> Path {
        Path::from_iter([
            "staging",
            &self.run,
            &self.stage,
            &step_name(self.step),
            &attempt_name(self.attempt),
            key,
        ])
    }

    /// The folder of all attempts of a stage at a step.
    pub(crate) fn step_dir(&self) -> Path {
        Path::from_iter(["runs", &self.run, &self.stage, &step_name(self.step)])
    }

    fn attempt_dir(&self) -> Path {
        self.step_dir().join(attempt_name(self.attempt).as_str())
    }

    /// Reads `runs/R/S/step=000012/attempt=0/<file>`; `None` for any other path.
    pub(crate) fn of_path(path: &Path, file: &str) -> Option<Self> {
        let parts: Vec<_> = path.parts().map(|part| part.as_ref().to_owned()).collect();
        let [runs, run, stage, step, attempt, name] = parts.as_slice() else { return None };
        let step = step.strip_prefix("step=")?.parse().ok()?;
        let attempt = attempt.strip_prefix("attempt=")?.parse().ok()?;
        (runs == "runs" && name == file).then(|| Self {
            run: run.clone(),
            stage: stage.clone(),
            step,
            attempt,
        })
    }
}

pub(crate) fn part_name(part: u32) -> String {
    format!("part-{part:05}.parquet")
}

fn step_name(step: u64) -> String {
    format!("step={step:06}")
}

fn attempt_name(attempt: u32) -> String {
    format!("attempt={attempt}")
}

/// Checks that a name of a run, task set or model can be a folder in every store.
///
/// # Errors
/// [`PipelineError::InvalidName`] if it is empty, longer than [`MAX_NAME_CHARS`], begins with a dot, or holds
/// anything but ASCII letters, digits, `-`, `_` and `.`.
pub fn check_name(what: &'static str, name: &str) -> Result<(), PipelineError> {
    let stranger = name.chars().find(|c| !(c.is_ascii_alphanumeric() || "-_.".contains(*c)));
    let reason = if name.is_empty() {
        "is empty".to_owned()
    } else if name.chars().count() > MAX_NAME_CHARS {
        format!("is longer than {MAX_NAME_CHARS} characters")
    } else if let Some(stranger) = stranger {
        format!("contains {stranger:?}")
    } else if name.starts_with('.') {
        "begins with a dot".to_owned()
    } else {
        return Ok(());
    };
    Err(PipelineError::InvalidName { what, name: name.to_owned(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_no_folder_are_refused() {
        for name in ["a", "run-1", "R_2.b", &"x".repeat(100)] {
            assert!(check_name("run", name).is_ok(), "{name}");
        }
        let cases = [
            ("", "is empty"),
            (".hidden", "begins with a dot"),
            ("..", "begins with a dot"),
            ("a/b", "contains '/'"),
            ("a\\b", "contains '\\\\'"),
            ("../a", "contains '/'"),
            ("a=b", "contains '='"),
            ("a\nb", "contains '\\n'"),
            ("a b", "contains ' '"),
            ("ä", "contains 'ä'"),
        ];
        for (name, reason) in cases {
            let error = check_name("run", name).unwrap_err();
            assert_eq!(error.to_string(), format!("run name {reason}: {name:?}"));
            assert!(error.hint().is_some());
        }
        let long = check_name("task set", &"x".repeat(101)).unwrap_err();
        assert!(long.to_string().starts_with("task set name is longer than 100 characters: "));
    }

    #[test]
    fn paths_are_hive_partitions_and_can_be_read_back() {
        let id = StageId { run: "r".to_owned(), stage: "score".to_owned(), step: 12, attempt: 1 };
        assert_eq!(
            id.part_path(Table::Rewards, 3).to_string(),
            "tables/rewards/run=r/stage=score/step=000012/attempt=1/part-00003.parquet"
        );
        assert_eq!(id.manifest_path().to_string(), "runs/r/score/step=000012/attempt=1/manifest.json");
        assert_eq!(StageId::of_path(&id.manifest_path(), "manifest.json"), Some(id.clone()));
        assert_eq!(StageId::of_path(&id.claim_path(), "manifest.json"), None);
        assert_eq!(StageId::of_path(&id.part_path(Table::Rewards, 0), "part-00000.parquet"), None);
    }
}
