//! Sums over a row, in an order that depends on the row alone.

/// Accumulators of every row sum.
pub const LANES: usize = 16;

/// Adds the lanes in a fixed tree.
#[inline(always)]
pub(super) fn add_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Sums `term(i)` for `i` below `n`, in lanes; `n` may be anything.
#[inline(always)]
pub(super) fn sum_terms(n: usize, term: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let whole = n - n % LANES;
    let mut i = 0;
    while i < whole {
        for lane in 0..LANES {
            lanes[lane] += term(i + lane);
        }
        i += LANES;
    }
    for lane in 0..n - whole {
        lanes[lane] += term(whole + lane);
    }
    add_lanes(lanes)
}

/// The largest value, in lanes; a NaN is passed over.
#[inline(always)]
pub(super) fn max(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let whole = values.chunks_exact(LANES);
    let rest = whole.remainder();
    for chunk in whole {
        for lane in 0..LANES {
            lanes[lane] = if chunk[lane] > lanes[lane] { chunk[lane] } else { lanes[lane] };
        }
    }
    let mut max = f32::NEG_INFINITY;
    for &x in lanes.iter().chain(rest) {
        max = if x > max { x } else { max };
    }
    max
}

/// Sums `x[i] * y[i]` in lanes over the shorter length, by fused multiply-adds.
#[inline(always)]
pub(super) fn dot(x: &[f32], y: &[f32]) -> f32 {
    let n = x.len().min(y.len());
    let (x, y) = (&x[..n], &y[..n]);
    let mut lanes = [0.0_f32; LANES];
    let (x_whole, y_whole) = (x.chunks_exact(LANES), y.chunks_exact(LANES));
    let (x_rest, y_rest) = (x_whole.remainder(), y_whole.remainder());
    for (x, y) in x_whole.zip(y_whole) {
        for lane in 0..LANES {
            lanes[lane] = x[lane].mul_add(y[lane], lanes[lane]);
        }
    }
    for (lane, (x, y)) in lanes.iter_mut().zip(x_rest.iter().zip(y_rest)) {
        *lane = x.mul_add(*y, *lane);
    }
    add_lanes(lanes)
}

/// Returns the sum of squares in `f64`, in order.
pub fn sum_of_squares(values: &[f32]) -> f64 {
    super::vectorized(
        #[inline(always)]
        |args| sum_of_squares_body(args),
        values,
    )
}

#[inline(always)]
fn sum_of_squares_body(values: &[f32]) -> f64 {
    const WIDE: usize = 8;
    let mut lanes = [0.0_f64; WIDE];
    let whole = values.chunks_exact(WIDE);
    let rest = whole.remainder();
    for chunk in whole {
        for lane in 0..WIDE {
            let x = f64::from(chunk[lane]);
            lanes[lane] = x.mul_add(x, lanes[lane]);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = f64::from(x).mul_add(f64::from(x), *lane);
    }
    lanes.iter().sum()
}
