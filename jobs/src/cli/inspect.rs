use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::ExitCode;

use envace_pipeline::{Artifact, CheckpointDigest, Lineage, PipelineError, Store, verify};
use envace_schemas::Table;
use envace_sql::{Format, Lake, StoredOutput};

use super::StoreArgs;
use crate::context::refuse_unknown_run;
use crate::error::JobError;
use crate::show::show;

/// Arguments of `sql`.
#[derive(Debug, clap::Args)]
pub struct SqlArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// `table`, `csv`, `jsonl` or `parquet`
    #[arg(long, value_name = "FORMAT", default_value_t = Format::Table)]
    format: Format,

    /// One question, such as `SELECT * FROM rewards LIMIT 5`; all attempts are in `history.rewards` and its like
    query: String,
}

impl SqlArgs {
    /// Prints the answer.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let store = Store::open_existing(&self.store.store)?;
        let answer = lake(&store).await?.query(&self.query).await?;
        print_bytes(&answer.write(self.format)?)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The tables of a store, open for questions.
///
/// # Errors
/// If the store cannot be read.
pub async fn lake(store: &Store) -> anyhow::Result<Lake> {
    let active = store.active_manifests(None).await?;
    let is_active = |id: &envace_pipeline::StageId| active.iter().any(|manifest| &manifest.id == id);
    let manifests = store.manifests(None).await?;
    // After the manifests: a run that goes on meanwhile writes its files before the manifest that names them.
    let sizes: BTreeMap<envace_pipeline::Path, u64> =
        store.list(&envace_pipeline::Path::from("tables")).await?.into_iter().collect();
    let mut outputs = Vec::new();
    for manifest in manifests {
        for (table, parts) in &manifest.outputs {
            // A file that is missing or empty would be passed over, and the answer would be one of fewer rows.
            let damaged = parts.iter().find(|part| {
                let path = envace_pipeline::Path::from(part.path.as_str());
                *table != Table::Timings && sizes.get(&path) != Some(&part.n_bytes)
            });
            if let Some(part) = damaged {
                let (path, what) = (part.path.clone(), "file of an output is missing or has another size");
                if is_active(&manifest.id) {
                    return Err(PipelineError::Damaged { path, what: what.to_owned() }.into());
                }
                tracing::warn!(path, "{what}; the output was replaced, and `history` does without it");
                continue;
            }
            outputs.push(StoredOutput {
                table: *table,
                run: manifest.id.run.clone(),
                stage: manifest.id.stage.clone(),
                step: i64::try_from(manifest.id.step)?,
                attempt: i64::from(manifest.id.attempt),
                is_active: is_active(&manifest.id),
                paths: parts.iter().map(|part| envace_pipeline::Path::from(part.path.as_str())).collect(),
            });
        }
    }
    Ok(Lake::open(store.object_store(), &outputs)?)
}

/// Arguments of `show`.
#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// Name of the run
    #[arg(long, value_name = "NAME")]
    run: String,

    /// Step of the run
    #[arg(long, value_name = "N")]
    step: u64,

    /// Stage that made the trajectories
    #[arg(long, value_name = "STAGE", default_value = "rollout", value_parser = ["rollout", "evaluate"])]
    stage: String,

    /// Task; left out, the trajectories of the step are listed
    task_id: Option<String>,

    /// 0-based attempt at it
    #[arg(default_value_t = 0)]
    sample: i32,
}

impl ShowArgs {
    /// Prints one trajectory, or the list of them.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let store = Store::open_existing(&self.store.store)?;
        refuse_unknown_run(&store, &self.run).await?;
        let text =
            show(&store, &self.run, &self.stage, self.step, self.task_id.as_deref(), self.sample).await?;
        print_bytes(text.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Arguments of `lineage`.
#[derive(Debug, clap::Args)]
pub struct LineageArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// Digest of a checkpoint, or its first digits
    #[arg(long, value_name = "DIGEST", conflicts_with_all = ["run", "step", "stage"])]
    checkpoint: Option<String>,

    /// Name of the run
    #[arg(long, value_name = "NAME", required_unless_present = "checkpoint")]
    run: Option<String>,

    /// Step of the run
    #[arg(long, value_name = "N", required_unless_present = "checkpoint")]
    step: Option<u64>,

    /// Stage to begin with
    #[arg(long, value_name = "STAGE", default_value = "update")]
    stage: String,
}

impl LineageArgs {
    /// Prints the lineage.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let store = Store::open_existing(&self.store.store)?;
        let lineage = match (&self.checkpoint, &self.run, self.step) {
            (Some(digest), _, _) => {
                Lineage::of_checkpoint(&store, &whole_digest(&store, digest).await?).await?
            }
            (None, Some(run), Some(step)) => {
                refuse_unknown_run(&store, run).await?;
                Lineage::of_stage(&store, run, &self.stage, step).await?
            }
            _ => anyhow::bail!("name a checkpoint, or a run and a step"),
        };
        print_bytes(format!("{lineage}\n").as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The digest that begins with `digits`, of a checkpoint that an output made.
async fn whole_digest(store: &Store, digits: &str) -> anyhow::Result<CheckpointDigest> {
    let manifests = store.manifests(None).await?;
    let made = manifests.iter().flat_map(|manifest| manifest.artifacts.values());
    let checkpoints: BTreeSet<&str> = made
        .filter(|artifact| matches!(artifact, Artifact::Checkpoint { .. }))
        .map(Artifact::digest)
        .filter(|digest| digest.starts_with(digits))
        .collect();
    match checkpoints.into_iter().collect::<Vec<_>>()[..] {
        [] => Err(PipelineError::NoCheckpoint { digest: digits.to_owned() }.into()),
        [digest] => Ok(CheckpointDigest(digest.to_owned())),
        ref several => Err(JobError::refused(
            format!("{} checkpoints have a digest that begins with: {digits}", several.len()),
            "give more of its digits",
        )
        .into()),
    }
}

/// Arguments of `verify`.
#[derive(Debug, clap::Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// Name of the run; left out, everything in the store
    #[arg(long, value_name = "NAME")]
    run: Option<String>,
}

impl VerifyArgs {
    /// Exits with 0 if everything is as its manifest says, 1 if not.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let store = Store::open_existing(&self.store.store)?;
        if let Some(run) = &self.run {
            refuse_unknown_run(&store, run).await?;
        }
        if let Some(run) = &self.run
            && store.manifests(Some(run)).await?.is_empty()
        {
            anyhow::bail!("run `{run}` has a configuration and no output yet, so there is nothing to verify");
        }
        let report = verify(&store, self.run.as_deref()).await?;
        print_line(&report)?;
        Ok(if report.is_valid() { ExitCode::SUCCESS } else { ExitCode::from(1) })
    }
}

/// Writes a line to stdout, as [`print_bytes`].
pub fn print_line(text: &impl std::fmt::Display) -> anyhow::Result<()> {
    print_bytes(format!("{text}\n").as_bytes())
}

/// Writes data to stdout; a reader that has seen enough is no error.
pub fn print_bytes(bytes: &[u8]) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}
