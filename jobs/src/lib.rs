//! The stages of envace, one module each, and the bundled world.

pub mod score;
pub mod task;
