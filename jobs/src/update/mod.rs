//! The `update` stage: trains on advantages and writes the next checkpoint.

mod chain;
pub mod items;
mod objective;
mod reference;
mod step;

use std::path::PathBuf;

use envace_grpo::schedule::{Schedule, Shape};
use envace_model::{AdamW, Trainer, TrainerOptions};
use envace_pipeline::{Artifact, Execution, InputRef, Plan, StageSpec, Store, add_optimizer_state};
use envace_schemas::Table;
use envace_schemas::tables::{AdvantageRow, GenerationRow, SequenceRow, TimingRow};
use serde_json::json;

use crate::config::{AdamWConfig, LoraConfig, ScheduleConfig, ScheduleKind, StatePlace, UpdateConfig};
use crate::context::{
    PolicySource, RunContext, StageOutcome, WeightNames, import_trained, new_adapter, section,
};
use crate::drive::Stage;
use crate::error::JobError;
use crate::memory::refuse_too_large;
use crate::progress::Progress;
use crate::trainable::{refuse_another_kind, refuse_untrainable};

pub use chain::Chain;

use items::{Item, items_of, minibatches};
use objective::objective;
use reference::{add_old, add_reference};

/// What the stage reads and writes.
pub const SPEC: StageSpec = StageSpec {
    name: "update",
    version: 4,
    inputs: &[Table::Generations, Table::Sequences, Table::Advantages],
    outputs: &[Table::Updates],
    queries: &[],
    config: "update",
};

/// What there is to do at a step.
#[derive(Debug)]
pub struct Update {
    /// The plan.
    pub plan: Plan,
    chains: Vec<Chain>,
}

/// Plans the stage.
///
/// # Errors
/// [`JobError`] if an input is missing or not of the others, or the step was made from something else.
pub async fn plan(ctx: &RunContext, step: u64) -> Result<Update, JobError> {
    let rollout = ctx.output("rollout", step).await?;
    let advantage = ctx.output("advantage", step).await?;
    let chains = Chain::all(ctx, step).await?;
    ctx.refuse_beside("sft").await?;
    for chain in &chains {
        ctx.check_made_from(&rollout, &chain.source.input)?;
    }
    ctx.check_made_from(&advantage, &InputRef::table(rollout.manifest(), Table::Generations)?)?;
    let mut inputs = vec![
        InputRef::table(rollout.manifest(), Table::Generations)?,
        InputRef::table(rollout.manifest(), Table::Sequences)?,
        InputRef::table(advantage.manifest(), Table::Advantages)?,
    ];
    inputs.extend(chains.iter().flat_map(Chain::inputs));
    let mut config = json!({ "seed": ctx.config.seed, "update": section("update", &ctx.config.update)? });
    add_lora(&mut config, ctx.config.lora.as_ref())?;
    let fingerprint = Some(ctx.fingerprint()?);
    let plan = ctx.plan(&SPEC, step, config, inputs, fingerprint, 1).await?;
    Ok(Update { plan, chains })
}

/// Runs the stage, or reuses its output.
///
/// # Errors
/// As [`plan`], and whatever fails on the way.
pub async fn run(ctx: &RunContext, step: u64) -> Result<StageOutcome, JobError> {
    let update = plan(ctx, step).await?;
    let work = async |execution: &_| {
        refuse_another_kind(ctx, step).await?;
        execute(ctx, step, &update, &ctx.store, execution).await
    };
    ctx.follow(&update.plan, work).await
}

/// Trains into `execution`; weights and optimizer state go to the store `into`, which is its store.
///
/// # Errors
/// [`JobError::Refused`] if nothing can be trained on; whatever fails on the way.
pub async fn execute(
    ctx: &RunContext,
    step: u64,
    update: &Update,
    into: &Store,
    execution: &Execution,
) -> Result<(), JobError> {
    if execution.missing_parts().await?.is_empty() {
        return Ok(());
    }
    refuse_untrainable(ctx, Stage::Update, step).await?;
    refuse_too_large(ctx, Stage::Update, step).await?;
    let advantages: Vec<AdvantageRow> = ctx.output("advantage", step).await?.read_all().await?;
    let rollout = ctx.output("rollout", step).await?;
    let generations: Vec<GenerationRow> = rollout.read_all().await?;
    let sequences: Vec<SequenceRow> = rollout.read_all().await?;
    let mut work = Vec::new();
    for chain in &update.chains {
        chain.source.check(&ctx.store).await?;
        if let Some(reference) = &chain.reference {
            reference.check_weights(&ctx.store).await?;
        }
        work.push((chain, items_of(&chain.roles, &advantages, &generations, &sequences)?));
    }
    if work.iter().all(|(_, items)| items.is_empty()) {
        return Err(JobError::refused(
            format!("step {step} has no generation to train on"),
            format!(
                "see why: envace-jobs sql \"SELECT end_reason, end_detail, count(*) FROM trajectories WHERE run = '{run}' \
                 AND step = {step} GROUP BY 1, 2\", and the same with exclusion_reason FROM advantages",
                run = ctx.run
            ),
        ));
    }
    let (mut applied, mut seconds) = (Vec::new(), 0.0);
    for (chain, items) in work {
        if items.is_empty() {
            chain.hand_on(into, execution).await?;
            continue;
        }
        let trained = train_chain(ctx, step, chain, items).await?;
        store_trained(into, execution, &trained.trainer, &chain.source, chain.names).await?;
        applied.extend(trained.applied);
        seconds += trained.seconds;
    }
    execution.write(0, &step::rows(&applied, ctx.config.update.correction.is_some())).await?;
    let timing = TimingRow { subject: "update".to_owned(), metric: "wall_secs".to_owned(), value: seconds };
    execution.write(0, &[timing]).await?;
    Ok(execution.finish_part(0).await?)
}

/// What came of training.
struct Trained {
    trainer: Trainer,
    applied: Vec<step::Applied>,
    seconds: f64,
}

/// Trains the weights of a chain, on a thread of its own.
async fn train_chain(
    ctx: &RunContext,
    step: u64,
    chain: &Chain,
    mut items: Vec<Item>,
) -> Result<Trained, JobError> {
    let config = ctx.config.update.clone();
    let (seed, lora) = (ctx.config.seed, ctx.config.lora.clone());
    let Chain { source, reference, .. } = chain.clone();
    let (scratch, device) = (scratch_folder(ctx), ctx.config.execution.open_device()?);
    let work = move || {
        let options = TrainerOptions {
            device: device.clone(),
            scratch,
            ..trainer_options(&config.adamw, config.recompute_layers)
        };
        let mut trainer = load_trainer(&source, lora.as_ref(), seed, options)?;
        if let Some(reference) = &reference {
            add_reference(&mut items, &config, device, &mut trainer, (&source, reference))?;
        }
        if config.correction.is_some() {
            add_old(&mut items, &config, &trainer)?;
        }
        train(&config, seed, step, &items, trainer)
    };
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| JobError::Worker { what: "the update", source: error })?
}

/// Stores what was trained from `source` and the optimizer's state, as artifacts of part 0.
///
/// # Errors
/// [`JobError`] if they cannot be written.
pub async fn store_trained(
    store: &Store,
    execution: &Execution,
    trainer: &Trainer,
    source: &PolicySource,
    names: &WeightNames,
) -> Result<(), JobError> {
    let checkpoint = import_trained(store, trainer, source).await?;
    let dir = tempfile::tempdir()
        .map_err(JobError::file("cannot make a temporary folder", std::env::temp_dir()))?;
    let state = dir.path().join("state.safetensors");
    trainer.save_state(&state)?;
    let digest = add_optimizer_state(store, &checkpoint, &state).await?;
    execution.add_artifact(0, names.weights, Artifact::Checkpoint { digest: checkpoint.clone() })?;
    execution.add_artifact(0, names.optimizer, Artifact::OptimizerState { checkpoint, digest })?;
    Ok(())
}

fn train(
    config: &UpdateConfig,
    seed: u64,
    step: u64,
    items: &[Item],
    mut trainer: Trainer,
) -> Result<Trained, JobError> {
    let schedule = schedule(config.learning_rate, &config.schedule);
    let n_minibatches = usize::try_from(config.minibatches).unwrap_or(1);
    let n_tokens: usize = items.iter().map(|item| item.sequence.token_ids.len()).sum();
    let n_epochs = u64::try_from(config.epochs).unwrap_or(1);
    let progress = Progress::begin(format!("update {step}"), n_tokens as u64 * n_epochs, "tokens");
    let mut applied = Vec::new();
    for epoch in 0..n_epochs {
        let batches = minibatches(items, n_minibatches, seed, step, epoch);
        for (minibatch, batch) in batches.iter().enumerate() {
            let place = step::Place {
                epoch: epoch as i32,
                minibatch: minibatch as i32,
                learning_rate: schedule.rate(trainer.step()),
            };
            let context = step::Context { config, objective: objective(config), progress: &progress };
            applied.push(step::apply(&mut trainer, batch, &place, &context)?);
        }
    }
    Ok(Trained { trainer, applied, seconds: progress.finish() })
}

/// Loads what is trained: the weights, an adapter, or, where the configuration asks for one and the policy is a whole
/// model, a new adapter of it.
///
/// # Errors
/// [`JobError::Model`] if it cannot be loaded, or the policy is an adapter of another kind than the configured one.
pub fn load_trainer(
    source: &PolicySource,
    lora: Option<&LoraConfig>,
    seed: u64,
    options: TrainerOptions,
) -> Result<Trainer, JobError> {
    let options = TrainerOptions { adapter: new_adapter(lora, seed, source), ..options };
    // A new adapter has no moments: those beside a whole model are of all its weights.
    let begins = lora.is_some() && source.base.is_none();
    let state = source.optimizer.as_ref().filter(|_| !begins).map(|(_, path)| path.as_path());
    Ok(Trainer::load(&source.dir, state, options)?)
}

/// Adds the section of adapters to the configuration of a stage, if there is one.
///
/// # Errors
/// [`JobError::Json`] if a value has no JSON form.
pub fn add_lora(config: &mut serde_json::Value, lora: Option<&LoraConfig>) -> Result<(), JobError> {
    if let Some(lora) = lora {
        config["lora"] = section("lora", lora)?;
    }
    Ok(())
}

/// Where the trainer of a run keeps gradients and optimizer state, if not in memory.
pub fn scratch_folder(ctx: &RunContext) -> Option<PathBuf> {
    let execution = &ctx.config.execution;
    if execution.optimizer_state == StatePlace::Memory {
        return None;
    }
    if !execution.scratch_folder.is_empty() {
        return Some(PathBuf::from(&execution.scratch_folder));
    }
    Some(ctx.store.root().map_or_else(std::env::temp_dir, |root| root.join("staging")))
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
