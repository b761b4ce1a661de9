//! One attempt at a task as a state machine without IO: it takes policy outputs and says what it needs next.
//!
//! ```text
//!             final reply, more user turns
//!           ┌───────────────────────────────┐
//!           ▼                               │
//!  new ─▶ actor ──calls──▶ responses ──▶ actor …   ──▶ ended
//!                     rehearsed, executed or refused
//! ```
//!
//! The calls of one turn are answered independently of each other, in any order; none sees another's response.
//! All indices follow from the structure of the trajectory, so whoever drives episodes may interleave them freely.

mod need;
mod options;
mod play;
mod record;
mod turn;

use std::collections::BTreeMap;
use std::sync::Arc;

use envace_model::chat::{ChatMessage, Speaker};

pub use need::{ActorNeed, Continuation, EpisodeError, ExternalNeed, Need, PolicyOutput, RehearsalNeed};
pub use options::{
    CapCheck, Environment, EpisodeOptions, ErrorPolicy, FewShot, Gate, GuardOptions, MalfunctionPolicy,
    OutputRoom, Overflow, RehearsalOptions, Whitelist, Wording,
};
pub use record::{
    Author, EndReason, EpisodeEnd, EpisodeRecord, FinishReason, GenerationKey, GenerationRecord, Role,
};

use super::guards::Guards;
use super::rehearsal_prompt::{RehearsalContext, RehearsalPrompt, rehearsal_prompt};
use super::text::sanitize;
use crate::task::Task;
pub(in crate::rollout) use record::MessageNotes;
use turn::{PendingTurn, SlotState};

/// One attempt at a task.
#[derive(Debug)]
pub struct Episode {
    task: Arc<Task>,
    sample: i32,
    options: Arc<EpisodeOptions>,
    guards: Guards,
    messages: Vec<ChatMessage>,
    /// What is known of each message besides.
    notes: Vec<MessageNotes>,
    generations: BTreeMap<GenerationKey, GenerationRecord>,
    phase: Phase,
    /// Current user turn.
    user_turn: usize,
    /// Actor generations so far.
    n_turns: usize,
    n_calls: usize,
    n_malformed: usize,
    /// Policy outputs that count against `max_generations`.
    n_counted: usize,
    /// Whether the current user turn has its final reply.
    has_reply: bool,
    /// Messages the actor has not been shown start here.
    first_new_message: usize,
    continuation: Continuation,
    /// Needs that [`Self::take_needs`] has given out.
    taken: Vec<Need>,
}

/// What the episode waits for.
#[derive(Debug)]
enum Phase {
    Actor,
    Responses(PendingTurn),
    Gate,
    Ended(EpisodeEnd),
}

impl Episode {
    /// Begins an attempt: `sample` is its 0-based index in the group.
    pub fn new(task: Arc<Task>, sample: i32, options: Arc<EpisodeOptions>) -> Self {
        let mut episode = Self {
            guards: Guards::new(&task, &options),
            messages: Vec::new(),
            notes: Vec::new(),
            generations: BTreeMap::new(),
            phase: Phase::Actor,
            user_turn: 0,
            n_turns: 0,
            n_calls: 0,
            n_malformed: 0,
            n_counted: 0,
            has_reply: false,
            first_new_message: 0,
            continuation: Continuation::Fresh,
            taken: Vec::new(),
            task,
            sample,
            options,
        };
        for message in episode.task.opening.clone() {
            episode.push_script(message);
        }
        let is_ungradable = episode.task.graders.is_empty() && episode.task.row.checklist.is_none();
        if episode.options.requires_graders && is_ungradable {
            episode.end(EndReason::NoGraders, None);
        }
        episode
    }

    /// The task that is played.
    pub fn task(&self) -> &Arc<Task> {
        &self.task
    }

    /// Its index in the group.
    pub fn sample(&self) -> i32 {
        self.sample
    }

    /// All messages so far, the opening included: what a chat template renders for the actor.
    pub fn messages(&self) -> &[ChatMessage] {
        &self.messages
    }

    /// The messages that came since the actor's last output, which itself is not among them.
    pub fn new_messages(&self) -> &[ChatMessage] {
        self.messages.get(self.first_new_message..).unwrap_or_default()
    }

    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Ended(_))
    }

    /// Everything it waits for: all calls of a turn at once, in their order; `[Need::Done]` when it has ended.
    pub fn needs(&self) -> Vec<Need> {
        let (user_turn, turn) = (self.user_turn, self.n_turns);
        match &self.phase {
            Phase::Actor => {
                vec![Need::Actor(ActorNeed { user_turn, turn, continuation: self.continuation })]
            }
            Phase::Responses(pending) => pending.needs(user_turn),
            Phase::Gate => vec![Need::Gate { user_turn }],
            Phase::Ended(_) => vec![Need::Done],
        }
    }

    /// What it waits for and no earlier call of this function has returned.
    pub fn take_needs(&mut self) -> Vec<Need> {
        let needs = self.needs();
        let new = needs.iter().filter(|need| !self.taken.contains(need)).cloned().collect();
        self.taken = needs;
        new
    }

    /// What the rehearsal role is asked about call `call_index`; the same for both attempts.
    ///
    /// `draw` is uniform in [0, 1) and belongs to the call: below `few_shot_dropout`, no recorded call is shown.
    ///
    /// # Errors
    /// [`EpisodeError`] if that call does not wait for the rehearsal role.
    pub fn rehearsal_prompt(&self, call_index: usize, draw: f64) -> Result<RehearsalPrompt, EpisodeError> {
        let not_asked = || EpisodeError::NotAsked { what: "a rehearsal", call_index: Some(call_index) };
        let Phase::Responses(pending) = &self.phase else { return Err(not_asked()) };
        let slot = pending.slots.get(call_index).ok_or_else(not_asked)?;
        let (SlotState::Rehearsing { .. }, Some(call)) = (&slot.state, &slot.call) else {
            return Err(not_asked());
        };
        let latest = self.messages.get(pending.message).ok_or_else(not_asked)?;
        let raw = self.generations.get(&GenerationKey::actor(pending.turn));
        let context = RehearsalContext {
            task: &self.task,
            user_turn: self.user_turn,
            history: self.messages.get(..pending.message).unwrap_or_default(),
            latest,
            latest_raw: raw.map(|generation| generation.text.as_str()),
            call,
        };
        Ok(rehearsal_prompt(context, &self.options.rehearsal, self.options.parsing, draw))
    }

    fn push_script(&mut self, mut message: ChatMessage) {
        message.content = sanitize(&message.content).into_owned();
        self.push(message, MessageNotes::new(Author::Script, self.user_turn, None));
    }

    fn push(&mut self, message: ChatMessage, notes: MessageNotes) {
        debug_assert!(
            notes.turn.is_some() || message.role != Speaker::Tool || notes.author == Author::Script
        );
        self.messages.push(message);
        self.notes.push(notes);
    }

    fn end(&mut self, reason: EndReason, detail: Option<String>) {
        self.phase = Phase::Ended(EpisodeEnd { reason, detail });
    }
}

#[cfg(test)]
mod tests;
