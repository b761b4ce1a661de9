use proptest::prelude::*;
use serde_json::json;

use super::*;

#[test]
fn good_lines_go_in_and_bad_ones_are_named() {
    let report = import_fixture("own.jsonl", Format::Jsonl);
    assert_eq!(report.to_string(), "2 tasks imported, 12 records refused");
    let ids: Vec<_> = report
        .rows
        .iter()
        .map(|row| (row.task_id.as_str(), row.split.as_str(), row.source.as_str()))
        .collect();
    assert_eq!(ids, [("a", "train", "jsonl"), ("b", "held_out", "mine")]);
    // Byte for byte, the double space included.
    assert_eq!(
        report.rows[0].tools,
        r#"[{"name": "find",  "parameters": {"type": "object", "properties": {}}}]"#
    );
    assert_eq!(report.rows[0].recorded_calls, "[]");
    assert_eq!(report.rows[1].world.as_deref(), Some(r#"{"seed": 7}"#));
    assert_eq!(task(&report, "a").later_user_turns, ["And now?"]);
    assert!(task(&report, "a").graders[0].is_required);
    let hash = report.rows.iter().find(|row| row.task_id == "b").map(task_hash).unwrap();
    assert_eq!(report.rows[1].task_hash, hash);

    let refusals = refusals(&report);
    let expected = [
        "line 4 (`c`): not a task: unknown field `color`, expected one of",
        "line 5: not a task: EOF while parsing an object at column 62",
        "line 6 (`a`): its task id is that of line 1 already",
        "line 7 (`e`): weights of user turn 0 must sum to 1: 0.9",
        "line 8 (`f`): grader 0 has no such field: requird",
        "line 9 (`g`): task `g`: `opening` must end with a user message",
        "line 10 (`h`): it has neither graders nor a checklist",
        "line 11 (`i`): `task_hash` must be left out or that of the other columns: ",
        "line 12 (` `): its task id is empty",
        "line 13: not a task: missing field `task_id`",
        "line 14 (`k`): task `k`: a recorded call names user turn 1, the script has 1",
        "line 15 (`l`): grader 0: unknown variant `call_valid`, expected one of",
    ];
    assert_eq!(refusals.len(), expected.len());
    for (refusal, expected) in refusals.iter().zip(expected) {
        assert!(refusal.starts_with(expected), "{refusal}\n{expected}");
    }
}

#[test]
fn options_fill_in_what_a_line_leaves_out() {
    let options = ImportOptions {
        split: Some("test".to_owned()),
        source: Some("here".to_owned()),
        ..ImportOptions::default()
    };
    let report = import_path(&fixture("own.jsonl"), Format::Jsonl, &options).unwrap();
    let named: Vec<_> = report.rows.iter().map(|row| (row.split.as_str(), row.source.as_str())).collect();
    assert_eq!(named, [("test", "here"), ("held_out", "mine")]);
}

#[test]
fn a_broken_array_is_an_error_with_its_place() {
    let error = import(b"[{\"task_id\": \"a\"},\n {]", Format::Jsonl, &ImportOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "JSON array is broken at line 2, column 3");
    assert!(error.hint().is_some());
    let report = import("\u{feff}\r\n \n".as_bytes(), Format::Jsonl, &ImportOptions::default()).unwrap();
    assert_eq!(report, ImportReport::default());
    let report = import(b"{\"task_id\": \"\xff\"}\n", Format::Jsonl, &ImportOptions::default()).unwrap();
    assert_eq!(refusals(&report), ["line 1: it is no UTF-8"]);
    let error = import(b"PAR1 and no more", Format::Reference, &ImportOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "Parquet file cannot be read");
    let missing = import_path(&fixture("none.jsonl"), Format::Jsonl, &ImportOptions::default()).unwrap_err();
    assert!(missing.to_string().starts_with("file cannot be read: "), "{missing}");
}

#[test]
fn what_is_exported_is_imported_the_same() {
    let mut rows = import_fixture("own.jsonl", Format::Jsonl).rows;
    rows.extend(import_fixture("reference.json", Format::Reference).rows);
    rows.extend(crate::world::tasks(7, &[(crate::world::Split::Drift, 3)], 0));
    let text = export_jsonl(&rows).unwrap();
    assert_eq!(text.lines().count(), rows.len());
    let report = import(text.as_bytes(), Format::Jsonl, &ImportOptions::default()).unwrap();
    assert_eq!(refusals(&report), [""; 0]);
    assert_eq!(report.rows, rows);
    rows[0].tools = "[".to_owned();
    assert!(export_jsonl(&rows).is_err());
}

proptest! {
    #[test]
    fn any_text_and_any_white_space_survive(text in "\\PC{0,20}", space in "[ \t\r\n]{0,3}", name in "[a-z]{1,4}") {
        let opening = format!("{space}[{space}{{\"role\":{space}\"user\",\"content\":{}}}]{space}", json!(text));
        let tools = format!("[{{\"name\":{space}{}}}]", json!(name));
        let graders = json!([{"item": text, "user_turn": 0, "weight": 1, "grader": "calls_valid"}]);
        let mut row = import_fixture("own.jsonl", Format::Jsonl).rows.remove(1);
        row.opening = opening;
        row.tools = tools;
        row.graders = graders.to_string();
        row.task_hash = task_hash(&row);
        let text = export_jsonl(std::slice::from_ref(&row)).unwrap();
        let report = import(text.as_bytes(), Format::Jsonl, &ImportOptions::default()).unwrap();
        prop_assert_eq!(report.rows, [row]);
    }

    #[test]
    fn no_bytes_stop_the_import(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for format in [Format::Jsonl, Format::Reference, Format::Bfcl] {
            if let Ok(report) = import(&bytes, format, &ImportOptions::default()) {
                prop_assert_eq!(report.rows.len(), 0);
            }
        }
    }
}
