//! The `update` stage: trains on advantages and writes the next checkpoint.

pub mod items;
mod step;

use envace_grpo::loss::{Aggregation, Clip, KlEstimator, Objective};
use envace_grpo::schedule::{Schedule, Shape};
use envace_model::{AdamW, Device, Trainer, TrainerOptions};
use envace_pipeline::{
    Artifact, Execution, InputRef, Plan, StageSpec, Store, add_optimizer_state, import_checkpoint,
};
use envace_schemas::Table;
use envace_schemas::tables::{AdvantageRow, GenerationRow, SequenceRow, TimingRow, UpdateRow};
use serde_json::json;

use crate::config::{self, AdamWConfig, ScheduleConfig, ScheduleKind, UpdateConfig};
use crate::context::{CHECKPOINT, OPTIMIZER, PolicySource, RunContext, StageOutcome, section};
use crate::error::JobError;
use crate::progress::Progress;

use items::{Item, items_of, minibatches};

/// What the stage reads and writes.
pub const SPEC: StageSpec = StageSpec {
    name: "update",
    version: 2,
    inputs: &[Table::Generations, Table::Sequences, Table::Advantages],
    outputs: &[Table::Updates],
    queries: &[],
    config: "update",
};

/// Plans the stage.
///
/// # Errors
/// [`JobError`] if an input is missing or not of the others, or the step was made from something else.
pub async fn plan(
    ctx: &RunContext,
    step: u64,
) -> Result<(Plan, PolicySource, Option<PolicySource>), JobError> {
    let rollout = ctx.output("rollout", step).await?;
    let advantage = ctx.output("advantage", step).await?;
    let source = ctx.policy_at(step).await?;
    ctx.refuse_beside("sft").await?;
    ctx.check_made_from(&rollout, &source.input)?;
    ctx.check_made_from(&advantage, &InputRef::table(rollout.manifest(), Table::Generations)?)?;
    let reference = if ctx.config.update.kl.coefficient > 0.0 { Some(ctx.policy_at(0).await?) } else { None };
    let mut inputs = vec![
        InputRef::table(rollout.manifest(), Table::Generations)?,
        InputRef::table(rollout.manifest(), Table::Sequences)?,
        InputRef::table(advantage.manifest(), Table::Advantages)?,
        source.input.clone(),
    ];
    inputs.extend(source.optimizer.iter().map(|(input, _)| input.clone()));
    inputs.extend(reference.iter().map(|source| source.input.clone().named("reference_checkpoint")));
    let config = json!({ "seed": ctx.config.seed, "update": section("update", &ctx.config.update)? });
    let fingerprint = Some(envace_model::arithmetic_fingerprint(&Device::Cpu));
    let plan = ctx.plan(&SPEC, step, config, inputs, fingerprint, 1).await?;
    Ok((plan, source, reference))
}

/// Runs the stage, or reuses its output.
///
/// # Errors
/// As [`plan`], and whatever fails on the way.
pub async fn run(ctx: &RunContext, step: u64) -> Result<StageOutcome, JobError> {
    let (plan, source, reference) = plan(ctx, step).await?;
    let reference = reference.as_ref();
    let work = async |execution: &_| execute(ctx, step, &source, reference, &ctx.store, execution).await;
    ctx.follow(&plan, work).await
}

/// Trains into `execution`; weights and optimizer state go to the store `into`, which is its store.
///
/// # Errors
/// [`JobError::Refused`] if nothing can be trained on; whatever fails on the way.
pub async fn execute(
    ctx: &RunContext,
    step: u64,
    source: &PolicySource,
    reference: Option<&PolicySource>,
    into: &Store,
    execution: &Execution,
) -> Result<(), JobError> {
    if execution.missing_parts().await?.is_empty() {
        return Ok(());
    }
    source.check(&ctx.store).await?;
    if let Some(reference) = reference {
        reference.check_weights(&ctx.store).await?;
    }
    let advantages: Vec<AdvantageRow> = ctx.output("advantage", step).await?.read_all().await?;
    let rollout = ctx.output("rollout", step).await?;
    let generations: Vec<GenerationRow> = rollout.read_all().await?;
    let sequences: Vec<SequenceRow> = rollout.read_all().await?;
    let config = ctx.config.update.clone();
    let items = items_of(&config.train_roles, &advantages, &generations, &sequences)?;
    if items.is_empty() {
        return Err(JobError::refused(
            format!("step {step} has no generation to train on"),
            format!(
                "see why: envace-jobs sql \"SELECT end_reason, end_detail, count(*) FROM trajectories WHERE run = '{run}' \
                 AND step = {step} GROUP BY 1, 2\", and the same with exclusion_reason FROM advantages",
                run = ctx.run
            ),
        ));
    }
    let (seed, source, reference) = (ctx.config.seed, source.clone(), reference.cloned());
    let work = move || train(&config, seed, step, &items, &source, reference.as_ref());
    let (trainer, rows, seconds) = tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| JobError::Worker { what: "the update", source: error })??;
    store_trained(into, execution, &trainer).await?;
    execution.write(0, &rows).await?;
    let timing = TimingRow { subject: "update".to_owned(), metric: "wall_secs".to_owned(), value: seconds };
    execution.write(0, &[timing]).await?;
    Ok(execution.finish_part(0).await?)
}

/// Stores weights and optimizer state, as the artifacts of part 0.
///
/// # Errors
/// [`JobError`] if they cannot be written.
pub async fn store_trained(store: &Store, execution: &Execution, trainer: &Trainer) -> Result<(), JobError> {
    let dir = tempfile::tempdir()
        .map_err(JobError::file("cannot make a temporary folder", std::env::temp_dir()))?;
    let weights = dir.path().join("weights");
    trainer.save(&weights)?;
    // What the next step could not load, such as a weight that is not finite, is not stored.
    envace_model::Model::load(&weights, &Device::Cpu)?;
    let checkpoint = import_checkpoint(store, &weights).await?;
    let state = dir.path().join("state.safetensors");
    trainer.save_state(&state)?;
    let digest = add_optimizer_state(store, &checkpoint, &state).await?;
    execution.add_artifact(0, CHECKPOINT, Artifact::Checkpoint { digest: checkpoint.clone() })?;
    execution.add_artifact(0, OPTIMIZER, Artifact::OptimizerState { checkpoint, digest })?;
    Ok(())
}

fn train(
    config: &UpdateConfig,
    seed: u64,
    step: u64,
    items: &[Item],
    source: &PolicySource,
    reference: Option<&PolicySource>,
) -> Result<(Trainer, Vec<UpdateRow>, f64), JobError> {
    let options = trainer_options(&config.adamw, config.recompute_layers);
    let state = source.optimizer.as_ref().map(|(_, path)| path.as_path());
    let mut trainer = Trainer::load(&source.dir, state, options.clone())?;
    let reference = match reference {
        None => None,
        Some(reference) => Some(Trainer::load(&reference.dir, None, options)?),
    };
    let schedule = schedule(config.learning_rate, &config.schedule);
    let n_minibatches = usize::try_from(config.minibatches).unwrap_or(1);
    let n_tokens: usize = items.iter().map(|item| item.sequence.token_ids.len()).sum();
    let n_epochs = u64::try_from(config.epochs).unwrap_or(1);
    let progress = Progress::begin(format!("update {step}"), n_tokens as u64 * n_epochs, "tokens");
    let mut rows = Vec::new();
    for epoch in 0..n_epochs {
        let batches = minibatches(items, n_minibatches, seed, step, epoch);
        for (minibatch, batch) in batches.iter().enumerate() {
            let place = step::Place {
                epoch: epoch as i32,
                minibatch: minibatch as i32,
                learning_rate: schedule.rate(trainer.step()),
            };
            let context = step::Context { config, objective: objective(config), progress: &progress };
            rows.extend(step::apply(&mut trainer, reference.as_ref(), batch, &place, &context)?);
        }
    }
    rows.sort_by(|a, b| (a.epoch, a.minibatch, &a.role).cmp(&(b.epoch, b.minibatch, &b.role)));
    Ok((trainer, rows, progress.finish()))
}

/// The optimizer as the model crate takes it.
pub fn trainer_options(adamw: &AdamWConfig, recompute_layers: bool) -> TrainerOptions {
    TrainerOptions {
        recompute_layers,
        adamw: AdamW {
            beta1: adamw.beta1,
            beta2: adamw.beta2,
            eps: adamw.epsilon,
            weight_decay: adamw.weight_decay,
        },
        ..TrainerOptions::default()
    }
}

/// The schedule as the mathematics takes it.
pub fn schedule(peak: f64, config: &ScheduleConfig) -> Schedule {
    let shape = match config.kind {
        ScheduleKind::Constant => Shape::Constant,
        ScheduleKind::Cosine => Shape::Cosine { n_total: config.total_steps, floor: config.floor * peak },
    };
    Schedule { peak, n_warmup: config.warmup_steps, shape }
}

fn objective(config: &UpdateConfig) -> Objective {
    Objective {
        clip: Clip {
            low: config.clip_low,
            high: config.clip_high,
            dual: (config.dual_clip > 0.0).then_some(config.dual_clip),
        },
        aggregation: match config.aggregation {
            config::Aggregation::Token => Aggregation::Token,
            config::Aggregation::Sequence => Aggregation::Sequence,
            config::Aggregation::Generation => Aggregation::Generation,
        },
        kl: match config.kl.estimator {
            config::KlEstimator::K1 => KlEstimator::K1,
            config::KlEstimator::K2 => KlEstimator::K2,
            config::KlEstimator::K3 => KlEstimator::K3,
        },
        kl_coefficient: config.kl.coefficient,
    }
}
