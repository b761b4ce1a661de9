//! What an episode leaves behind.

use std::fmt;

use envace_schemas::tables::MessageRow;

use super::need::EpisodeError;
use super::{Episode, Phase};
use crate::rollout::rows;

/// Who writes a policy output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Calls tools and answers the user.
    Actor,
    /// Writes the responses of tools.
    Rehearsal,
}

impl Role {
    /// As it stands in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Actor => "actor",
            Self::Rehearsal => "rehearsal",
        }
    }
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// A stop token was sampled.
    Stop,
    /// No more tokens were allowed.
    Length,
}

impl FinishReason {
    /// As it stands in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// Who wrote a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Author {
    /// The task.
    Script,
    /// The policy as actor.
    Actor,
    /// The policy as rehearsal role.
    Rehearsal,
    /// The recorded dialogue.
    Replay,
    /// The executable world.
    World,
    /// Envace itself: an error report.
    Envace,
}

impl Author {
    /// As it stands in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Script => "script",
            Self::Actor => "actor",
            Self::Rehearsal => "rehearsal",
            Self::Replay => "replay",
            Self::World => "world",
            Self::Envace => "envace",
        }
    }
}

/// Place of a generation in its trajectory. The order of these keys is that of generation indices: by turn, the
/// actor's before those of its calls, calls in order, attempts in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GenerationKey {
    /// 0-based turn.
    pub turn: usize,
    /// The call it answers; `None` for the actor.
    pub call_index: Option<usize>,
    /// 0-based attempt.
    pub attempt: usize,
}

impl GenerationKey {
    /// The actor's generation of a turn.
    pub const fn actor(turn: usize) -> Self {
        Self { turn, call_index: None, attempt: 0 }
    }

    /// A generation of the rehearsal role.
    pub const fn rehearsal(turn: usize, call_index: usize, attempt: usize) -> Self {
        Self { turn, call_index: Some(call_index), attempt }
    }

    /// Whose it is.
    pub const fn role(&self) -> Role {
        if self.call_index.is_none() { Role::Actor } else { Role::Rehearsal }
    }
}

/// What an episode knows of a generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GenerationRecord {
    /// Its place.
    pub key: GenerationKey,
    /// 0-based user turn.
    pub user_turn: usize,
    /// Sampled tokens, the stop token included.
    pub n_tokens: usize,
    /// Its text, unwanted characters replaced.
    pub text: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// How it broke its format.
    pub error_code: Option<&'static str>,
    /// Whether it holds no visible text at all.
    pub is_blank: bool,
}

/// Why an episode ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// The last scripted user turn got its reply.
    Finished,
    /// As many actor generations as are allowed.
    MaxTurns,
    /// As many user turns as are allowed.
    MaxUserTurns,
    /// As many policy outputs as are allowed.
    MaxGenerations,
    /// The next prompt does not fit.
    Length,
    /// More malformed calls than are borne.
    MalformedCalls,
    /// An error response, where these are fatal.
    ErrorResponse,
    /// The rehearsal role kept breaking its format, or its prompt does not fit: not the actor's fault.
    RehearsalFailed,
    /// The user turn did not pass its grade, where the next one waits for it.
    Gated,
    /// The task has no graders, where they are required.
    NoGraders,
    /// It was given up from outside.
    Aborted,
}

impl EndReason {
    /// As it stands in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::MaxTurns => "max_turns",
            Self::MaxUserTurns => "max_user_turns",
            Self::MaxGenerations => "max_generations",
            Self::Length => "length",
            Self::MalformedCalls => "malformed_calls",
            Self::ErrorResponse => "error_response",
            Self::RehearsalFailed => "rehearsal_failed",
            Self::Gated => "gated",
            Self::NoGraders => "no_graders",
            Self::Aborted => "aborted",
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// How an episode ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpisodeEnd {
    /// Why.
    pub reason: EndReason,
    /// What exactly, in words.
    pub detail: Option<String>,
}

/// What an episode leaves behind.
#[derive(Debug, Clone, PartialEq)]
pub struct EpisodeRecord {
    /// The task.
    pub task_id: String,
    /// Split of the task.
    pub split: String,
    /// Kind of the task.
    pub family: Option<String>,
    /// Index in the group.
    pub sample: i32,
    /// What answered the calls.
    pub environment: &'static str,
    /// How it ended.
    pub end: EpisodeEnd,
    /// Whether the last user turn was cut off before a final reply.
    pub is_partial: bool,
    /// User turns begun.
    pub n_user_turns: usize,
    /// User turns the task has.
    pub n_scripted_user_turns: usize,
    /// Actor generations.
    pub n_turns: usize,
    /// Well-formed calls.
    pub n_calls: usize,
    /// Actor outputs with a malformed call.
    pub n_malformed_calls: usize,
    /// Rows of `messages`, in order.
    pub messages: Vec<MessageRow>,
    /// Generations, in order: the index is the generation index.
    pub generations: Vec<GenerationRecord>,
}

/// What is known of a message besides what a chat template sees.
#[derive(Debug, Clone)]
pub(in crate::rollout) struct MessageNotes {
    pub author: Author,
    pub user_turn: usize,
    pub turn: Option<usize>,
    pub arguments: Option<String>,
    pub generation: Option<GenerationKey>,
    pub error_code: Option<String>,
}

impl MessageNotes {
    pub const fn new(author: Author, user_turn: usize, turn: Option<usize>) -> Self {
        Self { author, user_turn, turn, arguments: None, generation: None, error_code: None }
    }
}

impl Episode {
    /// The rows of `messages` so far: what a grade inside the rollout looks at.
    ///
    /// A generation index is final once the user turn has ended.
    pub fn message_rows(&self) -> Vec<MessageRow> {
        rows::message_rows(self.task.id(), self.sample, &self.messages, &self.notes, &self.generations)
    }

    /// What it leaves behind.
    ///
    /// # Errors
    /// [`EpisodeError::NotEnded`] if it still waits for something.
    pub fn finish(self) -> Result<EpisodeRecord, EpisodeError> {
        let Phase::Ended(end) = self.phase else { return Err(EpisodeError::NotEnded) };
        let messages =
            rows::message_rows(self.task.id(), self.sample, &self.messages, &self.notes, &self.generations);
        let generations: Vec<GenerationRecord> = self.generations.into_values().collect();
        Ok(EpisodeRecord {
            task_id: self.task.id().to_owned(),
            split: self.task.row.split.clone(),
            family: self.task.row.family.clone(),
            sample: self.sample,
            environment: self.options.environment.name(),
            end,
            is_partial: !self.has_reply,
            n_user_turns: self.user_turn + 1,
            n_scripted_user_turns: self.task.n_user_turns(),
            n_turns: self.n_turns,
            n_calls: self.n_calls,
            n_malformed_calls: self.n_malformed,
            messages,
            generations,
        })
    }
}
