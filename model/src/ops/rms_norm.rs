//! Root mean square normalization.

use candle_core::{CpuStorage, CustomOp2, D, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::{BLOCK_ROWS, elements, from_rows, is_fused, output, sum_over_blocks, with_elements};
use crate::kernels::{rms_norm_backward_rows, rms_norm_rows};

/// Returns `x / sqrt(mean(x^2) + eps) * weight` over the last dimension.
///
/// # Source
/// <https://arxiv.org/abs/1910.07467>
pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    if is_fused(x) { x.apply_op2(weight, RmsNorm { eps: eps as f32 }) } else { composed(x, weight, eps) }
}

/// The composed form, also for tensors of more dimensions.
pub(super) fn composed(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    let inverse = (x.sqr()?.mean_keepdim(D::Minus1)? + eps)?.sqrt()?.recip()?;
    x.broadcast_mul(&inverse)?.broadcast_mul(weight)
}

struct RmsNorm {
    eps: f32,
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, weight) = (elements(x, x_layout)?, elements(weight, weight_layout)?);
        let block = (BLOCK_ROWS * weight.len()).max(1);
        let mut out = vec![0.0; x.len()];
        out.par_chunks_mut(block)
            .zip(x.par_chunks(block))
            .for_each(|(out, x)| rms_norm_rows(x, weight, self.eps, out));
        Ok(output(out, x_layout.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _res: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let width = weight.elem_count();
        let mut x_gradient = vec![0.0; x.elem_count()];
        let weight_gradient = with_elements(x, |x_values| {
            with_elements(weight, |weight| {
                with_elements(gradient, |gradient| {
                    Ok(sum_over_blocks(&mut x_gradient, width, width, |first, out, sum| {
                        let rows = first * width..first * width + out.len();
                        let (x, gradient) = (&x_values[rows.clone()], &gradient[rows]);
                        rms_norm_backward_rows(x, weight, self.eps, gradient, out, sum);
                    }))
                })
            })
        })?;
        Ok((Some(from_rows(x_gradient, x)?), Some(from_rows(weight_gradient, weight)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_same_gradients, random};
    use super::*;

    #[test]
    fn fused_equals_composed() {
        let inputs = [random((130, 37), 1), random(37, 2)];
        assert_same_gradients(&inputs, |t| rms_norm(&t[0], &t[1], 1e-5));
    }
}
