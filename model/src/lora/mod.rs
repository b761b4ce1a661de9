//! Low-rank adapters, in the layout of the PEFT library.
//!
//! An adapter gives some matrices `W` of a base model a term of low rank: the model computes with
//! `W + scale * (B A)`, where `A` is `(rank, in)`, `B` is `(out, rank)` and `scale` is `alpha / rank`, or
//! `alpha / sqrt(rank)` if rank-stabilized. The sum is made once, when the weights are loaded, by the same code for
//! sampling and for training, so both see the same bits and neither is slower than the base.
//!
//! # Source
//! LoRA: <https://arxiv.org/abs/2106.09685>; rank-stabilized: <https://arxiv.org/abs/2312.03732>. The files:
//! <https://huggingface.co/docs/peft/main/en/developer_guides/checkpoint>.

mod adapter;
mod config;
mod folder;
mod merge;
mod new;
mod trainable;

pub(crate) use adapter::{ADAPTER_WEIGHTS_FILE, Adapter, Factors, Module, add_low_rank};
pub use config::{ADAPTER_CONFIG_FILE, AdapterConfig, TARGET_MODULES};
pub use folder::ModelFolder;
pub use merge::merge_adapter;
pub use new::NewAdapter;
pub(crate) use trainable::check_adapter;
pub use trainable::check_trainable;
