//! The bundled world's own dialogues pass their graders, also when they are played by an episode.

use std::sync::Arc;

use envace_model::chat::{ChatMessage, Speaker};
use envace_schemas::tables::VerdictRow;
use serde_json::{Value, json};

use super::shown;
use crate::rollout::episode::{Episode, EpisodeOptions, FinishReason, Need, PolicyOutput};
use crate::score::grade;
use crate::task::Task;
use crate::world::{Split, tasks};

const SEED: u64 = 7;

fn parsed(split: Split, n: u64) -> Vec<Arc<Task>> {
    tasks(SEED, &[(split, n)], 0).into_iter().map(|row| Arc::new(Task::parse(row).unwrap())).collect()
}

fn output(text: String) -> PolicyOutput {
    PolicyOutput { text, n_tokens: 1, finish_reason: FinishReason::Stop }
}

/// What the actor writes for a recorded message.
fn written(message: &ChatMessage) -> String {
    let call = |call: &envace_model::chat::ToolCall| {
        format!(
            "<tool_call>\n{{\"name\": {}, \"arguments\": {}}}\n</tool_call>",
            json!(call.name),
            call.arguments
        )
    };
    let calls: Vec<String> = message.tool_calls.iter().map(call).collect();
    [vec![message.content.clone()], calls].concat().join("\n")
}

/// Plays the recorded dialogue of `task`: the actor's messages as `actor` changes them, and the recorded
/// responses, as if imagined, as `rehearsal` changes them.
fn play(
    task: &Arc<Task>,
    actor: impl Fn(usize, String) -> String,
    rehearsal: impl Fn(usize, String) -> String,
) -> Vec<VerdictRow> {
    let mut episode = Episode::new(Arc::clone(task), 0, Arc::new(EpisodeOptions::default()));
    let transcript = task.transcript.as_ref().unwrap();
    let mut turns = transcript.iter().filter(|message| message.role == Speaker::Assistant).enumerate();
    let mut responses = task.recorded_calls.iter().enumerate();
    while !episode.is_done() {
        for need in episode.needs() {
            match need {
                Need::Actor(_) => match turns.next() {
                    Some((index, message)) => {
                        episode.give_actor(output(actor(index, written(message)))).unwrap();
                    }
                    None => episode.give_actor(output("I do not know.".to_owned())).unwrap(),
                },
                Need::Rehearsal(need) => {
                    let (index, call) = responses.next().unwrap();
                    let text =
                        rehearsal(index, format!("<execution_result>\n{}\n</execution_result>", call.result));
                    episode.give_rehearsal(need.call_index, need.attempt, output(text)).unwrap();
                }
                other => panic!("unexpected: {other:?}"),
            }
        }
    }
    let record = episode.finish().unwrap();
    grade(task, &record.trajectory_row("train"), &record.messages)
}

#[test]
fn recorded_dialogues_pass() {
    for split in Split::ALL {
        for task in parsed(split, 120) {
            let verdicts = play(&task, |_, text| text, |_, text| text);
            assert_eq!(verdicts.len(), task.graders.len());
            for verdict in &verdicts {
                assert_eq!(shown(verdict), "yes", "{} {}", task.id(), verdict.item);
            }
        }
    }
}

#[test]
fn doing_nothing_fails() {
    for split in Split::ALL {
        for task in parsed(split, 120) {
            let verdicts = play(&task, |_, _| "Done.".to_owned(), |_, text| text);
            let failed =
                verdicts.iter().any(|verdict| verdict.is_required && verdict.is_passed == Some(false));
            assert!(failed, "{}", task.id());
        }
    }
}

#[test]
fn imagined_values_are_as_good_as_recorded_ones() {
    // Every ticket is called T99 wherever it comes from, in what was recorded and in what is demanded.
    let mut n_changed = 0;
    for task in parsed(Split::Train, 120) {
        let tickets = ticket_names(&task);
        let user_texts: String = task
            .later_user_turns
            .iter()
            .chain(task.opening.iter().map(|message| &message.content))
            .cloned()
            .collect();
        let Some(ticket) = tickets.iter().find(|ticket| !user_texts.contains(*ticket)) else { continue };
        n_changed += 1;
        let rename = |_: usize, text: String| text.replace(ticket, "T0042");
        for verdict in play(&task, rename, rename) {
            assert_eq!(shown(&verdict), "yes", "{} {} {ticket}", task.id(), verdict.item);
        }
    }
    assert!(n_changed > 0);
}

/// Values under `ticket` in the recorded responses.
fn ticket_names(task: &Task) -> Vec<String> {
    let responses =
        task.recorded_calls.iter().filter_map(|call| serde_json::from_str::<Value>(&call.result).ok());
    responses.filter_map(|response| response.get("ticket")?.as_str().map(str::to_owned)).collect()
}

#[test]
fn an_error_in_place_of_what_is_needed_is_not_held_against_the_actor() {
    let error =
        |_: usize, _: String| "<execution_result>\n{\"error\": \"busy\"}\n</execution_result>".to_owned();
    let mut n_ungraded = 0;
    for task in parsed(Split::Train, 60) {
        let verdicts = play(&task, |index, text| if index == 0 { text } else { "Sorry.".to_owned() }, error);
        n_ungraded += usize::from(verdicts.iter().any(|verdict| verdict.is_passed.is_none()));
    }
    assert!(n_ungraded > 0);
}
