//! Matrix products in which an element is one accumulator, added to in the order of the inner dimension.
//!
//! So an element depends on its row of the left factor and its column of the right one, and on nothing else: not on
//! the number of rows, the tiles, the threads, or the vector width. General-purpose libraries choose the order of
//! the sum by shape and cannot promise that.
//!
//! The blocking is the usual one (<https://doi.org/10.1145/1356052.1356053>): a panel of the right factor stays in the
//! first-level cache, a block of the left one in the second-level cache, and both are copied so that they are read in
//! order. Blocks of depths are taken in order and go on from the sums so far.

mod panels;
mod tile;

use std::cell::Cell;
use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::aligned::Aligned;
pub use panels::Panels;
pub(crate) use tile::prefetch;
use tile::{DEPTH_BLOCK, LeftBlock, PASS_DEPTH, Pass, Stored, View, tile_rows};

/// Rows of the left factor that one task copies and multiplies at a time.
const ROW_BLOCK: usize = 144;
/// Columns of the right factor that are copied at a time.
const COLUMN_BLOCK: usize = 1024;
/// Up to this many rows, the panels of the right factor are worth asking for ahead, and are best read in the order in
/// which they lie in memory.
const MANY_ROWS: usize = 48;
/// From this many rows on, rows and not columns are shared out among the threads. Fewer are one block of rows, for which
/// each panel is then read once, by one thread.
const SPLIT_ROWS: usize = ROW_BLOCK + 1;
/// Copying the left factor pays from this many columns on.
const PACK_WIDTH: usize = 128;
/// Fewer multiply-adds than this are not worth a second thread.
const PARALLEL_WORK: usize = 1 << 19;

thread_local! {
    /// Memory for copied factors. It is taken out while in use, so a task that runs meanwhile makes its own.
    static LEFT_BUFFER: Cell<Aligned> = Cell::default();
    static RIGHT_BUFFER: Cell<Aligned> = Cell::default();
}

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

    fn block(self, row: usize, depth: usize) -> LeftBlock<'a> {
        let Self { values, row_stride, depth_stride } = self;
        let values = &values[row * row_stride + depth * depth_stride..];
        LeftBlock::InPlace { values, row_stride, depth_stride }
    }

    /// Copies rows and depths into tiles; see [`LeftBlock::Packed`].
    fn pack(self, rows: Range<usize>, depths: Range<usize>, rows_per_tile: usize, to: &mut Aligned) {
        let Self { values, row_stride, depth_stride } = self;
        to.resize(rows.len() * depths.len());
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
    /// Panels of [`panel_width`] columns, each `depth` rows, zero where columns are missing.
    Panels {
        /// All elements.
        values: &'a [f32],
    },
    /// Such panels of pairs of `bf16`; see [`Panels::to_bf16`].
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

/// Writes `left * right`, or adds it if `is_added`, into rows of `sizes.width` elements, on all threads.
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
                block_product(left, right, sizes, is_added, out, out_stride);
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

/// Copies the right factor block by block: `copy` is given depths, columns, and where to.
fn with_copies(
    left: Left<'_>,
    sizes: Sizes,
    is_added: bool,
    out: &mut [f32],
    copy: impl Fn(Range<usize>, Range<usize>, &mut Aligned),
) {
    let Sizes { n_rows, depth, width } = sizes;
    let mut buffer = RIGHT_BUFFER.take();
    for first_column in (0..width).step_by(COLUMN_BLOCK) {
        let columns = first_column..(first_column + COLUMN_BLOCK).min(width);
        for first in (0..depth).step_by(PASS_DEPTH) {
            let depths = first..(first + PASS_DEPTH).min(depth);
            copy(depths.clone(), columns.clone(), &mut buffer);
            let view = panels::view(buffer.as_f32(), depths.len());
            let block = Block { left, depths, columns: columns.clone(), is_added: is_added || first > 0 };
            block.by_rows(view, n_rows, out, width);
        }
    }
    RIGHT_BUFFER.set(buffer);
}

/// Multiplies with panels that are there.
fn with_panels<E: Stored>(left: Left<'_>, view: View<'_, E>, sizes: Sizes, is_added: bool, out: &mut [f32]) {
    let Sizes { n_rows, depth, width } = sizes;
    if n_rows < SPLIT_ROWS {
        let part = |columns: Range<usize>, out: &mut [f32], stride: usize| {
            let skipped = columns.start / panel_width() * view.panel_step;
            let view = View { values: &view.values[skipped..], ..view };
            all_depths(left, view, Sizes { width: columns.len(), ..sizes }, is_added, out, stride);
        };
        return by_columns(sizes, is_added, out, part);
    }
    let rows_per_task = rows_per_task(n_rows, depth * width);
    out.par_chunks_mut(rows_per_task * width).enumerate().for_each(|(task, out)| {
        let first = task * rows_per_task;
        let left = Left { values: &left.values[first * left.row_stride..], ..left };
        let n_rows = out.len() / width;
        all_depths(left, view, Sizes { n_rows, ..sizes }, is_added, out, width);
    });
}

/// All rows times some panels, on this thread, block of depths after block.
fn all_depths<E: Stored>(
    left: Left<'_>,
    view: View<'_, E>,
    sizes: Sizes,
    is_added: bool,
    out: &mut [f32],
    out_stride: usize,
) {
    let Sizes { n_rows, depth, width } = sizes;
    // The panels of few rows are read in the order in which they lie in memory.
    let pass_depth = if n_rows < MANY_ROWS { depth } else { PASS_DEPTH };
    for first in (0..depth).step_by(pass_depth) {
        let depths = first..(first + pass_depth).min(depth);
        let view = View { values: &view.values[first * view.stride..], ..view };
        let block = Block { left, depths, columns: 0..width, is_added: is_added || first > 0 };
        block.rows(view, 0, n_rows, out, out_stride);
    }
}

/// Rows of the left factor for one task, so that all threads have about the same work.
fn rows_per_task(n_rows: usize, work_per_row: usize) -> usize {
    let n_threads = rayon::current_num_threads();
    if n_threads < 2 || n_rows * work_per_row < PARALLEL_WORK {
        return n_rows;
    }
    let n_rounds = n_rows.div_ceil(n_threads * ROW_BLOCK);
    n_rows.div_ceil(n_threads * n_rounds).next_multiple_of(tile_rows())
}

/// Few rows: each thread takes a range of panels, into a buffer of its own.
fn by_columns(
    sizes: Sizes,
    is_added: bool,
    out: &mut [f32],
    part: impl Fn(Range<usize>, &mut [f32], usize) + Sync,
) {
    let Sizes { n_rows, depth, width } = sizes;
    let (nr, n_threads) = (panel_width(), rayon::current_num_threads());
    let columns_per_task = width.div_ceil(nr).div_ceil(2 * n_threads) * nr;
    if n_threads < 2 || n_rows * width * depth < PARALLEL_WORK || columns_per_task >= width {
        return part(0..width, out, width);
    }
    if n_rows == 1 {
        out.par_chunks_mut(columns_per_task).enumerate().for_each(|(task, out)| {
            let start = task * columns_per_task;
            part(start..start + out.len(), out, out.len());
        });
        return;
    }
    let parts: Vec<Vec<f32>> = (0..width.div_ceil(columns_per_task))
        .into_par_iter()
        .map(|task| {
            let start = task * columns_per_task;
            let part_width = columns_per_task.min(width - start);
            let mut buffer = vec![0.0; n_rows * part_width];
            if is_added {
                for (target, row) in buffer.chunks_exact_mut(part_width).zip(out.chunks_exact(width)) {
                    target.copy_from_slice(&row[start..start + part_width]);
                }
            }
            part(start..start + part_width, &mut buffer, part_width);
            buffer
        })
        .collect();
    for (task, part) in parts.iter().enumerate() {
        let start = task * columns_per_task;
        let part_width = part.len() / n_rows;
        for (row, out) in part.chunks_exact(part_width).zip(out.chunks_exact_mut(width)) {
            out[start..start + part_width].copy_from_slice(row);
        }
    }
}

/// A block of depths and columns of a product.
struct Block<'a> {
    left: Left<'a>,
    depths: Range<usize>,
    columns: Range<usize>,
    is_added: bool,
}

impl Block<'_> {
    /// Shares the rows out among the threads. `out` are rows of `width` elements, all columns of the product.
    fn by_rows<E: Stored>(&self, view: View<'_, E>, n_rows: usize, out: &mut [f32], width: usize) {
        let rows_per_task = rows_per_task(n_rows, self.depths.len() * self.columns.len());
        out.par_chunks_mut(rows_per_task * width).enumerate().for_each(|(task, out)| {
            let n_rows = out.len() / width;
            self.rows(view, task * rows_per_task, n_rows, &mut out[self.columns.start..], width);
        });
    }

    /// Some rows on this thread, into rows at `out_stride`.
    fn rows<E: Stored>(
        &self,
        view: View<'_, E>,
        first: usize,
        n_rows: usize,
        out: &mut [f32],
        out_stride: usize,
    ) {
        let (depth, width) = (self.depths.len(), self.columns.len());
        let n_tiles = |n_rows: usize| n_rows.div_ceil(tile_rows());
        let mut buffer = LEFT_BUFFER.take();
        for row in (0..n_rows).step_by(ROW_BLOCK) {
            let n_rows = ROW_BLOCK.min(n_rows - row);
            let rows_per_tile = n_rows.div_ceil(n_tiles(n_rows));
            let is_packed = width >= PACK_WIDTH && n_rows > 1;
            if is_packed {
                let rows = first + row..first + row + n_rows;
                self.left.pack(rows, self.depths.clone(), rows_per_tile, &mut buffer);
            }
            let left = match is_packed {
                true => LeftBlock::Packed { values: buffer.as_f32() },
                false => self.left.block(first + row, self.depths.start),
            };
            Arch::new().dispatch(Pass {
                left,
                n_rows,
                rows_per_tile,
                right: view,
                depth,
                width,
                is_added: self.is_added,
                looks_ahead: n_rows < MANY_ROWS,
                out: &mut out[row * out_stride..],
                out_stride,
            });
        }
        LEFT_BUFFER.set(buffer);
    }
}

/// A product on this thread into rows at `out_stride`, for the small factors of attention, which need no copies.
pub(crate) fn block_product(
    left: Left<'_>,
    right: Right<'_>,
    sizes: Sizes,
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
                in_place(left, view, sizes(whole), is_added, out, out_stride);
            }
            if whole < width {
                let tail = tail_panel(values, stride, depth, whole..width, nr);
                in_place(
                    left,
                    panels::view(&tail, depth),
                    sizes(width - whole),
                    is_added,
                    &mut out[whole..],
                    out_stride,
                );
            }
        }
        Right::Panels { values } => {
            in_place(left, panels::view(values, depth), sizes, is_added, out, out_stride);
        }
        Right::Bf16Panels { values } => {
            in_place(left, bf16_view(values, depth), sizes, is_added, out, out_stride);
        }
        Right::Transposed { values } => {
            let mut copy = Aligned::default();
            panels::copy_transposed(values, depth, 0..depth, 0..width, &mut copy);
            in_place(left, panels::view(copy.as_f32(), depth), sizes, is_added, out, out_stride);
        }
    }
}

fn in_place<E: Stored>(
    left: Left<'_>,
    view: View<'_, E>,
    sizes: Sizes,
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
