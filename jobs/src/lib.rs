//! The stages of envace, one module each, the bundled world, and the command line.

pub mod advantage;
pub mod cli;
pub mod config;
pub mod context;
pub mod drive;
pub mod error;
pub mod estimate;
pub mod evaluate;
pub mod memory;
mod policy_assets;
mod progress;
pub mod rerun;
pub mod rollout;
pub mod score;
pub mod sft;
pub mod show;
pub mod task;
pub mod task_order;
pub mod task_set;
pub mod tasks;
pub mod trainable;
pub mod update;
pub mod world;
