//! Keys and values of the sequences that are being decoded.

use rayon::prelude::*;

use crate::config::ModelConfig;
use crate::error::ModelError;
use envace_kernels::{HeadKeys, HeadLayout, Tile, append_keys, append_values, attend_tile, panel_width};

/// Rows that one task attends for.
const TASK_ROWS: usize = 8;

/// One token's place: the sequence it belongs to and its position there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheRow {
    /// Index of the sequence's slot.
    pub slot: usize,
    /// Position in the sequence, from 0.
    pub position: usize,
}

/// Keys and values in `f32` of up to `n_slots` sequences, each growing as needed.
///
/// Memory that a slot has taken is kept for its next sequence until [`KvCache::release`].
pub struct KvCache {
    layout: HeadLayout,
    context_length: usize,
    slots: Vec<Slot>,
}

#[derive(Clone, Default)]
struct Slot {
    len: usize,
    /// By layer, then key and value head.
    heads: Vec<Head>,
}

#[derive(Clone, Default)]
struct Head {
    /// Panels of positions; see the attention kernel.
    keys: Vec<f32>,
    /// Padded rows.
    values: Vec<f32>,
}

impl KvCache {
    /// Makes an empty cache for a model of this configuration.
    pub fn new(config: &ModelConfig, n_slots: usize) -> Self {
        let slot = Slot { len: 0, heads: vec![Head::default(); config.n_layers * config.n_kv_heads] };
        Self {
            layout: super::layout(config),
            context_length: config.context_length,
            slots: vec![slot; n_slots],
        }
    }

    /// Number of slots.
    pub fn n_slots(&self) -> usize {
        self.slots.len()
    }

    /// Number of positions a slot holds; 0 if there is no such slot.
    pub fn len(&self, slot: usize) -> usize {
        self.slots.get(slot).map_or(0, |slot| slot.len)
    }

    /// Whether a slot holds nothing.
    pub fn is_empty(&self, slot: usize) -> bool {
        self.len(slot) == 0
    }

    /// Forgets a slot's sequence.
    pub fn clear(&mut self, slot: usize) {
        self.truncate(slot, 0);
    }

    /// Forgets what lies at `len` and beyond.
    pub fn truncate(&mut self, slot: usize, len: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.len = slot.len.min(len);
        }
    }

    /// Forgets a slot's sequence and gives its memory back.
    pub fn release(&mut self, slot: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.len = 0;
            slot.heads.fill(Head::default());
        }
    }

    /// Makes the first `len` positions of `to` those of `from`; further positions of `to` are forgotten.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] if a slot does not exist or `from` is shorter than `len`.
    pub fn copy_prefix(&mut self, from: usize, to: usize, len: usize) -> Result<(), ModelError> {
        if from.max(to) >= self.slots.len() || len > self.len(from) {
            return Err(ModelError::invalid(format!(
                "cannot copy a prefix from slot {from} to slot {to}: {len}"
            )));
        }
        if from == to {
            self.truncate(to, len);
            return Ok(());
        }
        let keys_len = len.next_multiple_of(panel_width()) * self.layout.head_dim;
        let values_len = len * self.layout.value_stride();
        let mut target = std::mem::take(&mut self.slots[to]);
        for (target, source) in target.heads.iter_mut().zip(&self.slots[from].heads) {
            target.keys.clear();
            target.keys.extend_from_slice(&source.keys[..keys_len]);
            target.values.clear();
            target.values.extend_from_slice(&source.values[..values_len]);
        }
        target.len = len;
        self.slots[to] = target;
        Ok(())
    }

    /// Bytes that one position of one slot takes.
    pub fn bytes_per_position(&self) -> usize {
        let heads = self.slots.first().map_or(0, |slot| slot.heads.len());
        heads * (self.layout.head_dim + self.layout.value_stride()) * size_of::<f32>()
    }

    /// Checks that each row continues its slot and makes room for all of them.
    pub(super) fn reserve(&mut self, rows: &[CacheRow]) -> Result<(), ModelError> {
        let mut lengths: Vec<usize> = self.slots.iter().map(|slot| slot.len).collect();
        for row in rows {
            let Some(len) = lengths.get_mut(row.slot) else {
                return Err(ModelError::invalid(format!("the cache has no such slot: {}", row.slot)));
            };
            if row.position != *len {
                let CacheRow { slot, position } = row;
                return Err(ModelError::invalid(format!(
                    "slot {slot} holds {len} positions, so the next row cannot have position: {position}"
                )));
            }
            *len += 1;
            if *len > self.context_length {
                return Err(ModelError::ContextOverflow { needed: *len, limit: self.context_length });
            }
        }
        let (nr, head_dim, stride) = (panel_width(), self.layout.head_dim, self.layout.value_stride());
        for (slot, len) in self.slots.iter_mut().zip(lengths).filter(|(slot, len)| slot.len != *len) {
            for head in &mut slot.heads {
                let keys = len.next_multiple_of(nr) * head_dim;
                if head.keys.len() < keys {
                    head.keys.resize(keys, 0.0);
                }
                if head.values.len() < len * stride {
                    head.values.resize(len * stride, 0.0);
                }
            }
        }
        Ok(())
    }

    /// Stores one layer's keys and values of reserved rows, and attends for their queries.
    pub(super) fn attend(&mut self, layer: usize, rows: &[CacheRow], qkv: &[f32]) -> Vec<f32> {
        let layout = self.layout;
        let (row_width, query_width, head_dim) = (layout.row_width(), layout.query_width(), layout.head_dim);
        let first_head = layer * layout.n_kv_heads;
        for (row, qkv) in rows.iter().zip(qkv.chunks_exact(row_width)) {
            let heads = &mut self.slots[row.slot].heads[first_head..first_head + layout.n_kv_heads];
            for (i, head) in heads.iter_mut().enumerate() {
                let key = &qkv[layout.key_start(i)..][..head_dim];
                let value = &qkv[layout.value_start(i)..][..head_dim];
                append_keys(&mut head.keys, row.position, head_dim, std::iter::once(key));
                let stride = layout.value_stride();
                append_values(&mut head.values, row.position, stride, std::iter::once(value));
            }
        }
        let slots = &self.slots;
        let mut out = vec![0.0; rows.len() * query_width];
        let tasks = out
            .par_chunks_mut(TASK_ROWS * query_width)
            .zip(qkv.par_chunks(TASK_ROWS * row_width))
            .zip(rows.par_chunks(TASK_ROWS));
        tasks.for_each_init(Vec::new, |scratch, ((out, qkv), rows)| {
            let mut start = 0;
            while start < rows.len() {
                let run = run_length(&rows[start..]);
                let heads = &slots[rows[start].slot].heads[first_head..first_head + layout.n_kv_heads];
                let (qkv, out) = (&qkv[start * row_width..], &mut out[start * query_width..]);
                attend_run(rows[start].position, run, heads, layout, qkv, out, scratch);
                start += run;
            }
        });
        out
    }

    /// Counts rows that all layers have now stored.
    pub(super) fn advance(&mut self, rows: &[CacheRow]) {
        for row in rows {
            self.slots[row.slot].len = row.position + 1;
        }
    }
}

/// How many rows from the first on are consecutive positions of one slot.
fn run_length(rows: &[CacheRow]) -> usize {
    let first = rows[0];
    let continues =
        |(i, row): &(usize, &CacheRow)| row.slot == first.slot && row.position == first.position + i;
    rows.iter().enumerate().take_while(continues).count()
}

/// Attends for consecutive positions of one slot: a tile a head, or, for a single position, a tile a group of heads.
fn attend_run(
    position: usize,
    n_rows: usize,
    heads: &[Head],
    layout: HeadLayout,
    qkv: &[f32],
    out: &mut [f32],
    scratch: &mut Vec<f32>,
) {
    let (head_dim, group) = (layout.head_dim, layout.group());
    for (kv_head, head) in heads.iter().enumerate() {
        let keys = HeadKeys { keys: &head.keys, values: &head.values };
        let start = kv_head * group * head_dim;
        if n_rows == 1 {
            let (queries, out) = (&qkv[start..], &mut out[start..]);
            let tile = Tile { queries, stride: head_dim, n_rows: group, first_length: position + 1, step: 0 };
            attend_tile(&tile, keys, layout, scratch, out, head_dim);
            continue;
        }
        for i in 0..group {
            let start = start + i * head_dim;
            let (queries, out) = (&qkv[start..], &mut out[start..]);
            let stride = layout.row_width();
            let tile = Tile { queries, stride, n_rows, first_length: position + 1, step: 1 };
            attend_tile(&tile, keys, layout, scratch, out, layout.query_width());
        }
    }
}
