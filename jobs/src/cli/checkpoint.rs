use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use envace_model::{ADAPTER_CONFIG_FILE, ModelFolder, merge_adapter};

use super::{RunArgs, StoreArgs};
use crate::config::TrainRole;
use crate::context::{PolicySource, RunContext, export_model, import_model};
use crate::error::JobError;

/// Subcommands of `checkpoint`.
#[derive(Debug, Subcommand)]
pub enum CheckpointCommand {
    /// Copy a model folder, or an adapter and its base, into the store and print its digest
    Import(ImportArgs),
    /// Copy the weights that a step begins with into a folder
    Export(ExportArgs),
    /// Write the adapter that a step begins with and its base as one whole model into a folder
    Merge(MergeArgs),
}

impl CheckpointCommand {
    /// Runs the subcommand.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Import(args) => args.run().await,
            Self::Export(args) => args.run().await,
            Self::Merge(args) => args.run().await,
        }
    }
}

/// Arguments of `checkpoint import`.
#[derive(Debug, clap::Args)]
pub struct ImportArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// Folder of an adapter's base, where the one that its configuration names is not there
    #[arg(long, value_name = "FOLDER")]
    base: Option<PathBuf>,

    /// Folder of a model, or of an adapter
    folder: PathBuf,
}

impl ImportArgs {
    async fn run(self) -> anyhow::Result<ExitCode> {
        let folder = match self.base {
            Some(_) if !self.folder.join(ADAPTER_CONFIG_FILE).is_file() => {
                return Err(JobError::refused(
                    format!(
                        "`--base` is for an adapter, and there is no {ADAPTER_CONFIG_FILE} in: {}",
                        self.folder.display()
                    ),
                    "leave `--base` out to import a whole model",
                )
                .into());
            }
            Some(base) => ModelFolder { base, adapter: Some(self.folder) },
            None => ModelFolder::open(&self.folder)?,
        };
        let digest = import_model(&self.store.open()?, &folder).await?;
        println!("{digest}");
        Ok(ExitCode::SUCCESS)
    }
}

/// Arguments of `checkpoint export`.
#[derive(Debug, clap::Args)]
pub struct ExportArgs {
    #[command(flatten)]
    run: RunArgs,

    /// Step that begins with the weights: 0 for the initial ones, N for those made by N steps
    #[arg(long, value_name = "N")]
    step: u64,

    /// Role whose weights they are: they differ where `roles.rehearsal.checkpoint` is set
    #[arg(long, value_name = "ROLE", value_enum, default_value = "actor")]
    role: TrainRole,

    /// What an adapter is to name as its base; without it, the base's folder in the store. A whole model has none
    #[arg(long, value_name = "NAME")]
    base: Option<String>,

    /// Folder to make, or an empty one
    folder: PathBuf,
}

impl ExportArgs {
    async fn run(self) -> anyhow::Result<ExitCode> {
        if self.base.as_ref().is_some_and(|base| base.trim().is_empty()) {
            return Err(JobError::refused(
                "`--base` is empty, and an adapter without the name of its base cannot be loaded",
                "give the name or the folder of the base, or leave `--base` out to name its folder in the store",
            )
            .into());
        }
        let ctx = self.run.open().await?;
        let source = weights(&ctx, self.step, self.role).await?;
        if self.base.is_some() && source.base.is_none() {
            return Err(JobError::refused(
                format!(
                    "step {} begins with a whole model, which names no base: {}",
                    self.step, source.digest
                ),
                "leave `--base` out",
            )
            .into());
        }
        make_empty(&self.folder)?;
        export_model(&source, &self.folder, self.base.as_deref())?;
        eprintln!("checkpoint {} in {}", source.digest, self.folder.display());
        Ok(ExitCode::SUCCESS)
    }
}

/// Arguments of `checkpoint merge`.
#[derive(Debug, clap::Args)]
pub struct MergeArgs {
    #[command(flatten)]
    run: RunArgs,

    /// Step that begins with the adapter
    #[arg(long, value_name = "N")]
    step: u64,

    /// Role whose weights they are: they differ where `roles.rehearsal.checkpoint` is set
    #[arg(long, value_name = "ROLE", value_enum, default_value = "actor")]
    role: TrainRole,

    /// Folder to make, or an empty one
    folder: PathBuf,
}

impl MergeArgs {
    async fn run(self) -> anyhow::Result<ExitCode> {
        let ctx = self.run.open().await?;
        let source = weights(&ctx, self.step, self.role).await?;
        if source.base.is_none() {
            return Err(JobError::refused(
                format!("step {} begins with a whole model, {}", self.step, source.digest),
                "copy it with `checkpoint export`",
            )
            .into());
        }
        source.check_weights(&ctx.store).await?;
        make_empty(&self.folder)?;
        merge_adapter(&source.dir, &self.folder)?;
        eprintln!("adapter {} and its base, merged, in {}", source.digest, self.folder.display());
        Ok(ExitCode::SUCCESS)
    }
}

/// The weights of a role that a step begins with.
async fn weights(ctx: &RunContext, step: u64, role: TrainRole) -> Result<PolicySource, JobError> {
    let own = match role {
        TrainRole::Actor => None,
        TrainRole::Rehearsal => ctx.rehearsal_at(step).await?,
    };
    match own {
        Some(own) => Ok(own),
        // Weights that are shared are of either role.
        None => ctx.policy_at(step).await,
    }
}

/// Makes a folder, or takes one that has nothing in it.
fn make_empty(folder: &Path) -> anyhow::Result<()> {
    fs_err::create_dir_all(folder)?;
    if fs_err::read_dir(folder)?.next().is_some() {
        return Err(JobError::refused(
            format!("the folder is not empty: {}", folder.display()),
            "what is there would be mixed with the checkpoint; name another folder",
        )
        .into());
    }
    Ok(())
}
