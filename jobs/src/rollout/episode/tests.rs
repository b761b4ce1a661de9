//! Scripted episodes at the library desk of [`library_task`].

mod indices;
mod properties;
mod transitions;

use super::*;
use crate::rollout::test_task::library_task;

/// What is given to an episode.
#[derive(Debug, Clone)]
enum Given {
    Actor(String),
    /// Call index, attempt, text.
    Rehearsal(usize, usize, String),
    Response(usize, &'static str),
    Gate(bool),
    ActorDoesNotFit,
    RehearsalDoesNotFit(usize),
}
use Given::{Actor, Rehearsal, Response};

fn say(text: &str) -> Given {
    Actor(text.to_owned())
}

/// An actor output with these calls, as `(name, arguments)`, in a form that both parsers read.
fn calls(calls: &[(&str, &str)]) -> Given {
    let block = |(name, arguments): &(&str, &str)| {
        format!("\n<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    Actor(calls.iter().map(block).collect())
}

/// A well-formed first rehearsal of call `call_index`.
fn respond(call_index: usize, response: &str) -> Given {
    Rehearsal(call_index, 0, format!("\n<execution_result>\n{response}\n</execution_result>"))
}

const FIND: (&str, &str) = ("find_copy", r#"{"title": "Dune"}"#);
const HOLD: (&str, &str) = ("place_hold", r#"{"copy_id": "c9", "card": 771}"#);

fn output(text: &str) -> PolicyOutput {
    PolicyOutput { text: text.to_owned(), n_tokens: text.len(), finish_reason: FinishReason::Stop }
}

fn give(episode: &mut Episode, given: &Given) -> Result<(), EpisodeError> {
    match given {
        Actor(text) => episode.give_actor(output(text)),
        Rehearsal(call_index, attempt, text) => episode.give_rehearsal(*call_index, *attempt, output(text)),
        Response(call_index, text) => episode.give_response(*call_index, text),
        Given::Gate(passes) => episode.give_gate(*passes),
        Given::ActorDoesNotFit => episode.actor_does_not_fit(),
        Given::RehearsalDoesNotFit(call_index) => episode.rehearsal_does_not_fit(*call_index),
    }
}

fn begin(options: EpisodeOptions) -> Episode {
    Episode::new(Arc::new(library_task()), 0, Arc::new(options))
}

fn play(options: EpisodeOptions, script: &[Given]) -> Episode {
    let mut episode = begin(options);
    for given in script {
        give(&mut episode, given).unwrap();
    }
    episode
}

/// What it waits for, in short: `actor fresh`, `rehearse 0.1` (call and attempt), `ended finished`.
fn waits_for(episode: &Episode) -> String {
    let needs: Vec<String> = episode
        .needs()
        .into_iter()
        .map(|need| match need {
            Need::Actor(need) => match need.continuation {
                Continuation::Fresh => "actor fresh".to_owned(),
                Continuation::AfterResponses => "actor after responses".to_owned(),
                Continuation::NewUserTurn => "actor new user turn".to_owned(),
            },
            Need::Rehearsal(need) => format!("rehearse {}.{}", need.call_index, need.attempt),
            Need::External(need) => format!("execute {}", need.call_index),
            Need::Gate { .. } => "gate".to_owned(),
            Need::Done => match &episode.phase {
                Phase::Ended(end) => {
                    format!("ended {}{}", end.reason, if episode.has_reply { "" } else { ", partial" })
                }
                _ => "?".to_owned(),
            },
        })
        .collect();
    needs.join(" ")
}

/// The transcript after the opening: one letter per speaker (`u`, `a`, `t`), and for tool messages who wrote it.
fn speakers(episode: &Episode) -> String {
    let word = |(message, notes): (&ChatMessage, &MessageNotes)| match message.role {
        Speaker::System => "s".to_owned(),
        Speaker::User => "u".to_owned(),
        Speaker::Assistant => "a".to_owned(),
        Speaker::Tool => format!("t:{}", notes.author.name()),
    };
    episode.messages.iter().zip(&episode.notes).skip(2).map(word).collect::<Vec<_>>().join(" ")
}
