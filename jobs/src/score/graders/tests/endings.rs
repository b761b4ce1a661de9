//! Trajectories that end early, rows as a whole, the gate during a rollout.

use serde_json::{Value, json};

use super::{Transcript, shown, task, user};
use crate::score::{GradeOptions, Grader, PartialUserTurn, grade, passes_gate};

/// Over three user turns: calls of `get`, required, and a reply with `ok`.
fn graders() -> Value {
    let items = (0..3).flat_map(|user_turn| {
        [
            json!({"item": "calls", "user_turn": user_turn, "weight": "0.7", "required": true, "grader": "calls",
                   "order": "subset", "calls": [{"name": "get", "arguments": {"id": {"is": "a"}}}]}),
            json!({"item": "reply", "user_turn": user_turn, "weight": "0.3", "grader": "reply_contains", "texts": ["ok"]}),
        ]
    });
    items.collect()
}

fn good(transcript: Transcript) -> Transcript {
    transcript.calls(&[("get", json!({"id": "a"}), "{}")])
}

fn all(transcript: &Transcript, end_reason: &str, is_partial: bool) -> Vec<String> {
    let task = task(&graders());
    let verdicts = grade(&task, &transcript.trajectory(end_reason, is_partial), &transcript.messages);
    verdicts.iter().map(shown).collect()
}

#[test]
fn every_item_has_a_verdict_whatever_the_end() {
    let one_done = good(user()).reply("ok").user();
    let cases: &[(&str, Transcript, &str, bool, [&str; 6])] = &[
        (
            "finished",
            good(good(one_done.clone()).reply("ok").user()).reply("ok"),
            "finished",
            false,
            ["yes", "yes", "yes", "yes", "yes", "yes"],
        ),
        (
            "stopped by a cap in the second user turn",
            good(one_done.clone()),
            "max_turns",
            true,
            [
                "yes",
                "yes",
                "yes",
                "no: there is no final reply",
                "no: user turn not reached",
                "no: user turn not reached",
            ],
        ),
        (
            "cut off by the rehearsal role in the second user turn",
            good(one_done.clone()),
            "rehearsal_failed",
            true,
            [
                "yes",
                "yes",
                "null: cut off: rehearsal_failed",
                "null: cut off: rehearsal_failed",
                "null: cut off: rehearsal_failed",
                "null: cut off: rehearsal_failed",
            ],
        ),
        (
            "ended between user turns",
            good(user()).reply("ok"),
            "max_user_turns",
            false,
            [
                "yes",
                "yes",
                "no: user turn not reached",
                "no: user turn not reached",
                "no: user turn not reached",
                "no: user turn not reached",
            ],
        ),
        (
            "stopped in the middle of a reply",
            user().reply("ok"),
            "length",
            true,
            [
                "no: call of `get` was not made",
                "no: there is no final reply",
                "no: user turn not reached",
                "no: user turn not reached",
                "no: user turn not reached",
                "no: user turn not reached",
            ],
        ),
    ];
    for (name, transcript, end_reason, is_partial, expected) in cases {
        assert_eq!(all(transcript, end_reason, *is_partial), expected, "{name}");
    }
}

#[test]
fn a_user_turn_that_was_cut_off_may_fail_as_a_whole() {
    let transcript = good(good(user()).reply("ok").user());
    let task = task(&graders());
    let options = GradeOptions { partial_user_turn: PartialUserTurn::Failed, ..GradeOptions::default() };
    let grader = Grader::new(&task).with_options(options);
    let verdicts = grader.grade(&transcript.trajectory("malformed_calls", true), &transcript.messages);
    let verdicts: Vec<String> = verdicts.iter().map(shown).collect();
    let cut_off = "no: user turn cut off: malformed_calls";
    assert_eq!(verdicts[..5], ["yes", "yes", cut_off, cut_off, "no: user turn not reached"]);
}

#[test]
fn rows_say_what_the_item_declares() {
    let transcript = good(user()).reply("no");
    let task = task(&graders());
    let verdicts = grade(&task, &transcript.trajectory("finished", false), &transcript.messages);
    let keys: Vec<_> =
        verdicts.iter().map(|row| (row.user_turn, row.grader.as_str(), row.item.as_str())).collect();
    assert_eq!(keys[..3], [(0, "calls", "calls"), (0, "reply_contains", "reply"), (1, "calls", "calls")]);
    assert!(keys.is_sorted());
    assert_eq!((verdicts[0].weight.to_string().as_str(), verdicts[0].is_required), ("0.7", true));
    assert_eq!((verdicts[1].weight.to_string().as_str(), verdicts[1].is_required), ("0.3", false));
    assert_eq!(verdicts[1].request_hash, None);
}

#[test]
fn rows_that_contradict_each_other_are_ungraded() {
    let mut transcript = good(user()).reply("ok");
    transcript.messages[1].tool_calls = Some("[".to_owned());
    let verdicts = all(&transcript, "finished", false);
    assert!(
        verdicts.iter().all(|verdict| verdict.starts_with("null: `tool_calls` of message 1 do not parse")),
        "{verdicts:?}"
    );
    let mut transcript = good(user()).reply("ok");
    transcript.messages[0].user_turn = 7;
    assert!(all(&transcript, "finished", false)[0].starts_with("null: message 0 lies in user turn 7"));
}

#[test]
fn the_gate_opens_when_all_required_items_pass() {
    let task = task(&graders());
    let grader = Grader::new(&task);
    let transcript = good(user()).reply("not what was to be said");
    assert!(grader.gate_is_open(&transcript.messages, 0));
    let next = transcript.user().reply("ok");
    assert!(!grader.gate_is_open(&next.messages, 1));
    assert!(!passes_gate(&task, 1, &next.messages));
    assert!(grader.gate_is_open(&next.messages, 0));
}
