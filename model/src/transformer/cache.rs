//! Keys and values of the sequences that are being decoded, in blocks that sequences can share.

use envace_kernels::{HeadLayout, KvBlocks, KvRow, LastRow, Tile, attend_last, attend_tile};
use rayon::prelude::*;

use super::device_cache::DeviceBlocks;
use crate::config::ModelConfig;
use crate::error::{ComputeContext, ModelError};

/// Query rows of a tile of the kernels; those of one task are some tiles.
const TILE_ROWS: usize = 12;
/// Most tiles of one task, which read the keys and values of a block one after the other while caches hold them.
const MAX_TASK_TILES: usize = 4;

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

/// Keys and values in blocks of [`KvCache::BLOCK_LEN`] positions of all layers, in `f32` or, on a device, as the model
/// multiplies them; see [`crate::Model::cache`].
///
/// Which blocks a sequence has is the caller's to say. A block takes memory once it or one of a higher number is used.
pub struct KvCache {
    layout: HeadLayout,
    context_length: usize,
    n_blocks: usize,
    /// Those made so far: all that were ever used.
    blocks: KvBlocks,
    /// In place of `blocks`, for a model that is computed by the tensor library's operations.
    pub(super) on_device: Option<DeviceBlocks>,
}

impl KvCache {
    /// Positions of a block.
    pub const BLOCK_LEN: usize = KvBlocks::LEN;

    /// Makes an empty cache of `n_blocks` blocks for a model of this configuration on the CPU.
    pub fn new(config: &ModelConfig, n_blocks: usize) -> Self {
        let layout = super::layout(config);
        let blocks = KvBlocks::new(layout, config.n_layers, n_blocks);
        Self { layout, context_length: config.context_length, n_blocks, blocks, on_device: None }
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
        if let Some(device) = &mut self.on_device {
            let copied = device.make(from.max(to) + 1, self.n_blocks).and_then(|()| device.copy(from, to));
            return copied.computing("copying a block of the cache");
        }
        self.blocks.grow(from.max(to) + 1);
        self.blocks.copy(from, to);
        Ok(())
    }

    /// Checks the pieces and makes the blocks that they are stored in.
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
        if let Some(device) = &mut self.on_device {
            return device.reserve(pieces, self.n_blocks).computing("making room in the cache");
        }
        if let Some(&last) = written.last() {
            self.blocks.grow(last + 1);
        }
        Ok(())
    }

    /// Stores one layer's keys and values of reserved pieces, and attends for their queries.
    ///
    /// `qkv` are `[queries | keys | values]` rows, piece after piece; the result are rows of all query heads.
    pub(super) fn attend(&mut self, layer: usize, pieces: &[Piece<'_>], qkv: &[f32]) -> Vec<f32> {
        let layout = self.layout;
        let (row_width, query_width) = (layout.row_width(), layout.query_width());
        let places = pieces.iter().flat_map(|piece| (piece.position..piece.end()).map(move |i| (piece, i)));
        let mut kept: Vec<KvRow<'_>> = places
            .zip(qkv.chunks_exact(row_width))
            .map(|((piece, position), row)| {
                let block = piece.blocks[position / Self::BLOCK_LEN];
                KvRow { block, offset: position % Self::BLOCK_LEN, row }
            })
            .collect();
        kept.sort_by_key(|row| row.block);
        self.blocks.store(layer, &kept);
        let n_rows = qkv.len() / row_width;
        let mut out = vec![0.0; n_rows * query_width];
        let (mut tasks, mut lasts) = (Vec::new(), Vec::new());
        let (mut rest, mut qkv) = (out.as_mut_slice(), qkv);
        for piece in pieces {
            let (target, after) = rest.split_at_mut(piece.token_ids.len() * query_width);
            let (rows, further) = qkv.split_at(piece.token_ids.len() * row_width);
            (rest, qkv) = (after, further);
            if piece.token_ids.len() == 1 {
                lasts.push((LastRow { row: rows, length: piece.end(), blocks: piece.blocks }, target));
                continue;
            }
            let task_rows = (n_rows / (4 * rayon::current_num_threads()) / TILE_ROWS)
                .clamp(1, MAX_TASK_TILES)
                * TILE_ROWS;
            let chunks = target.chunks_mut(task_rows * query_width).zip(rows.chunks(task_rows * row_width));
            let positions = (piece.position..).step_by(task_rows);
            tasks.extend(positions.zip(chunks).map(|(position, (out, rows))| (position, piece, rows, out)));
        }
        // Sequences that begin alike lie together, so that what they share is read once.
        lasts.sort_by(|(a, _), (b, _)| a.blocks.cmp(b.blocks));
        let blocks = &self.blocks;
        rayon::join(
            || {
                tasks.into_par_iter().for_each_init(Vec::new, |scratch, (position, piece, qkv, out)| {
                    attend_rows(position, piece, blocks, layer, layout, qkv, out, scratch);
                });
            },
            || attend_lasts(lasts, blocks, layer, layout),
        );
        out
    }
}

/// Attends for pieces of one token, many sequences a task.
fn attend_lasts(lasts: Vec<(LastRow<'_>, &mut [f32])>, blocks: &KvBlocks, layer: usize, layout: HeadLayout) {
    let n_heads = layout.n_kv_heads;
    // The fewer tasks, the more is shared; a few for each thread even out their lengths.
    let n_tasks = 4 * rayon::current_num_threads();
    let rows_per_task = (lasts.len() * n_heads).div_ceil(n_tasks).clamp(1, lasts.len().max(1));
    let (rows, mut targets): (Vec<LastRow<'_>>, Vec<&mut [f32]>) = lasts.into_iter().unzip();
    let group = layout.group() * layout.head_dim;
    let tasks: Vec<(usize, &[LastRow<'_>])> =
        rows.chunks(rows_per_task).flat_map(|rows| (0..n_heads).map(move |head| (head, rows))).collect();
    let parts: Vec<Vec<f32>> = tasks
        .par_iter()
        .map_init(Vec::new, |scratch, &(kv_head, rows)| {
            let mut out = vec![0.0; rows.len() * group];
            let head = |block: usize| blocks.head(block, layer, kv_head);
            attend_last(rows, kv_head, head, layout, scratch, &mut out);
            out
        })
        .collect();
    for (targets, parts) in targets.chunks_mut(rows_per_task).zip(parts.chunks(n_heads)) {
        for (kv_head, part) in parts.iter().enumerate() {
            for (target, row) in targets.iter_mut().zip(part.chunks_exact(group)) {
                target[kv_head * group..][..group].copy_from_slice(row);
            }
        }
    }
}

/// Attends for consecutive positions of one sequence, a tile a head.
#[expect(clippy::too_many_arguments, reason = "what a task is made of")]
fn attend_rows(
    position: usize,
    piece: &Piece<'_>,
    blocks: &KvBlocks,
    layer: usize,
    layout: HeadLayout,
    qkv: &[f32],
    out: &mut [f32],
    scratch: &mut Vec<f32>,
) {
    let (stride, query_width) = (layout.row_width(), layout.query_width());
    let n_rows = out.len() / query_width;
    for head in 0..layout.n_heads {
        let block = |i: usize| blocks.head(piece.blocks[i], layer, head / layout.group());
        let start = head * layout.head_dim;
        let (queries, out) = (&qkv[start..], &mut out[start..]);
        let tile = Tile { queries, stride, n_rows, first_length: position + 1, step: 1 };
        attend_tile(&tile, KvBlocks::LEN, block, layout, scratch, out, query_width);
    }
}
