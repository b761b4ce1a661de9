//! The stages of envace, one module each, and the bundled world.

pub mod rollout;
pub mod score;
pub mod task;
pub mod tasks;
pub mod world;
