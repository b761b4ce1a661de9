//! Weights and tokens: transformer, tokenizer, chat template, generation engine, optimizer, checkpoints.
//!
//! This crate knows nothing of tables, stages or roles.

pub mod chat;
