//! Training: gradients of weighted logprobs, the optimizer, and what is saved of both.

mod adapter;
mod composed;
mod fused;
mod kept;
mod optimizer;
mod packing;
mod save;
mod scratch;
mod state;
mod trained;
mod trainer;

pub use optimizer::{AdamW, ApplyReport};
pub use packing::{Member, PolicyLogprobs, TrainSequence, micro_batches};
pub use scratch::check_scratch;
pub(crate) use scratch::scratch_len;
pub use trainer::{Trainer, TrainerOptions};
