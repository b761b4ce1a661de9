//! Normalization of each query and key head (Qwen3).

use candle_core::{D, Result, Tensor};
use envace_kernels::HeadLayout;

use super::{from_fill, is_fused, rms_norm, with_elements};

/// Normalizes the query heads of `[queries | keys | values]` rows with one weight of `head_dim`, the key heads with
/// another, and leaves the values alone.
pub(crate) fn head_norm(
    qkv: &Tensor,
    query_weight: &Tensor,
    key_weight: &Tensor,
    layout: HeadLayout,
    eps: f64,
) -> Result<Tensor> {
    let n_rows = qkv.dim(0)?;
    if is_fused(qkv) {
        return with_elements(qkv, |rows| {
            with_elements(query_weight, |query| {
                with_elements(key_weight, |key| {
                    from_fill(n_rows, layout.row_width(), qkv, |out| {
                        envace_kernels::head_norm(rows, (query, key), layout, eps as f32, out);
                    })
                })
            })
        });
    }
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

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_same_gradients, random};
    use super::*;

    #[test]
    fn fused_equals_composed() {
        let layout = HeadLayout { n_heads: 4, n_kv_heads: 2, head_dim: 6 };
        let inputs = [random((70, layout.row_width()), 1), random(6, 2), random(6, 3)];
        assert_same_gradients(
            &inputs,
            |t| head_norm(&t[0], &t[1], &t[2], layout, 1e-6),
            |inputs, gradient| {
                let (mut rows, mut sums) = (gradient.to_vec(), vec![0.0; 12]);
                let weights = (inputs[1].as_slice(), inputs[2].as_slice());
                envace_kernels::head_norm_backward(&inputs[0], weights, layout, 1e-6, &mut rows, &mut sums);
                vec![rows, sums[..6].to_vec(), sums[6..].to_vec()]
            },
        );
    }
}
