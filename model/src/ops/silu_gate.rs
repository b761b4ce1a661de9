//! The gated unit of the feed-forward block.

use candle_core::{Result, Tensor};

use super::{from_fill, is_fused, with_elements};

/// Returns `silu(gate) * up` for rows `[gate | up]`, half as wide.
///
/// # Source
/// SwiGLU, <https://arxiv.org/abs/2002.05202>
pub(crate) fn silu_gate(gate_up: &Tensor) -> Result<Tensor> {
    let (n_rows, both) = gate_up.dims2()?;
    let width = both / 2;
    if is_fused(gate_up) {
        return with_elements(gate_up, |rows| {
            from_fill(n_rows, width, gate_up, |out| envace_kernels::gate_rows(rows, width, out))
        });
    }
    gate_up.narrow(1, 0, width)?.silu()? * gate_up.narrow(1, width, width)?
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_same_gradients, random};
    use super::*;

    #[test]
    fn fused_equals_composed() {
        assert_same_gradients(
            &[random((70, 22), 1)],
            |t| silu_gate(&t[0]),
            |inputs, gradient| {
                let mut out = vec![0.0; 70 * 22];
                envace_kernels::gate_rows_backward(&inputs[0], 11, gradient, &mut out);
                vec![out]
            },
        );
    }
}
