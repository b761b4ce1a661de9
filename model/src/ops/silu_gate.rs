//! The gated unit of the feed-forward block.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::{BLOCK_ROWS, elements, from_rows, is_fused, output, with_elements};
use crate::kernels::{silu_gate as silu_gate_rows, silu_gate_backward};

/// Returns `silu(gate) * up` for rows `[gate | up]`, half as wide.
///
/// # Source
/// SwiGLU, <https://arxiv.org/abs/2002.05202>
pub(crate) fn silu_gate(gate_up: &Tensor) -> Result<Tensor> {
    if is_fused(gate_up) {
        return gate_up.apply_op1(SiluGate);
    }
    let width = gate_up.dim(1)? / 2;
    gate_up.narrow(1, 0, width)?.silu()? * gate_up.narrow(1, width, width)?
}

struct SiluGate;

impl CustomOp1 for SiluGate {
    fn name(&self) -> &'static str {
        "silu_gate"
    }

    fn cpu_fwd(&self, gate_up: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (n_rows, both) = layout.shape().dims2()?;
        let width = both / 2;
        let gate_up = elements(gate_up, layout)?;
        let mut out = vec![0.0; n_rows * width];
        out.par_chunks_mut(BLOCK_ROWS * width)
            .zip(gate_up.par_chunks(BLOCK_ROWS * both))
            .for_each(|(out, rows)| silu_gate_rows(rows, width, out));
        Ok(output(out, (n_rows, width)))
    }

    fn bwd(&self, gate_up: &Tensor, _res: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let width = gate_up.dim(1)? / 2;
        let mut out = vec![0.0; gate_up.elem_count()];
        with_elements(gate_up, |rows| {
            with_elements(gradient, |gradient| {
                out.par_chunks_mut(BLOCK_ROWS * 2 * width)
                    .zip(rows.par_chunks(BLOCK_ROWS * 2 * width))
                    .zip(gradient.par_chunks(BLOCK_ROWS * width))
                    .for_each(|((out, rows), gradient)| silu_gate_backward(rows, width, gradient, out));
                Ok(())
            })
        })?;
        from_rows(out, gate_up).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_same_gradients, random};
    use super::*;

    #[test]
    fn fused_equals_composed() {
        assert_same_gradients(&[random((70, 22), 1)], |t| silu_gate(&t[0]));
    }
}
