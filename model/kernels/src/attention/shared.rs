//! Attention of the last positions of many sequences, which may have blocks in common.

use super::{HeadKeys, HeadLayout, KvBlocks, exp_row};
use crate::product::{Left, Right, Sizes, block_product, panel_width, prefetch};

/// The last position of a sequence.
#[derive(Debug, Clone, Copy)]
pub struct LastRow<'a> {
    /// Its `[queries | keys | values]` row.
    pub row: &'a [f32],
    /// Positions of the sequence, this one included.
    pub length: usize,
    /// Blocks of the sequence in order, by number.
    pub blocks: &'a [usize],
}

impl LastRow<'_> {
    /// Positions in its block of this index.
    fn n_positions(&self, index: usize) -> usize {
        self.length.saturating_sub(index * KvBlocks::LEN).min(KvBlocks::LEN)
    }
}

/// Attends for the queries of one group of heads, those of key and value head `kv_head`; writes `group * head_dim`
/// elements a row.
///
/// Neighbours with the same block read it together, so rows should be in the order of their blocks. A row's result has
/// the bits that [`super::attend_tile`] gives for it alone. `head(block)` has keys and values of that head in a block.
/// `scratch` is only memory to reuse.
pub fn attend_last<'a>(
    rows: &[LastRow<'_>],
    kv_head: usize,
    head: impl Fn(usize) -> HeadKeys<'a>,
    layout: HeadLayout,
    scratch: &mut Vec<f32>,
    out: &mut [f32],
) {
    let (head_dim, group, value_width) = (layout.head_dim, layout.group(), layout.value_stride());
    let longest = rows.iter().map(|row| row.length).max().unwrap_or_default();
    let (n_queries, padded) = (rows.len() * group, longest.next_multiple_of(panel_width()));
    // Every element is written before it is read.
    let n_scratch = n_queries * (head_dim + padded + value_width);
    if scratch.len() < n_scratch {
        scratch.resize(n_scratch, 0.0);
    }
    let (queries, rest) = scratch.split_at_mut(n_queries * head_dim);
    let (scores, rest) = rest.split_at_mut(n_queries * padded);
    let sums = &mut rest[..n_queries * value_width];
    for (row, queries) in rows.iter().zip(queries.chunks_exact_mut(group * head_dim)) {
        queries.copy_from_slice(&row.row[kv_head * group * head_dim..][..group * head_dim]);
    }
    // While one block is multiplied, the next one comes from memory.
    let ask = |elements: &[f32]| prefetch(elements.as_ptr(), elements.len());
    let mut all = runs(rows).peekable();
    while let Some(run) = all.next() {
        if let Some(next) = all.peek() {
            ask(head(next.block).keys);
        }
        let width = run.n_positions.next_multiple_of(panel_width());
        let sizes = Sizes { n_rows: run.n_rows * group, depth: head_dim, width };
        let left = Left::rows(&queries[run.first * group * head_dim..], head_dim);
        let right = Right::Panels { values: head(run.block).keys };
        let target = &mut scores[run.first * group * padded + run.index * KvBlocks::LEN..];
        block_product(left, right, sizes, false, target, padded);
    }
    let by_query = scores.chunks_exact_mut(padded).zip(out.chunks_exact_mut(head_dim));
    for (i, (scores, out)) in by_query.enumerate() {
        let length = rows[i / group].length;
        let sum = exp_row(&mut scores[..length.next_multiple_of(panel_width())], length, layout.scale());
        // Waits here for the end.
        out[0] = 1.0 / sum;
    }
    let mut all = runs(rows).peekable();
    while let Some(run) = all.next() {
        if let Some(next) = all.peek() {
            ask(head(next.block).values);
        }
        let sizes = Sizes { n_rows: run.n_rows * group, depth: run.n_positions, width: value_width };
        let values = &scores[run.first * group * padded + run.index * KvBlocks::LEN..];
        let left = Left { values, row_stride: padded, depth_stride: 1 };
        let right = Right::Rows { values: head(run.block).values, stride: value_width };
        let target = &mut sums[run.first * group * value_width..];
        block_product(left, right, sizes, run.index > 0, target, value_width);
    }
    for (sums, out) in sums.chunks_exact(value_width).zip(out.chunks_exact_mut(head_dim)) {
        let inverse = out[0];
        out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum * inverse);
    }
}

/// Neighbouring rows that see the same positions of one block.
struct Run {
    block: usize,
    /// Of the block in each of the rows' sequences.
    index: usize,
    n_positions: usize,
    first: usize,
    n_rows: usize,
}

/// All runs, those of a row in the order of its positions.
fn runs<'a>(rows: &'a [LastRow<'a>]) -> impl Iterator<Item = Run> + 'a {
    let n_blocks = rows.iter().map(|row| row.length.div_ceil(KvBlocks::LEN)).max().unwrap_or_default();
    (0..n_blocks).flat_map(move |index| {
        let key = move |row: &LastRow<'_>| (row.n_positions(index), row.blocks.get(index).copied());
        let mut first = 0;
        rows.chunk_by(move |a, b| key(a) == key(b)).filter_map(move |chunk| {
            let (start, n_rows) = (first, chunk.len());
            first += n_rows;
            match key(&chunk[0]) {
                (n_positions @ 1.., Some(block)) => {
                    Some(Run { block, index, n_positions, first: start, n_rows })
                }
                _ => None,
            }
        })
    })
}
