//! Blocks of the cache: what all layers and heads keep of some positions.

use rayon::prelude::*;

use super::{HeadKeys, HeadLayout, append_keys, append_values};
use crate::aligned::Aligned;

/// Bytes that are got from the system at a time, so that blocks, which are read piece by piece in any order, lie on
/// large pages.
const SLAB_BYTES: usize = 32 << 20;

/// Keys and values in blocks of [`KvBlocks::LEN`] consecutive positions, each of all layers and key and value heads.
///
/// A block is the unit in which a cache is shared, kept and forgotten.
pub struct KvBlocks {
    layout: HeadLayout,
    /// Elements of a block: layer after layer, in it head after head, key panels, then padded value rows.
    block_len: usize,
    blocks_per_slab: usize,
    slabs: Vec<Aligned>,
    n_blocks: usize,
}

/// A row whose key and value are kept.
#[derive(Debug, Clone, Copy)]
pub struct KvRow<'a> {
    /// Number of the block.
    pub block: usize,
    /// Position in the block.
    pub offset: usize,
    /// `[queries | keys | values]`.
    pub row: &'a [f32],
}

impl KvBlocks {
    /// Positions of a block: a multiple of every panel width.
    pub const LEN: usize = 32;

    /// Makes no blocks. If about `n_expected` will be made, memory is not got for many more.
    pub fn new(layout: HeadLayout, n_layers: usize, n_expected: usize) -> Self {
        let n_bytes = Self::block_bytes(layout, n_layers);
        let blocks_per_slab = (SLAB_BYTES / n_bytes.max(1)).min(n_expected).max(1);
        Self {
            layout,
            block_len: n_bytes / size_of::<f32>(),
            blocks_per_slab,
            slabs: Vec::new(),
            n_blocks: 0,
        }
    }

    /// Memory that a block takes, in bytes.
    pub fn block_bytes(layout: HeadLayout, n_layers: usize) -> usize {
        n_layers * layout.n_kv_heads * head_len(layout) * size_of::<f32>()
    }

    /// Number of blocks.
    pub fn n_blocks(&self) -> usize {
        self.n_blocks
    }

    /// Makes blocks of zeros until there are this many. One takes memory once it is written to.
    pub fn grow(&mut self, n_blocks: usize) {
        self.n_blocks = self.n_blocks.max(n_blocks);
        let len = self.blocks_per_slab * self.block_len;
        self.slabs.resize_with(self.n_blocks.div_ceil(self.blocks_per_slab), || {
            let mut slab = Aligned::default();
            slab.reset(len);
            slab
        });
    }

    /// One head of one layer of a block.
    pub fn head(&self, block: usize, layer: usize, kv_head: usize) -> HeadKeys<'_> {
        let head_len = head_len(self.layout);
        let slab = self.slabs[block / self.blocks_per_slab].as_f32();
        let start = block % self.blocks_per_slab * self.block_len
            + (layer * self.layout.n_kv_heads + kv_head) * head_len;
        let (keys, values) = slab[start..start + head_len].split_at(self.layout.head_dim * Self::LEN);
        HeadKeys { keys, values }
    }

    /// Keeps keys and values of rows of one layer, on all threads. Rows of one block must be neighbours, and blocks in the
    /// order of their numbers.
    pub fn store(&mut self, layer: usize, mut rows: &[KvRow<'_>]) {
        let (per_slab, block_len) = (self.blocks_per_slab, self.block_len);
        assert!(rows.is_sorted_by_key(|row| row.block), "rows in the order of their blocks");
        assert!(rows.last().is_none_or(|row| row.block < self.n_blocks), "rows of blocks that are there");
        let mut tasks = Vec::new();
        for (i, slab) in self.slabs.iter_mut().enumerate() {
            let mut next = i * per_slab;
            let mut blocks = slab.as_f32_mut().chunks_exact_mut(block_len);
            while let Some(block) =
                rows.first().map(|row| row.block).filter(|block| *block < (i + 1) * per_slab)
            {
                let (own, rest) = rows.split_at(rows.partition_point(|row| row.block <= block));
                tasks.extend(blocks.nth(block - next).map(|block| (block, own)));
                (rows, next) = (rest, block + 1);
            }
        }
        let layout = self.layout;
        let store = |(block, rows): (&mut [f32], &[KvRow<'_>])| store(block, layer, rows, layout);
        tasks.into_par_iter().with_min_len(STORE_ROWS).for_each(store);
    }

    /// Makes one block hold what another one holds. Both must be there.
    pub fn copy(&mut self, from: usize, to: usize) {
        let (per_slab, len) = (self.blocks_per_slab, self.block_len);
        assert!(from.max(to) < self.n_blocks, "both blocks are there");
        let (source, target) = (from / per_slab, to / per_slab);
        let (start, end) = (from % per_slab * len, to % per_slab * len);
        if source == target {
            self.slabs[source].as_f32_mut().copy_within(start..start + len, end);
        } else if let Ok([source, target]) = self.slabs.get_disjoint_mut([source, target]) {
            target.as_f32_mut()[end..end + len].copy_from_slice(&source.as_f32()[start..start + len]);
        }
    }
}

/// Blocks with rows to store that are worth a task.
const STORE_ROWS: usize = 4;

/// Keeps rows of one layer in their block.
fn store(block: &mut [f32], layer: usize, rows: &[KvRow<'_>], layout: HeadLayout) {
    let (head_dim, head_len) = (layout.head_dim, head_len(layout));
    let heads = &mut block[layer * layout.n_kv_heads * head_len..][..layout.n_kv_heads * head_len];
    for (i, head) in heads.chunks_exact_mut(head_len).enumerate() {
        let (keys, values) = head.split_at_mut(head_dim * KvBlocks::LEN);
        for KvRow { offset, row, .. } in rows {
            let part = |start: usize| std::iter::once(&row[start..start + head_dim]);
            append_keys(keys, *offset, head_dim, part(layout.key_start(i)));
            append_values(values, *offset, layout.value_stride(), part(layout.value_start(i)));
        }
    }
}

/// Elements of one head of one layer.
fn head_len(layout: HeadLayout) -> usize {
    (layout.head_dim + layout.value_stride()) * KvBlocks::LEN
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: HeadLayout = HeadLayout { n_heads: 2, n_kv_heads: 2, head_dim: 4 };

    fn row(number: f32) -> Vec<f32> {
        (0..LAYOUT.row_width()).map(|i| number + i as f32 / 100.0).collect()
    }

    /// The value of a head at a position.
    fn value(blocks: &KvBlocks, block: usize, head: usize, offset: usize) -> f32 {
        blocks.head(block, 1, head).values[offset * LAYOUT.value_stride()]
    }

    #[test]
    fn rows_lie_in_their_block_in_slabs_of_any_size() {
        let n_layers = 2;
        let whole = SLAB_BYTES / KvBlocks::block_bytes(LAYOUT, n_layers);
        for n_expected in [1, 3, 7, whole, 5 * whole] {
            let last = 2 * n_expected.min(whole) + 5;
            let mut blocks = KvBlocks::new(LAYOUT, n_layers, n_expected);
            blocks.grow(last + 1);
            blocks.grow(3);
            assert_eq!(blocks.n_blocks(), last + 1);
            assert_eq!(blocks.slabs.len(), (last + 1).div_ceil(n_expected.min(whole)));
            let places = [(0, 3), (1, 0), (1, 31), (last - 1, 7), (last, 5)];
            let rows: Vec<Vec<f32>> = (1..=places.len()).map(|i| row(i as f32)).collect();
            let places_of_rows = places.iter().zip(&rows);
            let kept: Vec<KvRow<'_>> =
                places_of_rows.map(|(&(block, offset), row)| KvRow { block, offset, row }).collect();
            blocks.store(1, &kept);
            for (i, (block, offset)) in places.into_iter().enumerate() {
                for head in 0..2 {
                    let expected = rows[i][LAYOUT.value_start(head)];
                    assert_eq!(value(&blocks, block, head, offset), expected, "block {block}");
                    let nr = crate::panel_width();
                    let key = blocks.head(block, 1, head).keys[offset / nr * nr * 4 + offset % nr];
                    assert_eq!(key, rows[i][LAYOUT.key_start(head)]);
                    // The other layer has none of it.
                    let other = blocks.head(block, 0, head);
                    assert!(other.keys.iter().chain(other.values).all(|x| *x == 0.0));
                }
            }
            assert_eq!(value(&blocks, 1, 0, 1), 0.0);
            // Within a slab or from one to another, as it happens.
            blocks.copy(1, 0);
            blocks.copy(last, 1);
            assert_eq!(value(&blocks, 0, 1, 31), rows[2][LAYOUT.value_start(1)]);
            assert_eq!(value(&blocks, 0, 0, 3), 0.0);
            assert_eq!(value(&blocks, 1, 0, 5), rows[4][LAYOUT.value_start(0)]);
            assert_eq!(value(&blocks, last, 0, 5), rows[4][LAYOUT.value_start(0)]);
        }
    }
}
