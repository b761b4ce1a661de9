//! The task that the tests of this module play.

use envace_schemas::tables::TaskRow;
use serde_json::json;

use crate::task::Task;

/// Two user turns at a library desk, with a system message and recorded calls of both user turns.
pub(crate) fn library_task() -> Task {
    let system = json!({"role": "system", "content": "Be brief."});
    let user = json!({"role": "user", "content": "Is Dune free at Elm St? Hold it for card 771."});
    let call =
        |id: &str, name: &str, arguments: &str| json!({"id": id, "name": name, "arguments": arguments});
    let tool = |id: &str, name: &str, content: &str| json!({"role": "tool", "content": content, "tool_call_id": id, "name": name});
    let transcript = json!([
        system,
        user,
        {"role": "assistant", "content": "", "reasoning_content": "Look first.",
         "tool_calls": [call("r0", "find_copy", r#"{"title": "Dune", "branch": "Elm St"}"#)]},
        tool("r0", "find_copy", r#"{"copy_id": "c9", "status": "in"}"#),
        {"role": "assistant", "content": "It is in.",
         "tool_calls": [
             call("r1", "place_hold", r#"{"copy_id": "c9", "card": 771}"#),
             call("r2", "hold_status", r#"{"hold": "h1"}"#)]},
        tool("r1", "place_hold", r#"{"hold": "h1", "until": "Fri"}"#),
        tool("r2", "hold_status", r#"["waiting"]"#),
        {"role": "assistant", "content": "Done, it waits for you."},
        {"role": "user", "content": "Which day?"},
        {"role": "assistant", "content": "",
         "tool_calls": [call("r3", "hold_status", r#"{"hold": "h1"}"#)]},
        tool("r3", "hold_status", r#"["ready"]"#),
        {"role": "assistant", "content": "Friday."},
    ]);
    let function = |name: &str, properties: serde_json::Value, required: serde_json::Value| {
        json!({"type": "function", "function": {"name": name, "description": format!("{name}."),
            "parameters": {"type": "object", "properties": properties, "required": required}}})
    };
    let tools = json!([
        function(
            "find_copy",
            json!({"title": {"type": "string"}, "branch": {"type": "string", "enum": ["Elm St", "Main St"]}}),
            json!(["title"])
        ),
        function(
            "place_hold",
            json!({"copy_id": {"type": "string"}, "card": {"type": "number"}}),
            json!(["copy_id", "card"])
        ),
        function("hold_status", json!({"hold": {"type": "string"}}), json!(["hold"])),
    ]);
    let recorded = |user_turn: usize, name: &str, arguments: serde_json::Value, result: &str| json!({"user_turn": user_turn, "name": name, "arguments": arguments, "result": result});
    let recorded_calls = json!([
        recorded(
            0,
            "find_copy",
            json!({"title": "Dune", "branch": "Elm St"}),
            r#"{"copy_id": "c9", "status": "in"}"#
        ),
        recorded(0, "place_hold", json!({"copy_id": "c9", "card": 771}), r#"{"hold": "h1", "until": "Fri"}"#),
        recorded(0, "hold_status", json!({"hold": "h1"}), r#"["waiting"]"#),
        recorded(1, "hold_status", json!({"hold": "h1"}), r#"["ready"]"#),
    ]);
    let row = TaskRow {
        task_id: "library".to_owned(),
        split: "train".to_owned(),
        family: None,
        source: "test".to_owned(),
        opening: json!([system, user]).to_string(),
        tools: tools.to_string(),
        later_user_turns: json!(["Which day?"]).to_string(),
        recorded_calls: recorded_calls.to_string(),
        transcript: Some(transcript.to_string()),
        graders: json!([{"item": "valid", "user_turn": 0, "weight": "1", "grader": "calls_valid"}])
            .to_string(),
        checklist: None,
        world: None,
        task_hash: "00".to_owned(),
    };
    Task::parse(row).expect("the task is sound")
}
