//! Rotary position embedding of the heads of a row.

use super::vectorized;

/// Turns the first `n_turned` heads of each row by the row's angles, in place.
///
/// `rows` are `row_width` wide; heads are `head_dim` wide and come first in a row. `cos` and `sin` hold
/// `head_dim / 2` values a row. Element `i` of a head is paired with element `i + head_dim / 2`. A `direction` of
/// -1 turns back, which is also the gradient of turning.
pub fn rotate_rows(
    rows: &mut [f32],
    row_width: usize,
    head_dim: usize,
    n_turned: usize,
    angles: (&[f32], &[f32]),
    direction: f32,
) {
    vectorized(
        #[inline(always)]
        |args| rotate_body(args),
        (rows, row_width, head_dim, n_turned, angles, direction),
    );
}

type Arguments<'a> = (&'a mut [f32], usize, usize, usize, (&'a [f32], &'a [f32]), f32);

#[inline(always)]
fn rotate_body((rows, row_width, head_dim, n_turned, (cos, sin), direction): Arguments<'_>) {
    let half = head_dim / 2;
    let angles = cos.chunks_exact(half).zip(sin.chunks_exact(half));
    for (row, (cos, sin)) in rows.chunks_exact_mut(row_width).zip(angles) {
        for head in row[..n_turned * head_dim].chunks_exact_mut(head_dim) {
            let (low, high) = head.split_at_mut(half);
            for i in 0..half {
                let (x, y, c, s) = (low[i], high[i], cos[i], sin[i] * direction);
                low[i] = x * c - y * s;
                high[i] = y * c + x * s;
            }
        }
    }
}
