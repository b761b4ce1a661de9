//! The `score` stage: grades the trajectories of a step and rewards them.

use std::collections::BTreeMap;
use std::sync::Arc;

use envace_pipeline::{Execution, InputRef, Plan, StageOutput, StageSpec};
use envace_schemas::tables::{GenerationRow, MessageRow, RewardRow, TrajectoryRow, VerdictRow};
use envace_schemas::{Table, batches_of, rows_of};
use envace_sql::{check_covered, queries};

use super::part::{ExternalGraders, PartRows, key_section};
use super::{GradeOptions, Grader};
use crate::config::ScoreConfig;
use crate::context::{GivenQuery, RunContext, StageOutcome};
use crate::error::JobError;
use crate::rollout::episode::Role;
use crate::task::Task;

/// What the stage reads and writes.
pub const SPEC: StageSpec = StageSpec {
    name: "score",
    version: 3,
    inputs: &[Table::Tasks, Table::Trajectories, Table::Messages, Table::Generations],
    outputs: &[Table::Verdicts, Table::JudgeCalls, Table::Rewards],
    queries: &[queries::REWARDS],
    config: "score",
};

/// Plans the stage.
///
/// # Errors
/// [`JobError`] if the rollout is missing, or the step was made from something else.
pub async fn plan(ctx: &RunContext, step: u64) -> Result<(Plan, StageOutput), JobError> {
    let rollout = ctx.output("rollout", step).await?;
    let (tasks, _) = ctx.tasks().await?;
    let inputs = vec![
        tasks,
        InputRef::table(rollout.manifest(), Table::Trajectories)?,
        InputRef::table(rollout.manifest(), Table::Messages)?,
        InputRef::table(rollout.manifest(), Table::Generations)?,
    ];
    let config = key_section(&ctx.config.score)?;
    let n_parts = rollout.n_parts(Table::Trajectories)? as usize;
    Ok((ctx.plan(&SPEC, step, config, inputs, None, n_parts).await?, rollout))
}

/// Runs the stage, or reuses its output.
///
/// # Errors
/// As [`plan`], and whatever fails on the way.
pub async fn run(ctx: &RunContext, step: u64) -> Result<StageOutcome, JobError> {
    let (plan, rollout) = plan(ctx, step).await?;
    ctx.follow(&plan, async |execution| execute(ctx, &rollout, execution).await).await
}

/// Grades the missing parts into `execution`.
///
/// # Errors
/// [`JobError::Refused`] if more trajectories than allowed are ungraded; whatever fails on the way.
pub async fn execute(ctx: &RunContext, rollout: &StageOutput, execution: &Execution) -> Result<(), JobError> {
    let (_, tasks) = ctx.tasks().await?;
    let tasks: BTreeMap<&str, &Arc<Task>> = tasks.iter().map(|task| (task.id(), task)).collect();
    let mut more = ExternalGraders::open(ctx, execution).await?;
    for part in execution.missing_parts().await? {
        let trajectories: Vec<TrajectoryRow> = rollout.read(part).await?;
        let messages: Vec<MessageRow> = rollout.read(part).await?;
        let mut verdicts = verdicts(&tasks, ctx.config.score.grade, &trajectories, &messages)?;
        let generations: Vec<GenerationRow> = rollout.read(part).await?;
        let of_part = PartRows {
            tasks: &tasks,
            trajectories: &trajectories,
            messages: &messages,
            generations: &generations,
        };
        let calls = more.grade(execution, of_part, &mut verdicts).await?;
        let rewards = rewards(ctx, &ctx.config.score, &trajectories, &verdicts).await?;
        execution.write(part, &verdicts).await?;
        execution.write(part, &calls).await?;
        execution.write(part, &rewards).await?;
        execution.finish_part(part).await?;
    }
    check_graded(execution, &ctx.config.score).await
}

/// Refuses a step of which too much is ungraded, whichever process made its parts.
async fn check_graded(execution: &Execution, config: &ScoreConfig) -> Result<(), JobError> {
    let allowed = config.max_ungraded_share;
    let (mut n_rewards, mut ungraded) = (0_usize, BTreeMap::<String, usize>::new());
    for part in 0..execution.n_parts() {
        // Another process has committed meanwhile: then its parts were checked by it.
        let Some(rewards) = execution.read_finished::<RewardRow>(part).await? else { return Ok(()) };
        for reward in rewards {
            if reward.role != Role::Actor.name() {
                continue;
            }
            n_rewards += 1;
            if reward.reward.is_none() {
                *ungraded.entry(reward.ungraded_reason.unwrap_or_default()).or_default() += 1;
            }
        }
    }
    let n_ungraded: usize = ungraded.values().sum();
    if n_rewards == 0 || n_ungraded as f64 / n_rewards as f64 <= allowed {
        return Ok(());
    }
    // Else the next run would find them finished and refuse again, also when it asks a judge anew.
    execution.reopen_parts().await?;
    let reasons: Vec<String> = ungraded.iter().map(|(reason, n)| format!("{reason} {n}")).collect();
    let again = match config.judge {
        Some(_) => "; with `--refresh failed` the judge is asked again what it did not answer",
        None => "",
    };
    Err(JobError::refused(
        format!("{n_ungraded} of {n_rewards} trajectories are ungraded ({})", reasons.join(", ")),
        format!(
            "`score.max_ungraded_share` allows {allowed}; `envace-jobs show --run {} --step {}` lists the trajectories, and \
             prints one with how it ended and why{again}",
            execution.id().run,
            execution.id().step
        ),
    ))
}

/// The verdicts on some trajectories, in the order of the table.
///
/// # Errors
/// [`JobError::Refused`] if a trajectory is of no known task.
pub fn verdicts(
    tasks: &BTreeMap<&str, &Arc<Task>>,
    options: GradeOptions,
    trajectories: &[TrajectoryRow],
    messages: &[MessageRow],
) -> Result<Vec<VerdictRow>, JobError> {
    let mut verdicts = Vec::new();
    let mut graders: BTreeMap<&str, Grader<'_>> = BTreeMap::new();
    for trajectory in trajectories {
        let task = tasks.get(trajectory.task_id.as_str()).ok_or_else(|| {
            JobError::refused(
                format!("trajectory of a task that is not in the set: {}", trajectory.task_id),
                "the task set was changed after the rollout; run the rollout again as a new attempt",
            )
        })?;
        let grader = graders.entry(task.id()).or_insert_with(|| Grader::new(task).with_options(options));
        let own = messages_of(messages, trajectory);
        verdicts.extend(grader.grade(trajectory, own));
    }
    Ok(verdicts)
}

/// The messages of one trajectory; those of a part are sorted by it.
pub fn messages_of<'a>(messages: &'a [MessageRow], trajectory: &TrajectoryRow) -> &'a [MessageRow] {
    let key = (trajectory.task_id.as_str(), trajectory.sample);
    let of = |message: &MessageRow| (message.task_id.as_str(), message.sample) < key;
    let start = messages.partition_point(of);
    let rest = messages.get(start..).unwrap_or_default();
    let len = rest.partition_point(|message| (message.task_id.as_str(), message.sample) == key);
    rest.get(..len).unwrap_or_default()
}

/// Runs the reward query.
///
/// # Errors
/// [`JobError::Sql`] if the query fails, or a replaced one makes another table.
pub async fn rewards(
    ctx: &RunContext,
    config: &ScoreConfig,
    trajectories: &[TrajectoryRow],
    verdicts: &[VerdictRow],
) -> Result<Vec<RewardRow>, JobError> {
    let inputs = [(Table::Trajectories, batches_of(trajectories)?), (Table::Verdicts, batches_of(verdicts)?)];
    let GivenQuery { name, text } = ctx.query(queries::REWARDS);
    let batches = ctx
        .query_session()
        .run_query(&name, &text, &inputs, &config.params().to_params(), Table::Rewards)
        .await?;
    check_covered(&name, (Table::Rewards, &batches), (inputs[0].0, &inputs[0].1))?;
    Ok(rows_of(&batches)?)
}
