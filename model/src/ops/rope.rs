//! Rotary position embedding.

use std::sync::Arc;

use candle_core::{D, Result, Tensor};
use envace_kernels::HeadLayout;

use super::{from_fill, is_fused, with_elements};

/// Cosine and sine of each row's angles, `head_dim / 2` a row.
#[derive(Clone)]
pub(crate) struct RopeAngles {
    cos: Arc<[f32]>,
    sin: Arc<[f32]>,
    half: usize,
}

impl RopeAngles {
    /// From rows of `half` values each.
    pub(crate) fn new(cos: Vec<f32>, sin: Vec<f32>, half: usize) -> Self {
        Self { cos: cos.into(), sin: sin.into(), half }
    }

    /// Turns `[queries | keys | values]` rows in place; a `direction` of -1 turns back, which is also the gradient.
    pub(crate) fn turn(&self, rows: &mut [f32], layout: HeadLayout, direction: f32) {
        envace_kernels::rotate(rows, &self.cos, &self.sin, layout, direction);
    }
}

/// Turns query and key heads of `[queries | keys | values]` rows by the rows' angles; values stay as they are.
///
/// # Source
/// <https://arxiv.org/abs/2104.09864>, with the halves of a head paired as in the Hugging Face checkpoints.
pub(crate) fn rope(qkv: &Tensor, angles: &RopeAngles, layout: HeadLayout) -> Result<Tensor> {
    if is_fused(qkv) {
        let n_rows = qkv.dim(0)?;
        return with_elements(qkv, |rows| {
            from_fill(n_rows, layout.row_width(), qkv, |out| {
                out.copy_from_slice(rows);
                angles.turn(out, layout, 1.0);
            })
        });
    }
    let (n_rows, half) = (qkv.dim(0)?, angles.half);
    let n_turned = layout.n_heads + layout.n_kv_heads;
    let table =
        |values: &[f32]| Tensor::from_slice(values, (n_rows, 1, half), qkv.device())?.to_dtype(qkv.dtype());
    let (cos, sin) = (table(&angles.cos)?, table(&angles.sin)?);
    let turned = n_turned * layout.head_dim;
    let heads = qkv.narrow(1, 0, turned)?.reshape((n_rows, n_turned, layout.head_dim))?;
    let (low, high) = (heads.narrow(2, 0, half)?, heads.narrow(2, half, half)?);
    let new_low = (low.broadcast_mul(&cos)? - high.broadcast_mul(&sin)?)?;
    let new_high = (high.broadcast_mul(&cos)? + low.broadcast_mul(&sin)?)?;
    let heads = Tensor::cat(&[new_low, new_high], D::Minus1)?.reshape((n_rows, turned))?;
    Tensor::cat(&[heads, qkv.narrow(1, turned, layout.row_width() - turned)?], 1)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_same_gradients, random};
    use super::*;

    #[test]
    fn fused_equals_composed() {
        let layout = HeadLayout { n_heads: 2, n_kv_heads: 1, head_dim: 4 };
        let angles: Vec<f32> = (0..70 * 2).map(|i| i as f32 * 0.1).collect();
        let (cos, sin) = (angles.iter().map(|a| a.cos()).collect(), angles.iter().map(|a| a.sin()).collect());
        let angles = RopeAngles::new(cos, sin, 2);
        assert_same_gradients(
            &[random((70, layout.row_width()), 1)],
            |t| rope(&t[0], &angles, layout),
            |_, gradient| {
                let mut out = gradient.to_vec();
                angles.turn(&mut out, layout, -1.0);
                vec![out]
            },
        );
    }
}
