use std::sync::Arc;

use super::backend::{Backend, ModelBackend};
use super::batcher::{Batcher, Limits};
use super::{Engine, Generated, GenerationRequest};
use crate::{Model, ModelError};

/// Sizes of an engine's work. None of them changes a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// Generations worked on at once.
    pub max_batch: usize,
    /// Tokens the cache may hold, those of finished sequences included. A single sequence may be longer.
    pub kv_tokens: usize,
    /// Most prompt tokens computed in one round, beside one token of each generation.
    pub prefill_tokens: usize,
    /// Whether a prompt starts from the longest part of it that the cache has.
    pub reuses_prefixes: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { max_batch: 32, kv_tokens: 65_536, prefill_tokens: 512, reuses_prefixes: true }
    }
}

/// Slots for each generation under way: finished sequences that may go on need one as well.
const SLOTS_PER_GENERATION: usize = 4;

/// An engine on this machine.
///
/// Every round computes the next token of each generation and a piece of the prompts that wait. Finished sequences
/// stay in the cache until the room is needed, so the next turn of a trajectory computes only what is new, and the
/// prompt that a group shares is computed once.
pub struct LocalEngine {
    batcher: Batcher<ModelBackend>,
}

impl LocalEngine {
    /// Makes an engine of a model; the cache grows as it is used.
    pub fn new(model: Arc<Model>, options: EngineOptions) -> Self {
        let max_batch = options.max_batch.max(1);
        let backend = ModelBackend::new(model, max_batch * SLOTS_PER_GENERATION);
        let limits = Limits {
            max_batch,
            kv_tokens: options.kv_tokens,
            prefill_tokens: options.prefill_tokens,
            reuses_prefixes: options.reuses_prefixes,
        };
        Self { batcher: Batcher::new(backend, limits) }
    }
}

impl Engine for LocalEngine {
    fn submit(&mut self, request: GenerationRequest) -> Result<(), ModelError> {
        self.batcher.submit(request)
    }

    fn poll(&mut self) -> Result<Vec<Generated>, ModelError> {
        // Within the thread pool: from outside, every parallel loop of a round would wake it anew.
        rayon::scope(|_| self.batcher.poll())
    }

    fn n_waiting(&self) -> usize {
        self.batcher.n_waiting()
    }

    fn n_active(&self) -> usize {
        self.batcher.n_active()
    }

    fn capacity(&self) -> usize {
        self.batcher.limits().max_batch
    }

    fn context_length(&self) -> usize {
        self.batcher.backend().context_length()
    }
}
