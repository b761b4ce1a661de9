//! Normalization of each query and key head (Qwen3).

use candle_core::{CpuStorage, CustomOp3, D, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::{BLOCK_ROWS, elements, from_rows, is_fused, output, rms_norm, sum_over_blocks, with_elements};
use crate::kernels::{HeadLayout, rms_norm_backward_rows, rms_norm_rows};

/// Normalizes the query heads of `[queries | keys | values]` rows with one weight of `head_dim`, the key heads with
/// another, and leaves the values alone.
pub(crate) fn head_norm(
    qkv: &Tensor,
    query_weight: &Tensor,
    key_weight: &Tensor,
    layout: HeadLayout,
    eps: f64,
) -> Result<Tensor> {
    if is_fused(qkv) {
        return qkv.apply_op3(query_weight, key_weight, HeadNorm { layout, eps: eps as f32 });
    }
    let n_rows = qkv.dim(0)?;
    let HeadLayout { n_heads, n_kv_heads, head_dim } = layout;
    let normed = |start: usize, n: usize, weight: &Tensor| {
        let heads = qkv.narrow(1, start, n * head_dim)?.reshape((n_rows, n, head_dim))?;
        rms_norm::composed(&heads, weight, eps)?.reshape((n_rows, n * head_dim))
    };
    let queries = normed(0, n_heads, query_weight)?;
    let keys = normed(layout.key_start(0), n_kv_heads, key_weight)?;
    let values = qkv.narrow(1, layout.value_start(0), n_kv_heads * head_dim)?;
    Tensor::cat(&[queries, keys, values], D::Minus1)
}

struct HeadNorm {
    layout: HeadLayout,
    eps: f32,
}

impl CustomOp3 for HeadNorm {
    fn name(&self) -> &'static str {
        "head_norm"
    }

    fn cpu_fwd(
        &self,
        qkv: &CpuStorage,
        qkv_layout: &Layout,
        query_weight: &CpuStorage,
        query_layout: &Layout,
        key_weight: &CpuStorage,
        key_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let qkv = elements(qkv, qkv_layout)?;
        let (query_weight, key_weight) =
            (elements(query_weight, query_layout)?, elements(key_weight, key_layout)?);
        let (width, keys, values) =
            (self.layout.row_width(), self.layout.key_start(0), self.layout.value_start(0));
        let mut out = qkv.to_vec();
        let block = BLOCK_ROWS * width;
        out.par_chunks_mut(block).zip(qkv.par_chunks(block)).for_each(|(out, rows)| {
            for (out, row) in out.chunks_exact_mut(width).zip(rows.chunks_exact(width)) {
                rms_norm_rows(&row[..keys], query_weight, self.eps, &mut out[..keys]);
                rms_norm_rows(&row[keys..values], key_weight, self.eps, &mut out[keys..values]);
            }
        });
        Ok(output(out, qkv_layout.shape().clone()))
    }

    fn bwd(
        &self,
        qkv: &Tensor,
        query_weight: &Tensor,
        key_weight: &Tensor,
        _res: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (width, keys, values) =
            (self.layout.row_width(), self.layout.key_start(0), self.layout.value_start(0));
        let head_dim = self.layout.head_dim;
        let eps = self.eps;
        let (query, key) = (query_weight.to_vec1::<f32>()?, key_weight.to_vec1::<f32>()?);
        let mut out = with_elements(gradient, |gradient| Ok(gradient.to_vec()))?;
        let sums = with_elements(qkv, |rows| {
            with_elements(gradient, |gradient| {
                Ok(sum_over_blocks(&mut out, width, 2 * head_dim, |first, out, sum| {
                    let (query_sum, key_sum) = sum.split_at_mut(head_dim);
                    let rows = rows[first * width..].chunks_exact(width);
                    let gradients = gradient[first * width..].chunks_exact(width);
                    for ((out, x), g) in out.chunks_exact_mut(width).zip(rows).zip(gradients) {
                        let (x_q, g_q) = (&x[..keys], &g[..keys]);
                        rms_norm_backward_rows(x_q, &query, eps, g_q, &mut out[..keys], query_sum);
                        let (x_k, g_k) = (&x[keys..values], &g[keys..values]);
                        rms_norm_backward_rows(x_k, &key, eps, g_k, &mut out[keys..values], key_sum);
                    }
                }))
            })
        })?;
        let (query_sum, key_sum) = sums.split_at(head_dim);
        Ok((
            Some(from_rows(out, qkv)?),
            Some(from_rows(query_sum.to_vec(), query_weight)?),
            Some(from_rows(key_sum.to_vec(), key_weight)?),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_same_gradients, random};
    use super::*;

    #[test]
    fn fused_equals_composed() {
        let layout = HeadLayout { n_heads: 4, n_kv_heads: 2, head_dim: 6 };
        let inputs = [random((70, layout.row_width()), 1), random(6, 2), random(6, 3)];
        assert_same_gradients(&inputs, |t| head_norm(&t[0], &t[1], &t[2], layout, 1e-6));
    }
}
