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

    /// Make new attempts from this stage of step `--from-step` on, for example after a `put`
    #[arg(long, value_enum, requires = "from_step")]
    from: Option<Stage>,

    /// The step that `--from` starts at
    #[arg(long, value_name = "N", requires = "from")]
    from_step: Option<u64>,
}

impl DriveArgs {
    /// Exits with 0 when all steps are there.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let mut ctx = self.run.open().await?;
        if self.dry_run {
            return next_plan(&ctx, self.steps).await;
        }
        if let (Some(from), Some(from_step)) = (self.from, self.from_step) {
            ctx.new_attempt = true;
            for step in from_step..self.steps {
                for stage in Stage::STEP.into_iter().filter(|stage| step > from_step || *stage >= from) {
                    report(stage, step, &stage.run(&ctx, step).await?);
                }
            }
            ctx.new_attempt = false;
        }
        drive(&ctx, self.steps, &mut |stage, step, outcome| report(stage, step, outcome)).await?;
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
