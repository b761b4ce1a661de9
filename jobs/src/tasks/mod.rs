//! Tasks from files: the reference's records, BFCL, and envace's own JSON lines.
//!
//! A record that breaks an invariant is refused with its place and the reason; the others go in. What is stored
//! of outside text is stored byte for byte: tool schemas, arguments, tool results, checklists.
//!
//! Scored categories of BFCL must not be trained on: their tasks carry the source `bfcl:<category>` and their
//! category as split, so that a run can name what it trains and evaluates on.

pub mod bfcl;
mod dialogue;
mod jsonl;
mod records;
mod reference;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use arrow::error::ArrowError;
use envace_schemas::tables::TaskRow;
use parquet::errors::ParquetError;

use crate::score::check_graders;
use crate::task::{Task, task_hash};

pub use self::jsonl::export_jsonl;
pub use self::records::Place;

/// A file format of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Records of the reference implementation: a JSON array, JSON lines, or Parquet
    Reference,
    /// Prompts of the Berkeley function calling leaderboard, version 4
    Bfcl,
    /// One task a line, with the columns of the `tasks` table
    Jsonl,
}

/// What a file does not say by itself.
#[derive(Debug, Clone, Default)]
pub struct ImportOptions {
    /// Split of tasks that name none. Left out: `train`; of BFCL, the category.
    pub split: Option<String>,
    /// Source of tasks that name none. Left out: what the format has for it.
    pub source: Option<String>,
    /// The files that belong to a file of BFCL prompts.
    pub bfcl: bfcl::Companions,
}

/// What came of an import.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ImportReport {
    /// The tasks, in the order of the file.
    pub rows: Vec<TaskRow>,
    /// The records that were not taken.
    pub refused: Vec<Refusal>,
}

impl fmt::Display for ImportReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tasks imported, {} records refused", self.rows.len(), self.refused.len())
    }
}

/// A record that was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Where it stands in the file.
    pub place: Place,
    /// Its id, as far as it could be read.
    pub id: Option<String>,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.id {
            Some(id) => write!(f, "{} (`{id}`): {}", self.place, self.reason),
            None => write!(f, "{}: {}", self.place, self.reason),
        }
    }
}

/// A file none of whose tasks can be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The file, or one that belongs to it, cannot be read.
    #[error("file cannot be read: {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// The JSON array is broken, so that its records cannot be told apart.
    #[error("JSON array is broken at line {}, column {}", .source.line(), .source.column())]
    Array {
        /// What the parser says.
        #[source]
        source: serde_json::Error,
    },
    /// The Parquet file is broken.
    #[error("Parquet file cannot be read")]
    Parquet {
        /// What the Parquet library says.
        #[source]
        source: ParquetError,
    },
    /// The Parquet file holds columns that have no form in JSON.
    #[error("columns of the Parquet file cannot be turned into JSON")]
    Columns {
        /// What Arrow says.
        #[source]
        source: ArrowError,
    },
    /// A file that belongs to the prompts is broken.
    #[error("`{file}` is broken at line {line}")]
    Companion {
        /// Which file.
        file: String,
        /// 1-based.
        line: usize,
        /// What the parser says.
        #[source]
        source: serde_json::Error,
    },
}

impl ImportError {
    /// What the user can do about it, if anything.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Array { .. } => {
                Some("write one record a line instead: then only the broken ones are refused".to_owned())
            }
            _ => None,
        }
    }
}

/// Reads the tasks in `bytes`, the content of a file.
///
/// # Errors
/// [`ImportError`] if the records of the file cannot be told apart.
pub fn import(bytes: &[u8], format: Format, options: &ImportOptions) -> Result<ImportReport, ImportError> {
    let bfcl = match format {
        Format::Bfcl => Some(bfcl::Library::new(&options.bfcl)?),
        Format::Reference | Format::Jsonl => None,
    };
    let mut report = ImportReport::default();
    let mut places: BTreeMap<String, Place> = BTreeMap::new();
    for record in records::records(bytes)? {
        let mut id = None;
        let row = record.text.and_then(|text| {
            id = records::id_of(&text);
            let row = match &bfcl {
                Some(library) => bfcl::row(&text, library, options),
                None if format == Format::Reference => reference::row(&text, options),
                None => jsonl::row(&text, options),
            }?;
            let row = finished(row)?;
            match places.get(&row.task_id) {
                Some(place) => Err(format!("its task id is that of {place} already")),
                None => Ok(row),
            }
        });
        match row {
            Ok(row) => {
                places.insert(row.task_id.clone(), record.place);
                report.rows.push(row);
            }
            Err(reason) => report.refused.push(Refusal { place: record.place, id, reason }),
        }
    }
    Ok(report)
}

/// Reads the tasks in the file at `path`; for [`Format::Bfcl`] also the files that belong to it, where the
/// leaderboard keeps them, unless `options` holds them already.
///
/// # Errors
/// [`ImportError`] if a file cannot be read, or as [`import`].
pub fn import_path(
    path: &Path,
    format: Format,
    options: &ImportOptions,
) -> Result<ImportReport, ImportError> {
    let bytes = fs_err::read(path).map_err(|source| ImportError::Read { path: path.to_owned(), source })?;
    if format == Format::Bfcl && options.bfcl.is_empty() {
        let options = ImportOptions { bfcl: bfcl::Companions::beside(path)?, ..options.clone() };
        return import(&bytes, format, &options);
    }
    import(&bytes, format, options)
}

/// How `evaluations` call what they measure over all families.
const ALL_FAMILIES: &str = "all";

/// Checks a row and sets its hash.
fn finished(mut row: TaskRow) -> Result<TaskRow, String> {
    let given = std::mem::take(&mut row.task_hash);
    if row.task_id.trim().is_empty() {
        return Err("its task id is empty".to_owned());
    }
    if row.split.trim().is_empty() {
        return Err("its split is empty".to_owned());
    }
    if row.family.as_deref() == Some(ALL_FAMILIES) {
        return Err(format!("its family has a name that means all of them: {ALL_FAMILIES}"));
    }
    row.task_hash = task_hash(&row);
    if !given.is_empty() && given != row.task_hash {
        return Err(format!("`task_hash` must be left out or that of the other columns: {}", row.task_hash));
    }
    let task = Task::parse(row).map_err(|error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
        format!("{error}{}", cause.unwrap_or_default())
    })?;
    if task.graders.is_empty() && task.row.checklist.is_none() {
        return Err("it has neither graders nor a checklist".to_owned());
    }
    if !task.graders.is_empty() {
        check_graders(&task.graders, task.n_user_turns())?;
    }
    Ok(task.row)
}
