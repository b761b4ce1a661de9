//! The calls of one turn and their answers.

use envace_model::chat::ToolCall;

use super::need::{ExternalNeed, Need, RehearsalNeed};
use super::record::{Author, GenerationKey};

/// A turn whose calls are being answered.
#[derive(Debug)]
pub(super) struct PendingTurn {
    pub turn: usize,
    /// Index of the actor's message.
    pub message: usize,
    /// Its calls, malformed ones included, in order.
    pub slots: Vec<Slot>,
}

/// A call and its answer.
#[derive(Debug)]
pub(super) struct Slot {
    /// `None` for a malformed call.
    pub call: Option<ToolCall>,
    pub state: SlotState,
}

#[derive(Debug)]
pub(super) enum SlotState {
    Rehearsing {
        attempt: usize,
    },
    External,
    Answered(Response),
    /// No rehearsal output kept the format; the code of the last fault.
    Failed(&'static str),
    /// The rehearsal prompt does not fit.
    DoesNotFit,
    /// Beyond `max_generations`.
    BeyondCap,
}

/// The answer to a call.
#[derive(Debug)]
pub(super) struct Response {
    pub text: String,
    pub author: Author,
    pub error_code: Option<String>,
    pub generation: Option<GenerationKey>,
}

impl SlotState {
    pub const fn is_pending(&self) -> bool {
        matches!(self, Self::Rehearsing { .. } | Self::External)
    }
}

impl PendingTurn {
    pub fn is_settled(&self) -> bool {
        !self.slots.iter().any(|slot| slot.state.is_pending())
    }

    pub fn needs(&self, user_turn: usize) -> Vec<Need> {
        let turn = self.turn;
        let need = |(call_index, slot): (usize, &Slot)| match (&slot.state, &slot.call) {
            (SlotState::Rehearsing { attempt }, _) => {
                Some(Need::Rehearsal(RehearsalNeed { user_turn, turn, call_index, attempt: *attempt }))
            }
            (SlotState::External, Some(call)) => {
                Some(Need::External(ExternalNeed { user_turn, turn, call_index, call: call.clone() }))
            }
            _ => None,
        };
        self.slots.iter().enumerate().filter_map(need).collect()
    }
}
