//! Keys and values of the sequences that are being decoded, in blocks that sequences can share.

use std::sync::Arc;

use envace_kernels::{HeadLayout, KvBlock, Tile, attend_tile};
use rayon::prelude::*;

use crate::config::ModelConfig;
use crate::error::ModelError;

/// Query rows of one task.
const TASK_ROWS: usize = 12;

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
    fn written(&self) -> &[usize] {
        let len = KvCache::BLOCK_LEN;
        self.blocks.get(self.position / len..self.end().div_ceil(len)).unwrap_or_default()
    }
}

/// Keys and values in `f32`, in blocks of [`KvCache::BLOCK_LEN`] positions of all layers.
///
/// Which blocks a sequence has is the caller's to say. Blocks take memory from their first use on.
pub struct KvCache {
    layout: HeadLayout,
    n_layers: usize,
    context_length: usize,
    n_blocks: usize,
    /// Those made so far: all that were ever used.
    blocks: Vec<KvBlock>,
}

impl KvCache {
    /// Positions of a block.
    pub const BLOCK_LEN: usize = KvBlock::LEN;

    /// Makes an empty cache of `n_blocks` blocks for a model of this configuration.
    pub fn new(config: &ModelConfig, n_blocks: usize) -> Self {
        let (layout, n_layers) = (super::layout(config), config.n_layers);
        Self { layout, n_layers, context_length: config.context_length, n_blocks, blocks: Vec::new() }
    }

    /// Memory that a block takes for a model of this configuration, in bytes.
    pub fn block_bytes(config: &ModelConfig) -> usize {
        KvBlock::n_bytes(super::layout(config), config.n_layers)
    }

    /// Number of blocks.
    pub fn n_blocks(&self) -> usize {
        self.n_blocks
    }

    /// Makes one block hold what another one holds.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] if one of them does not exist or they are the same.
    pub fn copy(&mut self, from: usize, to: usize) -> Result<(), ModelError> {
        if from.max(to) < self.n_blocks {
            self.make(from.max(to));
        }
        let Ok([source, target]) = self.blocks.get_disjoint_mut([from, to]) else {
            return Err(ModelError::invalid(format!("the cache cannot copy block {from} to block: {to}")));
        };
        target.copy_from(source);
        Ok(())
    }

    /// Makes all blocks up to this one.
    fn make(&mut self, block: usize) {
        let (layout, n_layers) = (self.layout, self.n_layers);
        if block >= self.blocks.len() {
            self.blocks.resize_with(block + 1, || KvBlock::new(layout, n_layers));
        }
    }

    /// Checks the pieces and makes the blocks that they are stored in.
    pub(super) fn reserve(&mut self, pieces: &[Piece<'_>]) -> Result<(), ModelError> {
        let mut written = Vec::new();
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
        if let Some(&last) = written.last() {
            self.make(last);
        }
        Ok(())
    }

    /// Stores one layer's keys and values of reserved pieces, and attends for their queries.
    ///
    /// `qkv` are `[queries | keys | values]` rows, piece after piece; the result are rows of all query heads.
    pub(super) fn attend(
        &mut self,
        layer: usize,
        pieces: &[Piece<'_>],
        qkv: &[f32],
    ) -> Result<Vec<f32>, ModelError> {
        let layout = self.layout;
        let (row_width, query_width) = (layout.row_width(), layout.query_width());
        let mut rows = qkv.chunks_exact(row_width);
        for piece in pieces {
            for (position, row) in (piece.position..piece.end()).zip(&mut rows) {
                let block = piece.blocks.get(position / Self::BLOCK_LEN).copied();
                let block = block.and_then(|block| self.blocks.get_mut(block));
                block.ok_or_else(unreserved)?.store(layer, position % Self::BLOCK_LEN, row);
            }
        }
        let mut out = vec![0.0; qkv.len() / row_width * query_width];
        let mut tasks = Vec::new();
        let (mut rest, mut qkv) = (out.as_mut_slice(), qkv);
        for piece in pieces {
            let blocks = piece.blocks.iter().take(piece.end().div_ceil(Self::BLOCK_LEN));
            let blocks = blocks.map(|&block| self.blocks.get(block)).collect::<Option<Vec<_>>>();
            let blocks = Arc::new(blocks.ok_or_else(unreserved)?);
            for position in (piece.position..piece.end()).step_by(TASK_ROWS) {
                let n_rows = TASK_ROWS.min(piece.end() - position);
                let (out, after) = rest.split_at_mut(n_rows * query_width);
                let (queries, further) = qkv.split_at(n_rows * row_width);
                (rest, qkv) = (after, further);
                tasks.push((position, Arc::clone(&blocks), queries, out));
            }
        }
        tasks.into_par_iter().for_each_init(Vec::new, |scratch, (position, blocks, qkv, out)| {
            attend_rows(position, &blocks, layer, layout, qkv, out, scratch);
        });
        Ok(out)
    }
}

fn unreserved() -> ModelError {
    ModelError::invalid("the cache was asked for a block that holds nothing: reserve it first")
}

/// Attends for consecutive positions of one sequence: a tile a head, or, for a single position, a tile a group of
/// heads.
fn attend_rows(
    position: usize,
    blocks: &[&KvBlock],
    layer: usize,
    layout: HeadLayout,
    qkv: &[f32],
    out: &mut [f32],
    scratch: &mut Vec<f32>,
) {
    let (head_dim, group) = (layout.head_dim, layout.group());
    let n_rows = out.len() / layout.query_width();
    for kv_head in 0..layout.n_kv_heads {
        let block = |i: usize| blocks[i].head(layer, kv_head);
        let start = kv_head * group * head_dim;
        if n_rows == 1 {
            let (queries, out) = (&qkv[start..], &mut out[start..]);
            let tile = Tile { queries, stride: head_dim, n_rows: group, first_length: position + 1, step: 0 };
            attend_tile(&tile, KvBlock::LEN, block, layout, scratch, out, head_dim);
            continue;
        }
        for i in 0..group {
            let start = start + i * head_dim;
            let (queries, out) = (&qkv[start..], &mut out[start..]);
            let stride = layout.row_width();
            let tile = Tile { queries, stride, n_rows, first_length: position + 1, step: 1 };
            attend_tile(&tile, KvBlock::LEN, block, layout, scratch, out, layout.query_width());
        }
    }
}
