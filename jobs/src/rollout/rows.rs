//! Rows of the rollout tables from what an episode leaves behind.

use std::collections::BTreeMap;

use envace_model::chat::{ChatMessage, Speaker};
use envace_schemas::tables::{GenerationRow, MessageRow, TrajectoryRow};
use serde_json::json;

use super::episode::{EpisodeRecord, GenerationKey, GenerationRecord, MessageNotes, Role};

/// What only the sampler of a generation knows.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// Digest of the weights.
    pub checkpoint: String,
    /// The sequence it lies in.
    pub sequence_index: usize,
    /// First sampled token's place in that sequence.
    pub span_start: usize,
    /// Tokens before the span.
    pub n_prompt_tokens: usize,
    /// Sampling temperature.
    pub temperature: f32,
    /// Nucleus mass.
    pub top_p: f32,
    /// Candidates kept.
    pub top_k: u32,
}

impl EpisodeRecord {
    /// The row of `trajectories`. What an executable world would add is NULL.
    pub fn trajectory_row(&self, purpose: &str) -> TrajectoryRow {
        let of_role = |role: Role| self.generations.iter().filter(move |record| record.key.role() == role);
        let n_tokens = |role: Role| of_role(role).map(|record| record.n_tokens as i64).sum();
        TrajectoryRow {
            task_id: self.task_id.clone(),
            sample: self.sample,
            purpose: purpose.to_owned(),
            split: self.split.clone(),
            family: self.family.clone(),
            environment: self.environment.to_owned(),
            end_reason: self.end.reason.name().to_owned(),
            end_detail: self.end.detail.clone(),
            is_partial: self.is_partial,
            n_user_turns: int(self.n_user_turns),
            n_scripted_user_turns: int(self.n_scripted_user_turns),
            n_turns: int(self.n_turns),
            n_calls: int(self.n_calls),
            n_malformed_calls: int(self.n_malformed_calls),
            n_rehearsals: int(of_role(Role::Rehearsal).count()),
            n_malfunctions: int(of_role(Role::Rehearsal)
                .filter(|record| record.error_code.is_some())
                .count()),
            n_actor_tokens: n_tokens(Role::Actor),
            n_rehearsal_tokens: n_tokens(Role::Rehearsal),
            final_state_hash: None,
            state_differences: None,
        }
    }

    /// The row of `generations` at `generation_index`, if there is one.
    pub fn generation_row(&self, generation_index: usize, sampled: Sampled) -> Option<GenerationRow> {
        let record = self.generations.get(generation_index)?;
        let Sampled { checkpoint, sequence_index, span_start, n_prompt_tokens, temperature, top_p, top_k } =
            sampled;
        Some(GenerationRow {
            task_id: self.task_id.clone(),
            sample: self.sample,
            generation_index: int(generation_index),
            role: record.key.role().name().to_owned(),
            checkpoint,
            user_turn: int(record.user_turn),
            turn: int(record.key.turn),
            call_index: record.key.call_index.map(int),
            try_index: int(record.key.attempt),
            sequence_index: int(sequence_index),
            span_start: int(span_start),
            n_tokens: int(record.n_tokens),
            n_prompt_tokens: int(n_prompt_tokens),
            text: record.text.clone(),
            finish_reason: record.finish_reason.name().to_owned(),
            error_code: record.error_code.map(str::to_owned),
            is_blank: record.is_blank,
            temperature,
            top_p,
            top_k: i32::try_from(top_k).unwrap_or(i32::MAX),
        })
    }
}

/// The rows of `messages`.
pub(super) fn message_rows(
    task_id: &str,
    sample: i32,
    messages: &[ChatMessage],
    notes: &[MessageNotes],
    generations: &BTreeMap<GenerationKey, GenerationRecord>,
) -> Vec<MessageRow> {
    let indices: BTreeMap<GenerationKey, i32> = generations.keys().copied().zip(0..).collect();
    let row = |(index, (message, notes)): (usize, (&ChatMessage, &MessageNotes))| MessageRow {
        task_id: task_id.to_owned(),
        sample,
        message_index: int(index),
        user_turn: int(notes.user_turn),
        turn: notes.turn.map(int),
        speaker: speaker_name(message.role).to_owned(),
        written_by: notes.author.name().to_owned(),
        text: message.content.clone(),
        reasoning: message.reasoning_content.clone(),
        tool_calls: calls_json(message),
        call_id: message.tool_call_id.clone(),
        tool_name: message.tool_call_id.as_ref().and(message.name.clone()),
        arguments: notes.arguments.clone(),
        generation_index: notes.generation.and_then(|key| indices.get(&key).copied()),
        error_code: notes.error_code.clone(),
    };
    messages.iter().zip(notes).enumerate().map(row).collect()
}

fn calls_json(message: &ChatMessage) -> Option<String> {
    let call = |call: &envace_model::chat::ToolCall| json!({ "id": call.id, "name": call.name, "arguments": call.arguments });
    let calls: Vec<_> = message.tool_calls.iter().map(call).collect();
    if calls.is_empty() { None } else { Some(json!(calls).to_string()) }
}

const fn speaker_name(speaker: Speaker) -> &'static str {
    match speaker {
        Speaker::System => "system",
        Speaker::User => "user",
        Speaker::Assistant => "assistant",
        Speaker::Tool => "tool",
    }
}

/// A count as tables hold it.
fn int(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
