//! Whether the memory of this machine is enough for a stage: said by a dry run, and checked before a stage begins.
//!
//! What is needed is worked out in [`envace_model::memory`]; here is what the configuration asks for.

use std::fmt;

use envace_model::engine::EngineOptions;
use envace_model::memory::{Bytes, MemoryNeed, ModelSize, SamplingWork, TrainingWork};
use envace_model::{AdapterConfig, TrainerOptions};
use envace_schemas::tables::SequenceRow;

use crate::config::{Config, StatePlace};
use crate::context::{PolicySource, RunContext};
use crate::drive::Stage;
use crate::error::JobError;
use crate::sft;
use crate::trainable::scratch_in_memory;
use crate::update::Chain;

/// What a stage needs of memory and what there is, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageMemory {
    stage: Stage,
    need: MemoryNeed,
    /// What it needs of the shortest sequence, where its sequences are not known yet and `need` is of the most that may go
    /// through the model at once.
    least: Option<MemoryNeed>,
    /// What does not fit though the stage does.
    caveat: Option<String>,
    /// `None` where the system does not tell.
    available: Option<u64>,
    /// Settings that would make it less.
    advice: Vec<String>,
    is_checked: bool,
}

impl fmt::Display for StageMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at_most = if self.least.is_some() { "at most " } else { "" };
        write!(f, "  memory {} needs {at_most}{}", self.stage, self.need)?;
        if let Some(bytes) = self.available {
            write!(f, "; available {}", Bytes(bytes))?;
        }
        self.caveat.as_ref().map_or(Ok(()), |caveat| write!(f, "; {caveat}"))
    }
}

impl StageMemory {
    /// Refuses what cannot fit, unless `execution.check_memory` is off.
    ///
    /// # Errors
    /// [`JobError::Refused`] with the settings that would make it less.
    pub fn check(&self) -> Result<(), JobError> {
        let Some(available) = self.available else { return Ok(()) };
        let need = self.least.as_ref().unwrap_or(&self.need);
        if need.total() <= available || !self.is_checked {
            return Ok(());
        }
        Err(JobError::refused(
            format!(
                "{} needs more memory than the {} that are available: {}",
                self.stage,
                Bytes(available),
                need
            ),
            format!(
                "set {}; or begin all the same with `execution.check_memory = false`",
                self.advice.join(", or ")
            ),
        ))
    }
}

/// What a stage at a step needs of main memory; `None` for one that loads no model there.
///
/// On a GPU a rollout has nothing in main memory, and training what it keeps between passes: weights, gradients and
/// optimizer state. What the GPU needs is not worked out; where it does not fit, the stage fails.
///
/// Training is counted by the sequences it has; an update of a rollout that is not there, by the tokens that may go
/// through the model at once, and it is refused only if not even one fits.
///
/// # Errors
/// [`JobError`] if the checkpoint that the step begins with is missing or damaged.
pub async fn stage_memory(
    ctx: &RunContext,
    stage: Stage,
    step: u64,
) -> Result<Option<StageMemory>, JobError> {
    let config = &ctx.config;
    let (mut least, mut caveat) = (None, None);
    let (need, advice) = match stage {
        Stage::Score | Stage::Advantage => return Ok(None),
        Stage::Rollout | Stage::Evaluate if config.execution.is_on_gpu() => return Ok(None),
        Stage::Rollout | Stage::Evaluate => {
            let policies = [Some(ctx.policy_at(step).await?), ctx.rehearsal_at(step).await?];
            let mut need = MemoryNeed { parts: Vec::new() };
            for policy in policies.iter().flatten() {
                need.add(sampling(policy, config)?);
                caveat = caveat.or(cache_caveat(policy, config)?);
            }
            let advice = ["a smaller `execution.kv_memory`", "a smaller `execution.max_batch`"];
            (need, advice.map(str::to_owned).to_vec())
        }
        Stage::Update => {
            let n_known = update_tokens(ctx, step).await?;
            let n_tokens = n_known.unwrap_or(config.update.micro_batch_tokens);
            let mut largest: Option<(MemoryNeed, Vec<String>)> = None;
            // Weights of two roles are trained one after the other.
            for Chain { source, reference, .. } in Chain::all(ctx, step).await? {
                let need_of = |work: &TrainingWork| -> Result<MemoryNeed, JobError> {
                    let mut need = updating(config, &source, reference.as_ref(), work)?;
                    need.add(scratch(ctx, &source)?);
                    Ok(need)
                };
                let work = training_work(config, &source, n_tokens, config.update.recompute_layers)?;
                let need = need_of(&work)?;
                if largest.as_ref().is_some_and(|(largest, _)| largest.total() >= need.total()) {
                    continue;
                }
                if n_known.is_none() {
                    least = Some(need_of(&TrainingWork { n_tokens: 1, n_trained: 1, ..work })?);
                }
                largest = Some((need, advice("update", &work)));
            }
            match largest {
                Some(largest) => largest,
                None => return Ok(None),
            }
        }
        Stage::Sft => {
            let policy = ctx.policy_at(step).await?;
            let n_tokens = sft::largest_pass(ctx, step, &policy).await?;
            let work = training_work(config, &policy, n_tokens, config.sft.recompute_layers)?;
            let mut need = in_main_memory(config, ModelSize::read(&policy.model_dir)?.training(&work));
            need.add(scratch(ctx, &policy)?);
            (need, advice("sft", &work))
        }
    };
    let (available, is_checked) = (available_bytes(), config.execution.check_memory);
    Ok(Some(StageMemory { stage, need, least, caveat, available, advice, is_checked }))
}

/// Refuses a stage that cannot fit; see [`StageMemory::check`].
///
/// # Errors
/// As [`stage_memory`] and [`StageMemory::check`].
pub async fn refuse_too_large(ctx: &RunContext, stage: Stage, step: u64) -> Result<(), JobError> {
    if !ctx.config.execution.check_memory {
        return Ok(());
    }
    stage_memory(ctx, stage, step).await?.map_or(Ok(()), |memory| memory.check())
}

/// Keys and values count as far as the generations under way can fill their room, each as long as may be; what is kept
/// beyond that for prompts to come takes the room that is left.
fn sampling(policy: &PolicySource, config: &Config) -> Result<MemoryNeed, JobError> {
    let size = ModelSize::read(&policy.model_dir)?;
    // An adapter's matrices are merged in 32 bits.
    let size = if policy.base.is_some() { size.widened() } else { size };
    let execution = &config.execution;
    let n_tokens = execution.max_batch.saturating_mul(longest(&size, config));
    Ok(size.sampling(&SamplingWork {
        max_batch: execution.max_batch,
        kv_bytes: size.kv_bytes(n_tokens).min(execution.kv_bytes()),
        prefill_tokens: EngineOptions::default().prefill_tokens,
    }))
}

/// What the cache cannot hold, if `execution.kv_memory` has less room than the longest sequence may need.
fn cache_caveat(policy: &PolicySource, config: &Config) -> Result<Option<String>, JobError> {
    let size = ModelSize::read(&policy.model_dir)?;
    let (limit, room) = (longest(&size, config), config.execution.kv_bytes());
    if config.execution.is_kv_enlarged() || size.kv_bytes(limit) <= room {
        return Ok(None);
    }
    let n_tokens = size.kv_tokens(room);
    Ok(Some(format!(
        "`execution.kv_memory` of {} has no room for a sequence of more than {n_tokens} tokens, and sequences may have {limit}",
        Bytes(room)
    )))
}

/// Tokens of the longest sequence that a rollout may make.
fn longest(size: &ModelSize, config: &Config) -> usize {
    match config.rollout.max_sequence_tokens {
        0 => size.context_length(),
        limit => limit.min(size.context_length()),
    }
}

/// An update's trainer, beside the model that its KL divergence is of.
fn updating(
    config: &Config,
    policy: &PolicySource,
    reference: Option<&PolicySource>,
    work: &TrainingWork,
) -> Result<MemoryNeed, JobError> {
    let training = in_main_memory(config, ModelSize::read(&policy.model_dir)?.training(work));
    let Some(reference) = reference else { return Ok(training) };
    // The base of the adapter that is trained is there already.
    if work.adapter_rank.is_some() && *policy.model_digest() == reference.digest {
        return Ok(training);
    }
    let reference = ModelSize::read(&reference.model_dir)?.reference(work);
    Ok(with_reference(training, in_main_memory(config, reference)))
}

fn training_work(
    config: &Config,
    policy: &PolicySource,
    n_tokens: usize,
    recompute_layers: bool,
) -> Result<TrainingWork, JobError> {
    let adapter_rank = match &config.lora {
        Some(lora) => Some(lora.rank),
        None if policy.base.is_some() => Some(AdapterConfig::load(&policy.dir)?.rank),
        None => None,
    };
    Ok(TrainingWork {
        n_tokens,
        n_trained: n_tokens,
        recompute_layers,
        has_scratch: config.execution.optimizer_state == StatePlace::Disk,
        logprob_chunk_rows: TrainerOptions::default().logprob_chunk_rows,
        adapter_rank,
    })
}

/// The reference is asked once, beside the loaded trainer, and freed before training begins: the larger moment counts.
fn with_reference(training: MemoryNeed, reference: MemoryNeed) -> MemoryNeed {
    let mut beside = parts_of(&training, &["weights", "master values", "optimizer state", "adapter"]);
    beside.add(reference);
    if beside.total() > training.total() { beside } else { training }
}

/// Of training, what a GPU leaves to main memory: what is kept between passes.
fn in_main_memory(config: &Config, training: MemoryNeed) -> MemoryNeed {
    if !config.execution.is_on_gpu() {
        return training;
    }
    parts_of(
        &training,
        &["weights", "weights of the reference", "master values", "gradients", "optimizer state", "adapter"],
    )
}

fn parts_of(need: &MemoryNeed, names: &[&str]) -> MemoryNeed {
    MemoryNeed { parts: need.parts.iter().filter(|(what, _)| names.contains(what)).copied().collect() }
}

/// The file that takes the optimizer's state out of memory, where it lies in memory itself.
fn scratch(ctx: &RunContext, policy: &PolicySource) -> Result<MemoryNeed, JobError> {
    let n_bytes = scratch_in_memory(ctx, policy)?;
    let part = n_bytes.map(|n_bytes| ("optimizer state in a folder in memory", n_bytes));
    Ok(MemoryNeed { parts: part.into_iter().collect() })
}

/// Tokens of the largest pass of an update: at most the budget, or a sequence beyond it. `None` if its rollout is not there.
async fn update_tokens(ctx: &RunContext, step: u64) -> Result<Option<usize>, JobError> {
    if ctx.store.latest(&ctx.run, "rollout", step).await?.is_none() {
        return Ok(None);
    }
    let sequences: Vec<SequenceRow> = ctx.output("rollout", step).await?.read_all().await?;
    let lengths = || sequences.iter().map(|row| row.token_ids.len());
    let budget = ctx.config.update.micro_batch_tokens;
    Ok(Some(lengths().sum::<usize>().min(budget.max(lengths().max().unwrap_or_default()))))
}

fn advice(section: &str, work: &TrainingWork) -> Vec<String> {
    let mut advice = Vec::new();
    if !work.has_scratch && work.adapter_rank.is_none() {
        advice.push("`execution.optimizer_state = \"disk\"`".to_owned());
    }
    if !work.recompute_layers {
        advice.push(format!("`{section}.recompute_layers = true`"));
    }
    advice.push(format!("a smaller `{section}.micro_batch_tokens`"));
    advice
}

/// Memory that this process may still take: of the machine, or less where a control group has a limit.
fn available_bytes() -> Option<u64> {
    let read = |path: &str| fs_err::read_to_string(path).ok();
    let of_machine = available_of_machine(&read("/proc/meminfo")?)?;
    let of_group = || {
        let [limit, current, stat] =
            ["max", "current", "stat"].map(|name| read(&format!("/sys/fs/cgroup/memory.{name}")));
        available_of_group(&limit?, &current?, &stat?)
    };
    Some(of_group().map_or(of_machine, |of_group| of_group.min(of_machine)))
}

fn available_of_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The limit less what is taken; copies of files in memory give way.
fn available_of_group(limit: &str, current: &str, stat: &str) -> Option<u64> {
    let limit: u64 = limit.trim().parse().ok()?;
    let current: u64 = current.trim().parse().ok()?;
    let of_files: u64 = stat.lines().find_map(|line| line.strip_prefix("file "))?.trim().parse().ok()?;
    Some(limit.saturating_sub(current.saturating_sub(of_files)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_tells_is_understood() {
        // The first lines of a real file.
        let meminfo =
            "MemTotal:       24624508 kB\nMemFree:         1048576 kB\nMemAvailable:   20971520 kB\n";
        assert_eq!(available_of_machine(meminfo), Some(20 << 30));
        assert_eq!(available_of_machine("MemTotal: 1 kB\n"), None);
        assert_eq!(
            available_of_group("8589934592\n", "5368709120\n", "anon 1\nfile 1073741824\n"),
            Some(4 << 30)
        );
        assert_eq!(available_of_group("max\n", "5368709120\n", "file 1073741824\n"), None);
    }

    #[test]
    fn with_a_gpu_main_memory_holds_what_is_kept_between_passes() {
        let parts = vec![("weights", 4), ("gradients", 5), ("kept activations", 100), ("logits", 1000)];
        let mut config = Config::default();
        assert_eq!(in_main_memory(&config, MemoryNeed { parts: parts.clone() }).parts, parts);
        config.execution.device = "cuda:0".to_owned();
        let of_training = in_main_memory(&config, MemoryNeed { parts });
        assert_eq!(of_training.parts, [("weights", 4), ("gradients", 5)]);
        // Asking the reference takes more than training then, whatever activations are.
        let reference = vec![("weights of the reference", 9), ("activations of the reference", 90)];
        let reference = in_main_memory(&config, MemoryNeed { parts: reference });
        assert_eq!(with_reference(of_training, reference).total(), 13);
    }

    #[test]
    fn what_cannot_fit_is_refused_with_what_to_change() {
        let work = TrainingWork {
            n_tokens: 1,
            n_trained: 1,
            recompute_layers: false,
            has_scratch: false,
            logprob_chunk_rows: 1,
            adapter_rank: None,
        };
        let memory = StageMemory {
            stage: Stage::Update,
            need: MemoryNeed { parts: vec![("weights", 3_000_000_000), ("logits", 1_000_000_000)] },
            least: None,
            caveat: None,
            available: Some(4_000_000_000),
            advice: advice("update", &work),
            is_checked: true,
        };
        assert!(memory.check().is_ok(), "just enough");
        assert_eq!(
            memory.to_string(),
            "  memory update needs 4.0 GB: weights 3.0 GB, logits 1.0 GB; available 4.0 GB"
        );
        // Of sequences that are not there yet, only what the shortest needs is refused.
        let to_come = StageMemory {
            least: Some(MemoryNeed { parts: vec![("weights", 3_000_000_000)] }),
            available: Some(3_500_000_000),
            caveat: Some("and so on".to_owned()),
            ..memory.clone()
        };
        assert!(to_come.check().is_ok());
        assert_eq!(
            to_come.to_string(),
            "  memory update needs at most 4.0 GB: weights 3.0 GB, logits 1.0 GB; available 3.5 GB; and so on"
        );
        let error = StageMemory { available: Some(2_900_000_000), ..to_come }.check().unwrap_err();
        assert_eq!(
            error.to_string(),
            "update needs more memory than the 2.9 GB that are available: 3.0 GB: weights 3.0 GB"
        );
        let less = StageMemory { available: Some(3_900_000_000), ..memory.clone() };
        let error = less.check().unwrap_err();
        assert_eq!(
            error.to_string(),
            "update needs more memory than the 3.9 GB that are available: 4.0 GB: weights 3.0 GB, logits 1.0 GB"
        );
        assert_eq!(
            error.hint().unwrap(),
            "set `execution.optimizer_state = \"disk\"`, or `update.recompute_layers = true`, or a smaller \
             `update.micro_batch_tokens`; or begin all the same with `execution.check_memory = false`"
        );
        assert!(StageMemory { is_checked: false, ..less.clone() }.check().is_ok());
        assert!(StageMemory { available: None, ..less }.check().is_ok());
    }
}
