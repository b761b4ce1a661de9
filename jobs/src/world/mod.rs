//! The bundled executable world: a small service desk, the tasks made from it, and the check of what came out.
//!
//! A task is a function of (seed, split, index). Its recorded dialogue is made by a scripted policy whose calls
//! are really executed; its graders demand no recorded value where a response may be imagined. Training never
//! calls the world; evaluation executes the calls of the policy and compares the final state and the replies.
//!
//! The operator of a recorded dialogue may be made to slip: in a share of its decisions it breaks the rule at hand,
//! as people do in real logs. Then only the recorded dialogue is another; what is asked and how it is graded stays.
//!
//! Splits, with the names of [`names`] and the six families of tasks:
//! - `train`: user messages of a family name nothing that is reserved for it (one name in six of each list).
//! - `held_out`: the thing that a task is about first, such as the order to refund, is reserved for its family: training
//!   never asks this of it. Each name is seen in training, with other families and in responses.
//! - `drift`: all names, but tools, arguments and responses have another face, see [`Api::Drift`].

mod api;
mod cases;
mod check;
mod draws;
mod families;
pub mod names;
mod scene;
mod state;
#[cfg(test)]
mod tests;
mod tools;

use std::fmt;
use std::str::FromStr;

use envace_schemas::tables::TaskRow;
use serde::Serialize;
use serde_json::Value;

pub use api::Api;
pub use check::{CheckReport, World, WorldError};
pub use state::{Device, Difference, Order, State, Ticket};

use check::WorldColumn;
use draws::Draws;
use families::Family;
use scene::{Operator, Scene};

/// What the service desk is told: the system message of every task.
pub const RULES: &str = "You are the service desk. Look up before you act. \
    Cancel only an open order, else open a ticket about return. \
    Refund at most 50 and only to the buyer, above it open a ticket about refund. \
    Reset or move a device only for its owner. \
    Escalate a ticket of high priority or about a device of someone else.";

/// Part of the set of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Split {
    /// What is trained on.
    Train,
    /// Each task is about a thing that its family was never asked about in training.
    HeldOut,
    /// An unfamiliar API.
    Drift,
}

impl Split {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Train, Self::HeldOut, Self::Drift];

    /// Its name in the `split` column.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::HeldOut => "held_out",
            Self::Drift => "drift",
        }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Split {
    type Err = WorldError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|split| split.name() == text)
            .ok_or_else(|| WorldError::UnknownSplit { split: text.to_owned() })
    }
}

/// Task `index` of `split` in the set made from `seed`. Families take turns. In `slips` of 100 decisions the
/// operator of the recorded dialogue breaks the rule at hand.
pub fn generate(seed: u64, split: Split, index: u64, slips: u8) -> TaskRow {
    let families = Family::ALL;
    let family = families[(index % families.len() as u64) as usize];
    let play = |operator| {
        let mut scene = Scene::new(Draws::new(seed, split, index), split, family, operator);
        family.play(&mut scene);
        scene
    };
    let scene = play(Operator::Careful);
    let careless = (slips > 0)
        .then(|| play(Operator::Careless { draws: Draws::of_slips(seed, split, index), percent: slips }));
    let recorded = careless.as_ref().unwrap_or(&scene);

    let world = WorldColumn {
        api: scene.api(),
        initial: scene.initial.clone(),
        expected: scene.state.clone(),
        replies: scene.replies.clone(),
    };
    let mut row = TaskRow {
        task_id: format!("{split}-{seed}-{index:06}"),
        split: split.name().to_owned(),
        family: Some(family.name().to_owned()),
        source: source(seed, slips),
        opening: text(&scene.messages.get(..2).unwrap_or_default()),
        tools: text(&scene.schemas()),
        later_user_turns: text(&scene.later_user_turns),
        recorded_calls: text(&recorded.recorded_calls),
        transcript: Some(text(&recorded.messages)),
        graders: text(&scene.graders),
        checklist: None,
        world: Some(text(&world)),
        task_hash: String::new(),
    };
    row.task_hash = crate::task::task_hash(&row);
    row
}

/// The first `n` tasks of each split in `counts`, in that order; for `slips` see [`generate`].
pub fn tasks(seed: u64, counts: &[(Split, u64)], slips: u8) -> Vec<TaskRow> {
    counts
        .iter()
        .flat_map(|(split, n)| (0..*n).map(move |index| generate(seed, *split, index, slips)))
        .collect()
}

/// What the `source` column of such tasks holds.
pub fn source(seed: u64, slips: u8) -> String {
    match slips {
        0 => format!("world:{seed}"),
        _ => format!("world:{seed}:slips={slips}"),
    }
}

/// The function schemas of all tools as tasks of `split` declare them.
pub fn tool_schemas(split: Split) -> Vec<Value> {
    Api::of(split).schemas()
}

/// JSON text of a value all of whose keys are texts, which cannot fail.
fn text<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
