//! How much work a stage is, for a dry run: rows and tokens, counted without doing it.

use std::fmt;

use envace_model::chat::ChatFormat;
use envace_schemas::Table;
use envace_schemas::tables::SequenceRow;

use crate::context::RunContext;
use crate::drive::Stage;
use crate::error::JobError;
use crate::rollout::prompt_tools::actor_prompt;
use crate::task::Task;
use crate::{evaluate, rollout, sft};

/// Figures of a stage that has not run, each with what it counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Estimate(Vec<(&'static str, u64)>);

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures: Vec<String> = self.0.iter().map(|(what, figure)| format!("{figure} {what}")).collect();
        write!(f, "  work   {}", figures.join(", "))
    }
}

/// Counts what a stage would work on.
///
/// # Errors
/// [`JobError`] if an input is missing.
pub async fn estimate(ctx: &RunContext, stage: Stage, step: u64) -> Result<Estimate, JobError> {
    Ok(Estimate(match stage {
        Stage::Rollout => {
            let plan = rollout::stage::plan(ctx, step).await?;
            let config = &ctx.config.rollout;
            let n_trajectories = plan.n_trajectories() as u64;
            let n_prompt = opening_tokens(ctx, step, plan.tasks()).await?;
            vec![
                ("trajectories", n_trajectories),
                ("prompt tokens in their openings", n_prompt * config.group_size.unsigned_abs() as u64),
                ("tokens at most in each actor output", config.actor.max_new_tokens as u64),
                ("turns at most in each trajectory", config.episode.max_turns as u64),
            ]
        }
        Stage::Evaluate => {
            let plan = evaluate::plan(ctx, step).await?;
            vec![("trajectories", plan.n_trajectories() as u64)]
        }
        Stage::Score => {
            let manifest = ctx.output("rollout", step).await?.manifest().clone();
            vec![
                ("trajectories", manifest.n_rows(Table::Trajectories)),
                ("messages", manifest.n_rows(Table::Messages)),
            ]
        }
        Stage::Advantage => {
            let manifest = ctx.output("rollout", step).await?.manifest().clone();
            vec![("generations", manifest.n_rows(Table::Generations))]
        }
        Stage::Update => {
            let sequences: Vec<SequenceRow> = ctx.output("rollout", step).await?.read_all().await?;
            let n_tokens: usize = sequences.iter().map(|row| row.token_ids.len()).sum();
            let n_sampled: usize = sequences
                .iter()
                .map(|row| row.loss_mask.iter().filter(|is_sampled| **is_sampled).count())
                .sum();
            vec![
                ("sequences", sequences.len() as u64),
                ("tokens through the model at most", n_tokens as u64),
                ("sampled tokens among them", n_sampled as u64),
            ]
        }
        Stage::Sft => {
            let plan = sft::plan(ctx, step).await?;
            let config = &ctx.config.sft;
            vec![
                ("optimizer steps", config.optimizer_steps),
                ("tasks in each", config.tasks_per_batch as u64),
                ("tasks with a recorded dialogue", plan.n_tasks() as u64),
            ]
        }
    }))
}

/// Tokens of the first prompts of some tasks, each counted once.
async fn opening_tokens(
    ctx: &RunContext,
    step: u64,
    tasks: impl Iterator<Item = &Task>,
) -> Result<u64, JobError> {
    let format = ChatFormat::load(&ctx.policy_at(step).await?.model_dir)?;
    let config = &ctx.config.rollout;
    let mut n_tokens = 0;
    for task in tasks {
        let (messages, options) = actor_prompt(config, &task.opening, &task.tools);
        n_tokens += format.prompt(&messages, &options)?.ids.len() as u64;
    }
    Ok(n_tokens)
}
