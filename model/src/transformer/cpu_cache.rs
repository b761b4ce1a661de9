//! Keys and values on the CPU, stored and attended over by the kernels.
//!
//! What a call reads and writes is the same in every layer, so it is worked out once, when the call is reserved.

use envace_kernels::{HeadLayout, KvBlocks, KvRow, LastRow, Tile, attend_last, attend_tile};
use rayon::prelude::*;

use super::Piece;

/// Query rows of a tile of the kernels; those of one task are some tiles.
const TILE_ROWS: usize = 12;
/// Most tiles of one task, which read the keys and values of a block one after the other while caches hold them.
const MAX_TASK_TILES: usize = 4;

/// Blocks of keys and values in main memory.
pub(super) struct CpuBlocks {
    layout: HeadLayout,
    /// Those made so far: all that were ever used.
    blocks: KvBlocks,
    work: Work,
}

/// What a call does in each layer.
#[derive(Default)]
struct Work {
    /// Where each row is stored, in the order of the blocks.
    kept: Vec<Place>,
    /// The pieces of one token, in the order of their blocks: sequences that begin alike lie together, so that what they
    /// share is read once.
    lasts: Vec<usize>,
    /// The pieces of more tokens.
    longer: Vec<usize>,
    /// Rows of a task of those.
    task_rows: usize,
}

struct Place {
    block: usize,
    offset: usize,
    row: usize,
}

impl CpuBlocks {
    pub(super) fn new(layout: HeadLayout, n_layers: usize, n_blocks: usize) -> Self {
        Self { layout, blocks: KvBlocks::new(layout, n_layers, n_blocks), work: Work::default() }
    }

    /// Makes all blocks below `n_blocks`.
    pub(super) fn make(&mut self, n_blocks: usize) {
        self.blocks.grow(n_blocks);
    }

    /// Makes one block hold what another one holds; both are made.
    pub(super) fn copy(&mut self, from: usize, to: usize) {
        self.blocks.copy(from, to);
    }

    /// Makes the blocks that the pieces are stored in, and works out what is read and written.
    pub(super) fn reserve(&mut self, pieces: &[Piece<'_>]) {
        if let Some(last) = pieces.iter().flat_map(Piece::written).max() {
            self.make(last + 1);
        }
        let len = KvBlocks::LEN;
        let places = pieces.iter().flat_map(|piece| (piece.position..piece.end()).map(move |at| (piece, at)));
        let mut kept: Vec<Place> = places
            .enumerate()
            .map(|(row, (piece, at))| Place { block: piece.blocks[at / len], offset: at % len, row })
            .collect();
        kept.sort_by_key(|place| place.block);
        let (mut lasts, longer): (Vec<usize>, Vec<usize>) =
            (0..pieces.len()).partition(|&i| pieces[i].token_ids.len() == 1);
        lasts.sort_by_key(|&i| pieces[i].blocks);
        let n_tiles = kept.len() / (4 * rayon::current_num_threads()) / TILE_ROWS;
        let task_rows = n_tiles.clamp(1, MAX_TASK_TILES) * TILE_ROWS;
        self.work = Work { kept, lasts, longer, task_rows };
    }

    /// Stores one layer's keys and values of the reserved pieces, and attends for their queries.
    ///
    /// `qkv` are `[queries | keys | values]` rows, piece after piece; the result are rows of all query heads.
    pub(super) fn attend(&mut self, layer: usize, pieces: &[Piece<'_>], qkv: &[f32]) -> Vec<f32> {
        let Self { layout, blocks, work } = self;
        let (row_width, query_width) = (layout.row_width(), layout.query_width());
        let rows = |first: usize, n: usize| &qkv[first * row_width..(first + n) * row_width];
        let kept: Vec<KvRow<'_>> = work
            .kept
            .iter()
            .map(|&Place { block, offset, row }| KvRow { block, offset, row: rows(row, 1) })
            .collect();
        blocks.store(layer, &kept);
        let mut out = vec![0.0; work.kept.len() * query_width];
        // The rows of each piece, and where its result goes.
        let (mut parts, mut rest, mut first) = (Vec::with_capacity(pieces.len()), out.as_mut_slice(), 0);
        for piece in pieces {
            let n = piece.token_ids.len();
            let (target, after) = rest.split_at_mut(n * query_width);
            parts.push((rows(first, n), target));
            (rest, first) = (after, first + n);
        }
        let (blocks, layout, task_rows) = (&*blocks, *layout, work.task_rows);
        let mut take = |i: &usize| (&pieces[*i], std::mem::take(&mut parts[*i]));
        let mut tasks = Vec::new();
        for (piece, (rows, target)) in work.longer.iter().map(&mut take) {
            let chunks = target.chunks_mut(task_rows * query_width).zip(rows.chunks(task_rows * row_width));
            let positions = (piece.position..).step_by(task_rows);
            tasks.extend(positions.zip(chunks).map(|(position, (out, rows))| (position, piece, rows, out)));
        }
        let lasts = work.lasts.iter().map(take);
        let lasts = lasts.map(|(piece, (row, target))| {
            (LastRow { row, length: piece.end(), blocks: piece.blocks }, target)
        });
        let lasts = lasts.collect();
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
