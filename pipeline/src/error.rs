use std::io;
use std::path::PathBuf;

use envace_schemas::{Table, TableError};

use crate::{KeyDifference, StageId};

/// Everything that can go wrong between a stage and its store.
///
/// `Display` says what failed and where; the cause is only in `source`. What to do next is in
/// [`PipelineError::hint`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// A run or task set has a name that cannot be a folder everywhere.
    #[error("{what} name {reason}: {name:?}")]
    InvalidName {
        /// What is named, such as `run`.
        what: &'static str,
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The store's scheme is not built in.
    #[error("store scheme `{scheme}` is not built in: {uri}")]
    Scheme {
        /// The scheme.
        scheme: String,
        /// The whole address.
        uri: String,
    },
    /// The store's address cannot be understood.
    #[error("store address cannot be read: {uri}")]
    Address {
        /// The address.
        uri: String,
    },
    /// No store is there.
    #[error("there is no store at: {uri}")]
    NoStore {
        /// The address.
        uri: String,
    },
    /// The store's folder cannot be made or written.
    #[error("store cannot be written: {uri}")]
    NotWritable {
        /// The address.
        uri: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// An object could not be read, written, listed or deleted.
    #[error("cannot {action} in store: {path}")]
    Object {
        /// What was tried.
        action: &'static str,
        /// The object.
        path: String,
        /// What the store says.
        #[source]
        source: Box<object_store::Error>,
    },
    /// A file outside the store could not be read or written.
    #[error("cannot read or write file: {}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// A JSON file of the store cannot be understood.
    #[error("cannot be understood: {path}")]
    Json {
        /// The file.
        path: String,
        /// What the parser says.
        #[source]
        source: serde_json::Error,
    },
    /// A manifest was written by a newer version.
    #[error("manifest has format {found}, this version reads up to {known}: {path}")]
    Format {
        /// The file.
        path: String,
        /// Its format.
        found: u32,
        /// The newest known one.
        known: u32,
    },
    /// A table could not be read or written.
    #[error("part {part} of `{table}` is no sound table")]
    Table {
        /// The table.
        table: Table,
        /// The part.
        part: u32,
        /// What is wrong.
        #[source]
        source: TableError,
    },
    /// Rows are not sorted by the table's grain.
    #[error("row {row} of `{table}`, part {part}, is out of order: {key}")]
    Unsorted {
        /// The table.
        table: Table,
        /// The part.
        part: u32,
        /// 0-based row.
        row: usize,
        /// Its grain.
        key: String,
    },
    /// Two rows have one grain.
    #[error("row {row} of `{table}`, part {part}, repeats the one before: {key}")]
    Duplicate {
        /// The table.
        table: Table,
        /// The part.
        part: u32,
        /// 0-based row.
        row: usize,
        /// Its grain.
        key: String,
    },
    /// A stage writes what it does not declare.
    #[error("stage `{stage}` does not declare the output: {table}")]
    UndeclaredOutput {
        /// The stage.
        stage: String,
        /// The table.
        table: Table,
    },
    /// A stage is done with a part and has not written all of it.
    #[error("stage `{stage}` finished part {part} without writing: {table}")]
    MissingOutput {
        /// The stage.
        stage: String,
        /// The part.
        part: u32,
        /// The table.
        table: Table,
    },
    /// The inputs given are not those declared.
    #[error("stage `{stage}` {reason}: {input}")]
    Inputs {
        /// The stage.
        stage: String,
        /// What is wrong.
        reason: &'static str,
        /// The input.
        input: String,
    },
    /// A part beyond the stage's parts, or a query it does not have.
    #[error("{id} has no {what}")]
    NoSuch {
        /// The stage.
        id: Box<StageId>,
        /// What was asked for, such as `part 7`.
        what: String,
    },
    /// An output is there and was made from something else.
    #[error("{id} was made from something else: {}", list(.differences))]
    KeyConflict {
        /// The output that is there.
        id: Box<StageId>,
        /// In what the two differ; never empty.
        differences: Vec<KeyDifference>,
    },
    /// Another process took the attempt in the meantime.
    #[error("{id} was taken by something else in the meantime")]
    Taken {
        /// The attempt.
        id: Box<StageId>,
    },
    /// A commit was asked for before all parts were finished.
    #[error("{id} is not complete, {} of its {n_parts} parts are missing: {}", .missing.len(), list(.missing))]
    Incomplete {
        /// The stage.
        id: Box<StageId>,
        /// All parts.
        n_parts: u32,
        /// Those not finished.
        missing: Vec<u32>,
    },
    /// A stage was asked for that has no output.
    #[error("there is no output of {id}")]
    NoOutput {
        /// The stage.
        id: Box<StageId>,
    },
    /// A stored file is not what its manifest says.
    #[error("{what}: {path}")]
    Damaged {
        /// The file.
        path: String,
        /// What is wrong with it.
        what: String,
    },
    /// The same key gave two different results.
    #[error("{id} gave two results from one key, in {what}: {ours} here, {theirs} there")]
    NotReproducible {
        /// The stage.
        id: Box<StageId>,
        /// Table and part, or artifact.
        what: String,
        /// Digest of the one.
        ours: String,
        /// Digest of the other.
        theirs: String,
    },
    /// A hand-made table does not fit the output it shall replace a part of.
    #[error("table `{table}` cannot be put, {reason}: {value}")]
    Put {
        /// The table.
        table: Table,
        /// Why not.
        reason: &'static str,
        /// The offending value.
        value: String,
    },
    /// A folder is no model folder.
    #[error("model folder {reason}: {}", .path.display())]
    ModelFolder {
        /// The folder or file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A checkpoint is not in the store, or only half of it.
    #[error("checkpoint is not in the store: {digest}")]
    NoCheckpoint {
        /// Its digest.
        digest: String,
    },
}

impl PipelineError {
    /// What the user can do about it, if anything; printed as `hint: ...`.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::InvalidName { .. } => {
                "use letters, digits, `-`, `_` and `.`, and begin with no dot".to_owned()
            }
            Self::Scheme { scheme, .. } => format!(
                "use a folder; `{scheme}` needs object_store's {} feature, which this build leaves out",
                feature(scheme)
            ),
            Self::Address { .. } => "give a folder, or `file:///absolute/path`".to_owned(),
            Self::NoStore { .. } => {
                "check the address, or make a store by importing tasks into it".to_owned()
            }
            Self::NotWritable { .. } => "give a folder you may write to".to_owned(),
            Self::Object { action, .. } if *action != "read" => {
                "check that the store is writable and has space left".to_owned()
            }
            Self::Json { .. } => {
                "if power was lost while it was written, delete it and run the same command again".to_owned()
            }
            Self::Format { .. } => "use the version of envace that wrote it, or a newer one".to_owned(),
            Self::KeyConflict { .. } => {
                "restore what differs, or keep both: `--new-attempt` for one stage, \
                 `run --remake-from STEP` for all that follows"
                    .to_owned()
            }
            Self::Taken { .. } => "run the same command again".to_owned(),
            Self::Incomplete { .. } => "run the same command again to finish the rest".to_owned(),
            Self::NoOutput { id } => {
                format!("run `envace-jobs {} --run {} --step {}` first", id.stage, id.run, id.step)
            }
            Self::Damaged { .. } => {
                "restore the file from a copy; or make it and what was made from it again with `--new-attempt`, a \
                 checkpoint that came from elsewhere with `envace-jobs checkpoint import FOLDER`"
                    .to_owned()
            }
            Self::NotReproducible { .. } => {
                "this is a defect of the stage, or a change of machine its key does not know of".to_owned()
            }
            Self::Unsorted { table, .. } | Self::Duplicate { table, .. } => {
                format!("rows are sorted by, and unique in: {}", table.grain().join(", "))
            }
            Self::ModelFolder { .. } => {
                "a model folder has config.json, model.safetensors or its shards, and tokenizer.json"
                    .to_owned()
            }
            Self::NoCheckpoint { .. } => "import the model folder again".to_owned(),
            _ => return None,
        };
        Some(hint)
    }

    pub(crate) fn object(
        action: &'static str,
        path: &object_store::path::Path,
        source: object_store::Error,
    ) -> Self {
        Self::Object { action, path: path.to_string(), source: Box::new(source) }
    }
}

/// The feature of `object_store` that a scheme needs.
fn feature(scheme: &str) -> &'static str {
    match scheme {
        "s3" | "s3a" => "`aws`",
        "gs" => "`gcp`",
        "az" | "azure" | "abfs" | "abfss" | "adl" => "`azure`",
        "http" | "https" => "`http`",
        _ => "matching",
    }
}

fn list(items: &[impl ToString]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
