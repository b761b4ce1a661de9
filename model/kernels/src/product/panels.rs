//! The right factor of a product, copied into panels of columns.

use std::ops::Range;

use half::bf16;
use rayon::prelude::*;

use super::panel_width;
use super::tile::View;
use crate::aligned::Aligned;

/// Positions of the inner dimension that one task copies at a time.
const COPY_ROWS: usize = 64;

/// A right factor of `depth` by `width`, copied into panels of [`panel_width`] columns, each `depth` rows, zero where
/// columns are missing.
pub struct Panels {
    values: Values,
    depth: usize,
    width: usize,
}

enum Values {
    F32(Aligned),
    /// Two columns an element: that of the first vector of a panel in the low half, that of the second one in the
    /// high half, so that widening is a shift and a mask.
    Bf16(Aligned),
}

impl Panels {
    /// From `depth` rows of `width` elements.
    pub fn from_rows(values: &[f32], depth: usize, width: usize) -> Self {
        let mut panels = Aligned::default();
        copy_rows(values, width, 0..depth, 0..width, &mut panels);
        Self { values: Values::F32(panels), depth, width }
    }

    /// From the transposed factor: `width` rows of `depth` elements.
    pub fn from_transposed(values: &[f32], depth: usize, width: usize) -> Self {
        let mut panels = Aligned::default();
        copy_transposed(values, depth, 0..depth, 0..width, &mut panels);
        Self { values: Values::F32(panels), depth, width }
    }

    /// The same in half the memory, each value rounded to `bf16`; values that are `bf16` already stay what they are.
    #[must_use]
    pub fn to_bf16(self) -> Self {
        let Values::F32(values) = &self.values else { return self };
        let lanes = panel_width() / 2;
        let bits = |value: f32| u32::from(bf16::from_f32(value).to_bits());
        let mut pairs = Aligned::default();
        pairs.reset(values.len() / 2);
        let rows = values.as_f32().par_chunks_exact(2 * lanes);
        pairs.as_u32_mut().par_chunks_exact_mut(lanes).zip(rows).for_each(|(pairs, row)| {
            let (low, high) = row.split_at(lanes);
            for (pair, (low, high)) in pairs.iter_mut().zip(low.iter().zip(high)) {
                *pair = bits(*low) | bits(*high) << 16;
            }
        });
        Self { values: Values::Bf16(pairs), ..self }
    }

    /// Inner dimension.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Number of columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Bytes of memory taken.
    pub fn n_bytes(&self) -> usize {
        let (Values::F32(values) | Values::Bf16(values)) = &self.values;
        values.len() * size_of::<u32>()
    }

    /// Writes one column into `out`, which has `depth` elements.
    pub fn read_column(&self, column: usize, out: &mut [f32]) {
        let nr = panel_width();
        let (panel, place) = (column / nr, column % nr);
        match &self.values {
            Values::F32(values) => {
                let rows = values.as_f32()[panel * self.depth * nr..].chunks_exact(nr);
                out.iter_mut().zip(rows).for_each(|(out, row)| *out = row[place]);
            }
            Values::Bf16(values) => {
                let lanes = nr / 2;
                let rows = values.as_u32()[panel * self.depth * lanes..].chunks_exact(lanes);
                for (out, row) in out.iter_mut().zip(rows) {
                    let pair = row[place % lanes];
                    *out = f32::from_bits(if place < lanes { pair << 16 } else { pair & 0xffff_0000 });
                }
            }
        }
    }

    /// The factor to multiply with.
    pub fn right(&self) -> super::Right<'_> {
        match &self.values {
            Values::F32(values) => super::Right::Panels { values: values.as_f32() },
            Values::Bf16(values) => super::Right::Bf16Panels { values: values.as_u32() },
        }
    }
}

/// Copies some rows and columns of a factor of `stride` elements a row into panels, each as deep as `depths` is long.
pub(super) fn copy_rows(
    values: &[f32],
    stride: usize,
    depths: Range<usize>,
    columns: Range<usize>,
    panels: &mut Aligned,
) {
    let nr = panel_width();
    let depth = depths.len();
    panels.reset(columns.len().div_ceil(nr) * depth * nr);
    panels.as_f32_mut().par_chunks_mut((depth * nr).max(1)).enumerate().for_each(|(j, panel)| {
        let start = columns.start + j * nr;
        let n = nr.min(columns.end - start);
        let rows = values[depths.start * stride..].chunks(stride);
        for (row, target) in rows.zip(panel.chunks_exact_mut(nr)) {
            target[..n].copy_from_slice(&row[start..start + n]);
            target[n..].fill(0.0);
        }
    });
}

/// As [`copy_rows`], from the transposed factor: a row of `stride` elements for each column.
pub(super) fn copy_transposed(
    values: &[f32],
    stride: usize,
    depths: Range<usize>,
    columns: Range<usize>,
    panels: &mut Aligned,
) {
    let nr = panel_width();
    let depth = depths.len();
    panels.reset(columns.len().div_ceil(nr) * depth * nr);
    panels.as_f32_mut().par_chunks_mut((depth * nr).max(1)).enumerate().for_each(|(j, panel)| {
        let start = columns.start + j * nr;
        let n = nr.min(columns.end - start);
        // A block of depths at a time, so that what is written stays in the first-level cache.
        for first in (0..depth).step_by(COPY_ROWS) {
            let block = &mut panel[first * nr..(first + COPY_ROWS).min(depth) * nr];
            for c in 0..n {
                let column = &values[(start + c) * stride + depths.start + first..];
                for (target, value) in block[c..].iter_mut().step_by(nr).zip(column) {
                    *target = *value;
                }
            }
            for row in block.chunks_exact_mut(nr) {
                row[n..].fill(0.0);
            }
        }
    });
}

/// The panels of a copied block.
pub(super) fn view(panels: &[f32], depth: usize) -> View<'_, f32> {
    View { values: panels, panel_step: depth * panel_width(), stride: panel_width() }
}
