//! Indices and rows follow the structure of a trajectory, never the order in which outputs come.

use super::*;

fn finished(order: [usize; 2]) -> EpisodeRecord {
    let thinking = "<think>Both.</think>Wait.";
    let Actor(both) = calls(&[FIND, HOLD]) else { panic!("an actor output") };
    let rehearsal = |call_index: usize| -> Vec<Given> {
        match call_index {
            0 => vec![
                Rehearsal(0, 0, "<execution_result>oh".to_owned()),
                Rehearsal(0, 1, "<execution_result>{\"copy_id\":\"c9\"}</execution_result>".to_owned()),
            ],
            _ => vec![respond(1, r#"{"error": {"code": "CARD_BLOCKED", "message": "x"}}"#)],
        }
    };
    let mut script = vec![Actor(format!("{thinking}{both}"))];
    script.extend(order.into_iter().flat_map(rehearsal));
    script.extend([say("Blocked."), say("<think>day</think>None.")]);
    play(EpisodeOptions::default(), &script).finish().unwrap()
}

#[test]
fn any_order_of_rehearsals_leaves_the_same_record() {
    assert_eq!(finished([0, 1]), finished([1, 0]));
}

#[test]
fn generation_indices_follow_the_structure() {
    let record = finished([1, 0]);
    let places: Vec<_> = record
        .generations
        .iter()
        .map(|generation| {
            let GenerationKey { turn, call_index, attempt } = generation.key;
            (turn, call_index, attempt, generation.user_turn, generation.error_code)
        })
        .collect();
    assert_eq!(
        places,
        [
            (0, None, 0, 0, None),
            (0, Some(0), 0, 0, Some("EXECUTION_RESULT_TAG_MALFORMED")),
            (0, Some(0), 1, 0, None),
            (0, Some(1), 0, 0, None),
            (1, None, 0, 0, None),
            (2, None, 0, 1, None),
        ]
    );
}

#[test]
fn message_rows_hold_the_transcript() {
    let record = finished([1, 0]);
    let rows: Vec<_> = record
        .messages
        .iter()
        .map(|row| {
            (
                row.speaker.as_str(),
                row.written_by.as_str(),
                row.user_turn,
                row.turn,
                row.generation_index,
                row.text.as_str(),
            )
        })
        .collect();
    assert_eq!(
        rows,
        [
            ("system", "script", 0, None, None, "Be brief."),
            ("user", "script", 0, None, None, "Is Dune free at Elm St? Hold it for card 771."),
            ("assistant", "actor", 0, Some(0), Some(0), "Wait."),
            ("tool", "rehearsal", 0, Some(0), Some(2), "{\"copy_id\":\"c9\"}"),
            (
                "tool",
                "rehearsal",
                0,
                Some(0),
                Some(3),
                r#"{"error": {"code": "CARD_BLOCKED", "message": "x"}}"#
            ),
            ("assistant", "actor", 0, Some(1), Some(4), "Blocked."),
            ("user", "script", 1, None, None, "Which day?"),
            ("assistant", "actor", 1, Some(2), Some(5), "None."),
        ]
    );
    let first = &record.messages[2];
    assert_eq!(first.reasoning.as_deref(), Some("Both."));
    assert_eq!(
        first.tool_calls.as_deref(),
        Some(
            r#"[{"id":"call_0_0","name":"find_copy","arguments":"{\"title\": \"Dune\"}"},{"id":"call_0_1","name":"place_hold","arguments":"{\"copy_id\": \"c9\", \"card\": 771}"}]"#
        )
    );
    let second = &record.messages[4];
    assert_eq!(second.call_id.as_deref(), Some("call_0_1"));
    assert_eq!(second.tool_name.as_deref(), Some("place_hold"));
    assert_eq!(second.arguments.as_deref(), Some(HOLD.1));
    assert_eq!(second.error_code.as_deref(), Some("CARD_BLOCKED"));
}

#[test]
fn the_trajectory_row_counts() {
    let row = finished([0, 1]).trajectory_row("train");
    assert_eq!(
        (row.end_reason.as_str(), row.is_partial, row.end_detail.as_deref()),
        ("finished", false, None)
    );
    assert_eq!((row.n_user_turns, row.n_scripted_user_turns, row.n_turns, row.n_calls), (2, 2, 3, 2));
    assert_eq!((row.n_rehearsals, row.n_malfunctions, row.n_malformed_calls), (3, 1, 0));
    // `output` counts a byte as a token: "Blocked." has 8, "<think>day</think>None." 23.
    let first = "<think>Both.</think>Wait.".len() as i64;
    let Actor(both) = calls(&[FIND, HOLD]) else { panic!("an actor output") };
    assert_eq!(row.n_actor_tokens, first + both.len() as i64 + 8 + 23);
}

#[test]
fn a_malformed_call_is_reported_at_its_place() {
    let text =
        "<tool_call>5</tool_call> then <tool_call>{\"name\":\"find_copy\",\"arguments\":{}}</tool_call>";
    let mut episode = play(EpisodeOptions::default(), &[say(text), respond(1, "[1]")]);
    let responses: Vec<_> =
        episode.new_messages().iter().map(|message| message.tool_call_id.as_deref()).collect();
    assert_eq!(responses, [None, Some("call_0_1")]);
    assert_eq!(episode.messages[2].content, "<tool_call>5</tool_call>\nthen");
    episode.abort("enough");
    let record = episode.finish().unwrap();
    let report = &record.messages[3];
    assert_eq!((report.written_by.as_str(), report.error_code.as_deref()), ("envace", Some("NO_ARGUMENTS")));
    assert_eq!((&report.call_id, &report.tool_name, report.generation_index), (&None, &None, None));
    assert_eq!(record.generations[0].error_code, Some("NO_ARGUMENTS"));
    assert_eq!((record.n_calls, record.n_malformed_calls), (1, 1));
}

#[test]
fn blank_outputs_are_marked() {
    for (text, tolerant, reference) in [
        ("", true, true),
        (" \n", true, true),
        ("<think>a</think>", true, false),
        ("<think>a", true, false),
        ("a", false, false),
        ("<tool_call>{\"name\":\"find_copy\",\"arguments\":{}}</tool_call>", false, false),
    ] {
        for (options, expected) in
            [(EpisodeOptions::default(), tolerant), (EpisodeOptions::paper(), reference)]
        {
            let episode = play(options, &[say(text)]);
            assert_eq!(episode.generations[&GenerationKey::actor(0)].is_blank, expected, "{text}");
        }
    }
}
