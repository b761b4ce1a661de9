//! The `sft` stage: supervised training on recorded dialogues, for both roles.
//!
//! One step of it makes a fixed number of optimizer applications and leaves a checkpoint, so that long training
//! is a chain of steps that can be resumed, evaluated and followed in the lineage like any other.

mod sequences;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use envace_grpo::seeds::Draw;
use envace_model::chat::{ChatFormat, PromptOptions};
use envace_model::{
    Device, ModelConfig, PolicyLogprobs, TrainSequence, Trainer, TrainerOptions, micro_batches,
};
use envace_pipeline::{Execution, InputRef, Plan, StageSpec, Store};
use envace_schemas::Table;
use envace_schemas::tables::{SftLossRow, TimingRow};
use serde_json::json;

use crate::config::{Config, SftConfig, TrainRole};
use crate::context::{POLICY, PolicySource, RunContext, StageOutcome, section};
use crate::drive::Stage;
use crate::error::JobError;
use crate::memory::refuse_too_large;
use crate::progress::Progress;
use crate::rollout::prompt_tools::{actor_prompt, warn_of_unseen_tools};
use crate::rollout::rehearsal_examples::rehearsal_examples;
use crate::task::Task;
use crate::task_order::drawn;
use crate::trainable::{refuse_another_kind, refuse_untrainable};
use crate::update::{add_lora, load_trainer, schedule, scratch_folder, store_trained, trainer_options};

pub use sequences::{Demonstration, actor_demonstrations, rehearsal_demonstration};

/// What the stage reads and writes.
pub const SPEC: StageSpec = StageSpec {
    name: "sft",
    version: 4,
    inputs: &[Table::Tasks],
    outputs: &[Table::SftLosses],
    queries: &[],
    config: "sft",
};

/// What there is to do at a step.
pub struct Sft {
    /// The plan.
    pub plan: Plan,
    source: PolicySource,
    tasks: Vec<Arc<Task>>,
}

impl Sft {
    /// Tasks with a recorded dialogue.
    pub fn n_tasks(&self) -> usize {
        self.tasks.len()
    }
}

/// Plans the stage.
///
/// # Errors
/// [`JobError`] if tasks or checkpoint are missing, or the step was made from something else.
pub async fn plan(ctx: &RunContext, step: u64) -> Result<Sft, JobError> {
    let (input, tasks) = recorded_tasks(ctx).await?;
    let source = ctx.policy_at(step).await?;
    ctx.refuse_beside("update").await?;
    let mut inputs = vec![input, source.input.clone()];
    inputs.extend(source.optimizer.iter().map(|(input, _)| input.clone()));
    let mut config = json!({
        "seed": ctx.config.seed,
        "sft": section("sft", &ctx.config.sft)?,
        "rehearsal": section("rollout.episode.rehearsal", &ctx.config.rollout.episode.rehearsal)?,
        "parsing": section("rollout.episode.parsing", &ctx.config.rollout.episode.parsing)?,
        "thinking": ctx.config.rollout.thinking,
        "tools_in_prompt": ctx.config.rollout.tools_in_prompt,
    });
    add_lora(&mut config, ctx.config.lora.as_ref())?;
    let fingerprint = Some(ctx.fingerprint()?);
    let plan = ctx.plan(&SPEC, step, config, inputs, fingerprint, 1).await?;
    Ok(Sft { plan, source, tasks })
}

/// The tasks of the split that have a recorded dialogue.
async fn recorded_tasks(ctx: &RunContext) -> Result<(InputRef, Vec<Arc<Task>>), JobError> {
    let (input, mut tasks) = ctx.tasks_of(&ctx.config.sft.split).await?;
    let n_tasks = tasks.len();
    tasks.retain(|task| task.transcript.is_some());
    if tasks.is_empty() {
        return Err(JobError::missing(
            format!(
                "none of the {n_tasks} tasks of split `{}` has a recorded dialogue",
                ctx.config.sft.split
            ),
            "supervised training learns from recorded dialogues; name a split that has them",
        ));
    }
    Ok((input, tasks))
}

/// Tokens of the largest pass of a step that begins with `source`.
///
/// # Errors
/// [`JobError`] if tasks are missing, or the chat template refuses one.
pub async fn largest_pass(ctx: &RunContext, step: u64, source: &PolicySource) -> Result<usize, JobError> {
    let (_, tasks) = recorded_tasks(ctx).await?;
    let (config, model_dir) = (ctx.config.clone(), source.model_dir.clone());
    let work = move || {
        let lessons = Lessons::new(&config, step, &model_dir, &tasks)?;
        let mut largest = 0;
        for application in 0..config.sft.optimizer_steps {
            let sequences = lessons.of(application)?.sequences;
            let all: Vec<TrainSequence> = sequences.iter().map(|(_, one)| train_sequence(one)).collect();
            for members in micro_batches(&all, config.sft.micro_batch_tokens) {
                largest = largest.max(members.iter().map(|member| member.n_computed).sum());
            }
        }
        Ok(largest)
    };
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| JobError::Worker { what: "counting of tokens", source: error })?
}

/// Runs the stage, or reuses its output.
///
/// # Errors
/// As [`plan`], and whatever fails on the way.
pub async fn run(ctx: &RunContext, step: u64) -> Result<StageOutcome, JobError> {
    let sft = plan(ctx, step).await?;
    let work = async |execution: &_| {
        refuse_another_kind(ctx, step).await?;
        execute(ctx, step, &sft, &ctx.store, execution).await
    };
    ctx.follow(&sft.plan, work).await
}

/// Trains into `execution`; weights and optimizer state go to the store `into`, which is its store.
///
/// # Errors
/// Whatever fails on the way.
pub async fn execute(
    ctx: &RunContext,
    step: u64,
    sft: &Sft,
    into: &Store,
    execution: &Execution,
) -> Result<(), JobError> {
    if execution.missing_parts().await?.is_empty() {
        return Ok(());
    }
    refuse_untrainable(ctx, Stage::Sft, step).await?;
    refuse_too_large(ctx, Stage::Sft, step).await?;
    sft.source.check(&ctx.store).await?;
    let (config, source, tasks) = (ctx.config.clone(), sft.source.clone(), sft.tasks.clone());
    let (scratch, device) = (scratch_folder(ctx), ctx.config.execution.open_device()?);
    let work = move || train(&config, device, scratch, step, &source, &tasks);
    let (trainer, rows, seconds) = tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| JobError::Worker { what: "supervised training", source: error })??;
    store_trained(into, execution, &trainer, &sft.source, &POLICY).await?;
    execution.write(0, &rows).await?;
    let timing = TimingRow { subject: "sft".to_owned(), metric: "wall_secs".to_owned(), value: seconds };
    execution.write(0, &[timing]).await?;
    Ok(execution.finish_part(0).await?)
}

fn train(
    config: &Config,
    device: Device,
    scratch: Option<PathBuf>,
    step: u64,
    source: &PolicySource,
    tasks: &[Arc<Task>],
) -> Result<(Trainer, Vec<SftLossRow>, f64), JobError> {
    let sft = &config.sft;
    let lessons = Lessons::new(config, step, &source.model_dir, tasks)?;
    if sft.roles.contains(&TrainRole::Actor) {
        warn_of_unseen_tools(&lessons.format, &config.rollout, tasks.iter().map(Arc::as_ref))?;
    }
    let options = TrainerOptions { device, scratch, ..trainer_options(&sft.adamw, sft.recompute_layers) };
    let mut trainer = load_trainer(source, config.lora.as_ref(), config.seed, options)?;
    let limit = lessons.limit;
    let schedule = schedule(sft.learning_rate, &sft.schedule);
    let progress = Progress::begin(format!("sft {step}"), sft.optimizer_steps, "optimizer steps");
    let (mut rows, mut n_left_out) = (Vec::new(), 0);
    for application in 0..sft.optimizer_steps {
        let Lesson { place, sequences, n_left_out: n_more } = lessons.of(application)?;
        n_left_out += n_more;
        if sequences.is_empty() {
            // Without a gradient the optimizer would still decay the weights and follow its momentum.
            progress.advance_with(1, 0, "nothing to learn".to_owned());
            continue;
        }
        let rate = schedule.rate(trainer.step());
        let (new_rows, n_tokens) = apply(&mut trainer, sft, &sequences, place, rate)?;
        let loss = new_rows.iter().find(|row| row.role == "all").and_then(|row| row.loss_nats);
        progress.advance_with(1, n_tokens, loss.map_or_else(String::new, |loss| format!("loss {loss:.3}")));
        rows.extend(new_rows);
    }
    if rows.is_empty() {
        return Err(JobError::refused(
            format!(
                "step {step} has nothing to learn: {n_left_out} recorded messages or sequences were left out"
            ),
            format!(
                "they are longer than {limit} tokens, hold the text of special tokens, or the chat template does not \
                 render them after their own prompt; see `sft.max_sequence_tokens` and `rollout.thinking`"
            ),
        ));
    }
    if n_left_out > 0 {
        tracing::warn!(
            n_left_out,
            limit,
            "recorded messages or sequences were too long or cannot be learned, and were left out"
        );
    }
    Ok((trainer, rows, progress.finish()))
}

/// What the optimizer applications of a step learn from.
struct Lessons<'a> {
    config: &'a Config,
    step: u64,
    tasks: &'a [Arc<Task>],
    format: ChatFormat,
    /// Tokens of a sequence, at most.
    limit: usize,
}

/// What one optimizer application learns from.
struct Lesson {
    /// Its place among all of the run.
    place: u64,
    sequences: Vec<(TrainRole, Demonstration)>,
    /// Messages and sequences that cannot be learned.
    n_left_out: usize,
}

impl<'a> Lessons<'a> {
    fn new(
        config: &'a Config,
        step: u64,
        model_dir: &Path,
        tasks: &'a [Arc<Task>],
    ) -> Result<Self, JobError> {
        let context_length = ModelConfig::load(model_dir)?.context_length;
        let limit = match config.sft.max_sequence_tokens {
            0 => context_length,
            limit => limit.min(context_length),
        };
        Ok(Self { config, step, tasks, format: ChatFormat::load(model_dir)?, limit })
    }

    fn of(&self, application: u64) -> Result<Lesson, JobError> {
        let sft = &self.config.sft;
        let place = self.step.saturating_mul(sft.optimizer_steps).saturating_add(application);
        let first = place.saturating_mul(sft.tasks_per_batch as u64);
        let (mut sequences, mut n_left_out) = (Vec::new(), 0);
        for task in drawn(self.tasks, self.config.seed, "sft_order", first, sft.tasks_per_batch) {
            let (of_task, n_messages) = demonstrations(&self.format, self.config, &task)?;
            sequences.extend(of_task);
            n_left_out += n_messages;
        }
        let n_before = sequences.len();
        sequences.retain(|(_, one)| !one.trained.is_empty() && one.token_ids.len() <= self.limit);
        n_left_out += n_before - sequences.len();
        Ok(Lesson { place, sequences, n_left_out })
    }
}

/// What a task teaches each role, and how many messages of its dialogue cannot be learned.
fn demonstrations(
    format: &ChatFormat,
    config: &Config,
    task: &Task,
) -> Result<(Vec<(TrainRole, Demonstration)>, usize), JobError> {
    let Some(transcript) = &task.transcript else { return Ok((Vec::new(), 0)) };
    let rollout = &config.rollout;
    let (mut all, mut n_left_out) = (Vec::new(), 0);
    if config.sft.roles.contains(&TrainRole::Actor) {
        let (messages, options) = actor_prompt(rollout, transcript, &task.tools);
        let (sequences, n_messages) = actor_demonstrations(format, &options, &messages)?;
        n_left_out += n_messages;
        all.extend(sequences.into_iter().map(|sequence| (TrainRole::Actor, sequence)));
    }
    if config.sft.roles.contains(&TrainRole::Rehearsal) {
        let options = PromptOptions { enable_thinking: rollout.thinking, ..PromptOptions::default() };
        let draw = Draw::new(config.seed, "sft_few_shot").task_hash(&task.row.task_hash);
        let mut examples = rehearsal_examples(task, &rollout.episode, |turn, call_index| {
            draw.clone().turn(turn as u64).call(call_index as u64).uniform(0)
        });
        if config.sft.rehearsals_per_task > 0 {
            examples.truncate(config.sft.rehearsals_per_task);
        }
        for example in examples {
            let prompt = example.prompt.messages();
            let sequence = rehearsal_demonstration(format, &options, &prompt, &example.output)?;
            all.push((TrainRole::Rehearsal, sequence));
        }
    }
    Ok((all, n_left_out))
}

/// Optimizer application number `place` of the run, on the mean negative log likelihood of all target tokens.
fn apply(
    trainer: &mut Trainer,
    config: &SftConfig,
    sequences: &[(TrainRole, Demonstration)],
    place: u64,
    learning_rate: f64,
) -> Result<(Vec<SftLossRow>, u64), JobError> {
    let n_trained: usize = sequences.iter().map(|(_, sequence)| sequence.trained.len()).sum();
    let all: Vec<TrainSequence> = sequences.iter().map(|(_, sequence)| train_sequence(sequence)).collect();
    let mut sums: Vec<(TrainRole, f64, usize, usize)> = Vec::new();
    let coefficient = -1.0 / n_trained.max(1) as f32;
    for members in micro_batches(&all, config.micro_batch_tokens) {
        let batch: Vec<TrainSequence> =
            members.iter().filter_map(|member| all.get(member.index).cloned()).collect();
        trainer.accumulate(&batch, &mut |policy: &[PolicyLogprobs]| {
            for (member, policy) in members.iter().zip(policy) {
                let Some((role, _)) = sequences.get(member.index) else { continue };
                let loss = -policy.logprobs.iter().map(|logprob| f64::from(*logprob)).sum::<f64>();
                sums.push((*role, loss, policy.logprobs.len(), member.n_computed));
            }
            policy.iter().map(|policy| vec![coefficient; policy.logprobs.len()]).collect()
        })?;
    }
    // Not `trainer.step()`: an application that is skipped does not advance it, and has a row too.
    let optimizer_step = place as i64;
    let max_norm = Some(config.max_gradient_norm).filter(|norm| *norm > 0.0);
    let report = trainer.apply(learning_rate, max_norm)?;
    let row = |name: &str, is_of: &dyn Fn(TrainRole) -> bool| {
        let of_role = || sums.iter().filter(|(role, ..)| is_of(*role));
        let n_tokens: usize = of_role().map(|(_, _, n_tokens, _)| n_tokens).sum();
        let n_forward: usize = of_role().map(|(.., n_computed)| n_computed).sum();
        let loss: f64 = of_role().map(|(_, loss, ..)| loss).sum();
        SftLossRow {
            optimizer_step,
            role: name.to_owned(),
            n_tokens: n_tokens as i64,
            n_sequences: of_role().count() as i64,
            n_forward_tokens: n_forward as i64,
            loss_nats: (n_tokens > 0).then(|| loss / n_tokens as f64),
            gradient_norm: Some(report.gradient_norm).filter(|norm| norm.is_finite()),
            learning_rate,
            is_skipped: report.is_skipped,
        }
    };
    let rows = vec![
        row("actor", &|role| role == TrainRole::Actor),
        row("all", &|_| true),
        row("rehearsal", &|role| role == TrainRole::Rehearsal),
    ];
    let n_computed: usize = sums.iter().map(|(.., n_computed)| n_computed).sum();
    Ok((rows, n_computed as u64))
}

fn train_sequence(sequence: &Demonstration) -> TrainSequence {
    let Demonstration { token_ids, trained } = sequence.clone();
    TrainSequence { token_ids, trained, temperature: 1.0 }
}
