//! Computes a stage again, elsewhere, and compares.

use envace_pipeline::{Comparison, Execution, Plan, PlanRequest, StageSpec, Store, compare};

use crate::context::RunContext;
use crate::drive::Stage;
use crate::error::JobError;
use crate::rollout::stage as rollout;
use crate::score::stage as score;
use crate::{advantage, evaluate, sft, update};

/// Computes the latest output of a stage again from its inputs, in a temporary store, and compares the two.
///
/// # Errors
/// [`JobError::Missing`] if there is no output; whatever the stage fails with.
pub async fn rerun(ctx: &RunContext, stage: Stage, step: u64) -> Result<Comparison, JobError> {
    let plan = stage.plan(ctx, step).await?;
    let Some(manifest) = plan.reused() else {
        return Err(JobError::missing(
            format!("there is no output of {} to compare with", plan.id),
            format!("run `envace-jobs {stage} --run {} --step {step}` first", ctx.run),
        ));
    };
    let dir = tempfile::tempdir()
        .map_err(JobError::file("cannot make a temporary folder", std::env::temp_dir()))?;
    let elsewhere = Store::open(&dir.path().display().to_string())?;
    let spec = spec(stage);
    let mut request = PlanRequest::again(&spec, manifest);
    request.query_texts = ctx.query_texts(&spec);
    let execution = Execution::new(&elsewhere, Plan::make(&elsewhere, request).await?);
    match stage {
        Stage::Sft => sft::execute(ctx, step, &sft::plan(ctx, step).await?, &elsewhere, &execution).await?,
        Stage::Rollout => rollout::execute(ctx, step, &rollout::plan(ctx, step).await?, &execution).await?,
        Stage::Score => score::execute(ctx, &score::plan(ctx, step).await?.1, &execution).await?,
        Stage::Advantage => advantage::execute(ctx, &advantage::plan(ctx, step).await?.1, &execution).await?,
        Stage::Update => {
            update::execute(ctx, step, &update::plan(ctx, step).await?, &elsewhere, &execution).await?;
        }
        Stage::Evaluate => {
            evaluate::execute(ctx, step, &evaluate::plan(ctx, step).await?, &execution).await?;
        }
    }
    let again = execution.commit().await?;
    Ok(compare(manifest, &again))
}

fn spec(stage: Stage) -> StageSpec {
    match stage {
        Stage::Sft => sft::SPEC,
        Stage::Rollout => rollout::SPEC,
        Stage::Score => score::SPEC,
        Stage::Advantage => advantage::SPEC,
        Stage::Update => update::SPEC,
        Stage::Evaluate => evaluate::SPEC,
    }
}
