//! Matrix products in which an element is one accumulator, added to in the order of the inner dimension.
//!
//! So an element depends on its row of the left factor and its column of the right one, and on nothing else: not on
//! the number of rows, the tiles, the threads, or the vector width. General-purpose libraries choose the order of
//! the sum by shape and cannot promise that.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

/// Rows of a tile; with two vectors of columns the accumulators fit the registers of AVX-512, and spill little on AVX2.
const TILE_ROWS: usize = 8;
/// Inner positions in one pass, so that a panel of the right factor stays in the first-level cache.
const DEPTH_BLOCK: usize = 256;
/// From this many rows on, the right factor is copied into panels first.
const PACK_ROWS: usize = 48;
/// Fewer multiply-adds than this are not worth a second thread.
const PARALLEL_WORK: usize = 1 << 19;

/// Columns of a tile: two vectors of the widest kind this processor has. Layouts depend on it, results do not.
pub(crate) fn panel_width() -> usize {
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
pub(crate) struct Left<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) row_stride: usize,
    pub(crate) depth_stride: usize,
}

impl<'a> Left<'a> {
    /// Rows of `depth` elements.
    pub(crate) fn rows(values: &'a [f32], depth: usize) -> Self {
        Self { values, row_stride: depth, depth_stride: 1 }
    }

    /// The transposed view of rows of `n_rows` elements.
    pub(crate) fn transposed(values: &'a [f32], n_rows: usize) -> Self {
        Self { values, row_stride: 1, depth_stride: n_rows }
    }
}

/// The right factor, `depth` by `width`.
#[derive(Clone, Copy)]
pub(crate) enum Right<'a> {
    /// Rows at a stride; full panels are read in place.
    Rows { values: &'a [f32], stride: usize },
    /// Panels of [`panel_width`] columns, each `depth` rows, zero where columns are missing.
    Panels { values: &'a [f32] },
}

/// A right factor copied into panels; see [`Right::Panels`].
pub(crate) struct Panels(Vec<f32>);

impl Panels {
    /// From `depth` rows of `width` elements.
    pub(crate) fn from_rows(values: &[f32], depth: usize, width: usize) -> Self {
        let nr = panel_width();
        let mut panels = vec![0.0; width.div_ceil(nr) * depth * nr];
        panels.par_chunks_mut((depth * nr).max(1)).enumerate().for_each(|(j, panel)| {
            let (start, end) = (j * nr, ((j + 1) * nr).min(width));
            for (row, target) in values.chunks_exact(width).zip(panel.chunks_exact_mut(nr)) {
                target[..end - start].copy_from_slice(&row[start..end]);
            }
        });
        Self(panels)
    }

    /// From the transposed factor: `width` rows of `depth` elements.
    pub(crate) fn from_transposed(values: &[f32], depth: usize, width: usize) -> Self {
        let nr = panel_width();
        let mut panels = vec![0.0; width.div_ceil(nr) * depth * nr];
        panels.par_chunks_mut((depth * nr).max(1)).enumerate().for_each(|(j, panel)| {
            let columns = values[j * nr * depth..].chunks_exact(depth).take(nr.min(width - j * nr));
            for (c, column) in columns.enumerate() {
                for (target, value) in panel[c..].iter_mut().step_by(nr).zip(column) {
                    *target = *value;
                }
            }
        });
        Self(panels)
    }

    /// The factor to multiply with.
    pub(crate) fn right(&self) -> Right<'_> {
        Right::Panels { values: &self.0 }
    }
}

/// Sizes of a product: `n_rows` by `depth` times `depth` by `width`.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) n_rows: usize,
    pub(crate) depth: usize,
    pub(crate) width: usize,
}

/// Writes `left * right`, or adds it if `is_added`, into rows of `sizes.width` elements, on all threads.
pub(crate) fn product(left: Left<'_>, right: Right<'_>, sizes: Sizes, is_added: bool, out: &mut [f32]) {
    let Sizes { n_rows, depth, width } = sizes;
    assert_eq!(out.len(), n_rows * width, "output of a product");
    if out.is_empty() {
        return;
    }
    let packed;
    let right = match right {
        Right::Rows { values, stride } if n_rows >= PACK_ROWS && stride == width => {
            packed = Panels::from_rows(&values[..depth * width], depth, width);
            packed.right()
        }
        other => other,
    };
    let n_threads = rayon::current_num_threads();
    if n_threads < 2 || n_rows * width * depth < PARALLEL_WORK {
        block_product(left, right, sizes, is_added, out, width);
    } else if n_rows >= PACK_ROWS {
        let rows_per_task = (n_rows / (4 * n_threads)).next_multiple_of(TILE_ROWS).clamp(TILE_ROWS, 64);
        out.par_chunks_mut(rows_per_task * width).enumerate().for_each(|(task, out)| {
            let first = task * rows_per_task;
            let left = Left { values: &left.values[first * left.row_stride..], ..left };
            let n_rows = out.len() / width;
            block_product(left, right, Sizes { n_rows, ..sizes }, is_added, out, width);
        });
    } else {
        by_columns(left, right, sizes, is_added, out, n_threads);
    }
}

/// Few rows: each thread takes a range of panels, into a buffer of its own.
fn by_columns(
    left: Left<'_>,
    right: Right<'_>,
    sizes: Sizes,
    is_added: bool,
    out: &mut [f32],
    n_threads: usize,
) {
    let Sizes { n_rows, depth, width } = sizes;
    let nr = panel_width();
    let columns_per_task = width.div_ceil(nr).div_ceil(2 * n_threads) * nr;
    let n_tasks = width.div_ceil(columns_per_task);
    let parts: Vec<Vec<f32>> = (0..n_tasks)
        .into_par_iter()
        .map(|task| {
            let start = task * columns_per_task;
            let part_width = columns_per_task.min(width - start);
            let right = match right {
                Right::Rows { values, stride } => Right::Rows { values: &values[start..], stride },
                Right::Panels { values } => Right::Panels { values: &values[start * depth..] },
            };
            let mut part = vec![0.0; n_rows * part_width];
            if is_added {
                for (target, row) in part.chunks_exact_mut(part_width).zip(out.chunks_exact(width)) {
                    target.copy_from_slice(&row[start..start + part_width]);
                }
            }
            block_product(left, right, Sizes { width: part_width, ..sizes }, is_added, &mut part, part_width);
            part
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

/// A product on this thread, into rows at `out_stride`.
pub(super) fn block_product(
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
    let whole = width - width % nr;
    // The bounds that every access of the tiles below stays within.
    assert!(left.values.len() > (n_rows - 1) * left.row_stride + (depth - 1) * left.depth_stride);
    assert!(out_stride >= width && out.len() >= (n_rows - 1) * out_stride + width);
    let tail;
    let (full, rest) = match right {
        Right::Rows { values, stride } => {
            assert!(values.len() >= (depth - 1) * stride + width);
            tail = tail_panel(values, stride, depth, whole..width, nr);
            (
                PanelView { values, panel_step: nr, stride },
                PanelView { values: &tail, panel_step: 0, stride: nr },
            )
        }
        Right::Panels { values } => {
            assert!(values.len() >= width.div_ceil(nr) * depth * nr);
            let view = PanelView { values, panel_step: depth * nr, stride: nr };
            (view, PanelView { values: &values[whole * depth..], ..view })
        }
    };
    Arch::new().dispatch(Block { left, full, rest, sizes, whole, is_added, out, out_stride });
}

/// Copies the columns that do not fill a panel, zero-padded.
fn tail_panel(
    values: &[f32],
    stride: usize,
    depth: usize,
    columns: std::ops::Range<usize>,
    nr: usize,
) -> Vec<f32> {
    if columns.is_empty() {
        return Vec::new();
    }
    let mut panel = vec![0.0; depth * nr];
    for (row, target) in values.chunks(stride).zip(panel.chunks_exact_mut(nr)) {
        target[..columns.len()].copy_from_slice(&row[columns.clone()]);
    }
    panel
}

/// Panels of the right factor: row `p` of panel `j` starts at `j * panel_step + p * stride`.
#[derive(Clone, Copy)]
struct PanelView<'a> {
    values: &'a [f32],
    panel_step: usize,
    stride: usize,
}

/// The arguments of one product on one thread.
struct Block<'a> {
    left: Left<'a>,
    full: PanelView<'a>,
    rest: PanelView<'a>,
    sizes: Sizes,
    whole: usize,
    is_added: bool,
    out: &'a mut [f32],
    out_stride: usize,
}

impl WithSimd for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let nr = 2 * S::F32_LANES;
        let mut depth_start = 0;
        while depth_start < self.sizes.depth {
            let depth = DEPTH_BLOCK.min(self.sizes.depth - depth_start);
            let is_added = self.is_added || depth_start > 0;
            let mut column = 0;
            while column < self.sizes.width {
                let is_whole = column < self.whole;
                let view = if is_whole { self.full } else { self.rest };
                let panel = if is_whole { column / nr } else { 0 };
                let right = &view.values[panel * view.panel_step + depth_start * view.stride..];
                let left = &self.left.values[depth_start * self.left.depth_stride..];
                let width = nr.min(self.sizes.width - column);
                let strip = Strip {
                    left: left.as_ptr(),
                    row_stride: self.left.row_stride,
                    depth_stride: self.left.depth_stride,
                    right: right.as_ptr(),
                    right_stride: view.stride,
                    depth,
                    width,
                    is_added,
                };
                let mut row = 0;
                while row < self.sizes.n_rows {
                    let out = &mut self.out[row * self.out_stride + column..];
                    let n_rows = TILE_ROWS.min(self.sizes.n_rows - row);
                    // SAFETY: `block_product` has asserted that the last element of the left factor, of the right
                    // factor (panels hold `nr` columns; in `Rows` form a whole panel ends within its row) and of
                    // the output lies inside its slice; a tile only reads rows below `row + n_rows` and depths
                    // below `depth_start + depth`, and writes `width` columns of `n_rows` rows.
                    unsafe {
                        match n_rows {
                            1 => strip.tile::<S, 1>(simd, row, out, self.out_stride),
                            2 => strip.tile::<S, 2>(simd, row, out, self.out_stride),
                            3 => strip.tile::<S, 3>(simd, row, out, self.out_stride),
                            4 => strip.tile::<S, 4>(simd, row, out, self.out_stride),
                            5 => strip.tile::<S, 5>(simd, row, out, self.out_stride),
                            6 => strip.tile::<S, 6>(simd, row, out, self.out_stride),
                            7 => strip.tile::<S, 7>(simd, row, out, self.out_stride),
                            _ => strip.tile::<S, TILE_ROWS>(simd, row, out, self.out_stride),
                        }
                    }
                    row += n_rows;
                }
                column += nr;
            }
            depth_start += depth;
        }
    }
}

/// One panel of the right factor and all rows of the left one, for one block of depths.
struct Strip {
    left: *const f32,
    row_stride: usize,
    depth_stride: usize,
    right: *const f32,
    right_stride: usize,
    depth: usize,
    width: usize,
    is_added: bool,
}

impl Strip {
    /// Computes `ROWS` rows from `first_row` on into `out`.
    ///
    /// # Safety
    /// The left factor must hold rows up to `first_row + ROWS` and the right one a whole panel, both for `depth`
    /// positions; `out` must hold `width` elements in each of `ROWS` rows at `out_stride`.
    #[inline(always)]
    unsafe fn tile<S: Simd, const ROWS: usize>(
        &self,
        simd: S,
        first_row: usize,
        out: &mut [f32],
        out_stride: usize,
    ) {
        let lanes = S::F32_LANES;
        let zero = simd.splat_f32s(0.0);
        let mut sums = [[zero; 2]; ROWS];
        let is_whole = self.width == 2 * lanes;
        if self.is_added {
            for (i, sums) in sums.iter_mut().enumerate() {
                let row = &out[i * out_stride..i * out_stride + self.width];
                *sums = if is_whole { load_pair::<S>(row) } else { load_edge::<S>(row) };
            }
        }
        // SAFETY: the caller promises both factors for `depth` positions and `ROWS` rows.
        unsafe {
            let left = self.left.add(first_row * self.row_stride);
            for p in 0..self.depth {
                let right = self.right.add(p * self.right_stride);
                let b0 = right.cast::<S::f32s>().read_unaligned();
                let b1 = right.add(lanes).cast::<S::f32s>().read_unaligned();
                let left = left.add(p * self.depth_stride);
                for (i, sums) in sums.iter_mut().enumerate() {
                    let a = simd.splat_f32s(*left.add(i * self.row_stride));
                    sums[0] = simd.mul_add_f32s(a, b0, sums[0]);
                    sums[1] = simd.mul_add_f32s(a, b1, sums[1]);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            let row = &mut out[i * out_stride..i * out_stride + self.width];
            if is_whole {
                store_pair::<S>(*sums, row);
            } else {
                store_edge::<S>(*sums, row);
            }
        }
    }
}

/// Room for a panel's row on every processor.
const MAX_PANEL: usize = 64;

/// Reads two vectors; `row` must hold them.
#[inline(always)]
fn load_pair<S: Simd>(row: &[f32]) -> [S::f32s; 2] {
    assert!(row.len() >= 2 * S::F32_LANES);
    // SAFETY: just asserted.
    unsafe {
        let low = row.as_ptr().cast::<S::f32s>();
        [low.read_unaligned(), low.add(1).read_unaligned()]
    }
}

/// Writes two vectors; `row` must have room for them.
#[inline(always)]
fn store_pair<S: Simd>(pair: [S::f32s; 2], row: &mut [f32]) {
    assert!(row.len() >= 2 * S::F32_LANES);
    // SAFETY: just asserted.
    unsafe {
        let low = row.as_mut_ptr().cast::<S::f32s>();
        low.write_unaligned(pair[0]);
        low.add(1).write_unaligned(pair[1]);
    }
}

/// Reads fewer elements than two vectors hold, the rest zero.
#[inline(always)]
fn load_edge<S: Simd>(row: &[f32]) -> [S::f32s; 2] {
    let mut edge = [0.0; MAX_PANEL];
    edge[..row.len()].copy_from_slice(row);
    load_pair::<S>(&edge)
}

/// Writes the first elements of two vectors, as many as `row` has.
#[inline(always)]
fn store_edge<S: Simd>(pair: [S::f32s; 2], row: &mut [f32]) {
    let mut edge = [0.0; MAX_PANEL];
    store_pair::<S>(pair, &mut edge);
    row.copy_from_slice(&edge[..row.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values that are not round, from a small generator.
    fn values(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
        (0..n)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / 8_388_608.0 - 1.0
            })
            .collect()
    }

    /// The definition: one accumulator, in order, by fused multiply-adds.
    fn by_definition(a: &[f32], b: &[f32], sizes: Sizes) -> Vec<f32> {
        let Sizes { n_rows, depth, width } = sizes;
        let mut out = vec![0.0_f32; n_rows * width];
        for i in 0..n_rows {
            for j in 0..width {
                for p in 0..depth {
                    out[i * width + j] = a[i * depth + p].mul_add(b[p * width + j], out[i * width + j]);
                }
            }
        }
        out
    }

    fn transposed(values: &[f32], n_rows: usize, width: usize) -> Vec<f32> {
        (0..width).flat_map(|j| (0..n_rows).map(move |i| values[i * width + j])).collect()
    }

    #[test]
    fn every_form_has_the_bits_of_the_definition() {
        let shapes = [
            (1, 1, 1),
            (2, 5, 3),
            (1, 64, 96),
            (7, 300, 33),
            (8, 17, 64),
            (50, 513, 70),
            (130, 40, 200),
            (33, 600, 130),
        ];
        for (n_rows, depth, width) in shapes {
            let sizes = Sizes { n_rows, depth, width };
            let (a, b) = (values(n_rows * depth, 1), values(depth * width, 2));
            let expected = by_definition(&a, &b, sizes);
            let panels = Panels::from_rows(&b, depth, width);
            let from_transposed = Panels::from_transposed(&transposed(&b, depth, width), depth, width);
            let flipped = transposed(&a, n_rows, depth);
            let rights = [Right::Rows { values: &b, stride: width }, panels.right(), from_transposed.right()];
            for right in rights {
                for left in [Left::rows(&a, depth), Left::transposed(&flipped, n_rows)] {
                    let mut out = vec![f32::NAN; n_rows * width];
                    product(left, right, sizes, false, &mut out);
                    assert_eq!(out, expected, "{n_rows} x {depth} x {width}");
                }
            }
        }
    }

    #[test]
    fn adding_continues_the_sum() {
        // The first half of the depth, then the second half added, is the whole in one go.
        let sizes = Sizes { n_rows: 60, depth: 100, width: 75 };
        let (a, b) = (values(60 * 100, 3), values(100 * 75, 4));
        let expected = by_definition(&a, &b, sizes);
        let half = Sizes { depth: 50, ..sizes };
        let left = |from: usize| Left { values: &a[from..], row_stride: 100, depth_stride: 1 };
        let mut out = vec![f32::NAN; 60 * 75];
        product(left(0), Right::Rows { values: &b, stride: 75 }, half, false, &mut out);
        product(left(50), Right::Rows { values: &b[50 * 75..], stride: 75 }, half, true, &mut out);
        assert_eq!(out, expected);
    }

    #[test]
    fn one_and_two_threads_agree() {
        let sizes = Sizes { n_rows: 20, depth: 300, width: 1000 };
        let (a, b) = (values(20 * 300, 5), values(300 * 1000, 6));
        let run = |n_threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
            let mut out = vec![0.0; 20 * 1000];
            pool.install(|| {
                product(
                    Left::rows(&a, 300),
                    Right::Rows { values: &b, stride: 1000 },
                    sizes,
                    false,
                    &mut out,
                );
            });
            out
        };
        assert_eq!(run(1), run(2));
    }
}
