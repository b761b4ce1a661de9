//! The backward pass of causal attention for one sequence and one key and value head.

use super::attention::{HeadLayout, append_keys, append_values, exp_row};
use super::product::{Left, Right, Sizes, block_product, panel_width};
use super::{sum, vectorized};

/// Query rows whose scores exist at a time.
const BLOCK_ROWS: usize = 32;

/// Gradients of one sequence and one key and value head.
pub(crate) struct HeadGradients {
    /// Of the queries: rows of `group * head_dim`.
    pub(crate) queries: Vec<f32>,
    /// Of the keys, in rows of `value_stride`.
    pub(crate) keys: Vec<f32>,
    /// Of the values, in rows of `value_stride`.
    pub(crate) values: Vec<f32>,
}

/// Returns the gradients for the rows of one sequence.
///
/// `rows` are `[queries | keys | values]` rows, `gradient` rows of all query heads. The probabilities are computed
/// again, `BLOCK_ROWS` rows at a time; with `P` the probabilities, `D = gradient · valuesᵀ` and
/// `S = P * (D - sum(P * D)) * scale`, the queries' gradient is `S · keys`, the keys' `Sᵀ · queries` and the
/// values' `Pᵀ · gradient`.
pub(crate) fn head_backward(
    rows: &[f32],
    gradient: &[f32],
    layout: HeadLayout,
    kv_head: usize,
) -> HeadGradients {
    let (row_width, query_width, head_dim) = (layout.row_width(), layout.query_width(), layout.head_dim);
    let (nr, stride, group) = (panel_width(), layout.value_stride(), layout.group());
    let length = rows.len() / row_width;
    let padded = length.next_multiple_of(nr);
    let part = |start: usize| rows.chunks_exact(row_width).map(move |row| &row[start..start + head_dim]);
    let (key_start, value_start) = (layout.key_start(kv_head), layout.value_start(kv_head));
    let mut key_panels = vec![0.0; padded * head_dim];
    append_keys(&mut key_panels, 0, head_dim, part(key_start));
    let mut value_panels = vec![0.0; padded * head_dim];
    append_keys(&mut value_panels, 0, head_dim, part(value_start));
    let mut key_rows = vec![0.0; length * stride];
    append_values(&mut key_rows, 0, stride, part(key_start));
    let mut out = HeadGradients {
        queries: vec![0.0; length * group * head_dim],
        keys: vec![0.0; length * stride],
        values: vec![0.0; length * stride],
    };
    let mut scores = vec![0.0; BLOCK_ROWS * padded];
    let mut pulls = vec![0.0; BLOCK_ROWS * padded];
    let mut query_rows = vec![0.0; BLOCK_ROWS * stride];
    let mut gradient_rows = vec![0.0; BLOCK_ROWS * stride];
    let mut query_sums = vec![0.0; BLOCK_ROWS * stride];
    for in_group in 0..group {
        let head_start = (kv_head * group + in_group) * head_dim;
        for first in (0..length).step_by(BLOCK_ROWS) {
            let n_rows = BLOCK_ROWS.min(length - first);
            let n_keys = first + n_rows;
            let padded = n_keys.next_multiple_of(nr);
            let block = &rows[first * row_width + head_start..];
            let block_gradient = &gradient[first * query_width + head_start..];
            append_values(
                &mut query_rows,
                0,
                stride,
                block.chunks(row_width).take(n_rows).map(|row| &row[..head_dim]),
            );
            append_values(
                &mut gradient_rows,
                0,
                stride,
                block_gradient.chunks(query_width).take(n_rows).map(|row| &row[..head_dim]),
            );
            let scores = &mut scores[..n_rows * padded];
            let pulls = &mut pulls[..n_rows * padded];
            let to_keys = Sizes { n_rows, depth: head_dim, width: padded };
            let rows_of = |values| Left { values, row_stride: stride, depth_stride: 1 };
            let panels = |values| Right::Panels { values };
            block_product(rows_of(&query_rows), panels(&key_panels), to_keys, false, scores, padded);
            block_product(rows_of(&gradient_rows), panels(&value_panels), to_keys, false, pulls, padded);
            for (i, (scores, pulls)) in
                scores.chunks_exact_mut(padded).zip(pulls.chunks_exact_mut(padded)).enumerate()
            {
                let sum = exp_row(scores, first + i + 1, layout.scale());
                vectorized(
                    #[inline(always)]
                    |args| pull_body(args),
                    (scores, pulls, 1.0 / sum, layout.scale()),
                );
            }
            let from_keys = Sizes { n_rows, depth: n_keys, width: stride };
            let key_right = Right::Rows { values: &key_rows, stride };
            block_product(Left::rows(pulls, padded), key_right, from_keys, false, &mut query_sums, stride);
            let to_rows = Sizes { n_rows: n_keys, depth: n_rows, width: stride };
            let query_right = Right::Rows { values: &query_rows, stride };
            block_product(Left::transposed(pulls, padded), query_right, to_rows, true, &mut out.keys, stride);
            let gradient_right = Right::Rows { values: &gradient_rows, stride };
            block_product(
                Left::transposed(scores, padded),
                gradient_right,
                to_rows,
                true,
                &mut out.values,
                stride,
            );
            let targets = out.queries[first * group * head_dim..].chunks_exact_mut(group * head_dim);
            for (target, sums) in targets.zip(query_sums.chunks_exact(stride).take(n_rows)) {
                target[in_group * head_dim..][..head_dim].copy_from_slice(&sums[..head_dim]);
            }
        }
    }
    out
}

/// Turns exponentials into probabilities and the products with the values into the scores' gradient.
#[inline(always)]
fn pull_body((scores, pulls, inverse, scale): (&mut [f32], &mut [f32], f32, f32)) {
    for p in scores.iter_mut() {
        *p *= inverse;
    }
    let mean = sum::dot(scores, pulls);
    for (pull, p) in pulls.iter_mut().zip(scores.iter()) {
        *pull = p * (*pull - mean) * scale;
    }
}
