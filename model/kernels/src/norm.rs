//! Root mean square normalization of rows.

use super::{sum, vectorized};

/// One call's arguments: `out` has the length of `x`, rows are as long as `weight`.
pub struct NormRows<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

/// Writes `x / sqrt(mean(x^2) + eps) * weight` for each row of `weight.len()` elements.
pub fn rms_norm_rows(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    vectorized(
        #[inline(always)]
        |args| rms_norm_body(args),
        NormRows { x, weight, eps, out },
    );
}

#[inline(always)]
fn rms_norm_body(args: NormRows<'_>) {
    let NormRows { x, weight, eps, out } = args;
    let width = weight.len();
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let inverse = inverse_rms(x, eps);
        for i in 0..width {
            out[i] = x[i] * inverse * weight[i];
        }
    }
}

#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (sum::dot(x, x) / x.len() as f32 + eps).sqrt()
}

/// Arguments of the backward pass; see [`rms_norm_backward_rows`].
pub struct NormBackward<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    gradient: &'a [f32],
    x_gradient: &'a mut [f32],
    weight_gradient: &'a mut [f32],
}

/// Writes the gradient of the rows and adds that of the weight, given the gradient of the normalized rows.
///
/// With `r` the inverse root mean square and `n` the width, `dx = r * (g*w - x * r^2 * sum(g*w*x) / n)` and
/// `dw += g * x * r`.
pub fn rms_norm_backward_rows(
    x: &[f32],
    weight: &[f32],
    eps: f32,
    gradient: &[f32],
    x_gradient: &mut [f32],
    weight_gradient: &mut [f32],
) {
    vectorized(
        #[inline(always)]
        |args| rms_norm_backward_body(args),
        NormBackward { x, weight, eps, gradient, x_gradient, weight_gradient },
    );
}

#[inline(always)]
fn rms_norm_backward_body(args: NormBackward<'_>) {
    let NormBackward { x, weight, eps, gradient, x_gradient, weight_gradient } = args;
    let width = weight.len();
    let weight_gradient = &mut weight_gradient[..width];
    let rows =
        x.chunks_exact(width).zip(gradient.chunks_exact(width)).zip(x_gradient.chunks_exact_mut(width));
    for ((x, gradient), x_gradient) in rows {
        let inverse = inverse_rms(x, eps);
        for i in 0..width {
            x_gradient[i] = gradient[i] * weight[i];
            weight_gradient[i] = (gradient[i] * inverse).mul_add(x[i], weight_gradient[i]);
        }
        let pull = sum::dot(x_gradient, x) * inverse * inverse / width as f32;
        for i in 0..width {
            x_gradient[i] = inverse * (-pull).mul_add(x[i], x_gradient[i]);
        }
    }
}
