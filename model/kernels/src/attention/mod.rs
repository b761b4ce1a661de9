//! Causal attention of a few query rows over the keys and values of one head.
//!
//! Keys lie in panels of [`panel_width`] positions, each `head_dim` rows: the scores of a panel are then a product
//! whose columns are positions. Values lie in rows padded to whole panels. Only the scores of one tile exist at a
//! time. The result of a query row depends on the row and on the keys and values up to its position, and on
//! nothing else: the same bits whether it is decoded alone or prefilled among others.

mod backward;
mod block;
mod forest;
mod shared;

pub use block::{KvBlocks, KvRow};
pub use forest::{attend_forest, attend_forest_backward};
pub use shared::{LastRow, attend_last};

use crate::exp::exp;
use crate::product::{Left, Right, Sizes, block_product, panel_width};
use crate::{sum, vectorized};

/// How heads lie in a row `[queries | keys | values]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadLayout {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

impl HeadLayout {
    /// Elements of a whole row.
    pub fn row_width(&self) -> usize {
        (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
    }

    /// Elements of the query part, and of a result row.
    pub fn query_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Query heads of one key and value head.
    pub fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    /// Where the key of a head starts in a row.
    pub fn key_start(&self, kv_head: usize) -> usize {
        (self.n_heads + kv_head) * self.head_dim
    }

    /// Where the value of a head starts in a row.
    pub fn value_start(&self, kv_head: usize) -> usize {
        (self.n_heads + self.n_kv_heads + kv_head) * self.head_dim
    }

    /// What scores are multiplied with.
    pub fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    /// Elements of a stored value: `head_dim` rounded up to whole panels.
    pub fn value_stride(&self) -> usize {
        self.head_dim.next_multiple_of(panel_width())
    }
}

/// Keys and values of one head at consecutive positions, as far as they are known.
#[derive(Clone, Copy)]
pub struct HeadKeys<'a> {
    /// Panels of positions.
    pub keys: &'a [f32],
    /// Padded rows.
    pub values: &'a [f32],
}

/// Writes the keys of rows at consecutive positions from `first` on into panels, which must have room.
pub(crate) fn append_keys<'a>(
    panels: &mut [f32],
    first: usize,
    head_dim: usize,
    vectors: impl Iterator<Item = &'a [f32]>,
) {
    let nr = panel_width();
    for (i, vector) in vectors.enumerate() {
        let position = first + i;
        let start = position / nr * nr * head_dim + position % nr;
        for (target, value) in panels[start..].iter_mut().step_by(nr).zip(vector) {
            *target = *value;
        }
    }
}

/// Writes the values of rows at consecutive positions into padded rows, which must have room.
pub(crate) fn append_values<'a>(
    rows: &mut [f32],
    first: usize,
    stride: usize,
    vectors: impl Iterator<Item = &'a [f32]>,
) {
    for (vector, target) in vectors.zip(rows[first * stride..].chunks_exact_mut(stride)) {
        target[..vector.len()].copy_from_slice(vector);
    }
}

/// Query rows of one head at consecutive positions, or the heads of one group at one position.
pub struct Tile<'a> {
    /// From the first query's first element on.
    pub queries: &'a [f32],
    /// From one query to the next.
    pub stride: usize,
    /// Number of queries.
    pub n_rows: usize,
    /// Keys that the first query sees.
    pub first_length: usize,
    /// How many more each further query sees: 1, or 0 for heads at one position.
    pub step: usize,
}

/// Attends for a tile; row `i` of the result goes to `out[i * out_stride..]`. `scratch` is only memory to reuse.
///
/// `block(i)` has the keys and values from position `i * block_len` on; the blocks must hold all that the last query
/// sees. `block_len` is a multiple of [`panel_width`], or there is one block. How positions are cut into blocks does
/// not change a bit.
pub fn attend_tile<'a>(
    tile: &Tile<'_>,
    block_len: usize,
    block: impl Fn(usize) -> HeadKeys<'a>,
    layout: HeadLayout,
    scratch: &mut Vec<f32>,
    out: &mut [f32],
    out_stride: usize,
) {
    let nr = panel_width();
    let Tile { queries, stride, n_rows, first_length, step } = *tile;
    let n_keys = first_length + (n_rows - 1) * step;
    let (padded, head_dim, value_width) =
        (n_keys.next_multiple_of(nr), layout.head_dim, layout.value_stride());
    let blocks =
        || (0..n_keys).step_by(block_len).map(|first| first..n_keys.min(first + block_len)).enumerate();
    // Every element is written before it is read.
    if scratch.len() < n_rows * (padded + value_width + 1) {
        scratch.resize(n_rows * (padded + value_width + 1), 0.0);
    }
    let (scores, rest) = scratch.split_at_mut(n_rows * padded);
    let (sums, inverses) = rest[..n_rows * (value_width + 1)].split_at_mut(n_rows * value_width);
    let left = Left { values: queries, row_stride: stride, depth_stride: 1 };
    for (i, positions) in blocks() {
        let sizes = Sizes { n_rows, depth: head_dim, width: positions.len().next_multiple_of(nr) };
        let right = Right::Panels { values: block(i).keys };
        block_product(left, right, sizes, false, &mut scores[positions.start..], padded);
    }
    for (i, (row, inverse)) in scores.chunks_exact_mut(padded).zip(inverses.iter_mut()).enumerate() {
        *inverse = 1.0 / exp_row(row, first_length + i * step, layout.scale());
    }
    for (i, positions) in blocks() {
        let left = Left { values: &scores[positions.start..], row_stride: padded, depth_stride: 1 };
        let right = Right::Rows { values: block(i).values, stride: value_width };
        let sizes = Sizes { n_rows, depth: positions.len(), width: value_width };
        block_product(left, right, sizes, i > 0, sums, value_width);
    }
    for (i, (row, inverse)) in sums.chunks_exact(value_width).zip(inverses).enumerate() {
        for (target, value) in out[i * out_stride..][..head_dim].iter_mut().zip(row) {
            *target = value * *inverse;
        }
    }
}

/// Replaces the first `length` scores by `exp(scale * (score - max))`, the others by zero, and returns their sum.
///
/// The length of `row` must be a multiple of 8.
fn exp_row(row: &mut [f32], length: usize, scale: f32) -> f32 {
    vectorized(
        #[inline(always)]
        |args| exp_row_body(args),
        (row, length, scale),
    )
}

#[inline(always)]
fn exp_row_body((row, length, scale): (&mut [f32], usize, f32)) -> f32 {
    let (seen, hidden) = row.split_at_mut(length);
    hidden.fill(0.0);
    let max = sum::max(seen);
    for x in seen.iter_mut() {
        *x = exp((*x - max) * scale);
    }
    sum::sum_terms(
        length,
        #[inline(always)]
        |i| seen[i],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_keys_by_hand() {
        // Query (1, 0), keys (0, 0) and (sqrt(2) ln 3, 0): scores 0 and ln 3 after the scale 1/sqrt(2), weights 1/4
        // and 3/4; values (4, 0) and (0, 8) give (1, 6).
        let layout = HeadLayout { n_heads: 1, n_kv_heads: 1, head_dim: 2 };
        let nr = panel_width();
        let mut keys = vec![9.0; nr * 2];
        let mut values = vec![0.0; 2 * layout.value_stride()];
        let key = [2.0_f32.sqrt() * 3.0_f32.ln(), 0.0];
        append_keys(&mut keys, 0, 2, [[0.0, 0.0].as_slice(), key.as_slice()].into_iter());
        append_values(
            &mut values,
            0,
            layout.value_stride(),
            [[4.0, 0.0].as_slice(), &[0.0, 8.0]].into_iter(),
        );
        let head = HeadKeys { keys: &keys, values: &values };
        let queries = [1.0, 0.0, 1.0, 0.0];
        let tile = Tile { queries: &queries, stride: 2, n_rows: 2, first_length: 1, step: 1 };
        let mut out = [0.0; 4];
        attend_tile(&tile, 2, |_| head, layout, &mut Vec::new(), &mut out, 2);
        // The first row sees only the first key.
        assert_eq!(&out[..2], &[4.0, 0.0]);
        assert!((out[2] - 1.0).abs() < 1e-5 && (out[3] - 6.0).abs() < 1e-5, "{out:?}");
    }

    #[test]
    fn blocks_have_the_bits_of_one_piece() {
        let layout = HeadLayout { n_heads: 4, n_kv_heads: 2, head_dim: 12 };
        let number = |i: usize| ((i * 7919 + 13) % 1009) as f32 / 500.0 - 1.0;
        let n_keys = 77;
        let rows: Vec<Vec<f32>> =
            (0..n_keys).map(|i| (0..layout.row_width()).map(|j| number(i * 100 + j)).collect()).collect();
        let mut blocks = KvBlocks::new(layout, 2, 2);
        blocks.grow(n_keys.div_ceil(KvBlocks::LEN));
        let kept: Vec<KvRow<'_>> = rows
            .iter()
            .enumerate()
            .map(|(i, row)| KvRow { block: i / KvBlocks::LEN, offset: i % KvBlocks::LEN, row })
            .collect();
        blocks.store(1, &kept);
        let stride = layout.value_stride();
        for kv_head in 0..2 {
            let mut keys = vec![0.0; n_keys.next_multiple_of(panel_width()) * 12];
            let mut values = vec![0.0; n_keys * stride];
            let part = |start: usize| rows.iter().map(move |row| &row[start..start + 12]);
            append_keys(&mut keys, 0, 12, part(layout.key_start(kv_head)));
            append_values(&mut values, 0, stride, part(layout.value_start(kv_head)));
            for (first_length, n_rows, step) in [(1, 1, 1), (32, 1, 0), (33, 2, 0), (60, 13, 1), (77, 3, 0)] {
                let queries: Vec<f32> = (0..n_rows * 12).map(|i| number(i + 5)).collect();
                let tile = Tile { queries: &queries, stride: 12, n_rows, first_length, step };
                let mut whole = vec![0.0; n_rows * 12];
                let head = |_| HeadKeys { keys: &keys, values: &values };
                attend_tile(&tile, n_keys, head, layout, &mut Vec::new(), &mut whole, 12);
                // What the memory held before has no influence.
                let mut scratch = vec![f32::NAN; 5000];
                let mut cut = vec![0.0; n_rows * 12];
                let block = |i: usize| blocks.head(i, 1, kv_head);
                attend_tile(&tile, KvBlocks::LEN, block, layout, &mut scratch, &mut cut, 12);
                let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
                assert_eq!(bits(&whole), bits(&cut), "{first_length} keys");
            }
            // The last positions of five sequences: the whole one, two that share its first blocks, one that shares
            // nothing but ends within a block of it, and the whole one again.
            let lists: [&[usize]; 5] = [&[0, 1, 2], &[0, 1, 1], &[0, 1, 0], &[2, 1, 0], &[0, 1, 2]];
            let lasts: Vec<LastRow> = lists
                .iter()
                .zip([77, 77, 70, 40, 77])
                .zip(&rows)
                .map(|((blocks, length), row)| LastRow { row, length, blocks })
                .collect();
            let (group, head) = (layout.group() * 12, |block: usize| blocks.head(block, 1, kv_head));
            let mut together = vec![0.0; lasts.len() * group];
            attend_last(&lasts, kv_head, head, layout, &mut vec![f32::NAN; 9000], &mut together);
            for (last, found) in lasts.iter().zip(together.chunks_exact(group)) {
                let queries = &last.row[kv_head * group..];
                let tile = Tile { queries, stride: 12, n_rows: 2, first_length: last.length, step: 0 };
                let mut alone = vec![0.0; group];
                let block = |i: usize| blocks.head(last.blocks[i], 1, kv_head);
                attend_tile(&tile, KvBlocks::LEN, block, layout, &mut Vec::new(), &mut alone, 12);
                let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
                assert_eq!(bits(&alone), bits(found), "{last:?}");
            }
        }
    }
}
