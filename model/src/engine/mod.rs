//! Generating from token ids: many requests at once, with what was computed before kept and used again.
//!
//! [`Engine`] is what a caller sees, so that an engine elsewhere can stand in for [`LocalEngine`]. On the CPU a result is a
//! function of the weights and the request alone: never of the batch, the order, what is cached, or the threads. On a GPU
//! these can change its last bits.

mod backend;
mod batcher;
mod local;
mod prefix_tree;
mod request;
mod sampler;

pub use local::{EngineOptions, LocalEngine};
pub use request::{FinishReason, Generated, GenerationRequest, Sampling};
pub use sampler::uniform;

use crate::ModelError;

/// Generates tokens for many requests at once.
///
/// A caller keeps submitting while there is room, calls [`Engine::poll`] in turn, and takes results as they come, in
/// any order.
pub trait Engine: Send {
    /// Takes a request; it waits until there is room.
    ///
    /// # Errors
    /// [`ModelError::ContextOverflow`] if the prompt leaves no room for a token; [`ModelError::KvMemory`] if prompt and
    /// generation can be longer than the whole cache; [`ModelError::TokenRange`] for an id outside the vocabulary; [`ModelError::Invalid`] for an empty prompt, nothing to generate, impossible sampling
    /// settings, or an id that is in use.
    fn submit(&mut self, request: GenerationRequest) -> Result<(), ModelError>;

    /// Does one round of work and returns what it finished; often nothing.
    ///
    /// # Errors
    /// Whatever the model reports, and [`ModelError::Invalid`] where logits are not numbers. Every request that was
    /// submitted and not returned is then gone.
    fn poll(&mut self) -> Result<Vec<Generated>, ModelError>;

    /// Requests taken but not begun.
    fn n_waiting(&self) -> usize;

    /// Requests being worked on.
    fn n_active(&self) -> usize;

    /// How many requests can be worked on at once.
    fn capacity(&self) -> usize;

    /// Longest sequence of prompt and generation, in tokens.
    fn context_length(&self) -> usize;
}
