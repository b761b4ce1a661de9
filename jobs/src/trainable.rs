//! Whether training could begin, but for memory: looked at before anything is sampled or trained for it.

use std::path::Path;
use std::sync::Once;

use envace_model::memory::ModelSize;
use envace_model::{check_scratch, check_trainable};

use crate::context::{PolicySource, RunContext, new_adapter};
use crate::drive::Stage;
use crate::error::JobError;
use crate::update::{Chain, scratch_folder};

/// Refuses a training stage whose adapter cannot be trained, or whose folder for the optimizer's state cannot be used.
/// Other stages need nothing of this.
///
/// # Errors
/// [`JobError::Refused`] and [`JobError::Model`] with what to change; [`JobError`] if the checkpoint that the step
/// begins with is missing.
pub async fn refuse_untrainable(ctx: &RunContext, stage: Stage, step: u64) -> Result<(), JobError> {
    if !matches!(stage, Stage::Update | Stage::Sft) {
        return Ok(());
    }
    let lora = ctx.config.lora.as_ref();
    let mut is_in_memory = false;
    for source in trained_sources(ctx, stage, step).await? {
        check_trainable(&source.dir, new_adapter(lora, ctx.config.seed, &source).as_ref())?;
        is_in_memory |= scratch_in_memory(ctx, &source)?.is_some();
    }
    if is_in_memory {
        static SAID: Once = Once::new();
        let folder = scratch_folder(ctx).unwrap_or_default();
        SAID.call_once(|| {
            tracing::warn!(
                "the folder for the optimizer's state is in memory, so that it takes as much memory as before; name one on \
                 a disk with `execution.scratch_folder`: {}",
                folder.display()
            );
        });
    }
    Ok(())
}

/// The weights that a training stage trains.
async fn trained_sources(ctx: &RunContext, stage: Stage, step: u64) -> Result<Vec<PolicySource>, JobError> {
    if stage == Stage::Sft {
        return Ok(vec![ctx.policy_at(step).await?]);
    }
    Ok(Chain::all(ctx, step).await?.into_iter().map(|chain| chain.source).collect())
}

/// Refuses a training stage that would train something else than the step before did.
///
/// A run trains one thing from its first step on: an adapter that begins half-way has no moments and would begin the
/// schedule of the learning rate anew, and one that is no longer asked for would be trained on unasked. What an earlier
/// version has made so can still be computed again.
///
/// # Errors
/// [`JobError::Refused`] with what to do; [`JobError`] if the checkpoint that the step begins with is missing.
pub async fn refuse_another_kind(ctx: &RunContext, step: u64) -> Result<(), JobError> {
    let Some(before) = step.checked_sub(1) else { return Ok(()) };
    let source = ctx.policy_at(step).await?;
    let run = &ctx.run;
    match (&ctx.config.lora, &source.base) {
        (Some(_), None) => Err(JobError::refused(
            format!(
                "run `{run}` has trained all weights before step {step}, and `[lora]` would begin an adapter"
            ),
            format!(
                "take `[lora]` out again; or name another run, with `policy.checkpoint = \"run:{run}\"`, to train an adapter \
                 of what this one has come to"
            ),
        )),
        // Without the section too a run goes on with an adapter that it began from.
        (None, Some(_)) if ctx.was_lora_configured(before).await? => Err(JobError::refused(
            format!(
                "run `{run}` has trained the adapter of `[lora]` before step {step}, and the section is left out"
            ),
            format!(
                "put `[lora]` back; or, to train all weights, write adapter and base as one model, `envace-jobs checkpoint \
                 merge --run {run} --step {step} FOLDER`, and name another run, with `policy.checkpoint = \"FOLDER\"`"
            ),
        )),
        _ => Ok(()),
    }
}

/// Bytes of the file that training from `source` keeps gradients and optimizer state in, if that lies in memory all the
/// same.
///
/// # Errors
/// [`JobError::Refused`] if the folder is not there, or is none; [`JobError::Model`] if no file can be made there or too
/// little room is left.
pub fn scratch_in_memory(ctx: &RunContext, source: &PolicySource) -> Result<Option<u64>, JobError> {
    let is_adapter = ctx.config.lora.is_some() || source.base.is_some();
    let Some(folder) = scratch_folder(ctx).filter(|_| !is_adapter) else { return Ok(None) };
    let given = &ctx.config.execution.scratch_folder;
    // A mistyped name, or a disk that is not mounted.
    if !given.is_empty() && !Path::new(given).is_dir() {
        return Err(JobError::refused(
            format!("`execution.scratch_folder` is no folder: {given}"),
            "make it, or name one on a disk with 12 to 16 bytes of room for each weight",
        ));
    }
    let n_bytes = ModelSize::read(&source.model_dir)?.scratch_bytes();
    Ok(check_scratch(&folder, n_bytes)?.then_some(n_bytes))
}
