use envace_model::chat::Speaker;
use serde_json::{Value, json};

use super::*;

fn records() -> Value {
    serde_json::from_slice(&fs_err::read(fixture("reference.json")).unwrap()).unwrap()
}

#[test]
fn a_record_becomes_a_task() {
    let report = import_fixture("reference.json", Format::Reference);
    assert_eq!(refusals(&report), [""; 0]);
    let task = task(&report, "library-1");
    assert_eq!((task.row.split.as_str(), task.row.source.as_str()), ("train", "demo"));
    assert_eq!(task.row.family, None);
    let opening: Vec<_> =
        task.opening.iter().map(|message| (message.role, message.content.as_str())).collect();
    let expected =
        [(Speaker::System, "You serve a library."), (Speaker::User, "Hold the café guide for card 771.")];
    assert_eq!(opening, expected);
    assert_eq!(task.later_user_turns, ["Until when?"]);
    assert_eq!(task.graders, []);

    // Arguments and results byte for byte: escapes, double spaces and `{}` stay.
    let calls: Vec<_> = task
        .recorded_calls
        .iter()
        .map(|call| (call.user_turn, call.name.as_str(), call.arguments.get(), call.result.as_str()))
        .collect();
    let expected = [
        (0, "find_copy", r#"{"title": "caf\u00e9 guide"}"#, r#"{"copy": "c9",  "in": true}"#),
        (0, "find_card", r#"{"number": "771"}"#, r#"{"owner": {}}"#),
        (0, "place_hold", r#"{"copy": "c9"}"#, "held until Friday"),
    ];
    assert_eq!(calls, expected);

    let transcript = task.transcript.as_ref().unwrap();
    assert_eq!(transcript.len(), 10);
    assert_eq!(transcript[2].reasoning_content.as_deref(), Some("Two lookups first."));
    assert_eq!(transcript[2].content, "One moment.");
    // The ids of the record are not unique; these are.
    let ids: Vec<_> =
        transcript.iter().flat_map(|message| &message.tool_calls).map(|call| call.id.as_str()).collect();
    assert_eq!(ids, ["call_0_0", "call_0_1", "call_1_0"]);
    let answered: Vec<_> = transcript.iter().filter_map(|message| message.tool_call_id.as_deref()).collect();
    assert_eq!(answered, ids);
    assert_eq!(transcript[3].name.as_deref(), Some("find_copy"));

    let record = &records()[0];
    let checklist: Value = serde_json::from_str(task.row.checklist.as_ref().unwrap()).unwrap();
    assert_eq!(checklist, record["extra_info"]["interaction_kwargs"]["checklist_list"]);
    assert_eq!(task.row.tools, record["extra_info"]["tools"].as_str().unwrap());
}

#[test]
fn json_lines_and_parquet_hold_the_same_tasks() {
    let array = import_fixture("reference.json", Format::Reference);
    let lines: Vec<String> = records().as_array().unwrap().iter().map(Value::to_string).collect();
    let lines = import(lines.join("\n").as_bytes(), Format::Reference, &ImportOptions::default()).unwrap();
    let nested = import_fixture("reference_nested.parquet", Format::Reference);
    let texts = import_fixture("reference_texts.parquet", Format::Reference);
    for (name, other) in [("lines", lines), ("nested", nested), ("texts", texts)] {
        assert_eq!(refusals(&other), [""; 0], "{name}");
        assert_eq!(other.rows.len(), 2, "{name}");
        for (row, other) in array.rows.iter().zip(&other.rows) {
            let checklist =
                |row: &TaskRow| serde_json::from_str::<Value>(row.checklist.as_ref().unwrap()).unwrap();
            assert_eq!(checklist(row), checklist(other), "{name}");
            // Only the white space of the checklist may differ, and the hash with it.
            let mut same = other.clone();
            same.checklist.clone_from(&row.checklist);
            same.task_hash.clone_from(&row.task_hash);
            assert_eq!(*row, same, "{name}");
        }
    }
}

#[test]
fn every_invariant_is_enforced() {
    type Change = fn(&mut Value);
    let cases: &[(&str, Change)] = &[
        ("checklist 1 has 1 user turns, the dialogue 2", |record| {
            record["extra_info"]["interaction_kwargs"]["checklist_list"][1].as_array_mut().unwrap().pop();
        }),
        ("checklist 0 has 2 user turns, the dialogue 1", |record| {
            let messages = record["extra_info"]["messages"].as_array_mut().unwrap();
            messages.truncate(messages.len() - 2);
        }),
        ("checklist 0, user turn 0: weights must sum to 1: 1.00001", |record| {
            record["extra_info"]["interaction_kwargs"]["checklist_list"][0][0][0]["weight"] = json!(0.40001);
        }),
        ("checklist 0, user turn 0: weight of item `C0` is negative: -0.4", |record| {
            record["extra_info"]["interaction_kwargs"]["checklist_list"][0][0][0]["weight"] = json!(-0.4);
        }),
        ("checklist 0, user turn 0: two items are called `C0`", |record| {
            record["extra_info"]["interaction_kwargs"]["checklist_list"][0][0][1]["id"] = json!("C0");
        }),
        ("`checklist_list` does not parse: unknown variant `reply`", |record| {
            record["extra_info"]["interaction_kwargs"]["checklist_list"][0][1][0]["focus_on"] =
                json!("reply");
        }),
        ("it has no checklist", |record| {
            record["extra_info"]["interaction_kwargs"]["checklist_list"] = json!([]);
        }),
        ("`checklist_list` does not parse: missing field `question`", |record| {
            record["extra_info"]["interaction_kwargs"]["checklist_list"][0][0][0]
                .as_object_mut()
                .unwrap()
                .remove("question");
        }),
        ("`extra_info.messages`: message 4: 2 calls were made, but 1 responses follow", |record| {
            record["extra_info"]["messages"].as_array_mut().unwrap().remove(3);
        }),
        ("`extra_info.messages`: the dialogue ends: 1 calls were made, but 0 responses follow", |record| {
            record["extra_info"]["messages"].as_array_mut().unwrap().truncate(6);
        }),
        ("`extra_info.messages`: message 7: it is the response to no call", |record| {
            let message = json!({"role": "observation", "content": "{}"});
            record["extra_info"]["messages"].as_array_mut().unwrap().insert(7, message);
        }),
        (
            "`extra_info.messages`: message 2: arguments of call 0 are no JSON: expected ident at column 2",
            |record| {
                record["extra_info"]["messages"][2]["tool_calls"][0]["function"]["arguments"] = json!("none");
            },
        ),
        ("`extra_info.messages`: message 1: no such role: developer", |record| {
            record["extra_info"]["messages"][1]["role"] = json!("developer");
        }),
        ("`extra_info.messages`: message 7: `content` is no text", |record| {
            record["extra_info"]["messages"][7]["content"] = json!({"text": 1});
        }),
        ("`messages` must end with the first user message", |record| {
            record["messages"].as_array_mut().unwrap().push(json!({"role": "assistant", "content": "hi"}));
        }),
        ("`messages` must hold exactly one user message", |record| {
            record["messages"].as_array_mut().unwrap().pop();
        }),
        ("`messages` and `extra_info.messages` begin with different user messages", |record| {
            record["messages"][1]["content"] = json!("Something else.");
        }),
        ("user message 1 is empty", |record| {
            record["extra_info"]["messages"][8]["content"] = json!(" ");
        }),
        ("`extra_info.original_index` must be the `uuid`: x", |record| {
            record["extra_info"]["original_index"] = json!("x");
        }),
        ("`tools` do not parse: EOF while parsing a list at column 1", |record| {
            record["extra_info"]["tools"] = json!("[");
        }),
        ("two tools are called `f`", |record| {
            record["extra_info"]["tools"] = json!(r#"[{"name": "f"}, {"name": "f"}]"#);
        }),
        ("a tool has no `name`", |record| record["extra_info"]["tools"] = json!("[{}]")),
        ("schema of tool `f` is broken: ", |record| {
            record["extra_info"]["tools"] = json!(r#"[{"name": "f", "parameters": {"type": "objekt"}}]"#);
        }),
        ("`find_copy` is called, but there are no tools", |record| {
            record["extra_info"]["tools"] = json!("[]")
        }),
        ("not a record: missing field `uuid`", |record| {
            record.as_object_mut().unwrap().remove("uuid");
        }),
    ];
    for (expected, change) in cases {
        let mut records = records();
        change(&mut records[0]);
        let report =
            import(records.to_string().as_bytes(), Format::Reference, &ImportOptions::default()).unwrap();
        assert_eq!(report.rows.len(), 1, "{expected}");
        let id =
            if expected.contains("`uuid`") && expected.starts_with("not") { "" } else { " (`library-1`)" };
        let refusals = refusals(&report);
        assert!(refusals[0].starts_with(&format!("record 1{id}: {expected}")), "{}\n{expected}", refusals[0]);
    }
}

#[test]
fn what_varies_between_writers_is_understood() {
    type Change = fn(&mut Value);
    let same: &[(&str, Change)] = &[
        ("observation", |record| record["extra_info"]["messages"][3]["role"] = json!("observation")),
        ("calls named, out of order", |record| {
            let messages = record["extra_info"]["messages"].as_array_mut().unwrap();
            messages[3]["tool_call_id"] = json!("a");
            messages[4]["tool_call_id"] = json!("b");
        }),
        ("null calls", |record| record["extra_info"]["messages"][9]["tool_calls"] = json!(null)),
        ("null content", |record| record["extra_info"]["messages"][5]["content"] = json!(null)),
        ("text parts", |record| {
            record["extra_info"]["messages"][7]["content"] =
                json!([{"type": "text", "text": "It is "}, {"type": "text", "text": "held."}]);
        }),
        ("weights in the last digits", |record| {
            record["extra_info"]["interaction_kwargs"]["checklist_list"][0][0][0]["weight"] =
                json!(0.400_000_9);
        }),
    ];
    let plain = import_fixture("reference.json", Format::Reference);
    for (name, change) in same {
        let mut records = records();
        change(&mut records[0]);
        let report =
            import(records.to_string().as_bytes(), Format::Reference, &ImportOptions::default()).unwrap();
        assert_eq!(refusals(&report), [""; 0], "{name}");
        assert_eq!(report.rows[0].transcript, plain.rows[0].transcript, "{name}");
        assert_eq!(report.rows[0].recorded_calls, plain.rows[0].recorded_calls, "{name}");
    }
    // Responses in the other order, told apart by the ids of their calls.
    let mut records = records();
    let messages = records[0]["extra_info"]["messages"].as_array_mut().unwrap();
    messages[3]["tool_call_id"] = json!("a");
    messages[4]["tool_call_id"] = json!("b");
    messages.swap(3, 4);
    let report =
        import(records.to_string().as_bytes(), Format::Reference, &ImportOptions::default()).unwrap();
    let task = task(&report, "library-1");
    let results: Vec<_> =
        task.recorded_calls.iter().map(|call| (call.name.as_str(), call.result.as_str())).collect();
    assert_eq!(
        results[..2],
        [("find_card", r#"{"owner": {}}"#), ("find_copy", r#"{"copy": "c9",  "in": true}"#)]
    );
}
