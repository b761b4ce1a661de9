//! The loops under the operations: plain slices in, plain slices out, one processor.
//!
//! Two rules make every result independent of batch, thread count and width of the vector registers:
//!
//! - an element of a matrix product is summed in the order of the inner dimension by fused multiply-adds, however the
//!   matrices are cut into tiles: 256 positions from zero, then the next ones, and the sums of these blocks are added in
//!   order; attention, whose keys come in blocks of any size, has one accumulator for all positions;
//! - a sum over a row runs in [`LANES`] accumulators by element index modulo [`LANES`], which are then added in a
//!   fixed tree.

#![expect(
    clippy::redundant_closure,
    reason = "a function given by its name is not inlined into the vector dispatch, a marked closure is"
)]
#![expect(
    clippy::needless_range_loop,
    reason = "an index over several slices is what the compiler vectorizes"
)]

mod adamw;
mod aligned;
mod attention;
mod elementwise;
mod exp;
mod forest;
mod log_softmax;
mod norm;
mod product;
mod rotary;
mod rows;
mod sum;
mod vector_unit;

use pulp::{Arch, Simd, WithSimd};

pub use adamw::{AdamWStep, adamw_step};
pub use aligned::zeros;
pub use attention::{
    HeadKeys, HeadLayout, KvBlocks, KvRow, LastRow, Tile, attend_forest, attend_forest_backward, attend_last,
    attend_tile,
};
pub use forest::{Forest, Run, Stretch};
pub use log_softmax::LogSoftmax;
pub use product::{Left, Panels, Right, Sizes, panel_width, product};
pub use rows::{
    add, add_bias, add_row_sum, gate_rows, gate_rows_backward, head_norm, head_norm_backward, rms_norm,
    rms_norm_backward, rotate,
};
pub use sum::{LANES, sum_of_squares};
pub use vector_unit::vector_unit;

/// Runs `body` compiled for the widest vectors this processor has.
///
/// `body` must be a closure marked `#[inline(always)]` that calls nothing in its loops but functions and closures so
/// marked: whatever is left as a call is compiled for the baseline, where a fused multiply-add is a library call. A
/// function's name in place of the closure is such a call.
#[inline]
fn vectorized<A, R>(body: impl Fn(A) -> R, args: A) -> R {
    struct Run<F, A>(F, A);
    impl<F: Fn(A) -> R, A, R> WithSimd for Run<F, A> {
        type Output = R;

        #[inline(always)]
        fn with_simd<S: Simd>(self, _simd: S) -> R {
            (self.0)(self.1)
        }
    }
    Arch::new().dispatch(Run(body, args))
}
