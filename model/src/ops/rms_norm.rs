//! Root mean square normalization.

use candle_core::{D, Result, Tensor};

use super::{from_fill, is_fused, with_elements};

/// Returns `x / sqrt(mean(x^2) + eps) * weight` over the last dimension.
///
/// # Source
/// <https://arxiv.org/abs/1910.07467>
pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    if !is_fused(x) {
        return composed(x, weight, eps);
    }
    let (n_rows, width) = x.dims2()?;
    with_elements(x, |rows| {
        with_elements(weight, |weight| {
            from_fill(n_rows, width, x, |out| envace_kernels::rms_norm(rows, weight, eps as f32, out))
        })
    })
}

/// The composed form, also for tensors of more dimensions.
pub(super) fn composed(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    let inverse = (x.sqr()?.mean_keepdim(D::Minus1)? + eps)?.sqrt()?.recip()?;
    x.broadcast_mul(&inverse)?.broadcast_mul(weight)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_same_gradients, random};
    use super::*;

    #[test]
    fn fused_equals_composed() {
        let inputs = [random((130, 37), 1), random(37, 2)];
        assert_same_gradients(
            &inputs,
            |t| rms_norm(&t[0], &t[1], 1e-5),
            |inputs, gradient| {
                let (mut x, mut weight) = (vec![0.0; inputs[0].len()], vec![0.0; inputs[1].len()]);
                let (rows, factors) = (&inputs[0], &inputs[1]);
                envace_kernels::rms_norm_backward(rows, factors, 1e-5, gradient, &mut x, &mut weight);
                vec![x, weight]
            },
        );
    }
}
