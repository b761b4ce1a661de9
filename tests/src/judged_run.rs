//! A rollout made by hand whose tasks have checklists, for tests of the judge.

use envace_jobs::config::Config;
use envace_jobs::context::RunContext;
use envace_jobs::rollout::stage as rollout;
use envace_jobs::task::task_hash;
use envace_jobs::task_set::{self, TaskSource};
use envace_pipeline::{Execution, InputRef, Plan, PlanRequest, Store};
use envace_schemas::Table;
use envace_schemas::tables::{GenerationRow, MessageRow, SequenceRow, TaskRow, TrajectoryRow};
use serde_json::{Value, json};

/// Name of the run.
pub const RUN: &str = "judged";

/// A task and its trajectories, each with its transcript.
pub type Part = (TaskRow, Vec<(TrajectoryRow, Vec<MessageRow>)>);

/// A checklist item; `extra` is put over its fields.
pub fn item(id: &str, weight: f64, extra: Value) -> Value {
    let mut item = json!({
        "id": id, "question": format!("Is point {id} met?"), "focus_on": "assistant.content.user_visible_reply",
        "pass_condition": "it is", "failure_examples": ["it is not"], "evidence": [],
        "required_for_next_turn": false, "dependence": [], "weight": weight,
    });
    if let (Some(item), Some(extra)) = (item.as_object_mut(), extra.as_object()) {
        item.extend(extra.clone());
    }
    item
}

/// A task of as many user turns as `checklist` has, in its only variant.
pub fn task(task_id: &str, checklist: &[Vec<Value>]) -> TaskRow {
    let later: Vec<String> = (1..checklist.len()).map(|turn| format!("and then {turn}?")).collect();
    let tool = json!({"type": "function", "function": {
        "name": "look", "description": "looks", "parameters": {"type": "object", "properties": {}},
    }});
    let mut row = TaskRow {
        task_id: task_id.to_owned(),
        split: "train".to_owned(),
        family: None,
        source: "test".to_owned(),
        opening: json!([{"role": "user", "content": "Please look."}]).to_string(),
        tools: json!([tool]).to_string(),
        later_user_turns: json!(later).to_string(),
        recorded_calls: json!([
            {"user_turn": 0, "name": "look", "arguments": {}, "result": "{\"seen\": \"a recorded thing\"}"},
        ])
        .to_string(),
        transcript: None,
        graders: "[]".to_owned(),
        checklist: Some(json!([checklist]).to_string()),
        world: None,
        task_hash: String::new(),
    };
    row.task_hash = task_hash(&row);
    row
}

/// A trajectory that finished: in each user turn a call, its imagined response, and a reply that names the sample.
pub fn trajectory(task: &TaskRow, sample: i32, n_user_turns: i32) -> (TrajectoryRow, Vec<MessageRow>) {
    let row = TrajectoryRow {
        task_id: task.task_id.clone(),
        sample,
        purpose: "train".to_owned(),
        split: "train".to_owned(),
        family: None,
        environment: "rehearsal".to_owned(),
        end_reason: "finished".to_owned(),
        end_detail: None,
        is_partial: false,
        n_user_turns,
        n_scripted_user_turns: n_user_turns,
        n_turns: 2 * n_user_turns,
        n_calls: n_user_turns,
        n_malformed_calls: 0,
        n_rehearsals: n_user_turns,
        n_malfunctions: 0,
        n_actor_tokens: 10,
        n_rehearsal_tokens: 5,
        final_state_hash: None,
        state_differences: None,
    };
    let mut messages = Vec::new();
    for user_turn in 0..n_user_turns {
        let mut add =
            |speaker: &str, written_by: &str, turn: Option<i32>, text: String, calls: Option<String>| {
                let is_tool = speaker == "tool";
                messages.push(MessageRow {
                    task_id: task.task_id.clone(),
                    sample,
                    message_index: messages.len() as i32,
                    user_turn,
                    turn,
                    speaker: speaker.to_owned(),
                    written_by: written_by.to_owned(),
                    text,
                    reasoning: None,
                    tool_calls: calls,
                    call_id: is_tool.then(|| "c1".to_owned()),
                    tool_name: is_tool.then(|| "look".to_owned()),
                    arguments: is_tool.then(|| "{}".to_owned()),
                    generation_index: None,
                    error_code: None,
                });
            };
        let call = json!([{"id": "c1", "name": "look", "arguments": "{}"}]).to_string();
        add("user", "script", None, format!("user turn {user_turn}"), None);
        add("assistant", "actor", Some(2 * user_turn), String::new(), Some(call));
        add("tool", "rehearsal", Some(2 * user_turn), "{\"seen\": \"a thing\"}".to_owned(), None);
        let reply = format!("sample {sample} of {} saw a thing in user turn {user_turn}", task.task_id);
        add("assistant", "actor", Some(2 * user_turn + 1), reply, None);
    }
    (row, messages)
}

/// Stores tasks and the rollout of step 0, a part a task, and opens the run.
///
/// # Errors
/// Whatever the store fails with.
pub async fn stored(
    store: Store,
    config: &str,
    parts: Vec<Part>,
) -> Result<RunContext, Box<dyn std::error::Error>> {
    let tasks: Vec<TaskRow> = parts.iter().map(|(task, _)| task.clone()).collect();
    let set =
        task_set::store(&store, "judged", TaskSource::World { seed: 0, slips: 0 }, &tasks, false).await?;
    let tasks = InputRef::table(&set, Table::Tasks)?;
    let config = Config::parse(&format!("tasks.set = \"judged\"\n{config}"), "test")?;
    let ctx = RunContext::open(store, RUN, Some(config), false).await?;
    let mut request = PlanRequest::new(&rollout::SPEC, RUN, 0, json!({}), vec![tasks]);
    request.n_parts = parts.len() as u32;
    let execution = Execution::new(&ctx.store, Plan::make(&ctx.store, request).await?);
    for (part, (_, trajectories)) in (0..).zip(parts) {
        let (rows, messages): (Vec<TrajectoryRow>, Vec<Vec<MessageRow>>) = trajectories.into_iter().unzip();
        execution.write(part, &rows).await?;
        execution.write(part, &messages.concat()).await?;
        execution.write::<GenerationRow>(part, &[]).await?;
        execution.write::<SequenceRow>(part, &[]).await?;
        execution.finish_part(part).await?;
    }
    execution.commit().await?;
    Ok(ctx)
}
