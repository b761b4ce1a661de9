//! The `rollout` stage: samples trajectories of the tasks of one step.

use std::sync::Arc;
use std::time::Instant;

use envace_model::Model;
use envace_model::chat::{ChatFormat, History};
use envace_model::engine::{Engine, EngineOptions, LocalEngine, Sampling};
use envace_pipeline::{Execution, InputRef, Plan, StageSpec};
use envace_schemas::Table;
use envace_schemas::tables::{SequenceRow, TimingRow};
use serde_json::json;

use super::prompt_tools::warn_of_unseen_tools;
use super::scheduler::{EngineCounts, Engines, PartWork, play};
use super::trajectory::{Settings, TrajectoryRows, Voice};
use crate::config::{Config, HistoryMode, SamplingConfig};
use crate::context::{PolicySource, RunContext, StageOutcome, section};
use crate::drive::Stage;
use crate::error::JobError;
use crate::memory::refuse_too_large;
use crate::progress::Progress;
use crate::task::Task;
use crate::task_order::drawn;

/// What the stage reads and writes.
pub const SPEC: StageSpec = StageSpec {
    name: "rollout",
    version: 4,
    inputs: &[Table::Tasks],
    outputs: &[Table::Trajectories, Table::Messages, Table::Generations, Table::Sequences],
    queries: &[],
    config: "rollout",
};

/// What there is to do at a step.
pub struct Rollout {
    /// The plan.
    pub plan: Plan,
    source: PolicySource,
    rehearsal: Option<PolicySource>,
    work: Vec<PartWork>,
}

impl Rollout {
    /// Trajectories that the step has.
    pub fn n_trajectories(&self) -> usize {
        n_trajectories(&self.work)
    }

    /// Its tasks.
    pub fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.work.iter().flat_map(|part| part.tasks.iter().map(Arc::as_ref))
    }
}

/// Trajectories in some parts.
pub fn n_trajectories(work: &[PartWork]) -> usize {
    work.iter().map(|part| part.tasks.len() * part.n_samples.unsigned_abs() as usize).sum()
}

/// Plans the stage.
///
/// # Errors
/// [`JobError`] if tasks or checkpoint are missing, or the step was made from something else.
pub async fn plan(ctx: &RunContext, step: u64) -> Result<Rollout, JobError> {
    let (tasks_input, tasks) = ctx.tasks_of(&ctx.config.tasks.split).await?;
    let source = ctx.policy_at(step).await?;
    ctx.refuse_beside("sft").await?;
    let rehearsal = ctx.rehearsal_at(step).await?;
    let tasks = tasks_of_step(&tasks, ctx.config.seed, step, ctx.config.tasks.per_step);
    let work = parts_of(&tasks, ctx.config.tasks.per_part, ctx.config.rollout.group_size);
    let config = json!({
        "seed": ctx.config.seed,
        "tasks": section("tasks", &ctx.config.tasks)?,
        "rollout": section("rollout", &ctx.config.rollout)?,
    });
    let inputs: Vec<InputRef> = [Some(tasks_input), Some(source.input.clone())]
        .into_iter()
        .chain([rehearsal.as_ref().map(|source| source.input.clone())])
        .flatten()
        .collect();
    let fingerprint = Some(ctx.fingerprint()?);
    let plan = ctx.plan(&SPEC, step, config, inputs, fingerprint, work.len()).await?;
    Ok(Rollout { plan, source, rehearsal, work })
}

/// Runs the stage, or reuses its output.
///
/// # Errors
/// As [`plan`], and whatever fails on the way.
pub async fn run(ctx: &RunContext, step: u64) -> Result<StageOutcome, JobError> {
    let rollout = plan(ctx, step).await?;
    ctx.follow(&rollout.plan, async |execution| execute(ctx, step, &rollout, execution).await).await
}

/// Plays the missing parts into `execution`.
///
/// # Errors
/// Whatever fails on the way.
pub async fn execute(
    ctx: &RunContext,
    step: u64,
    rollout: &Rollout,
    execution: &Execution,
) -> Result<(), JobError> {
    let missing = execution.missing_parts().await?;
    let work: Vec<PartWork> =
        rollout.work.iter().filter(|part| missing.contains(&part.part)).cloned().collect();
    if work.is_empty() {
        return Ok(());
    }
    refuse_too_large(ctx, Stage::Rollout, step).await?;
    check_policies(ctx, &rollout.source, rollout.rehearsal.as_ref()).await?;
    let config = &ctx.config.rollout;
    let policies = (&rollout.source, rollout.rehearsal.as_ref());
    let (actor, rehearsal, engines) = voices(&ctx.config, policies, (&config.actor, &config.rehearsal))?;
    warn_of_unseen_tools(&actor.format, config, rollout.tasks())?;
    let settings = Arc::new(Settings {
        seed: ctx.config.seed,
        purpose: "train",
        step,
        episode: Arc::new(config.episode.clone()),
        history: history(config.history),
        thinking: config.thinking,
        tools_in_prompt: config.tools_in_prompt,
        actor,
        rehearsal,
    });
    let label = format!("rollout {step}");
    let write = async |part: u32, rows: TrajectoryRows, timings: Vec<TimingRow>| -> Result<(), JobError> {
        write_rollout(execution, part, &rows).await?;
        execution.write(part, &timings).await?;
        Ok(execution.finish_part(part).await?)
    };
    play_parts(label, settings, engines, work, write).await
}

/// Writes the four tables of a part.
///
/// # Errors
/// Those of [`Execution::write`].
pub async fn write_rollout(execution: &Execution, part: u32, rows: &TrajectoryRows) -> Result<(), JobError> {
    execution.write(part, &rows.trajectories).await?;
    execution.write(part, &rows.messages).await?;
    execution.write(part, &rows.generations).await?;
    execution.write(part, &rows.sequences).await?;
    Ok(())
}

/// Plays `work` on a thread of its own and gives each finished part to `write`, with the time and the work of the
/// engines since the part before.
///
/// # Errors
/// The first error of either side.
pub async fn play_parts(
    label: String,
    settings: Arc<Settings>,
    mut engines: Engines,
    work: Vec<PartWork>,
    write: impl AsyncFn(u32, TrajectoryRows, Vec<TimingRow>) -> Result<(), JobError>,
) -> Result<(), JobError> {
    let n_trajectories = n_trajectories(&work);
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let worker = tokio::task::spawn_blocking(move || {
        let progress = Progress::begin(label, n_trajectories as u64, "trajectories");
        let (mut since, mut before) = (Instant::now(), EngineCounts::default());
        play(&settings, &mut engines, work, &progress, &mut |part, rows, counts| {
            let n_distinct = n_distinct_tokens(&rows.sequences);
            let timings = timings(part, since.elapsed().as_secs_f64(), n_distinct, before, counts);
            (since, before) = (Instant::now(), counts);
            // Nobody listens any more: the other side has failed and says why.
            let gone = |_| JobError::refused("the rollout was given up", "see the error before this one");
            sender.send((part, rows, timings)).map_err(gone)
        })?;
        progress.finish();
        Ok::<_, JobError>(())
    });
    while let Some((part, rows, timings)) = receiver.recv().await {
        write(part, rows, timings).await?;
    }
    worker.await.map_err(|source| JobError::Worker { what: "the rollout", source })?
}

fn timings(
    part: u32,
    seconds: f64,
    n_distinct: usize,
    before: EngineCounts,
    now: EngineCounts,
) -> Vec<TimingRow> {
    let row = |metric: &str, value: f64| TimingRow {
        subject: format!("part-{part:05}"),
        metric: metric.to_owned(),
        value,
    };
    vec![
        row("n_distinct_tokens", n_distinct as f64),
        row("n_prefilled_tokens", (now.n_prefilled - before.n_prefilled) as f64),
        row("n_recomputed_tokens", (now.n_recomputed - before.n_recomputed) as f64),
        row("n_reused_tokens", (now.n_reused - before.n_reused) as f64),
        row("n_sampled_tokens", (now.n_sampled - before.n_sampled) as f64),
        row("wall_secs", seconds),
    ]
}

/// Tokens of some sequences, those of a common beginning counted once: the nodes of their trie.
fn n_distinct_tokens(sequences: &[SequenceRow]) -> usize {
    let mut sorted: Vec<&[u32]> = sequences.iter().map(|row| row.token_ids.as_slice()).collect();
    sorted.sort_unstable();
    let common = |a: &[u32], b: &[u32]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let shared: usize = sorted.windows(2).map(|pair| common(pair[0], pair[1])).sum();
    sorted.iter().map(|tokens| tokens.len()).sum::<usize>() - shared
}

/// Hashes the weights that are about to be played with.
///
/// # Errors
/// [`JobError::Pipeline`] if they are not what they were.
pub async fn check_policies(
    ctx: &RunContext,
    policy: &PolicySource,
    rehearsal: Option<&PolicySource>,
) -> Result<(), JobError> {
    policy.check_weights(&ctx.store).await?;
    if let Some(rehearsal) = rehearsal {
        rehearsal.check_weights(&ctx.store).await?;
    }
    Ok(())
}

/// Loads the policy and, if it has weights of its own, the rehearsal role; both sampled as given.
///
/// # Errors
/// [`JobError`] if a folder is not a whole model.
pub fn voices(
    config: &Config,
    (policy, own): (&PolicySource, Option<&PolicySource>),
    (actor, rehearsal): (&SamplingConfig, &SamplingConfig),
) -> Result<(Voice, Voice, Engines), JobError> {
    let (actor, actor_engine) = voice(config, policy, actor)?;
    let (rehearsal, rehearsal_engine) = match own {
        Some(source) => {
            let (voice, engine) = voice(config, source, rehearsal)?;
            (voice, Some(engine))
        }
        None => {
            let (sampling, max_new_tokens) = (sampling_of(rehearsal), rehearsal.max_new_tokens);
            (Voice { sampling, max_new_tokens, ..actor.clone() }, None)
        }
    };
    Ok((actor, rehearsal, Engines { actor: actor_engine, rehearsal: rehearsal_engine }))
}

fn voice(
    config: &Config,
    source: &PolicySource,
    sampling: &SamplingConfig,
) -> Result<(Voice, Box<dyn Engine>), JobError> {
    let (dir, execution) = (&source.dir, &config.execution);
    let model = Arc::new(Model::load(dir, &execution.open_device()?)?);
    let format = Arc::new(ChatFormat::load(&source.model_dir)?);
    let options = EngineOptions {
        max_batch: execution.max_batch,
        kv_bytes: execution.kv_bytes(),
        is_kv_enlarged: execution.is_kv_enlarged(),
        ..EngineOptions::default()
    };
    let engine: Box<dyn Engine> = Box::new(LocalEngine::new(model, options));
    let limit = match config.rollout.max_sequence_tokens {
        0 => engine.context_length(),
        limit => limit.min(engine.context_length()),
    };
    let voice = Voice {
        format,
        checkpoint: source.digest.0.clone(),
        sampling: sampling_of(sampling),
        max_new_tokens: sampling.max_new_tokens,
        max_sequence_tokens: limit,
    };
    Ok((voice, engine))
}

/// How the chat crate calls the mode.
pub fn history(mode: HistoryMode) -> History {
    match mode {
        HistoryMode::Template => History::Template,
        HistoryMode::AsSampled => History::AsSampled,
    }
}

fn sampling_of(config: &SamplingConfig) -> Sampling {
    Sampling { temperature: config.temperature, top_p: config.top_p, top_k: config.top_k }
}

/// The tasks of a step: the split in an order drawn anew for each pass over it, cut into steps.
fn tasks_of_step(tasks: &[Arc<Task>], seed: u64, step: u64, per_step: usize) -> Vec<Arc<Task>> {
    let first = step.saturating_mul(per_step as u64);
    let mut chosen = drawn(tasks, seed, "task_order", first, per_step.min(tasks.len()));
    // A step that spans two passes may draw a task twice; a group is sampled once.
    chosen.sort_by(|a, b| a.id().cmp(b.id()));
    chosen.dedup_by(|a, b| a.id() == b.id());
    chosen
}

/// Cuts tasks into parts.
pub fn parts_of(tasks: &[Arc<Task>], per_part: usize, n_samples: i32) -> Vec<PartWork> {
    let parts = tasks.chunks(per_part.max(1)).zip(0u32..);
    parts.map(|(tasks, part)| PartWork { part, tasks: tasks.to_vec(), n_samples }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_common_beginning_counts_once() {
        let sequence = |token_ids: &[u32]| SequenceRow {
            task_id: String::new(),
            sample: 0,
            sequence_index: 0,
            role: String::new(),
            token_ids: token_ids.to_vec(),
            loss_mask: Vec::new(),
            sampling_logprobs: Vec::new(),
        };
        // [1 2 3], its continuation [4], the branch [5 6] after [1 2], and [7].
        let sequences = [&[1, 2, 3][..], &[7], &[1, 2, 5, 6], &[1, 2, 3, 4], &[1, 2, 3]].map(sequence);
        assert_eq!(n_distinct_tokens(&sequences), 3 + 1 + 2 + 1);
        assert_eq!(n_distinct_tokens(&[]), 0);
    }
}
