use std::sync::Arc;

use super::backend::{Backend, ModelBackend};
use super::batcher::{Batcher, Limits};
use super::{Engine, Generated, GenerationRequest};
use crate::{Model, ModelError};

/// Sizes of an engine's work. On the CPU none of them changes a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// Generations worked on at once.
    pub max_batch: usize,
    /// Memory for keys and values, those of finished sequences included, in bytes. It is taken as it is needed.
    pub kv_bytes: u64,
    /// Whether a sequence that does not fit even alone enlarges that memory; otherwise it is refused.
    pub is_kv_enlarged: bool,
    /// Most prompt tokens computed in one round, beside one token of each generation.
    pub prefill_tokens: usize,
    /// Whether a prompt starts from the longest part of it that the cache has.
    pub reuses_prefixes: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            max_batch: 32,
            kv_bytes: 4 << 30,
            is_kv_enlarged: false,
            prefill_tokens: 512,
            reuses_prefixes: true,
        }
    }
}

/// An engine on this machine.
///
/// Every round computes the next token of each generation and a piece of the prompts that wait. The cache is a radix
/// tree over blocks of tokens: finished sequences stay until the room is needed, so the next turn of a trajectory
/// computes only what is new, and what a group's prompts have in common is computed and kept once. When there is no
/// room, the least advanced generation is paused and goes on later from its tokens, with the same result.
pub struct LocalEngine {
    batcher: Batcher<ModelBackend>,
}

impl LocalEngine {
    /// Makes an engine of a model; the cache grows as it is used.
    pub fn new(model: Arc<Model>, options: EngineOptions) -> Self {
        let limits = Limits {
            max_batch: options.max_batch.max(1),
            prefill_tokens: options.prefill_tokens,
            reuses_prefixes: options.reuses_prefixes,
            kv_bytes: options.kv_bytes,
            is_enlarged: options.is_kv_enlarged,
        };
        let backend = ModelBackend::new(model, options.kv_bytes);
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
