//! Rotary position embedding.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, D, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::{BLOCK_ROWS, elements, from_rows, is_fused, output, with_elements};
use crate::kernels::{HeadLayout, rotate_rows};

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

    /// The angles of some consecutive rows.
    fn rows(&self, first: usize, n_rows: usize) -> (&[f32], &[f32]) {
        let range = first * self.half..(first + n_rows) * self.half;
        (&self.cos[range.clone()], &self.sin[range])
    }
}

/// Turns query and key heads of `[queries | keys | values]` rows by the rows' angles; values stay as they are.
///
/// # Source
/// <https://arxiv.org/abs/2104.09864>, with the halves of a head paired as in the Hugging Face checkpoints.
pub(crate) fn rope(qkv: &Tensor, angles: &RopeAngles, layout: HeadLayout) -> Result<Tensor> {
    if is_fused(qkv) {
        return qkv.apply_op1(Rope { angles: angles.clone(), layout });
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

struct Rope {
    angles: RopeAngles,
    layout: HeadLayout,
}

impl Rope {
    fn turned(&self, rows: &[f32], direction: f32) -> Vec<f32> {
        let HeadLayout { n_heads, n_kv_heads, head_dim } = self.layout;
        let width = self.layout.row_width();
        let mut out = rows.to_vec();
        out.par_chunks_mut(BLOCK_ROWS * width).enumerate().for_each(|(block, rows)| {
            let angles = self.angles.rows(block * BLOCK_ROWS, rows.len() / width);
            rotate_rows(rows, width, head_dim, n_heads + n_kv_heads, angles, direction);
        });
        out
    }
}

impl CustomOp1 for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn cpu_fwd(&self, qkv: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok(output(self.turned(elements(qkv, layout)?, 1.0), layout.shape().clone()))
    }

    fn bwd(&self, qkv: &Tensor, _res: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        // A rotation's transpose turns back.
        let turned = with_elements(gradient, |gradient| Ok(self.turned(gradient, -1.0)))?;
        from_rows(turned, qkv).map(Some)
    }
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
        assert_same_gradients(&[random((70, layout.row_width()), 1)], |t| rope(&t[0], &angles, layout));
    }
}
