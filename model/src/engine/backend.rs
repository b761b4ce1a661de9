use std::sync::Arc;

use candle_core::Tensor;

use crate::error::ComputeContext;
use crate::{CacheRow, KvCache, Model, ModelError};

/// What the batcher needs of a model with a cache.
pub(super) trait Backend: Send {
    fn vocab_size(&self) -> usize;

    fn context_length(&self) -> usize;

    /// Sequences the cache can hold.
    fn n_slots(&self) -> usize;

    /// Computes tokens, adds them to the cache, and returns the logits of the `wanted` rows, one after the other.
    /// Rows of one slot follow each other with ascending positions.
    fn forward(
        &mut self,
        tokens: &[u32],
        rows: &[CacheRow],
        wanted: &[usize],
    ) -> Result<Vec<f32>, ModelError>;

    /// Keeps the first tokens of a slot.
    fn truncate(&mut self, slot: usize, len: usize);

    /// Forgets a slot and gives its memory back.
    fn release(&mut self, slot: usize);

    /// Makes a slot hold the first tokens of another one, and nothing else.
    fn copy_prefix(&mut self, from: usize, to: usize, len: usize) -> Result<(), ModelError>;
}

/// A model and its cache.
pub(super) struct ModelBackend {
    model: Arc<Model>,
    kv: KvCache,
}

impl ModelBackend {
    pub(super) fn new(model: Arc<Model>, n_slots: usize) -> Self {
        let kv = KvCache::new(model.config(), n_slots);
        Self { model, kv }
    }
}

impl Backend for ModelBackend {
    fn vocab_size(&self) -> usize {
        self.model.config().vocab_size
    }

    fn context_length(&self) -> usize {
        self.model.config().context_length
    }

    fn n_slots(&self) -> usize {
        self.kv.n_slots()
    }

    fn forward(
        &mut self,
        tokens: &[u32],
        rows: &[CacheRow],
        wanted: &[usize],
    ) -> Result<Vec<f32>, ModelError> {
        let hidden = self.model.forward_cached(tokens, rows, &mut self.kv)?;
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let hidden = if wanted.len() == rows.len() {
            hidden
        } else {
            let indices: Vec<u32> = wanted.iter().filter_map(|&row| u32::try_from(row).ok()).collect();
            let select =
                Tensor::new(indices, hidden.device()).and_then(|indices| hidden.index_select(&indices, 0));
            select.computing("picking rows")?
        };
        let logits = self.model.logits(&hidden)?;
        logits.flatten_all().and_then(|logits| logits.to_vec1()).computing("reading logits")
    }

    fn truncate(&mut self, slot: usize, len: usize) {
        self.kv.truncate(slot, len);
    }

    fn release(&mut self, slot: usize) {
        self.kv.release(slot);
    }

    fn copy_prefix(&mut self, from: usize, to: usize, len: usize) -> Result<(), ModelError> {
        self.kv.copy_prefix(from, to, len)
    }
}
