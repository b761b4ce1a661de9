//! The `evaluate` stage: plays the tasks of some splits with a checkpoint, and scores it.
//!
//! It writes the tables of a rollout and of a score, and `evaluations` over them.

use std::collections::BTreeMap;
use std::sync::Arc;

use envace_pipeline::{Execution, InputRef, Plan, StageSpec};
use envace_schemas::tables::{
    EvaluationRow, MessageRow, PassRateRow, RewardRow, TimingRow, TrajectoryRow, VerdictRow,
};
use envace_schemas::{Decimal, Table, batches_of, rows_of};
use envace_sql::{EvaluationParams, queries};
use serde_json::json;

use crate::config::RolloutConfig;
use crate::context::{GivenQuery, PolicySource, RunContext, StageOutcome, section};
use crate::drive::Stage;
use crate::error::JobError;
use crate::memory::refuse_too_large;
use crate::rollout::episode::Role;
use crate::rollout::prompt_tools::warn_of_unseen_tools;
use crate::rollout::scheduler::PartWork;
use crate::rollout::stage::{
    check_policies, history, n_trajectories, parts_of, play_parts, voices, write_rollout,
};
use crate::rollout::trajectory::{Settings, TrajectoryRows};
use crate::rollout::{Environment, EpisodeOptions};
use crate::score::stage::{messages_of, rewards, verdicts};
use crate::score::{ExternalGraders, PartRows, key_section};
use crate::task::Task;
use crate::world::World;

/// What the stage reads and writes.
pub const SPEC: StageSpec = StageSpec {
    name: "evaluate",
    version: 5,
    inputs: &[Table::Tasks],
    outputs: &[
        Table::Trajectories,
        Table::Messages,
        Table::Generations,
        Table::Sequences,
        Table::Verdicts,
        Table::JudgeCalls,
        Table::Rewards,
        Table::Evaluations,
        Table::PassRates,
    ],
    queries: &[queries::REWARDS, queries::EVALUATIONS, queries::PASS_RATES],
    config: "evaluate",
};

/// What there is to do at a step.
pub struct Evaluation {
    /// The plan.
    pub plan: Plan,
    source: PolicySource,
    rehearsal: Option<PolicySource>,
    work: Vec<PartWork>,
}

impl Evaluation {
    /// Trajectories that it plays.
    pub fn n_trajectories(&self) -> usize {
        n_trajectories(&self.work)
    }
}

/// Plans the stage: it measures the checkpoint that step `step` begins with. A part is a split.
///
/// # Errors
/// [`JobError`] if tasks or checkpoint are missing, or the step was made from something else.
pub async fn plan(ctx: &RunContext, step: u64) -> Result<Evaluation, JobError> {
    let config = &ctx.config.evaluate;
    let mut work = Vec::new();
    let mut input = None;
    for split in &config.splits {
        let (of_set, mut tasks) = ctx.tasks_of(split).await?;
        if config.n_tasks > 0 {
            tasks.truncate(config.n_tasks);
        }
        let part = work.len() as u32;
        let whole = parts_of(&tasks, tasks.len(), config.n_trials);
        work.extend(whole.into_iter().map(|whole| PartWork { part, ..whole }));
        input = Some(of_set);
    }
    let source = ctx.policy_at(step).await?;
    let rehearsal = ctx.rehearsal_at(step).await?;
    let inputs: Vec<InputRef> = input
        .into_iter()
        .chain([source.input.clone()])
        .chain(rehearsal.as_ref().map(|source| source.input.clone()))
        .collect();
    let section = json!({
        "seed": ctx.config.seed,
        "evaluate": section("evaluate", config)?,
        "rollout": section("rollout", &shared(&ctx.config.rollout))?,
        "score": key_section(&ctx.config.score)?,
    });
    let fingerprint = Some(ctx.fingerprint()?);
    let plan = ctx.plan(&SPEC, step, section, inputs, fingerprint, work.len()).await?;
    Ok(Evaluation { plan, source, rehearsal, work })
}

/// Checks that every split to be evaluated has tasks.
///
/// # Errors
/// [`JobError::Missing`] for one that has none.
pub async fn check_splits(ctx: &RunContext) -> Result<(), JobError> {
    for split in &ctx.config.evaluate.splits {
        ctx.tasks_of(split).await?;
    }
    Ok(())
}

/// Runs the stage, or reuses its output.
///
/// # Errors
/// As [`plan`], and whatever fails on the way.
pub async fn run(ctx: &RunContext, step: u64) -> Result<StageOutcome, JobError> {
    let evaluation = plan(ctx, step).await?;
    ctx.follow(&evaluation.plan, async |execution| execute(ctx, step, &evaluation, execution).await).await
}

/// Plays and scores the missing splits into `execution`.
///
/// # Errors
/// Whatever fails on the way.
pub async fn execute(
    ctx: &RunContext,
    step: u64,
    evaluation: &Evaluation,
    execution: &Execution,
) -> Result<(), JobError> {
    let missing = execution.missing_parts().await?;
    let work: Vec<PartWork> =
        evaluation.work.iter().filter(|part| missing.contains(&part.part)).cloned().collect();
    if work.is_empty() {
        return Ok(());
    }
    let (config, rollout) = (&ctx.config.evaluate, &ctx.config.rollout);
    let source = &evaluation.source;
    refuse_too_large(ctx, Stage::Evaluate, step).await?;
    check_policies(ctx, source, evaluation.rehearsal.as_ref()).await?;
    let policies = (source, evaluation.rehearsal.as_ref());
    let (actor, rehearsal, engines) = voices(&ctx.config, policies, (&config.actor, &config.rehearsal))?;
    let all: Vec<Arc<Task>> = work.iter().flat_map(|part| part.tasks.iter().cloned()).collect();
    warn_of_unseen_tools(&actor.format, rollout, all.iter().map(Arc::as_ref))?;
    let settings = Arc::new(Settings {
        seed: ctx.config.seed,
        purpose: "evaluate",
        // Trials of one seed are the same at every step, so that checkpoints are compared on equal draws.
        step: 0,
        episode: Arc::new(EpisodeOptions { environment: config.environment, ..rollout.episode.clone() }),
        history: history(rollout.history),
        thinking: rollout.thinking,
        tools_in_prompt: rollout.tools_in_prompt,
        actor,
        rehearsal,
    });
    let tasks: BTreeMap<&str, &Arc<Task>> = all.iter().map(|task| (task.id(), task)).collect();
    // Parts may be written at the same time, but a judge has one queue.
    let more = tokio::sync::Mutex::new(ExternalGraders::open(ctx, execution).await?);
    let write = async |part: u32, rows: TrajectoryRows, timings: Vec<TimingRow>| -> Result<(), JobError> {
        let mut verdicts = match config.environment {
            Environment::World => world_verdicts(&tasks, &rows.trajectories, &rows.messages)?,
            _ => verdicts(&tasks, ctx.config.score.grade, &rows.trajectories, &rows.messages)?,
        };
        let of_part = PartRows {
            tasks: &tasks,
            trajectories: &rows.trajectories,
            messages: &rows.messages,
            generations: &rows.generations,
        };
        let calls = more.lock().await.grade(execution, of_part, &mut verdicts).await?;
        let rewards = rewards(ctx, &ctx.config.score, &rows.trajectories, &verdicts).await?;
        let evaluations = evaluations(ctx, &source.digest.0, &rows, &rewards).await?;
        write_rollout(execution, part, &rows).await?;
        execution.write(part, &verdicts).await?;
        execution.write(part, &calls).await?;
        execution.write(part, &rewards).await?;
        execution.write(part, &evaluations.scores).await?;
        execution.write(part, &evaluations.pass_rates).await?;
        execution.write(part, &timings).await?;
        Ok(execution.finish_part(part).await?)
    };
    play_parts(format!("evaluate {step}"), settings, engines, work, write).await
}

/// The verdicts on trajectories that an executable world has run: final state and replies.
fn world_verdicts(
    tasks: &BTreeMap<&str, &Arc<Task>>,
    trajectories: &[TrajectoryRow],
    messages: &[MessageRow],
) -> Result<Vec<VerdictRow>, JobError> {
    let mut verdicts = Vec::new();
    for trajectory in trajectories {
        let Some(task) = tasks.get(trajectory.task_id.as_str()) else { continue };
        let world = World::from_task(task)
            .map_err(|error| JobError::refused(error.to_string(), "import it again"))?;
        let replies = replies(task.n_user_turns(), messages_of(messages, trajectory));
        let report = world.check(&replies);
        let last = task.n_user_turns().saturating_sub(1);
        let half = Decimal::from_scaled(500_000_000).unwrap_or(Decimal::ONE);
        let verdict = |user_turn: usize, item: &str, weight, reason: Option<String>| VerdictRow {
            task_id: trajectory.task_id.clone(),
            sample: trajectory.sample,
            user_turn: user_turn as i32,
            grader: "world".to_owned(),
            item: item.to_owned(),
            is_passed: Some(reason.is_none()),
            reason,
            weight,
            // No item gates another: the world has executed everything there was.
            is_required: false,
            request_hash: None,
        };
        let differs = trajectory.state_differences.clone().filter(|differences| differences != "[]");
        verdicts.push(verdict(last, "final_state", half, differs));
        for user_turn in 0..=last {
            let missing: Vec<&str> = report
                .missing
                .iter()
                .filter(|(turn, _)| *turn == user_turn)
                .map(|(_, text)| text.as_str())
                .collect();
            let reason = (!missing.is_empty()).then(|| format!("the reply lacks: {}", missing.join(", ")));
            let weight = if user_turn == last { half } else { Decimal::ONE };
            verdicts.push(verdict(user_turn, "reply", weight, reason));
        }
    }
    verdicts.sort_by(|a, b| {
        let key = |row: &VerdictRow| {
            (row.task_id.clone(), row.sample, row.user_turn, row.grader.clone(), row.item.clone())
        };
        key(a).cmp(&key(b))
    });
    Ok(verdicts)
}

/// The actor's final reply of each user turn; empty where there is none, as where it went on calling, or where its
/// last output holds a call that cannot be read.
fn replies(n_user_turns: usize, messages: &[MessageRow]) -> Vec<String> {
    let mut replies = vec![String::new(); n_user_turns];
    for message in messages {
        let place = usize::try_from(message.user_turn).ok().and_then(|turn| replies.get_mut(turn));
        let Some(reply) = place else { continue };
        let is_reply = message.written_by == Role::Actor.name()
            && message.tool_calls.is_none()
            && message.error_code.is_none();
        reply.clear();
        if is_reply {
            reply.push_str(&message.text);
        }
    }
    replies
}

/// What an evaluation comes to.
struct Evaluations {
    scores: Vec<EvaluationRow>,
    pass_rates: Vec<PassRateRow>,
}

async fn evaluations(
    ctx: &RunContext,
    checkpoint: &str,
    rows: &TrajectoryRows,
    rewards: &[RewardRow],
) -> Result<Evaluations, JobError> {
    let params = EvaluationParams { suite: ctx.config.tasks.set.clone(), checkpoint: checkpoint.to_owned() };
    let inputs = [
        (Table::Trajectories, batches_of(&rows.trajectories)?),
        (Table::Generations, batches_of(&rows.generations)?),
        (Table::Rewards, batches_of(rewards)?),
    ];
    let run = async |query, table| {
        let GivenQuery { name, text } = ctx.query(query);
        ctx.query_session().run_query(&name, &text, &inputs, &params.to_params(), table).await
    };
    Ok(Evaluations {
        scores: rows_of(&run(queries::EVALUATIONS, Table::Evaluations).await?)?,
        pass_rates: rows_of(&run(queries::PASS_RATES, Table::PassRates).await?)?,
    })
}

/// What an evaluation takes from `[rollout]`: all but what it has of its own.
fn shared(rollout: &RolloutConfig) -> RolloutConfig {
    let defaults = RolloutConfig::default();
    RolloutConfig {
        group_size: defaults.group_size,
        actor: defaults.actor,
        rehearsal: defaults.rehearsal,
        ..rollout.clone()
    }
}
