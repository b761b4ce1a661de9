//! What the rehearsal role would have been asked along a recorded dialogue, and what it should have answered.

use envace_model::chat::{ChatMessage, Speaker};

use super::episode::{EpisodeOptions, GenerationKey};
use super::parse_result::format_result;
use super::rehearsal_prompt::{RehearsalContext, RehearsalPrompt, rehearsal_prompt};
use crate::task::Task;

/// A prompt of the rehearsal role and the output it should get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RehearsalExample {
    /// 0-based user turn.
    pub user_turn: usize,
    /// Place of the generation it stands for, counted in the recorded dialogue.
    pub key: GenerationKey,
    /// What is asked: word for word what an episode would ask.
    pub prompt: RehearsalPrompt,
    /// The output: the recorded response in its tags.
    pub output: String,
}

/// One example for each call of the recorded dialogue that has a response; none if no dialogue was recorded.
///
/// Responses answer the calls of the message before them by their call ids, or in order where ids are missing.
/// `draw(turn, call_index)` is uniform in [0, 1): below `few_shot_dropout`, no recorded call is shown.
pub fn rehearsal_examples(
    task: &Task,
    options: &EpisodeOptions,
    mut draw: impl FnMut(usize, usize) -> f64,
) -> Vec<RehearsalExample> {
    let messages = task.transcript.as_deref().unwrap_or_default();
    let mut examples = Vec::new();
    let (mut n_user, mut turn) = (0, 0);
    for (index, latest) in messages.iter().enumerate() {
        match latest.role {
            Speaker::User => n_user += 1,
            Speaker::Assistant if n_user > 0 => {
                let user_turn = n_user - 1;
                let responses = responses_after(messages, index);
                for (call_index, call) in latest.tool_calls.iter().enumerate() {
                    let by_id =
                        responses.iter().find(|response| response.tool_call_id.as_deref() == Some(&call.id));
                    let in_order =
                        || responses.get(call_index).filter(|response| response.tool_call_id.is_none());
                    let Some(response) = by_id.or_else(in_order) else { continue };
                    let context = RehearsalContext {
                        task,
                        user_turn,
                        history: messages.get(..index).unwrap_or_default(),
                        latest,
                        latest_raw: None,
                        call,
                    };
                    examples.push(RehearsalExample {
                        user_turn,
                        key: GenerationKey::rehearsal(turn, call_index, 0),
                        prompt: rehearsal_prompt(
                            context,
                            &options.rehearsal,
                            options.parsing,
                            draw(turn, call_index),
                        ),
                        output: format_result(&response.content),
                    });
                }
                turn += 1;
            }
            _ => {}
        }
    }
    examples
}

/// The tool messages that follow message `index` at once.
fn responses_after(messages: &[ChatMessage], index: usize) -> &[ChatMessage] {
    let after = messages.get(index + 1..).unwrap_or_default();
    let n_responses = after.iter().take_while(|message| message.role == Speaker::Tool).count();
    after.get(..n_responses).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::parse_calls::ParseMode;
    use crate::rollout::parse_result::parse_result;
    use crate::rollout::test_task::library_task;

    #[test]
    fn each_recorded_response_is_an_example() {
        let task = library_task();
        let examples = rehearsal_examples(&task, &EpisodeOptions::default(), |_, _| 0.5);
        let places: Vec<_> = examples
            .iter()
            .map(|example| (example.user_turn, example.key.turn, example.key.call_index))
            .collect();
        assert_eq!(places, [(0, 0, Some(0)), (0, 1, Some(0)), (0, 1, Some(1)), (1, 3, Some(0))]);
        let responses: Vec<String> = examples
            .iter()
            .map(|example| parse_result(&example.output, ParseMode::Tolerant).unwrap())
            .collect();
        assert_eq!(
            responses,
            [
                r#"{"copy_id": "c9", "status": "in"}"#,
                r#"{"hold": "h1", "until": "Fri"}"#,
                r#"["waiting"]"#,
                r#"["ready"]"#
            ]
        );
    }

    #[test]
    fn without_a_dialogue_there_are_none() {
        let mut task = library_task();
        task.transcript = None;
        assert!(rehearsal_examples(&task, &EpisodeOptions::default(), |_, _| 0.5).is_empty());
    }

    /// Responses without ids answer in order; a call without a response is left out.
    #[test]
    fn responses_are_matched_by_id_or_by_order() {
        let mut task = library_task();
        let transcript = task.transcript.as_mut().unwrap();
        for message in transcript.iter_mut() {
            message.tool_call_id = None;
        }
        transcript.remove(6);
        let examples = rehearsal_examples(&task, &EpisodeOptions::default(), |_, _| 0.5);
        let places: Vec<_> =
            examples.iter().map(|example| (example.key.turn, example.key.call_index)).collect();
        assert_eq!(places, [(0, Some(0)), (1, Some(0)), (3, Some(0))]);
    }
}
