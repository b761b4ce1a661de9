use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use envace_schemas::tables::TaskRow;

use super::StoreArgs;
use super::inspect::print_bytes;
use crate::task_set::{self, TaskSource};
use crate::tasks::{Format, ImportOptions, export_jsonl, import_path};
use crate::world::{self, Split};

/// Subcommands of `tasks`.
#[derive(Debug, Subcommand)]
pub enum TasksCommand {
    /// Bring in a file of tasks
    Import(ImportArgs),
    /// Make tasks of the bundled world
    Generate(GenerateArgs),
    /// Print a task set, one task a line
    Export(ExportArgs),
}

impl TasksCommand {
    /// Runs the subcommand.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Import(args) => args.run().await,
            Self::Generate(args) => args.run().await,
            Self::Export(args) => args.run().await,
        }
    }
}

/// Arguments of `tasks import`.
#[derive(Debug, clap::Args)]
pub struct ImportArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// Name of the task set
    #[arg(long, value_name = "NAME")]
    set: String,

    /// What the file is
    #[arg(long, value_enum)]
    format: Format,

    /// Split of tasks that name none
    #[arg(long, value_name = "SPLIT")]
    split: Option<String>,

    /// Take the first tasks only
    #[arg(long, value_name = "N")]
    limit: Option<usize>,

    /// Put the tasks in place of a set of the same name, as a new attempt
    #[arg(long)]
    new_attempt: bool,

    /// The file
    file: PathBuf,
}

impl ImportArgs {
    /// Exits with 0 if at least one record went in; refused records are listed on stderr.
    async fn run(self) -> anyhow::Result<ExitCode> {
        let options = ImportOptions { split: self.split.clone(), ..ImportOptions::default() };
        let mut report = import_path(&self.file, self.format, &options)?;
        for refusal in &report.refused {
            eprintln!("refused: {refusal}");
        }
        if let Some(limit) = self.limit {
            report.rows.truncate(limit);
        }
        let n_refused = report.refused.len();
        if report.rows.is_empty() {
            eprintln!("error: no task to import, {n_refused} refused: {}", self.file.display());
            return Ok(ExitCode::from(1));
        }
        let store = self.store.open()?;
        let source = TaskSource::File { path: &self.file };
        let manifest = task_set::store(&store, &self.set, source, &report.rows, self.new_attempt).await?;
        eprintln!("{}: {} tasks in, {n_refused} refused", manifest.id, report.rows.len());
        Ok(ExitCode::SUCCESS)
    }
}

/// Arguments of `tasks generate`.
#[derive(Debug, clap::Args)]
pub struct GenerateArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// Name of the task set
    #[arg(long, value_name = "NAME", default_value = "world")]
    set: String,

    /// Seed of the tasks
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,

    /// Tasks of split `train`
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    train: u64,

    /// Tasks of split `held_out`
    #[arg(long, value_name = "N", default_value_t = 120)]
    held_out: u64,

    /// Tasks of split `drift`
    #[arg(long, value_name = "N", default_value_t = 120)]
    drift: u64,

    /// In how many of 100 decisions the operator of a recorded dialogue breaks the rule at hand
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=100))]
    slips: u8,

    /// Put the tasks in place of a set of the same name, as a new attempt
    #[arg(long)]
    new_attempt: bool,
}

impl GenerateArgs {
    async fn run(self) -> anyhow::Result<ExitCode> {
        let counts =
            [(Split::Train, self.train), (Split::HeldOut, self.held_out), (Split::Drift, self.drift)];
        let rows = world::tasks(self.seed, &counts, self.slips);
        let store = self.store.open()?;
        let source = TaskSource::World { seed: self.seed, slips: self.slips };
        let manifest = task_set::store(&store, &self.set, source, &rows, self.new_attempt).await?;
        eprintln!("{}: {} tasks", manifest.id, rows.len());
        Ok(ExitCode::SUCCESS)
    }
}

/// Arguments of `tasks export`.
#[derive(Debug, clap::Args)]
pub struct ExportArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// Name of the task set
    #[arg(long, value_name = "NAME")]
    set: String,
}

impl ExportArgs {
    async fn run(self) -> anyhow::Result<ExitCode> {
        let store = self.store.open()?;
        let rows: Vec<TaskRow> = task_set::output(&store, &self.set).await?.read_all().await?;
        print_bytes(export_jsonl(&rows)?.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}
