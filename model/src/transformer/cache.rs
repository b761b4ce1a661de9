//! Keys and values of the sequences that are being decoded, in blocks that sequences can share.

use envace_kernels::KvBlocks;

use super::cpu_cache::CpuBlocks;
use super::device_cache::DeviceBlocks;
use crate::config::ModelConfig;
use crate::error::{ComputeContext, ModelError};

/// Tokens that continue a sequence.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// At consecutive positions.
    pub token_ids: &'a [u32],
    /// Position of the first of them, from 0.
    pub position: usize,
    /// The sequence's blocks in the order of its positions: those that hold what comes before, and enough for the
    /// tokens. Sequences that begin alike may have blocks in common, but none that is written to.
    pub blocks: &'a [usize],
}

impl Piece<'_> {
    /// Positions of the sequence with these tokens.
    pub fn end(&self) -> usize {
        self.position + self.token_ids.len()
    }

    /// The blocks that the tokens are stored in.
    pub(super) fn written(&self) -> &[usize] {
        let len = KvCache::BLOCK_LEN;
        self.blocks.get(self.position / len..self.end().div_ceil(len)).unwrap_or_default()
    }
}

/// Keys and values in blocks of [`KvCache::BLOCK_LEN`] positions of all layers, in `f32` or, on a device, as the model
/// multiplies them; see [`crate::Model::cache`].
///
/// Which blocks a sequence has is the caller's to say. A block takes memory once it or one of a higher number is used.
pub struct KvCache {
    context_length: usize,
    n_blocks: usize,
    pub(super) blocks: Blocks,
}

/// The blocks, where and how the model computes.
pub(super) enum Blocks {
    /// By the kernels.
    Cpu(CpuBlocks),
    /// By the tensor library's operations.
    Device(DeviceBlocks),
}

impl KvCache {
    /// Positions of a block.
    pub const BLOCK_LEN: usize = KvBlocks::LEN;

    /// Makes an empty cache of `n_blocks` blocks for a model of this configuration on the CPU.
    pub fn new(config: &ModelConfig, n_blocks: usize) -> Self {
        let blocks = CpuBlocks::new(super::layout(config), config.n_layers, n_blocks);
        Self::of(config, n_blocks, Blocks::Cpu(blocks))
    }

    /// Makes an empty cache of blocks of which none is made.
    pub(super) fn of(config: &ModelConfig, n_blocks: usize, blocks: Blocks) -> Self {
        Self { context_length: config.context_length, n_blocks, blocks }
    }

    /// Memory that a block takes for a model of this configuration on the CPU, in bytes.
    pub fn block_bytes(config: &ModelConfig) -> usize {
        KvBlocks::block_bytes(super::layout(config), config.n_layers)
    }

    /// Number of blocks.
    pub fn n_blocks(&self) -> usize {
        self.n_blocks
    }

    /// Raises the number of blocks to this; it never falls.
    pub fn grow(&mut self, n_blocks: usize) {
        self.n_blocks = self.n_blocks.max(n_blocks);
    }

    /// Makes one block hold what another one holds.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] if one of them does not exist or they are the same.
    pub fn copy(&mut self, from: usize, to: usize) -> Result<(), ModelError> {
        if from == to || from.max(to) >= self.n_blocks {
            return Err(ModelError::invalid(format!("the cache cannot copy block {from} to block: {to}")));
        }
        let n_needed = from.max(to) + 1;
        match &mut self.blocks {
            Blocks::Cpu(blocks) => {
                blocks.make(n_needed);
                blocks.copy(from, to);
                Ok(())
            }
            Blocks::Device(blocks) => {
                let made = blocks.make(n_needed, self.n_blocks);
                made.and_then(|()| blocks.copy(from, to)).computing("copying a block of the cache")
            }
        }
    }

    /// Checks the pieces, makes the blocks that they are stored in, and works out what each layer does.
    pub(super) fn reserve(&mut self, pieces: &[Piece<'_>]) -> Result<(), ModelError> {
        let mut written: Vec<usize> = Vec::new();
        for piece in pieces {
            let needed = piece.end();
            if needed > self.context_length {
                return Err(ModelError::ContextOverflow { needed, limit: self.context_length });
            }
            let room = piece.blocks.len() * Self::BLOCK_LEN;
            if piece.token_ids.is_empty() || needed > room {
                return Err(ModelError::invalid(format!(
                    "a piece of {} tokens up to position {needed} does not fit the room of its blocks: {room}",
                    piece.token_ids.len()
                )));
            }
            if let Some(block) = piece.blocks.iter().find(|&&block| block >= self.n_blocks) {
                return Err(ModelError::invalid(format!("the cache has no such block: {block}")));
            }
            written.extend(piece.written());
        }
        written.sort_unstable();
        if let Some([block, _]) = written.array_windows().find(|[a, b]| a == b) {
            return Err(ModelError::invalid(format!("two pieces would be stored in one block: {block}")));
        }
        match &mut self.blocks {
            Blocks::Cpu(blocks) => {
                blocks.reserve(pieces);
                Ok(())
            }
            Blocks::Device(blocks) => {
                blocks.reserve(pieces, self.n_blocks).computing("making room in the cache")
            }
        }
    }
}
