//! The innermost loops: a few rows of the left factor times one panel of the right one.

use pulp::{Simd, WithSimd};

/// Inner positions in one pass, so that the sums leave the caches once and the left factor's rows stay in the second.
pub(super) const PASS_DEPTH: usize = 512;
/// Inner positions that all tiles take before the next ones, so that this piece of a panel of the right factor stays in
/// the first-level cache.
pub(super) const DEPTH_BLOCK: usize = 256;
/// Rows of the largest tile.
pub(super) const MAX_TILE_ROWS: usize = 12;

/// Rows of a tile whose sums, two vectors each, fit the registers.
pub(super) fn tile_rows() -> usize {
    struct Rows;
    impl WithSimd for Rows {
        type Output = usize;

        #[inline(always)]
        fn with_simd<S: Simd>(self, _simd: S) -> usize {
            match S::REGISTER_COUNT {
                32.. => MAX_TILE_ROWS,
                16.. => MAX_TILE_ROWS / 2,
                _ => 2,
            }
        }
    }
    pulp::Arch::new().dispatch(Rows)
}

/// How elements of the right factor are stored: one row of a panel is widened to two vectors.
pub(super) trait Stored: Copy + Sync {
    /// Elements that hold a row of a panel of `2 * lanes` columns.
    fn row_elements(lanes: usize) -> usize;

    /// Reads one row of a panel.
    ///
    /// # Safety
    /// `row` must point to [`Stored::row_elements`] elements.
    unsafe fn read<S: Simd>(simd: S, row: *const Self) -> [S::f32s; 2];
}

impl Stored for f32 {
    fn row_elements(lanes: usize) -> usize {
        2 * lanes
    }

    #[inline(always)]
    unsafe fn read<S: Simd>(_simd: S, row: *const Self) -> [S::f32s; 2] {
        // SAFETY: the caller promises two vectors.
        unsafe {
            let low = row.cast::<S::f32s>();
            [low.read_unaligned(), low.add(1).read_unaligned()]
        }
    }
}

/// Pairs of `bf16`, whose bits are the upper half of those of the `f32`.
impl Stored for u32 {
    fn row_elements(lanes: usize) -> usize {
        lanes
    }

    #[inline(always)]
    unsafe fn read<S: Simd>(simd: S, row: *const Self) -> [S::f32s; 2] {
        // SAFETY: the caller promises one vector.
        let pairs = unsafe { row.cast::<S::u32s>().read_unaligned() };
        let low = simd.wrapping_dyn_shl_u32s(pairs, simd.splat_u32s(16));
        let high = simd.and_u32s(pairs, simd.splat_u32s(0xffff_0000));
        [simd.transmute_f32s_u32s(low), simd.transmute_f32s_u32s(high)]
    }
}

/// Panels of a right factor: row `p` of panel `j` starts at `j * panel_step + p * stride`.
#[derive(Clone, Copy)]
pub(super) struct View<'a, E> {
    pub(super) values: &'a [E],
    pub(super) panel_step: usize,
    pub(super) stride: usize,
}

/// The left factor of one pass over a block of depths.
#[derive(Clone, Copy)]
pub(super) enum LeftBlock<'a> {
    /// Element `(i, p)` at `i * row_stride + p * depth_stride`.
    InPlace { values: &'a [f32], row_stride: usize, depth_stride: usize },
    /// Block of depths after block, and in each tile after tile: consecutive elements are those of a tile's rows at
    /// one depth.
    Packed { values: &'a [f32] },
}

/// In which steps the products of an element are added up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Summation {
    /// [`DEPTH_BLOCK`] positions from zero, in order; then their sum is added to the element. The rounding errors of a
    /// long sum stay small, and so do those of a sum that is added to something large.
    Blocks,
    /// All positions in order, each added to the element: a sum may be left off at any position and gone on with.
    Straight,
}

/// One pass: all rows times some panels, over one block of depths.
pub(super) struct Pass<'a, E> {
    pub(super) left: LeftBlock<'a>,
    pub(super) n_rows: usize,
    /// Rows of all tiles but the last, which may have fewer.
    pub(super) rows_per_tile: usize,
    pub(super) right: View<'a, E>,
    pub(super) depth: usize,
    pub(super) width: usize,
    pub(super) summation: Summation,
    pub(super) is_added: bool,
    /// Whether the right factor comes from memory in order, so that it pays to ask for what follows a block while the
    /// block is in use.
    pub(super) looks_ahead: bool,
    pub(super) out: &'a mut [f32],
    pub(super) out_stride: usize,
}

impl<E: Stored> WithSimd for Pass<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let nr = 2 * S::F32_LANES;
        let (n_panels, last) = (self.width.div_ceil(nr), self.n_rows - 1);
        // The bounds that every access of the tiles below stays within.
        assert!(self.depth > 0 && (1..=MAX_TILE_ROWS).contains(&self.rows_per_tile));
        let right_end = (n_panels - 1) * self.right.panel_step + (self.depth - 1) * self.right.stride;
        assert!(self.right.values.len() >= right_end + E::row_elements(S::F32_LANES));
        match self.left {
            LeftBlock::InPlace { values, row_stride, depth_stride } => {
                assert!(values.len() > last * row_stride + (self.depth - 1) * depth_stride);
            }
            LeftBlock::Packed { values } => assert!(values.len() >= self.n_rows * self.depth),
        }
        let n_tiles = self.n_rows.div_ceil(self.rows_per_tile);
        for panel in 0..n_panels {
            let column = panel * nr;
            let width = nr.min(self.width - column);
            for start in (0..self.depth).step_by(DEPTH_BLOCK) {
                let depth = DEPTH_BLOCK.min(self.depth - start);
                let right = &self.right.values[panel * self.right.panel_step + start * self.right.stride..];
                for row in (0..self.n_rows).step_by(self.rows_per_tile) {
                    let n_rows = self.rows_per_tile.min(self.n_rows - row);
                    let out = &mut self.out[row * self.out_stride + column..];
                    let (values, row_stride, depth_stride) = match self.left {
                        LeftBlock::InPlace { values, row_stride, depth_stride } => {
                            (&values[row * row_stride + start * depth_stride..], row_stride, depth_stride)
                        }
                        LeftBlock::Packed { values } => {
                            (&values[start * self.n_rows + row * depth..], 1, n_rows)
                        }
                    };
                    let tile = Tile {
                        left: values.as_ptr(),
                        row_stride,
                        depth_stride,
                        right: right.as_ptr(),
                        right_stride: self.right.stride,
                        depth,
                        width,
                        summation: self.summation,
                        is_added: self.is_added || start > 0,
                        ahead: Ahead { tile: row / self.rows_per_tile, n_tiles },
                    };
                    let is_packed = matches!(self.left, LeftBlock::Packed { .. });
                    let looks_ahead = self.looks_ahead;
                    // SAFETY: it was asserted above that the last element of both factors lies inside its slice: a
                    // tile reads rows below `row + n_rows`, depths below `start + depth` and one panel.
                    unsafe {
                        match (is_packed, looks_ahead) {
                            (true, true) => {
                                tile.dispatch::<S, true, true>(simd, n_rows, out, self.out_stride)
                            }
                            (true, false) => {
                                tile.dispatch::<S, true, false>(simd, n_rows, out, self.out_stride)
                            }
                            (false, _) => {
                                tile.dispatch::<S, false, false>(simd, n_rows, out, self.out_stride)
                            }
                        }
                    }
                }
            }
        }
    }
}

/// One tile of the result.
struct Tile<E> {
    left: *const f32,
    row_stride: usize,
    depth_stride: usize,
    right: *const E,
    right_stride: usize,
    depth: usize,
    width: usize,
    summation: Summation,
    is_added: bool,
    ahead: Ahead,
}

/// Which rows of the block that follows a tile asks for, one at every `n_tiles`th position: memory is then busy all the
/// time, not only in the last tile.
#[derive(Clone, Copy)]
struct Ahead {
    tile: usize,
    n_tiles: usize,
}

impl<E: Stored> Tile<E> {
    /// Computes `n_rows` rows into `out`, with a loop of its own for each number of rows.
    ///
    /// # Safety
    /// As [`Tile::compute`], with `n_rows` from 1 to [`MAX_TILE_ROWS`].
    #[inline(always)]
    unsafe fn dispatch<S: Simd, const PACKED: bool, const AHEAD: bool>(
        &self,
        simd: S,
        n_rows: usize,
        out: &mut [f32],
        out_stride: usize,
    ) {
        // SAFETY: passed on from the caller.
        unsafe {
            match n_rows {
                1 => self.compute::<S, PACKED, AHEAD, 1>(simd, out, out_stride),
                2 => self.compute::<S, PACKED, AHEAD, 2>(simd, out, out_stride),
                3 => self.compute::<S, PACKED, AHEAD, 3>(simd, out, out_stride),
                4 => self.compute::<S, PACKED, AHEAD, 4>(simd, out, out_stride),
                5 => self.compute::<S, PACKED, AHEAD, 5>(simd, out, out_stride),
                6 => self.compute::<S, PACKED, AHEAD, 6>(simd, out, out_stride),
                7 => self.compute::<S, PACKED, AHEAD, 7>(simd, out, out_stride),
                8 => self.compute::<S, PACKED, AHEAD, 8>(simd, out, out_stride),
                9 => self.compute::<S, PACKED, AHEAD, 9>(simd, out, out_stride),
                10 => self.compute::<S, PACKED, AHEAD, 10>(simd, out, out_stride),
                11 => self.compute::<S, PACKED, AHEAD, 11>(simd, out, out_stride),
                _ => self.compute::<S, PACKED, AHEAD, MAX_TILE_ROWS>(simd, out, out_stride),
            }
        }
    }

    /// Computes `ROWS` rows into `out`.
    ///
    /// # Safety
    /// The left factor must hold `ROWS` rows and the right one a whole panel, both for `depth` positions; if `PACKED`,
    /// the left one holds `ROWS` consecutive elements a position.
    #[inline(always)]
    unsafe fn compute<S: Simd, const PACKED: bool, const AHEAD: bool, const ROWS: usize>(
        &self,
        simd: S,
        out: &mut [f32],
        out_stride: usize,
    ) {
        let zero = simd.splat_f32s(0.0);
        let mut sums = [[zero; 2]; ROWS];
        let is_whole = self.width == 2 * S::F32_LANES;
        if self.is_added && self.summation == Summation::Straight {
            for (i, sums) in sums.iter_mut().enumerate() {
                let row = &out[i * out_stride..i * out_stride + self.width];
                *sums = if is_whole { load_pair(simd, row) } else { load_edge(simd, row) };
            }
        }
        let row_stride = if PACKED { 1 } else { self.row_stride };
        let depth_stride = if PACKED { ROWS } else { self.depth_stride };
        // SAFETY: the caller promises both factors for `depth` positions and `ROWS` rows.
        unsafe {
            let (mut left, mut right) = (self.left, self.right);
            let Ahead { tile, n_tiles } = self.ahead;
            let mut ahead =
                right.wrapping_add((self.depth + tile * self.depth.div_ceil(n_tiles)) * self.right_stride);
            let mut wait = 0;
            for _ in 0..self.depth {
                if AHEAD {
                    if wait == 0 {
                        prefetch(ahead, self.right_stride);
                        ahead = ahead.wrapping_add(self.right_stride);
                        wait = n_tiles;
                    }
                    wait -= 1;
                }
                let columns = E::read(simd, right);
                for (i, sums) in sums.iter_mut().enumerate() {
                    let value = simd.splat_f32s(*left.add(i * row_stride));
                    sums[0] = simd.mul_add_f32s(value, columns[0], sums[0]);
                    sums[1] = simd.mul_add_f32s(value, columns[1], sums[1]);
                }
                left = left.wrapping_add(depth_stride);
                right = right.wrapping_add(self.right_stride);
            }
        }
        let is_added = self.is_added && self.summation == Summation::Blocks;
        for (i, mut sums) in sums.into_iter().enumerate() {
            let row = &mut out[i * out_stride..i * out_stride + self.width];
            if is_added {
                let before = if is_whole { load_pair(simd, row) } else { load_edge(simd, row) };
                sums = [simd.add_f32s(before[0], sums[0]), simd.add_f32s(before[1], sums[1])];
            }
            if is_whole {
                store_pair(simd, sums, row);
            } else {
                store_edge(simd, sums, row);
            }
        }
    }
}

/// Asks for `n` elements to be brought into the second-level cache; the address need not be valid.
#[inline(always)]
pub(crate) fn prefetch<E>(from: *const E, n: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..n * size_of::<E>()).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program sees and faults on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.cast::<i8>().wrapping_add(line)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, n);
}

/// Room for a panel's row on every processor.
const MAX_PANEL: usize = 64;

/// Reads two vectors; `row` must hold them.
#[inline(always)]
fn load_pair<S: Simd>(simd: S, row: &[f32]) -> [S::f32s; 2] {
    assert!(row.len() >= 2 * S::F32_LANES);
    // SAFETY: just asserted.
    unsafe { f32::read(simd, row.as_ptr()) }
}

/// Writes two vectors; `row` must have room for them.
#[inline(always)]
fn store_pair<S: Simd>(_simd: S, pair: [S::f32s; 2], row: &mut [f32]) {
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
fn load_edge<S: Simd>(simd: S, row: &[f32]) -> [S::f32s; 2] {
    let mut edge = [0.0; MAX_PANEL];
    edge[..row.len()].copy_from_slice(row);
    load_pair(simd, &edge)
}

/// Writes the first elements of two vectors, as many as `row` has.
#[inline(always)]
fn store_edge<S: Simd>(simd: S, pair: [S::f32s; 2], row: &mut [f32]) {
    let mut edge = [0.0; MAX_PANEL];
    store_pair(simd, pair, &mut edge);
    row.copy_from_slice(&edge[..row.len()]);
}
