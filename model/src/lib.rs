//! Weights and tokens: transformer, tokenizer, chat template, generation engine, optimizer, checkpoints.
//!
//! This crate knows nothing of tables, stages or roles.
//!
//! On the CPU a sequence's numbers have the same bits whatever it is computed with: alone or in any batch,
//! prefilled at once or token by token, sampled or trained, on one thread or several. The logprob of a sampled
//! token is therefore the policy logprob of the trainer, exactly, as long as both take it from [`LogSoftmax`].

pub mod chat;
mod checkpoint;
mod config;
mod device;
pub mod engine;
mod error;
mod fingerprint;
pub mod init;
mod lora;
pub mod memory;
mod ops;
mod positioned;
mod train;
mod transformer;
mod weights;

pub use candle_core::Device;
pub use config::{CONFIG_FILE, Family, ModelConfig, RopeScaling};
pub use device::DeviceName;
pub use envace_kernels::LogSoftmax;
pub use error::{Cause, ModelError};
pub use fingerprint::arithmetic_fingerprint;
pub use lora::{
    ADAPTER_CONFIG_FILE, AdapterConfig, ModelFolder, NewAdapter, TARGET_MODULES, check_trainable,
    merge_adapter,
};
pub use train::{
    AdamW, ApplyReport, Member, PolicyLogprobs, TrainSequence, Trainer, TrainerOptions, check_scratch,
    micro_batches,
};
pub use transformer::{KvCache, Model, Piece};
pub use weights::check_weights;
