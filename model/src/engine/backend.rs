use std::sync::Arc;

use candle_core::{DType, Tensor};

use crate::error::ComputeContext;
use crate::{KvCache, Model, ModelError, Piece};

/// What the batcher needs of a model with a cache.
pub(super) trait Backend: Send {
    fn vocab_size(&self) -> usize;

    fn context_length(&self) -> usize;

    /// Blocks of the cache.
    fn n_blocks(&self) -> usize;

    /// Positions of a block.
    fn block_len(&self) -> usize;

    /// Memory of a block.
    fn block_bytes(&self) -> usize;

    /// Computes tokens, keeps them in the cache, and returns the logits of the `wanted` tokens, counted over all
    /// pieces, one after the other.
    fn forward(&mut self, pieces: &[Piece<'_>], wanted: &[usize]) -> Result<Vec<f32>, ModelError>;

    /// Raises the number of blocks to this.
    fn grow(&mut self, n_blocks: usize);

    /// Makes one block hold what another one holds.
    fn copy(&mut self, from: usize, to: usize) -> Result<(), ModelError>;
}

/// A model and its cache.
pub(super) struct ModelBackend {
    model: Arc<Model>,
    kv: KvCache,
}

impl ModelBackend {
    /// A cache of as many blocks as `kv_bytes` has room for.
    pub(super) fn new(model: Arc<Model>, kv_bytes: u64) -> Self {
        let block_bytes = model.block_bytes().max(1) as u64;
        let n_blocks = usize::try_from(kv_bytes / block_bytes).unwrap_or(usize::MAX);
        let kv = model.cache(n_blocks);
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

    fn n_blocks(&self) -> usize {
        self.kv.n_blocks()
    }

    fn block_len(&self) -> usize {
        KvCache::BLOCK_LEN
    }

    fn block_bytes(&self) -> usize {
        self.model.block_bytes()
    }

    fn forward(&mut self, pieces: &[Piece<'_>], wanted: &[usize]) -> Result<Vec<f32>, ModelError> {
        let hidden = self.model.forward_cached(pieces, &mut self.kv)?;
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let n_rows: usize = pieces.iter().map(|piece| piece.token_ids.len()).sum();
        let hidden = if wanted.len() == n_rows {
            hidden
        } else {
            let indices: Vec<u32> = wanted.iter().filter_map(|&row| u32::try_from(row).ok()).collect();
            let select =
                Tensor::new(indices, hidden.device()).and_then(|indices| hidden.index_select(&indices, 0));
            select.computing("picking rows")?
        };
        let logits = self.model.logits(&hidden)?;
        let logits = logits.to_dtype(DType::F32).and_then(|logits| logits.flatten_all()?.to_vec1());
        logits.computing("reading logits")
    }

    fn grow(&mut self, n_blocks: usize) {
        self.kv.grow(n_blocks);
    }

    fn copy(&mut self, from: usize, to: usize) -> Result<(), ModelError> {
        self.kv.copy(from, to)
    }
}
