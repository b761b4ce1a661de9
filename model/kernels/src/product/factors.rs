//! The factors of a product, and the copy of the left one.

use std::ops::Range;

use super::tile::{DEPTH_BLOCK, LeftBlock};
use crate::aligned::Aligned;

/// The left factor: element `(i, p)` is `values[i * row_stride + p * depth_stride]`.
#[derive(Clone, Copy)]
pub struct Left<'a> {
    /// From the first element on.
    pub values: &'a [f32],
    /// From one row to the next.
    pub row_stride: usize,
    /// From one inner position to the next.
    pub depth_stride: usize,
}

impl<'a> Left<'a> {
    /// Rows of `depth` elements.
    pub fn rows(values: &'a [f32], depth: usize) -> Self {
        Self { values, row_stride: depth, depth_stride: 1 }
    }

    /// The transposed view of rows of `n_rows` elements.
    pub fn transposed(values: &'a [f32], n_rows: usize) -> Self {
        Self { values, row_stride: 1, depth_stride: n_rows }
    }

    pub(super) fn block(self, row: usize, depth: usize) -> LeftBlock<'a> {
        let Self { values, row_stride, depth_stride } = self;
        let values = &values[row * row_stride + depth * depth_stride..];
        LeftBlock::InPlace { values, row_stride, depth_stride }
    }

    /// Copies rows and depths into tiles; see [`LeftBlock::Packed`].
    pub(super) fn pack(
        self,
        rows: Range<usize>,
        depths: Range<usize>,
        rows_per_tile: usize,
        to: &mut Aligned,
    ) {
        let Self { values, row_stride, depth_stride } = self;
        to.reset(rows.len() * depths.len());
        let mut rest = to.as_f32_mut();
        for start in depths.clone().step_by(DEPTH_BLOCK) {
            let depth = DEPTH_BLOCK.min(depths.end - start);
            for first in rows.clone().step_by(rows_per_tile) {
                let n_rows = rows_per_tile.min(rows.end - first);
                let (tile, after) = rest.split_at_mut(n_rows * depth);
                rest = after;
                if depth_stride == 1 {
                    interleave_rows(&values[first * row_stride + start..], row_stride, n_rows, tile);
                } else {
                    for (p, to) in tile.chunks_exact_mut(n_rows).enumerate() {
                        let from = &values[(start + p) * depth_stride + first * row_stride..];
                        to.iter_mut()
                            .zip(from.iter().step_by(row_stride))
                            .for_each(|(to, value)| *to = *value);
                    }
                }
            }
        }
    }
}

/// Copies `n_rows` rows so that elements at one inner position lie together.
fn interleave_rows(values: &[f32], row_stride: usize, n_rows: usize, to: &mut [f32]) {
    match n_rows {
        12 => interleave::<12>(values, row_stride, to),
        11 => interleave::<11>(values, row_stride, to),
        8 => interleave::<8>(values, row_stride, to),
        6 => interleave::<6>(values, row_stride, to),
        _ => {
            let n = to.len() / n_rows;
            for i in 0..n_rows {
                let from = &values[i * row_stride..][..n];
                to[i..].iter_mut().step_by(n_rows).zip(from).for_each(|(to, value)| *to = *value);
            }
        }
    }
}

fn interleave<const ROWS: usize>(values: &[f32], row_stride: usize, to: &mut [f32]) {
    let n = to.len() / ROWS;
    let rows: [&[f32]; ROWS] = std::array::from_fn(|i| &values[i * row_stride..][..n]);
    for (p, to) in to.as_chunks_mut::<ROWS>().0.iter_mut().enumerate() {
        for i in 0..ROWS {
            to[i] = rows[i][p];
        }
    }
}

/// The right factor, `depth` by `width`.
#[derive(Clone, Copy)]
pub enum Right<'a> {
    /// Rows at a stride.
    Rows {
        /// From the first element on.
        values: &'a [f32],
        /// From one row to the next.
        stride: usize,
    },
    /// The transposed factor: `width` rows of `depth` elements.
    Transposed {
        /// All elements.
        values: &'a [f32],
    },
    /// Panels of [`super::panel_width`] columns, each `depth` rows, zero where columns are missing.
    Panels {
        /// All elements.
        values: &'a [f32],
    },
    /// Such panels of pairs of `bf16`; see [`super::Panels::to_bf16`].
    Bf16Panels {
        /// All pairs.
        values: &'a [u32],
    },
}

/// Sizes of a product: `n_rows` by `depth` times `depth` by `width`.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Rows of the left factor and the result.
    pub n_rows: usize,
    /// Inner dimension.
    pub depth: usize,
    /// Columns of the right factor and the result.
    pub width: usize,
}
