//! Matrix products in which an element is summed in the order of the inner dimension: 256 positions in one accumulator
//! from zero, then the next ones, each block's sum added to those before.
//!
//! So an element depends on its row of the left factor and its column of the right one, and on nothing else: not on
//! the number of rows, the tiles, the threads, or the vector width. General-purpose libraries choose the order of
//! the sum by shape and cannot promise that. The error of a sum grows with the length of a block and the number of blocks,
//! not with the whole length.
//!
//! The blocking is the usual one (<https://doi.org/10.1145/1356052.1356053>): a panel of the right factor stays in the
//! first-level cache, a block of the left one in the second-level cache, and both are copied so that they are read in
//! order. Blocks of depths are taken in order.

mod factors;
mod panels;
mod shares;
mod tile;

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use crate::aligned::Aligned;
pub use factors::{Left, Right, Sizes};
pub use panels::Panels;
use shares::{MANY_ROWS, by_columns, with_copies, with_panels};
pub(crate) use tile::prefetch;
use tile::{PASS_DEPTH, Pass, Stored, Summation, View, tile_rows};

/// Columns of a tile: two vectors of the widest kind this processor has. Layouts depend on it, results do not.
pub fn panel_width() -> usize {
    struct Width;
    impl WithSimd for Width {
        type Output = usize;

        #[inline(always)]
        fn with_simd<S: Simd>(self, _simd: S) -> usize {
            2 * S::F32_LANES
        }
    }
    Arch::new().dispatch(Width)
}

/// Writes `left * right`, or adds it if `is_added`, into rows of `sizes.width` elements, on all threads. What is added are
/// the sums of the blocks, one after the other: where `out` is much larger than the product, multiply first and add then.
pub fn product(left: Left<'_>, right: Right<'_>, sizes: Sizes, is_added: bool, out: &mut [f32]) {
    let Sizes { n_rows, depth, width } = sizes;
    assert_eq!(out.len(), n_rows * width, "output of a product");
    if out.is_empty() {
        return;
    }
    if depth == 0 {
        if !is_added {
            out.fill(0.0);
        }
        return;
    }
    match right {
        Right::Panels { values } => with_panels(left, panels::view(values, depth), sizes, is_added, out),
        Right::Bf16Panels { values } => with_panels(left, bf16_view(values, depth), sizes, is_added, out),
        Right::Rows { values, stride } if n_rows < MANY_ROWS => {
            by_columns(sizes, is_added, out, |columns, out, out_stride| {
                let right = Right::Rows { values: &values[columns.start..], stride };
                let sizes = Sizes { width: columns.len(), ..sizes };
                on_this_thread(left, right, sizes, Summation::Blocks, is_added, out, out_stride);
            });
        }
        Right::Rows { values, stride } => {
            with_copies(left, sizes, is_added, out, |depths, columns, panels| {
                panels::copy_rows(values, stride, depths, columns, panels);
            });
        }
        Right::Transposed { values } => {
            with_copies(left, sizes, is_added, out, |depths, columns, panels| {
                panels::copy_transposed(values, depth, depths, columns, panels);
            });
        }
    }
}

fn bf16_view(values: &[u32], depth: usize) -> View<'_, u32> {
    let stride = panel_width() / 2;
    View { values, panel_step: depth * stride, stride }
}

/// A product on this thread into rows at `out_stride`, for the small factors of attention, which need no copies. An
/// element is one accumulator over all positions, and `is_added` goes on with it: the blocks of keys that a sum runs
/// over have any size.
pub(crate) fn block_product(
    left: Left<'_>,
    right: Right<'_>,
    sizes: Sizes,
    is_added: bool,
    out: &mut [f32],
    out_stride: usize,
) {
    on_this_thread(left, right, sizes, Summation::Straight, is_added, out, out_stride);
}

fn on_this_thread(
    left: Left<'_>,
    right: Right<'_>,
    sizes: Sizes,
    summation: Summation,
    is_added: bool,
    out: &mut [f32],
    out_stride: usize,
) {
    let Sizes { n_rows, depth, width } = sizes;
    if n_rows == 0 || width == 0 {
        return;
    }
    if depth == 0 {
        if !is_added {
            out.chunks_mut(out_stride).for_each(|row| row[..width].fill(0.0));
        }
        return;
    }
    let nr = panel_width();
    match right {
        Right::Rows { values, stride } => {
            let whole = width - width % nr;
            let sizes = |width| Sizes { width, ..sizes };
            if whole > 0 {
                let view = View { values, panel_step: nr, stride };
                in_place(left, view, sizes(whole), summation, is_added, out, out_stride);
            }
            if whole < width {
                let tail = tail_panel(values, stride, depth, whole..width, nr);
                in_place(
                    left,
                    panels::view(&tail, depth),
                    sizes(width - whole),
                    summation,
                    is_added,
                    &mut out[whole..],
                    out_stride,
                );
            }
        }
        Right::Panels { values } => {
            in_place(left, panels::view(values, depth), sizes, summation, is_added, out, out_stride);
        }
        Right::Bf16Panels { values } => {
            in_place(left, bf16_view(values, depth), sizes, summation, is_added, out, out_stride);
        }
        Right::Transposed { values } => {
            let mut copy = Aligned::default();
            panels::copy_transposed(values, depth, 0..depth, 0..width, &mut copy);
            in_place(left, panels::view(copy.as_f32(), depth), sizes, summation, is_added, out, out_stride);
        }
    }
}

fn in_place<E: Stored>(
    left: Left<'_>,
    view: View<'_, E>,
    sizes: Sizes,
    summation: Summation,
    is_added: bool,
    out: &mut [f32],
    out_stride: usize,
) {
    let Sizes { n_rows, depth, width } = sizes;
    let rows_per_tile = n_rows.div_ceil(n_rows.div_ceil(tile_rows()));
    for first in (0..depth).step_by(PASS_DEPTH) {
        Arch::new().dispatch(Pass {
            left: left.block(0, first),
            n_rows,
            rows_per_tile,
            right: View { values: &view.values[first * view.stride..], ..view },
            depth: PASS_DEPTH.min(depth - first),
            width,
            summation,
            is_added: is_added || first > 0,
            looks_ahead: false,
            out: &mut *out,
            out_stride,
        });
    }
}

/// Copies the columns that do not fill a panel, zero-padded.
fn tail_panel(values: &[f32], stride: usize, depth: usize, columns: Range<usize>, nr: usize) -> Vec<f32> {
    let mut panel = vec![0.0; depth * nr];
    for (row, target) in values.chunks(stride).zip(panel.chunks_exact_mut(nr)) {
        target[..columns.len()].copy_from_slice(&row[columns.clone()]);
    }
    panel
}

#[cfg(test)]
mod tests;
