//! The kinds of tasks, one module each: what is asked, what is right to do, and how it is graded.

mod cancel;
mod close;
mod follow_up;
mod handover;
mod refund;
mod repair;

use super::cases::{Case, or_sorry};
use super::scene::{Scene, phrase};
use crate::score::CallOrder;

/// A kind of task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// Cancel an order if it is open, else open a ticket for its buyer.
    Cancel,
    /// Refund an order if the right person asks and the amount is within the limit.
    Refund,
    /// From a ticket to its device, to the owner, to a reset: up to four calls, each on what the last one said.
    Repair,
    /// Three user turns about one order, each referring to the one before.
    FollowUp,
    /// Close two tickets at once; those that can not be closed are escalated.
    Close,
    /// Give a device to someone else if it belongs to who is said to give it, then tell a team.
    Handover,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Cancel, Self::Refund, Self::Repair, Self::FollowUp, Self::Close, Self::Handover];

    /// Its name in the `family` column.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Refund => "refund",
            Self::Repair => "repair",
            Self::FollowUp => "follow_up",
            Self::Close => "close",
            Self::Handover => "handover",
        }
    }

    /// Sets the scene and plays the whole dialogue.
    pub fn play(self, scene: &mut Scene) {
        match self {
            Self::Cancel => cancel::play(scene),
            Self::Refund => refund::play(scene),
            Self::Repair => repair::play(scene),
            Self::FollowUp => follow_up::play(scene),
            Self::Close => close::play(scene),
            Self::Handover => handover::play(scene),
        }
    }
}

/// Whether the user first gives a wrong id, out of 100: the call fails and the user corrects it.
const MISTAKES: usize = 25;

/// An id that is not stored, for a user who is mistaken; mostly there is none.
fn mistake(scene: &mut Scene, list: &[&'static str]) -> Option<&'static str> {
    if scene.draws.chance(MISTAKES) { Some(scene.asked(list)) } else { None }
}

/// The user corrects an id.
fn correct(scene: &mut Scene, id: &str) {
    let text = phrase(
        &mut scene.draws,
        &["I mean {id}.", "Sorry, it is {id}.", "My mistake, it is {id}.", "It should be {id}."],
        &[("id", id)],
    );
    scene.user(text);
}

/// Declares how a user turn about one id is graded, whose calls come one after the other; `is_unknown` if the id is not
/// stored.
fn grade(scene: &mut Scene, is_unknown: bool, cases: Vec<Case>) {
    let cases = if is_unknown { or_sorry(cases) } else { cases };
    scene.grade(CallOrder::Exact, &cases);
}

/// The policy says that what it tried is not allowed, which only an operator who slips comes to.
fn refused(scene: &mut Scene, id: &str) {
    scene.reply(format!("Sorry, I can not do that for {id}."), &[]);
}

/// The policy says that it found nothing.
fn not_found(scene: &mut Scene, id: &str) {
    scene.reply(format!("Sorry, I do not find {id}."), &["Sorry"]);
}
