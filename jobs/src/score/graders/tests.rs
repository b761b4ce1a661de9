//! Hand-worked trajectories and the verdicts on them.

mod calls;
mod endings;
mod properties;
mod replies;
mod world;

use envace_schemas::tables::{MessageRow, TaskRow, TrajectoryRow, VerdictRow};
use serde_json::{Value, json};

use super::{GradeOptions, Grader, Unforeseen};
use crate::task::Task;

/// A task with these graders, over as many user turns as they name.
pub(super) fn task(graders: &Value) -> Task {
    let specs = graders.as_array().unwrap();
    let last = specs.iter().map(|spec| spec["user_turn"].as_u64().unwrap()).max().unwrap_or(0);
    let later: Vec<String> = (0..last).map(|index| format!("and {index}?")).collect();
    let open = json!({"type": "object"});
    let tools = json!([
        {"name": "get", "parameters": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}},
        {"name": "find", "parameters": open}, {"name": "cancel", "parameters": open}, {"name": "create", "parameters": open},
        {"name": "broken", "parameters": {"type": "objekt"}},
    ]);
    Task::parse(TaskRow {
        task_id: "t".to_owned(),
        split: "train".to_owned(),
        family: None,
        source: "test".to_owned(),
        opening: r#"[{"role":"user","content":"hello"}]"#.to_owned(),
        tools: tools.to_string(),
        later_user_turns: json!(later).to_string(),
        recorded_calls: "[]".to_owned(),
        transcript: None,
        graders: graders.to_string(),
        checklist: None,
        world: None,
        task_hash: String::new(),
    })
    .unwrap()
}

/// A transcript that grows.
#[derive(Clone, Default)]
pub(super) struct Transcript {
    pub messages: Vec<MessageRow>,
    user_turns: i32,
    turns: i32,
}

impl Transcript {
    fn push(&mut self, speaker: &str, written_by: &str, text: &str) -> &mut MessageRow {
        let turn = (speaker != "user").then_some(self.turns - 1);
        self.messages.push(MessageRow {
            task_id: "t".to_owned(),
            sample: 0,
            message_index: i32::try_from(self.messages.len()).unwrap(),
            user_turn: self.user_turns - 1,
            turn,
            speaker: speaker.to_owned(),
            written_by: written_by.to_owned(),
            text: text.to_owned(),
            reasoning: None,
            tool_calls: None,
            call_id: None,
            tool_name: None,
            arguments: None,
            generation_index: None,
            error_code: None,
        });
        self.messages.last_mut().unwrap()
    }

    pub(super) fn user(mut self) -> Self {
        self.user_turns += 1;
        self.push("user", "script", "please");
        self
    }

    /// An actor message with calls `(tool, arguments, response)`; an empty response never came.
    pub(super) fn calls(mut self, calls: &[(&str, Value, &str)]) -> Self {
        self.turns += 1;
        let turn = self.turns - 1;
        let list: Vec<Value> = calls
            .iter()
            .enumerate()
            .map(|(index, (name, arguments, _))| {
                json!({"id": format!("call_{turn}_{index}"), "name": name, "arguments": arguments.to_string()})
            })
            .collect();
        self.push("assistant", "actor", "").tool_calls = Some(Value::Array(list).to_string());
        for (index, (name, arguments, response)) in
            calls.iter().enumerate().filter(|(_, call)| !call.2.is_empty())
        {
            let message = self.push("tool", "rehearsal", response);
            message.call_id = Some(format!("call_{turn}_{index}"));
            message.tool_name = Some((*name).to_owned());
            message.arguments = Some(arguments.to_string());
        }
        self
    }

    /// One call of `get` that was turned away before anything answered it.
    pub(super) fn turned_away(mut self, code: &str) -> Self {
        self = self.calls(&[("get", json!({"id": "x"}), r#"{"error":{"code":"X"}}"#)]);
        let message = self.messages.last_mut().unwrap();
        message.written_by = "envace".to_owned();
        message.error_code = Some(code.to_owned());
        self
    }

    /// An actor message whose call could not be read, and the report of it.
    pub(super) fn malformed(mut self, code: &str) -> Self {
        self.turns += 1;
        self.push("assistant", "actor", "<tool_call>oops");
        self.push("tool", "envace", r#"{"error":{}}"#).error_code = Some(code.to_owned());
        self
    }

    pub(super) fn reply(mut self, text: &str) -> Self {
        self.turns += 1;
        self.push("assistant", "actor", text);
        self
    }

    pub(super) fn trajectory(&self, end_reason: &str, is_partial: bool) -> TrajectoryRow {
        TrajectoryRow {
            task_id: "t".to_owned(),
            sample: 0,
            purpose: "train".to_owned(),
            split: "train".to_owned(),
            family: None,
            environment: "rehearsal".to_owned(),
            end_reason: end_reason.to_owned(),
            end_detail: None,
            is_partial,
            n_user_turns: self.user_turns,
            n_scripted_user_turns: self.user_turns,
            n_turns: self.turns,
            n_calls: 0,
            n_malformed_calls: 0,
            n_rehearsals: 0,
            n_malfunctions: 0,
            n_actor_tokens: 0,
            n_rehearsal_tokens: 0,
            final_state_hash: None,
            state_differences: None,
        }
    }
}

pub(super) fn user() -> Transcript {
    Transcript::default().user()
}

/// Verdicts of a finished trajectory.
pub(super) fn verdicts(graders: &Value, transcript: &Transcript) -> Vec<VerdictRow> {
    Grader::new(&task(graders)).grade(&transcript.trajectory("finished", false), &transcript.messages)
}

/// A verdict as text: `yes`, `no: reason` or `null: reason`.
pub(super) fn shown(verdict: &VerdictRow) -> String {
    let reason = verdict.reason.as_deref();
    match verdict.is_passed {
        Some(true) => {
            assert_eq!(reason, None);
            "yes".to_owned()
        }
        Some(false) => format!("no: {}", reason.unwrap()),
        None => format!("null: {}", reason.unwrap()),
    }
}

/// One grader of user turn 0, and the verdict on it.
pub(super) fn one(grader: &Value, transcript: &Transcript) -> String {
    let mut spec = json!({"item": "x", "user_turn": 0, "weight": 1});
    spec.as_object_mut().unwrap().extend(grader.as_object().unwrap().clone());
    shown(&verdicts(&json!([spec]), transcript)[0])
}

/// The same where what rests on an unforeseen response fails.
pub(super) fn one_unforeseen_fails(grader: &Value, transcript: &Transcript) -> String {
    let mut spec = json!({"item": "x", "user_turn": 0, "weight": 1});
    spec.as_object_mut().unwrap().extend(grader.as_object().unwrap().clone());
    let task = task(&json!([spec]));
    let options = GradeOptions { unforeseen_response: Unforeseen::Failed, ..GradeOptions::default() };
    let grader = Grader::new(&task).with_options(options);
    shown(&grader.grade(&transcript.trajectory("finished", false), &transcript.messages)[0])
}
