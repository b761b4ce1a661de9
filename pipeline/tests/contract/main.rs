//! The stage contract as a stage meets it: plans, commits, kills, races, hand-made attempts, checkpoints.
#![expect(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod checkpoints;
mod commits;
mod faults;
mod hand_made;
mod history;
mod plans;
mod support;
