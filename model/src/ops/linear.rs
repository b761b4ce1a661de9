//! Projections: rows times a weight.

use candle_core::{Result, Tensor};
use envace_kernels::{Left, Right, Sizes, product};

use super::{from_fill, is_fused, with_elements};

/// Multiplies `(rows, in)` with a weight of `(in, out)`. A row's result does not depend on the other rows.
pub(crate) fn linear(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    if !is_fused(x) {
        return x.matmul(weight);
    }
    let width = weight.dim(1)?;
    fused(x, weight, width, |values| Right::Rows { values, stride: width })
}

/// Multiplies `(rows, in)` with the transpose of a weight of `(out, in)`.
pub(crate) fn linear_transposed(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    if !is_fused(x) {
        return x.matmul(&weight.t()?);
    }
    fused(x, weight, weight.dim(0)?, |values| Right::Transposed { values })
}

fn fused(x: &Tensor, weight: &Tensor, width: usize, right: impl Fn(&[f32]) -> Right<'_>) -> Result<Tensor> {
    let (n_rows, depth) = x.dims2()?;
    if weight.elem_count() != depth * width {
        candle_core::bail!("rows of {depth} do not fit a weight of {:?}", weight.shape());
    }
    with_elements(x, |rows| {
        with_elements(weight, |weight| {
            from_fill(n_rows, width, x, |out| {
                product(Left::rows(rows, depth), right(weight), Sizes { n_rows, depth, width }, false, out);
            })
        })
    })
}

/// Adds a vector to each row.
pub(crate) fn add_bias(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    if !is_fused(x) {
        return x.broadcast_add(bias);
    }
    let (n_rows, width) = x.dims2()?;
    with_elements(x, |rows| {
        with_elements(bias, |bias| {
            from_fill(n_rows, width, x, |out| {
                out.copy_from_slice(rows);
                envace_kernels::add_bias(out, bias);
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_same_gradients, random};
    use super::*;

    #[test]
    fn fused_equals_composed() {
        let inputs = [random((130, 40), 1), random((40, 33), 2), random(33, 3)];
        assert_same_gradients(
            &inputs,
            |t| add_bias(&linear(&t[0], &t[1])?, &t[2]),
            |inputs, gradient| {
                let (mut x, mut weight, mut bias) = (vec![0.0; 130 * 40], vec![0.0; 40 * 33], vec![0.0; 33]);
                let right = Right::Transposed { values: &inputs[1] };
                let sizes = Sizes { n_rows: 130, depth: 33, width: 40 };
                product(Left::rows(gradient, 33), right, sizes, false, &mut x);
                let right = Right::Rows { values: gradient, stride: 33 };
                let sizes = Sizes { n_rows: 40, depth: 130, width: 33 };
                product(Left::transposed(&inputs[0], 40), right, sizes, true, &mut weight);
                envace_kernels::add_row_sum(gradient, &mut bias);
                vec![x, weight, bias]
            },
        );
    }
}
