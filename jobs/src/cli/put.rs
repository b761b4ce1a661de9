use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use bytes::Bytes;
use envace_pipeline::{StageOutput, check_name, current_user, put};
use envace_schemas::Table;
use envace_sql::{check_covered, conform_rows, is_origin};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::StoreArgs;
use crate::error::JobError;

/// Arguments of `put`.
#[derive(Debug, clap::Args)]
pub struct PutArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// Name of the run
    #[arg(long, value_name = "NAME")]
    run: String,

    /// Stage that makes the table
    #[arg(long, value_name = "STAGE")]
    stage: String,

    /// Step of the run
    #[arg(long, value_name = "N")]
    step: u64,

    /// Table to replace
    #[arg(long, value_name = "TABLE")]
    table: Table,

    /// Why, for whoever reads the lineage
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// Who, if not the user of this machine
    #[arg(long, value_name = "NAME")]
    who: Option<String>,

    /// Parquet file with all rows of the table and its columns, whoever wrote it: types are converted where nothing
    /// can be lost, and the columns run, stage, step and attempt are passed over. No row may be added or left out
    file: PathBuf,
}

impl PutArgs {
    /// Stores the table as a new attempt.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        check_name("run", &self.run)?;
        if let Some(derived) = derived_from(&self.stage, self.table) {
            return Err(JobError::refused(
                format!(
                    "`{}` of `{}` is what its own `{derived}` were computed from, and they would stay as they are",
                    self.table, self.stage
                ),
                format!("edit `{derived}` and put them instead"),
            )
            .into());
        }
        let bytes = fs_err::read(&self.file)?;
        let file = self.file.display();
        let cannot = || format!("file cannot be put as table `{}`: {file}", self.table);
        let batches =
            rows(&self.file.display().to_string(), self.table, bytes.into()).with_context(cannot)?;
        let who = self.who.unwrap_or_else(current_user);
        let store = self.store.open()?;
        let replaced = StageOutput::latest(&store, &self.run, &self.stage, self.step).await?;
        let mut there = Vec::new();
        for part in 0..replaced.n_parts(self.table)? {
            there.extend(replaced.read_batches(self.table, part).await?);
        }
        // Values are edited; a row left out would be left out of whatever follows, without a word.
        check_covered("put", (self.table, &batches), (self.table, &there)).with_context(cannot)?;
        let manifest =
            put(&store, &self.run, &self.stage, self.step, self.table, &batches, &who, &self.reason).await?;
        eprintln!("put `{}` as {}", self.table, manifest.id);
        eprintln!("what was made from it is outdated now; see `envace-jobs lineage`");
        Ok(ExitCode::SUCCESS)
    }
}

/// The table that a stage computes from another of its own tables, which is read instead of it by whatever follows.
fn derived_from(stage: &str, table: Table) -> Option<Table> {
    match (stage, table) {
        ("score", Table::Verdicts | Table::JudgeCalls) => Some(Table::Rewards),
        ("evaluate", Table::Evaluations | Table::Timings) => None,
        ("evaluate", _) => Some(Table::Evaluations),
        _ => None,
    }
}

/// The batch without the columns that `sql` puts before a table's own: a whole table that was queried can be put back.
fn without_origin(table: Table, batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let schema = batch.schema();
    let is_own = |name: &str| table.columns().iter().any(|column| column.name == name);
    let kept: Vec<usize> = (0..schema.fields().len())
        .filter(|&index| {
            let name = schema.field(index).name();
            is_own(name) || !is_origin(name)
        })
        .collect();
    batch.project(&kept)
}

fn rows(name: &str, table: Table, bytes: Bytes) -> anyhow::Result<Vec<RecordBatch>> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(bytes)?.build()?;
    let batches = reader.collect::<Result<Vec<_>, _>>()?;
    let batches = batches.iter().map(|batch| without_origin(table, batch)).collect::<Result<Vec<_>, _>>()?;
    Ok(conform_rows(name, table, &batches)?)
}
