//! Plays tasks: the episode, what it reads and what it asks.

pub mod episode;
pub mod guards;
pub mod parse_calls;
pub mod parse_result;
pub mod prompt_tools;
pub mod python_json;
pub mod rehearsal_examples;
pub mod rehearsal_prompt;
pub mod rows;
pub mod scheduler;
pub mod stage;
pub mod stream;
#[cfg(test)]
mod test_task;
pub mod text;
pub mod trajectory;

pub use episode::{Environment, EpisodeOptions};
