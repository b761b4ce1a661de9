//! What an episode asks for, and what it is given.

use envace_model::chat::ToolCall;

use super::record::FinishReason;

/// Something an episode waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Need {
    /// An output of the actor: [`super::Episode::give_actor`], or [`super::Episode::actor_does_not_fit`].
    Actor(ActorNeed),
    /// An output of the rehearsal role: [`super::Episode::give_rehearsal`], or
    /// [`super::Episode::rehearsal_does_not_fit`].
    Rehearsal(RehearsalNeed),
    /// The execution of a call: [`super::Episode::give_response`]. Calls of one turn are executed in order.
    External(ExternalNeed),
    /// Whether the user turn that just ended passes: [`super::Episode::give_gate`].
    Gate {
        /// That user turn, 0-based.
        user_turn: usize,
    },
    /// Nothing: it has ended.
    Done,
}

/// The actor's next output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActorNeed {
    /// 0-based user turn.
    pub user_turn: usize,
    /// 0-based turn in the trajectory.
    pub turn: usize,
    /// How the actor's stream goes on.
    pub continuation: Continuation,
}

/// How the actor's stream of tokens goes on before it samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Continuation {
    /// It begins: all messages are rendered.
    Fresh,
    /// The responses to its last output's calls follow; they are [`super::Episode::new_messages`].
    AfterResponses,
    /// A user message follows its final reply; it is [`super::Episode::new_messages`].
    NewUserTurn,
}

/// One output of the rehearsal role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RehearsalNeed {
    /// 0-based user turn.
    pub user_turn: usize,
    /// 0-based turn whose call it answers.
    pub turn: usize,
    /// 0-based call of that turn.
    pub call_index: usize,
    /// 0, then 1 and so on while outputs are malformed.
    pub attempt: usize,
}

/// The execution of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalNeed {
    /// 0-based user turn.
    pub user_turn: usize,
    /// 0-based turn.
    pub turn: usize,
    /// 0-based call of that turn.
    pub call_index: usize,
    /// The call.
    pub call: ToolCall,
}

/// What a policy sampled, in either role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyOutput {
    /// The sampled tokens as text, without the stop token; with the think tag in front if the prompt had opened it.
    pub text: String,
    /// Sampled tokens, the stop token included.
    pub n_tokens: usize,
    /// Why it ended.
    pub finish_reason: FinishReason,
}

/// Something was given to an episode that it did not ask for, or taken that it does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EpisodeError {
    /// It does not wait for this.
    #[error("the episode does not wait for {what}{}", .call_index.map_or_else(String::new, |index| format!(" of call {index}")))]
    NotAsked {
        /// What was given.
        what: &'static str,
        /// The call it was given for.
        call_index: Option<usize>,
    },
    /// It still waits for something.
    #[error("the episode has not ended")]
    NotEnded,
}
