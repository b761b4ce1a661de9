//! Training: gradients of weighted logprobs, the optimizer, and what is saved of both.

mod backward;
mod optimizer;
mod packing;
mod save;
mod state;
mod trained;
mod trainer;

pub use optimizer::{AdamW, ApplyReport};
pub use packing::{PolicyLogprobs, TrainSequence};
pub use trainer::{Trainer, TrainerOptions};
