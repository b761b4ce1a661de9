//! A block of the cache: what all layers and heads keep of some positions.

use super::{HeadKeys, HeadLayout, append_keys, append_values};
use crate::aligned::Aligned;

/// Keys and values of [`KvBlock::LEN`] consecutive positions, of all layers and key and value heads.
///
/// The unit in which a cache is shared, kept and forgotten.
pub struct KvBlock {
    layout: HeadLayout,
    /// Layer after layer, in it head after head: key panels, then padded value rows.
    elements: Aligned,
}

impl KvBlock {
    /// Positions of a block: a multiple of every panel width.
    pub const LEN: usize = 32;

    /// Makes a block of zeros.
    pub fn new(layout: HeadLayout, n_layers: usize) -> Self {
        let mut elements = Aligned::default();
        elements.resize(n_layers * layout.n_kv_heads * head_len(layout));
        Self { layout, elements }
    }

    /// Memory that a block takes, in bytes.
    pub fn n_bytes(layout: HeadLayout, n_layers: usize) -> usize {
        n_layers * layout.n_kv_heads * head_len(layout) * size_of::<f32>()
    }

    /// One head of one layer.
    pub fn head(&self, layer: usize, kv_head: usize) -> HeadKeys<'_> {
        let start = (layer * self.layout.n_kv_heads + kv_head) * head_len(self.layout);
        let head = &self.elements.as_f32()[start..start + head_len(self.layout)];
        let (keys, values) = head.split_at(self.layout.head_dim * Self::LEN);
        HeadKeys { keys, values }
    }

    /// Keeps key and value of a `[queries | keys | values]` row of one layer as those of position `offset`.
    pub fn store(&mut self, layer: usize, offset: usize, row: &[f32]) {
        let layout = self.layout;
        let (head_dim, head_len) = (layout.head_dim, head_len(layout));
        let first = layer * layout.n_kv_heads * head_len;
        let heads = &mut self.elements.as_f32_mut()[first..first + layout.n_kv_heads * head_len];
        for (i, head) in heads.chunks_exact_mut(head_len).enumerate() {
            let (keys, values) = head.split_at_mut(head_dim * Self::LEN);
            let part = |start: usize| std::iter::once(&row[start..start + head_dim]);
            append_keys(keys, offset, head_dim, part(layout.key_start(i)));
            append_values(values, offset, layout.value_stride(), part(layout.value_start(i)));
        }
    }

    /// Takes over everything that another block of the same model holds.
    pub fn copy_from(&mut self, other: &Self) {
        self.elements.as_f32_mut().copy_from_slice(other.elements.as_f32());
    }
}

/// Elements of one head of one layer.
fn head_len(layout: HeadLayout) -> usize {
    (layout.head_dim + layout.value_stride()) * KvBlock::LEN
}
