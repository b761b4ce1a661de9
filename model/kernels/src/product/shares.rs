//! Shares of a product for the threads.

use std::cell::Cell;
use std::ops::Range;

use pulp::Arch;
use rayon::prelude::*;

use super::factors::{Left, Sizes};
use super::tile::{LeftBlock, PASS_DEPTH, Pass, Stored, Summation, View, tile_rows};
use super::{panel_width, panels};
use crate::aligned::Aligned;

/// Rows of the left factor that one task copies and multiplies at a time.
const ROW_BLOCK: usize = 144;
/// Columns of the right factor that are copied at a time.
const COLUMN_BLOCK: usize = 4096;
/// Up to this many rows, the panels of the right factor are best read in the order in which they lie in memory.
pub(super) const MANY_ROWS: usize = 48;
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

/// Copies the right factor block by block: `copy` is given depths, columns, and where to.
pub(super) fn with_copies(
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
            let is_added = is_added || first > 0;
            let block = Block { left, depths, columns: columns.clone(), is_added, looks_ahead: false };
            block.by_rows(view, n_rows, out, width);
        }
    }
    RIGHT_BUFFER.set(buffer);
}

/// Multiplies with panels that are there.
pub(super) fn with_panels<E: Stored>(
    left: Left<'_>,
    view: View<'_, E>,
    sizes: Sizes,
    is_added: bool,
    out: &mut [f32],
) {
    let Sizes { n_rows, depth, width } = sizes;
    if n_rows < SPLIT_ROWS {
        let part = |columns: Range<usize>, out: &mut [f32], stride: usize| {
            let skipped = columns.start / panel_width() * view.panel_step;
            let view = View { values: &view.values[skipped..], ..view };
            // Few rows are soon multiplied, and memory is what they wait for.
            all_depths(left, view, Sizes { width: columns.len(), ..sizes }, is_added, true, out, stride);
        };
        return by_columns(sizes, is_added, out, part);
    }
    let rows_per_task = rows_per_task(n_rows, depth * width);
    out.par_chunks_mut(rows_per_task * width).enumerate().for_each(|(task, out)| {
        let first = task * rows_per_task;
        let left = Left { values: &left.values[first * left.row_stride..], ..left };
        let n_rows = out.len() / width;
        all_depths(left, view, Sizes { n_rows, ..sizes }, is_added, false, out, width);
    });
}

/// All rows times some panels, on this thread, block of depths after block.
fn all_depths<E: Stored>(
    left: Left<'_>,
    view: View<'_, E>,
    sizes: Sizes,
    is_added: bool,
    looks_ahead: bool,
    out: &mut [f32],
    out_stride: usize,
) {
    let Sizes { n_rows, depth, width } = sizes;
    // The panels of few rows are read in the order in which they lie in memory.
    let pass_depth = if n_rows < MANY_ROWS { depth } else { PASS_DEPTH };
    for first in (0..depth).step_by(pass_depth) {
        let depths = first..(first + pass_depth).min(depth);
        let view = View { values: &view.values[first * view.stride..], ..view };
        let block = Block { left, depths, columns: 0..width, is_added: is_added || first > 0, looks_ahead };
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
pub(super) fn by_columns(
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
    /// See [`Pass`].
    looks_ahead: bool,
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
                summation: Summation::Blocks,
                is_added: self.is_added,
                looks_ahead: self.looks_ahead,
                out: &mut out[row * out_stride..],
                out_stride,
            });
        }
        LEFT_BUFFER.set(buffer);
    }
}
