use std::ops::Range;
use std::process::ExitCode;

use super::RunArgs;
use super::inspect::print_line;
use super::stage::{QueryArgs, report};
use crate::context::RunContext;
use crate::drive::{Stage, drive, refuse_impossible_steps, stages, with_remake};
use crate::memory::stage_memory;

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
pub struct DriveArgs {
    #[command(flatten)]
    run: RunArgs,

    /// Steps the run shall have in all; those that are there are reused
    #[arg(long, value_name = "N")]
    steps: u64,

    /// Print what the first stage that is not there would read and make, and what its step needs of memory; write no table
    /// (a model that is new to the store is copied there)
    #[arg(long)]
    dry_run: bool,

    /// From this step on, make a new attempt at what no longer fits its inputs, for example after a `put`
    #[arg(long, value_name = "STEP")]
    remake_from: Option<u64>,

    /// Take the steps before this one as they are, for example after `--reconfigure`
    #[arg(long, value_name = "STEP", default_value_t = 0)]
    from_step: u64,

    #[command(flatten)]
    query: QueryArgs,
}

impl DriveArgs {
    /// Exits with 0 when all steps are there.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let mut ctx = self.run.open().await?;
        self.query.apply(&mut ctx).await?;
        let steps = self.from_step..self.steps;
        let last = self.from_step.max(self.remake_from.unwrap_or(0));
        if last > self.steps {
            anyhow::bail!("step {last} is beyond the steps that the run shall have: {}", self.steps);
        }
        if self.dry_run {
            return next_plan(&ctx, steps, self.remake_from).await;
        }
        drive(&ctx, steps, self.remake_from, &mut |stage, step, outcome| report(stage, step, outcome))
            .await?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Prints the plans up to and including the first stage that is not there, and what each stage of its step needs of memory;
/// refuses what a run would refuse before it begins.
async fn next_plan(
    ctx: &RunContext,
    steps: Range<u64>,
    remake_from: Option<u64>,
) -> anyhow::Result<ExitCode> {
    for (step, stage) in stages(ctx, steps.clone()) {
        let plan = async |ctx: &RunContext| stage.plan(ctx, step).await;
        let plan = with_remake(ctx, step, remake_from, plan).await?;
        print_line(&plan)?;
        if plan.reused().is_none() {
            print_line(&crate::estimate::estimate(ctx, stage, step).await?)?;
            let evaluation = (ctx.config.evaluate.every > 0).then_some(Stage::Evaluate);
            let of_step = if step < steps.end { Stage::STEP.as_slice() } else { &[] };
            for stage in of_step.iter().copied().chain(evaluation) {
                if let Some(memory) = stage_memory(ctx, stage, step).await? {
                    print_line(&memory)?;
                }
            }
            break;
        }
    }
    refuse_impossible_steps(ctx, &steps, remake_from).await?;
    Ok(ExitCode::SUCCESS)
}
