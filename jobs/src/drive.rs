//! Drives the stages of a run, step by step, from wherever it stopped.

use std::fmt;
use std::ops::Range;

use envace_pipeline::PipelineError;

use crate::context::{RunContext, StageOutcome};
use crate::error::JobError;
use crate::memory::refuse_too_large;
use crate::rollout::stage as rollout;
use crate::score::stage as score;
use crate::trainable::{refuse_another_kind, refuse_untrainable};
use crate::{advantage, evaluate, update};

/// A stage that a run consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Stage {
    /// Supervised training.
    Sft,
    /// Sample trajectories.
    Rollout,
    /// Grade and reward them.
    Score,
    /// Compute advantages.
    Advantage,
    /// Train on them.
    Update,
    /// Measure a checkpoint.
    Evaluate,
}

impl Stage {
    /// Those of a training step, in order.
    pub const STEP: [Self; 4] = [Self::Rollout, Self::Score, Self::Advantage, Self::Update];

    /// The name in paths and manifests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sft => "sft",
            Self::Rollout => "rollout",
            Self::Score => "score",
            Self::Advantage => "advantage",
            Self::Update => "update",
            Self::Evaluate => "evaluate",
        }
    }

    /// Runs it at a step, or reuses its output.
    ///
    /// # Errors
    /// Whatever the stage fails with.
    pub async fn run(self, ctx: &RunContext, step: u64) -> Result<StageOutcome, JobError> {
        match self {
            Self::Sft => crate::sft::run(ctx, step).await,
            Self::Rollout => rollout::run(ctx, step).await,
            Self::Score => score::run(ctx, step).await,
            Self::Advantage => advantage::run(ctx, step).await,
            Self::Update => update::run(ctx, step).await,
            Self::Evaluate => evaluate::run(ctx, step).await,
        }
    }

    /// What it would do, for a dry run.
    ///
    /// # Errors
    /// Whatever planning fails with.
    pub async fn plan(self, ctx: &RunContext, step: u64) -> Result<envace_pipeline::Plan, JobError> {
        Ok(match self {
            Self::Sft => crate::sft::plan(ctx, step).await?.plan,
            Self::Rollout => rollout::plan(ctx, step).await?.plan,
            Self::Score => score::plan(ctx, step).await?.0,
            Self::Advantage => advantage::plan(ctx, step).await?.0,
            Self::Update => update::plan(ctx, step).await?.plan,
            Self::Evaluate => evaluate::plan(ctx, step).await?.plan,
        })
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Plans or runs a stage of `step` by `work`; from step `remake_from` on, where there is an output that no longer fits its
/// inputs, once more as a new attempt.
///
/// # Errors
/// Whatever `work` fails with.
pub async fn with_remake<T>(
    ctx: &RunContext,
    step: u64,
    remake_from: Option<u64>,
    work: impl AsyncFn(&RunContext) -> Result<T, JobError>,
) -> Result<T, JobError> {
    // Boxed, as the future of a stage is large, and would stand here twice.
    match Box::pin(work(ctx)).await {
        Err(JobError::Pipeline(PipelineError::KeyConflict { .. }))
            if remake_from.is_some_and(|from| step >= from) =>
        {
            let again = RunContext { new_attempt: true, ..ctx.clone() };
            Box::pin(work(&again)).await
        }
        outcome => outcome,
    }
}

/// Runs some steps of a run, evaluating before each step that `evaluate.every` divides and after the last.
///
/// What is there already is reused, so calling it again after a stop goes on, and asking for more steps adds them.
/// From step `remake_from` on, an output that no longer fits its inputs gets a new attempt; elsewhere it is an error.
///
/// # Errors
/// Whatever a stage fails with.
pub async fn drive(
    ctx: &RunContext,
    steps: Range<u64>,
    remake_from: Option<u64>,
    report: &mut dyn FnMut(Stage, u64, &StageOutcome),
) -> Result<(), JobError> {
    refuse_impossible_steps(ctx, &steps, remake_from).await?;
    for (step, stage) in stages(ctx, steps) {
        let run = async |ctx: &RunContext| stage.run(ctx, step).await;
        let outcome = with_remake(ctx, step, remake_from, run).await?;
        report(stage, step, &outcome);
    }
    Ok(())
}

/// The stages of some steps of a run, in the order in which they run: before the stages of a step the measurement of the
/// checkpoint that it begins with, if `evaluate.every` divides it, and that of the last checkpoint where any is measured.
pub fn stages(ctx: &RunContext, steps: Range<u64>) -> impl Iterator<Item = (u64, Stage)> + use<> {
    let (every, end) = (u64::from(ctx.config.evaluate.every), steps.end);
    (steps.start..=end).flat_map(move |step| {
        let is_evaluated = every > 0 && (step.is_multiple_of(every) || step == end);
        let of_step = if step < end { Stage::STEP.as_slice() } else { &[] };
        let evaluation = is_evaluated.then_some(Stage::Evaluate);
        evaluation.into_iter().chain(of_step.iter().copied()).map(move |stage| (step, stage))
    })
}

/// Refuses steps that could not be trained, or of which a stage cannot fit into memory, before anything is made for them.
/// A stage that is there needs nothing. An update of a rollout that is yet to come is refused if no sequence fits; of its
/// own sequences it is checked in its turn.
///
/// # Errors
/// [`JobError`] with what is impossible.
pub async fn refuse_impossible_steps(
    ctx: &RunContext,
    steps: &Range<u64>,
    remake_from: Option<u64>,
) -> Result<(), JobError> {
    let is_evaluated = ctx.config.evaluate.every > 0;
    if is_evaluated {
        evaluate::check_splits(ctx).await?;
    }
    let mut steps = steps.clone();
    let (first, unmade) = loop {
        let Some(step) = steps.next() else { return Ok(()) };
        let unmade = unmade(ctx, step, remake_from).await?;
        if unmade.contains(&Stage::Update) {
            break (step, unmade);
        }
    };
    refuse_untrainable(ctx, Stage::Update, first).await?;
    refuse_another_kind(ctx, first).await?;
    let is_measured = is_evaluated && is_there(ctx, Stage::Evaluate, first).await?;
    let evaluation = (is_evaluated && !is_measured).then_some(Stage::Evaluate);
    // The sequences that are there are not those of a rollout that is made anew.
    let is_rollout_remade = unmade.contains(&Stage::Rollout) && is_there(ctx, Stage::Rollout, first).await?;
    for stage in evaluation.into_iter().chain(unmade.iter().copied()) {
        if stage != Stage::Update || !is_rollout_remade {
            refuse_too_large(ctx, stage, first).await?;
        }
    }
    Ok(())
}

/// Stages of a step that have no output; where outputs may be made anew, also those from the first on whose output no
/// longer fits its inputs.
async fn unmade(ctx: &RunContext, step: u64, remake_from: Option<u64>) -> Result<Vec<Stage>, JobError> {
    let mut is_remade = false;
    let mut unmade = Vec::new();
    for stage in Stage::STEP {
        let is_there = is_there(ctx, stage, step).await?;
        if is_there && !is_remade && remake_from.is_some_and(|from| step >= from) {
            let planned = Box::pin(stage.plan(ctx, step)).await;
            is_remade = matches!(planned, Err(JobError::Pipeline(PipelineError::KeyConflict { .. })));
        }
        if is_remade || !is_there {
            unmade.push(stage);
        }
    }
    Ok(unmade)
}

async fn is_there(ctx: &RunContext, stage: Stage, step: u64) -> Result<bool, JobError> {
    Ok(ctx.store.latest(&ctx.run, stage.name(), step).await?.is_some())
}
