//! Projections: rows times a weight of shape `(in, out)`.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

use super::{elements, from_rows, is_fused, output, sum_over_blocks, with_elements};
use crate::kernels::{Left, Panels, Right, Sizes, add_rows, product};

/// Multiplies `(rows, in)` with a weight of `(in, out)`. A row's result does not depend on the other rows.
pub(crate) fn linear(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    if is_fused(x) { x.apply_op2(weight, Linear) } else { x.matmul(weight) }
}

/// Adds a vector to each row.
pub(crate) fn add_bias(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    if is_fused(x) { x.apply_op2(bias, AddBias) } else { x.broadcast_add(bias) }
}

struct Linear;

impl CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (n_rows, depth) = x_layout.shape().dims2()?;
        let (_, width) = weight_layout.shape().dims2()?;
        let (x, weight) = (elements(x, x_layout)?, elements(weight, weight_layout)?);
        let mut out = vec![0.0; n_rows * width];
        let right = Right::Rows { values: weight, stride: width };
        product(Left::rows(x, depth), right, Sizes { n_rows, depth, width }, false, &mut out);
        Ok(output(out, (n_rows, width)))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _res: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (n_rows, depth) = x.dims2()?;
        let width = weight.dim(1)?;
        with_elements(gradient, |gradient| {
            let mut x_gradient = vec![0.0; n_rows * depth];
            with_elements(weight, |weight| {
                let panels = Panels::from_transposed(weight, width, depth);
                let sizes = Sizes { n_rows, depth: width, width: depth };
                product(Left::rows(gradient, width), panels.right(), sizes, false, &mut x_gradient);
                Ok(())
            })?;
            let mut weight_gradient = vec![0.0; depth * width];
            with_elements(x, |x| {
                let right = Right::Rows { values: gradient, stride: width };
                let sizes = Sizes { n_rows: depth, depth: n_rows, width };
                product(Left::transposed(x, depth), right, sizes, false, &mut weight_gradient);
                Ok(())
            })?;
            Ok((Some(from_rows(x_gradient, x)?), Some(from_rows(weight_gradient, weight)?)))
        })
    }
}

struct AddBias;

impl CustomOp2 for AddBias {
    fn name(&self) -> &'static str {
        "add_bias"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let mut out = elements(x, x_layout)?.to_vec();
        add_rows(&mut out, elements(bias, bias_layout)?);
        Ok(output(out, x_layout.shape().clone()))
    }

    fn bwd(
        &self,
        _x: &Tensor,
        bias: &Tensor,
        _res: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let width = bias.elem_count();
        let bias_gradient = with_elements(gradient, |gradient| {
            // The copy only gives the blocks their bounds; it is the size of one activation.
            let mut rows = gradient.to_vec();
            Ok(sum_over_blocks(&mut rows, width, width, |_, rows, sum| {
                rows.chunks_exact(width).for_each(|row| add_rows(sum, row));
            }))
        })?;
        Ok((Some(gradient.clone()), Some(from_rows(bias_gradient, bias)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_same_gradients, random};
    use super::*;

    #[test]
    fn fused_equals_composed() {
        let inputs = [random((130, 40), 1), random((40, 33), 2), random(33, 3)];
        assert_same_gradients(&inputs, |t| add_bias(&linear(&t[0], &t[1])?, &t[2]));
    }
}
