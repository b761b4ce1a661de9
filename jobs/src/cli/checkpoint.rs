use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use envace_pipeline::checkpoint_dir;

use super::RunArgs;
use crate::error::JobError;

/// Subcommands of `checkpoint`.
#[derive(Debug, Subcommand)]
pub enum CheckpointCommand {
    /// Copy the weights that a step begins with into a folder
    Export(ExportArgs),
}

impl CheckpointCommand {
    /// Runs the subcommand.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Export(args) => args.run().await,
        }
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

    /// Folder to make, or an empty one
    folder: PathBuf,
}

impl ExportArgs {
    async fn run(self) -> anyhow::Result<ExitCode> {
        let ctx = self.run.open().await?;
        let source = ctx.policy_at(self.step).await?;
        let dir = checkpoint_dir(&ctx.store, &source.digest).await?;
        fs_err::create_dir_all(&self.folder)?;
        if fs_err::read_dir(&self.folder)?.next().is_some() {
            return Err(JobError::refused(
                format!("the folder is not empty: {}", self.folder.display()),
                "what is there would be mixed with the checkpoint; name another folder",
            )
            .into());
        }
        for entry in fs_err::read_dir(&dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let shown = name.to_string_lossy();
            // Neither the optimizer's state nor the mark that the copy is whole belongs to a model folder.
            let is_state = shown.starts_with("state-") || shown == "complete.json";
            if entry.file_type()?.is_file() && !is_state {
                fs_err::copy(entry.path(), self.folder.join(&name))?;
            }
        }
        eprintln!("checkpoint {} in {}", source.digest, self.folder.display());
        Ok(ExitCode::SUCCESS)
    }
}
