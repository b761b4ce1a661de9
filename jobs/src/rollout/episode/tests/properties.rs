//! What holds whatever the policy writes.

use proptest::prelude::*;

use super::*;

fn actor_text() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "<think>",
        "</think>",
        "Hello.",
        "\n<tool_call>\n{\"name\": \"find_copy\", \"arguments\": {\"title\": \"Dune\"}}\n</tool_call>",
        "<tool_call>[{\"name\": \"place_hold\", \"parameters\": {}}, 5]</tool_call>",
        "<tool_call>",
        "</tool_call>",
        "{\"name\"",
        "\0é",
    ]);
    prop::collection::vec(piece, 0..4).prop_map(|pieces| pieces.concat())
}

fn rehearsal_text() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "\n<execution_result>\n{\"a\": 1}\n</execution_result>",
        "<execution_result>[]</execution_result>",
        "\n<execution_result>\n{\"error_tool_call\": null}\n</execution_result>",
        "<execution_result>{\"error\": \"x\"}</execution_result>",
        "",
        "<execution_result>",
    ])
    .prop_map(str::to_owned)
}

fn options() -> impl Strategy<Value = EpisodeOptions> {
    (any::<bool>(), 1..5usize, 0..4usize, 0..6usize, any::<[bool; 4]>()).prop_map(
        |(is_paper, max_turns, max_parallel_calls, max_generations, guards)| {
            let preset = if is_paper { EpisodeOptions::paper() } else { EpisodeOptions::default() };
            let options = EpisodeOptions {
                max_turns,
                max_parallel_calls,
                max_generations,
                gate: if guards[3] { Gate::Inline } else { Gate::After },
                guards: GuardOptions { whitelist: guards[0], schema: guards[1], replay: guards[2] },
                ..preset
            };
            // No limit at all is refused by `problem`, as is right: such an episode need not end.
            let floor = usize::from(options.problem().is_some());
            EpisodeOptions { max_generations: max_generations.max(floor), ..options }
        },
    )
}

/// Plays to the end: always answers one of the needs, `choices` says which.
fn drive(
    options: EpisodeOptions,
    actor: &[String],
    rehearsal: &[String],
    choices: &[usize],
) -> Result<EpisodeRecord, EpisodeError> {
    let mut episode = begin(options);
    for step in 0.. {
        let needs = episode.needs();
        let choice = choices[step % choices.len()];
        match &needs[choice % needs.len()] {
            Need::Actor(need) => episode.give_actor(output(&actor[need.turn % actor.len()]))?,
            Need::Rehearsal(need) => {
                episode.rehearsal_prompt(need.call_index, 0.5)?.user_text();
                // What is answered depends on the place, not on when it is asked for.
                let text = &rehearsal[(need.turn + need.call_index + need.attempt) % rehearsal.len()];
                episode.give_rehearsal(need.call_index, need.attempt, output(text))?;
            }
            Need::External(need) => episode.give_response(need.call_index, "{}")?,
            Need::Gate { user_turn } => episode.give_gate(*user_turn == 0)?,
            Need::Done => break,
        }
        assert!(step < 1000, "an episode must end");
    }
    episode.finish()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn episodes_end_and_their_records_hold_together(
        options in options(),
        actor in prop::collection::vec(actor_text(), 1..4),
        rehearsal in prop::collection::vec(rehearsal_text(), 1..4),
        choices in prop::collection::vec(0..7usize, 1..6),
    ) {
        let record = drive(options.clone(), &actor, &rehearsal, &choices).unwrap();
        // The order in which needs are met leaves no trace.
        prop_assert_eq!(&record, &drive(options, &actor, &rehearsal, &[0]).unwrap());

        for (index, row) in record.messages.iter().enumerate() {
            prop_assert_eq!(row.message_index as usize, index);
            prop_assert_eq!(row.generation_index.is_some(), ["actor", "rehearsal"].contains(&row.written_by.as_str()));
        }
        let keys: Vec<GenerationKey> = record.generations.iter().map(|generation| generation.key).collect();
        prop_assert!(keys.is_sorted_by(|left, right| left < right));
        for (turn, key) in keys.iter().filter(|key| key.role() == Role::Actor).enumerate() {
            prop_assert_eq!(key.turn, turn);
        }

        // Every call has exactly one response, unless the episode ended in its turn; none has two.
        let last_turn = record.n_turns as i32 - 1;
        for row in record.messages.iter().filter(|row| row.tool_calls.is_some()) {
            let text = row.tool_calls.as_deref().unwrap();
            let calls: Vec<serde_json::Value> = serde_json::from_str(text).unwrap();
            for call in calls {
                let id = call["id"].as_str();
                let n_responses = record.messages.iter().filter(|row| row.call_id.as_deref() == id).count();
                prop_assert!(n_responses == 1 || (n_responses == 0 && row.turn == Some(last_turn)));
            }
        }
    }
}
