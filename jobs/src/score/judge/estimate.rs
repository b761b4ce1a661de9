//! How many calls a score would make, and what they would cost.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use envace_pipeline::Execution;
use envace_schemas::tables::{MessageRow, TrajectoryRow};

use super::prompt::Prompts;
use super::recorded::Recorded;
use super::trajectory::{Asking, Point};
use super::{judged_trajectories, stage};
use crate::config::JudgeEndpoints;
use crate::context::RunContext;
use crate::error::JobError;
use crate::score::stage::verdicts;
use crate::task::Task;

/// Bytes of text to a token, where no call has told.
const BYTES_PER_TOKEN: u64 = 4;

/// What judging a step would take.
#[derive(Debug, Clone, PartialEq)]
pub struct JudgeEstimate {
    /// Different questions: at most, as what lies beyond a required item that does not pass is not asked.
    pub n_questions: u64,
    /// Those of them that have an answer, or have failed, in the store.
    pub n_recorded: u64,
    /// Tokens in the requests that are left, and whether calls have told how many a request has.
    pub n_request_tokens: u64,
    /// Tokens in their answers: as many as in those that are there, else at most.
    pub n_response_tokens: u64,
    /// Whether calls that are there have told of their tokens.
    pub is_measured: bool,
    /// What they cost, in the unit of the prices. `None`: no price is known.
    pub price: Option<f64>,
}

impl fmt::Display for JudgeEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { n_questions, n_recorded, n_request_tokens, n_response_tokens, .. } = self;
        let n_calls = n_questions - n_recorded;
        writeln!(
            f,
            "  judge  {n_calls} calls at most: {n_questions} questions, {n_recorded} of them asked already"
        )?;
        let (basis, bound) = match self.is_measured {
            true => ("as in the calls that are there", "about"),
            false => ("4 bytes a token", "at most"),
        };
        write!(
            f,
            "  tokens about {n_request_tokens} in requests ({basis}), {bound} {n_response_tokens} in answers"
        )?;
        match self.price {
            Some(price) => write!(f, "\n  price  {price:.2}"),
            None => Ok(()),
        }
    }
}

/// Estimates what judging a step takes, without asking anything; `None` without a judge.
///
/// # Errors
/// [`JobError`] if the rollout is missing, or tasks, prompt or store cannot be read.
pub async fn estimate(ctx: &RunContext, step: u64) -> Result<Option<JudgeEstimate>, JobError> {
    let Some(config) = &ctx.config.score.judge else { return Ok(None) };
    let (plan, rollout) = stage::plan(ctx, step).await?;
    let is_there = plan.reused().is_some();
    let n_parts = plan.key_parts.n_parts;
    let recorded = Recorded::load(ctx, &Execution::new(&ctx.store, plan)).await?;
    let prompts = Prompts::load(&config.prompt)?;
    let asking = Asking::new(config, &prompts, ctx.config.score.grade)?;
    let (_, tasks) = ctx.tasks().await?;
    let tasks: BTreeMap<&str, &Arc<Task>> = tasks.iter().map(|task| (task.id(), task)).collect();
    let (mut seen, mut n_recorded, mut n_bytes) = (BTreeSet::new(), 0, 0);
    for part in 0..n_parts {
        let trajectories: Vec<TrajectoryRow> = rollout.read(part).await?;
        let messages: Vec<MessageRow> = rollout.read(part).await?;
        let verdicts = verdicts(&tasks, ctx.config.score.grade, &trajectories, &messages)?;
        for judged in judged_trajectories(&asking, &tasks, &trajectories, &messages, &verdicts)? {
            for user_turn in 0..judged.n_user_turns() {
                let points = judged.points(&asking, user_turn)?;
                for question in points.iter().flat_map(Point::questions) {
                    if !seen.insert(question.hash.clone()) {
                        continue;
                    }
                    if is_there || recorded.get(&question.hash).is_some() {
                        n_recorded += 1;
                    } else {
                        n_bytes +=
                            serde_json::to_string(&question.request).map_or(0, |text| text.len()) as u64;
                    }
                }
            }
        }
    }
    let n_calls = seen.len() as u64 - n_recorded;
    let (n_told, asked, answered) = recorded.n_tokens();
    let per_call = |sum: i64| (sum.unsigned_abs() * n_calls).checked_div(n_told.unsigned_abs());
    let n_request_tokens = per_call(asked).unwrap_or(n_bytes / BYTES_PER_TOKEN);
    let n_response_tokens = per_call(answered).unwrap_or(n_calls * u64::from(config.max_tokens));
    Ok(Some(JudgeEstimate {
        n_questions: seen.len() as u64,
        n_recorded,
        n_request_tokens,
        n_response_tokens,
        is_measured: n_told > 0,
        price: price(&ctx.config.execution.judge, n_request_tokens, n_response_tokens),
    }))
}

fn price(prices: &JudgeEndpoints, n_request_tokens: u64, n_response_tokens: u64) -> Option<f64> {
    let JudgeEndpoints { request_token_price, response_token_price, .. } = prices;
    let is_known = *request_token_price > 0.0 || *response_token_price > 0.0;
    let sum = n_request_tokens as f64 * request_token_price + n_response_tokens as f64 * response_token_price;
    is_known.then_some(sum / 1e6)
}
