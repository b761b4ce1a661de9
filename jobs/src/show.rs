//! One trajectory as text: who said what, and what it was worth.

use std::fmt::Write;

use envace_pipeline::{PipelineError, StageOutput, Store};
use envace_schemas::tables::{AdvantageRow, GenerationRow, MessageRow, RewardRow, TrajectoryRow, VerdictRow};

use crate::error::JobError;

/// The transcript of a trajectory with its verdicts, rewards and advantages, as far as they are there; without a
/// task, the list of the step's trajectories.
///
/// # Errors
/// [`JobError::Pipeline`] if the stage has no output; [`JobError::Missing`] if it has no such trajectory.
pub async fn show(
    store: &Store,
    run: &str,
    stage: &str,
    step: u64,
    task_id: Option<&str>,
    sample: i32,
) -> Result<String, JobError> {
    let rollout = StageOutput::latest(store, run, stage, step).await?;
    let trajectories: Vec<TrajectoryRow> = rollout.read_all().await?;
    // An evaluation holds its own scores.
    let score =
        if stage == "rollout" { optional(store, run, "score", step).await? } else { Some(rollout.clone()) };
    let rewards: Vec<RewardRow> = match &score {
        Some(score) => score.read_all().await?,
        None => Vec::new(),
    };
    let Some(task_id) = task_id else { return Ok(list(&trajectories, &rewards)) };
    let is_it = |task: &str, number: i32| task == task_id && number == sample;
    let Some(trajectory) = trajectories.iter().find(|row| is_it(&row.task_id, row.sample)) else {
        return Err(JobError::missing(
            format!("`{stage}` of run `{run}`, step {step}, has no trajectory {sample} of task: {task_id}"),
            "leave the task out to list the trajectories",
        ));
    };
    let messages: Vec<MessageRow> = rollout.read_all().await?;
    let generations: Vec<GenerationRow> = rollout.read_all().await?;
    let verdicts: Vec<VerdictRow> = match &score {
        Some(score) => score.read_all().await?,
        None => Vec::new(),
    };
    let advantages: Vec<AdvantageRow> = match optional(store, run, "advantage", step).await? {
        Some(advantage) if stage == "rollout" => advantage.read_all().await?,
        _ => Vec::new(),
    };
    let mut text = head(trajectory);
    for message in messages.iter().filter(|row| is_it(&row.task_id, row.sample)) {
        let advantage = advantages.iter().find(|row| {
            is_it(&row.task_id, row.sample) && Some(row.generation_index) == message.generation_index
        });
        text.push_str(&shown(message, advantage));
    }
    let malformed =
        generations.iter().filter(|row| is_it(&row.task_id, row.sample) && row.error_code.is_some());
    for generation in malformed {
        let code = generation.error_code.as_deref().unwrap_or_default();
        _ = writeln!(text, "\ngeneration {} ({}): {code}", generation.generation_index, generation.role);
        push_indented(&mut text, &generation.text);
    }
    text.push('\n');
    for verdict in verdicts.iter().filter(|row| is_it(&row.task_id, row.sample)) {
        let outcome = match verdict.is_passed {
            Some(true) => "passed",
            Some(false) => "failed",
            None => "ungraded",
        };
        let reason = verdict.reason.as_deref().map_or_else(String::new, |reason| format!(": {reason}"));
        _ = writeln!(
            text,
            "{outcome} user turn {} {} {} (weight {}){reason}",
            verdict.user_turn, verdict.grader, verdict.item, verdict.weight
        );
    }
    for reward in rewards.iter().filter(|row| is_it(&row.task_id, row.sample)) {
        let shown = reward.reward.map_or_else(|| "NULL".to_owned(), |reward| reward.to_string());
        let reason =
            reward.ungraded_reason.as_deref().map_or_else(String::new, |reason| format!(" ({reason})"));
        _ = writeln!(text, "reward {} {shown}{reason}", reward.role);
    }
    Ok(text)
}

async fn optional(store: &Store, run: &str, stage: &str, step: u64) -> Result<Option<StageOutput>, JobError> {
    match StageOutput::latest(store, run, stage, step).await {
        Ok(output) => Ok(Some(output)),
        Err(PipelineError::NoOutput { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn list(trajectories: &[TrajectoryRow], rewards: &[RewardRow]) -> String {
    let mut text = String::new();
    for row in trajectories {
        let reward = rewards.iter().find(|reward| {
            (&reward.task_id, reward.sample) == (&row.task_id, row.sample) && reward.role == "actor"
        });
        let shown = match reward {
            None => "not scored".to_owned(),
            Some(reward) => reward.reward.map_or_else(|| "NULL".to_owned(), |reward| reward.to_string()),
        };
        let TrajectoryRow { task_id, sample, end_reason, n_turns, n_calls, .. } = row;
        _ = writeln!(
            text,
            "{task_id} {sample}  {end_reason}, {n_turns} turns, {n_calls} calls, reward {shown}"
        );
    }
    text
}

fn head(row: &TrajectoryRow) -> String {
    let family = row.family.as_deref().map_or_else(String::new, |family| format!(", {family}"));
    let detail = row.end_detail.as_deref().map_or_else(String::new, |detail| format!(" ({detail})"));
    format!(
        "{} {}  {}{family}, calls answered by {}\nended: {}{detail}; {} of {} user turns, {} turns, {} calls\n",
        row.task_id,
        row.sample,
        row.split,
        row.environment,
        row.end_reason,
        row.n_user_turns,
        row.n_scripted_user_turns,
        row.n_turns,
        row.n_calls
    )
}

fn shown(message: &MessageRow, advantage: Option<&AdvantageRow>) -> String {
    let mut text = format!("\n[{}] {}, by {}", message.message_index, message.speaker, message.written_by);
    if let Some(tool) = &message.tool_name {
        _ = write!(text, ", {tool}");
    }
    if let Some(code) = &message.error_code {
        _ = write!(text, ", {code}");
    }
    match advantage {
        Some(AdvantageRow { advantage: Some(advantage), .. }) => {
            _ = write!(text, ", advantage {advantage:+.3}")
        }
        Some(AdvantageRow { exclusion_reason: Some(reason), .. }) => _ = write!(text, ", excluded: {reason}"),
        _ => {}
    }
    text.push('\n');
    if let Some(reasoning) = message.reasoning.as_deref().filter(|reasoning| !reasoning.is_empty()) {
        push_indented(&mut text, &format!("<think> {reasoning} </think>"));
    }
    push_indented(&mut text, &message.text);
    if let Some(calls) = &message.tool_calls {
        push_indented(&mut text, calls);
    }
    text
}

fn push_indented(text: &mut String, lines: &str) {
    for line in lines.lines() {
        _ = writeln!(text, "    {line}");
    }
}
