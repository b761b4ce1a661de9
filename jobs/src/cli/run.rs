use std::process::ExitCode;

use super::RunArgs;
use super::stage::report;
use crate::drive::{Stage, drive};

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
pub struct DriveArgs {
    #[command(flatten)]
    run: RunArgs,

    /// Steps the run shall have in all; those that are there are reused
    #[arg(long, value_name = "N")]
    steps: u64,

    /// Print what the next stage would read and make, and write no table
    #[arg(long)]
    dry_run: bool,

    /// From this step on, make a new attempt at what no longer fits its inputs, for example after a `put`
    #[arg(long, value_name = "STEP")]
    remake_from: Option<u64>,
}

impl DriveArgs {
    /// Exits with 0 when all steps are there.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let ctx = self.run.open().await?;
        if self.dry_run {
            return next_plan(&ctx, self.steps).await;
        }
        let mut said = |stage, step, outcome: &_| report(stage, step, outcome);
        drive(&ctx, self.steps, self.remake_from, &mut said).await?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Prints the plans up to and including the first stage that is not there.
async fn next_plan(ctx: &crate::context::RunContext, n_steps: u64) -> anyhow::Result<ExitCode> {
    for step in 0..n_steps {
        for stage in Stage::STEP {
            let plan = stage.plan(ctx, step).await?;
            println!("{plan}");
            if plan.reused().is_none() {
                println!("{}", crate::estimate::estimate(ctx, stage, step).await?);
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
