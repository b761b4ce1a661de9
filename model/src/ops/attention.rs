//! Causal attention over packed sequences.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, D, DType, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::{elements, from_rows, is_fused, output, with_elements};
use crate::kernels::{
    HeadGradients, HeadKeys, HeadLayout, Tile, append_keys, append_values, attend_tile, head_backward,
    panel_width,
};

/// Query rows of one tile.
const TILE_ROWS: usize = 8;
/// Query rows of the composed form whose scores exist at a time.
const COMPOSED_ROWS: usize = 128;

/// The sequences that lie one after the other in the rows of a tensor.
#[derive(Debug, Clone)]
pub(crate) struct Segments(Arc<[(usize, usize)]>);

impl Segments {
    /// From the sequences' lengths, none of them zero, in order.
    pub(crate) fn from_lengths(lengths: impl IntoIterator<Item = usize>) -> Self {
        let mut start = 0;
        let place = |length: usize| {
            let segment = (start, length);
            start += length;
            segment
        };
        Self(lengths.into_iter().map(place).collect())
    }

    /// Start and length of each.
    fn iter(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.0.iter().copied()
    }
}

/// Attends within each sequence: `[queries | keys | values]` rows in, rows of all query heads out.
///
/// Scores are scaled by `1 / sqrt(head_dim)`; a row sees itself and the earlier rows of its sequence. The score
/// matrix never exists whole.
pub(crate) fn attention(qkv: &Tensor, segments: &Segments, layout: HeadLayout) -> Result<Tensor> {
    if is_fused(qkv) {
        qkv.apply_op1(Attention { segments: segments.clone(), layout })
    } else {
        composed(qkv, segments, layout)
    }
}

fn composed(qkv: &Tensor, segments: &Segments, layout: HeadLayout) -> Result<Tensor> {
    let HeadLayout { n_heads, n_kv_heads, head_dim } = layout;
    let mut out = Vec::new();
    for (start, length) in segments.iter() {
        let rows = qkv.narrow(0, start, length)?;
        let heads = |first: usize, n: usize| {
            rows.narrow(1, first, n * head_dim)?.reshape((length, n, head_dim))?.transpose(0, 1)
        };
        let repeated = |first: usize| {
            let part = heads(first, n_kv_heads)?.unsqueeze(1)?;
            part.broadcast_as((n_kv_heads, layout.group(), length, head_dim))?
                .reshape((n_heads, length, head_dim))
        };
        let queries = (heads(0, n_heads)? * (1.0 / (head_dim as f64).sqrt()))?.contiguous()?;
        let keys = repeated(layout.key_start(0))?.contiguous()?;
        let values = repeated(layout.value_start(0))?.contiguous()?;
        for first in (0..length).step_by(COMPOSED_ROWS) {
            let n_rows = COMPOSED_ROWS.min(length - first);
            let n_keys = first + n_rows;
            let mask: Vec<f32> = (0..n_rows * n_keys)
                .map(|i| if i % n_keys > first + i / n_keys { f32::NEG_INFINITY } else { 0.0 })
                .collect();
            let mask = Tensor::from_vec(mask, (1, n_rows, n_keys), qkv.device())?.to_dtype(qkv.dtype())?;
            let keys = keys.narrow(1, 0, n_keys)?.transpose(1, 2)?;
            let scores = queries.narrow(1, first, n_rows)?.contiguous()?.matmul(&keys.contiguous()?)?;
            let scores = scores.broadcast_add(&mask)?;
            let max = scores.detach().max_keepdim(D::Minus1)?;
            let exp = scores.broadcast_sub(&max)?.exp()?;
            let probabilities = exp.broadcast_div(&exp.sum_keepdim(D::Minus1)?)?;
            let sums = probabilities.matmul(&values.narrow(1, 0, n_keys)?.contiguous()?)?;
            out.push(sums.transpose(0, 1)?.reshape((n_rows, n_heads * head_dim))?);
        }
    }
    if out.is_empty() {
        return Tensor::zeros((0, n_heads * head_dim), DType::F32, qkv.device());
    }
    Tensor::cat(&out, 0)
}

struct Attention {
    segments: Segments,
    layout: HeadLayout,
}

impl CustomOp1 for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(&self, qkv: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let rows = elements(qkv, layout)?;
        let heads = self.layout;
        let (row_width, query_width, head_dim) = (heads.row_width(), heads.query_width(), heads.head_dim);
        let n_rows = rows.len() / row_width;
        let mut out = vec![0.0; n_rows * query_width];
        let mut rest = out.as_mut_slice();
        for (start, length) in self.segments.iter() {
            let (out, after) = rest.split_at_mut(length * query_width);
            rest = after;
            let rows = &rows[start * row_width..(start + length) * row_width];
            let stored: Vec<(Vec<f32>, Vec<f32>)> =
                (0..heads.n_kv_heads).into_par_iter().map(|head| store_head(rows, heads, head)).collect();
            out.par_chunks_mut(TILE_ROWS * query_width).enumerate().for_each_init(
                Vec::new,
                |scratch, (i, out)| {
                    let first = i * TILE_ROWS;
                    for head in 0..heads.n_heads {
                        let (keys, values) = &stored[head / heads.group()];
                        let tile = Tile {
                            queries: &rows[first * row_width + head * head_dim..],
                            stride: row_width,
                            n_rows: out.len() / query_width,
                            first_length: first + 1,
                            step: 1,
                        };
                        let out = &mut out[head * head_dim..];
                        attend_tile(&tile, HeadKeys { keys, values }, heads, scratch, out, query_width);
                    }
                },
            );
        }
        Ok(output(out, (n_rows, query_width)))
    }

    fn bwd(&self, qkv: &Tensor, _res: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let heads = self.layout;
        let (row_width, query_width) = (heads.row_width(), heads.query_width());
        let parts: Vec<HeadGradients> = with_elements(qkv, |rows| {
            with_elements(gradient, |gradient| {
                let tasks: Vec<(usize, usize, usize)> = self
                    .segments
                    .iter()
                    .flat_map(|(start, length)| (0..heads.n_kv_heads).map(move |head| (start, length, head)))
                    .collect();
                Ok(tasks
                    .into_par_iter()
                    .map(|(start, length, head)| {
                        let rows = &rows[start * row_width..(start + length) * row_width];
                        let gradient = &gradient[start * query_width..(start + length) * query_width];
                        head_backward(rows, gradient, heads, head)
                    })
                    .collect())
            })
        })?;
        let mut out = vec![0.0; qkv.elem_count()];
        for (segment, (start, length)) in self.segments.iter().enumerate() {
            let parts = &parts[segment * heads.n_kv_heads..(segment + 1) * heads.n_kv_heads];
            let rows = out[start * row_width..(start + length) * row_width].chunks_exact_mut(row_width);
            rows.enumerate().for_each(|(i, row)| gather_row(row, i, parts, heads));
        }
        from_rows(out, qkv).map(Some)
    }
}

/// Copies keys and values of one head into the form that [`attend_tile`] reads.
fn store_head(rows: &[f32], layout: HeadLayout, kv_head: usize) -> (Vec<f32>, Vec<f32>) {
    let (row_width, head_dim) = (layout.row_width(), layout.head_dim);
    let length = rows.len() / row_width;
    let part = |start: usize| rows.chunks_exact(row_width).map(move |row| &row[start..start + head_dim]);
    let mut keys = vec![0.0; length.next_multiple_of(panel_width()) * head_dim];
    append_keys(&mut keys, 0, head_dim, part(layout.key_start(kv_head)));
    let mut values = vec![0.0; length * layout.value_stride()];
    append_values(&mut values, 0, layout.value_stride(), part(layout.value_start(kv_head)));
    (keys, values)
}

/// Puts one row's gradient together from those of the heads.
fn gather_row(row: &mut [f32], i: usize, parts: &[HeadGradients], layout: HeadLayout) {
    let (head_dim, stride) = (layout.head_dim, layout.value_stride());
    let group = layout.group() * head_dim;
    for (head, part) in parts.iter().enumerate() {
        row[head * group..][..group].copy_from_slice(&part.queries[i * group..][..group]);
        row[layout.key_start(head)..][..head_dim].copy_from_slice(&part.keys[i * stride..][..head_dim]);
        row[layout.value_start(head)..][..head_dim].copy_from_slice(&part.values[i * stride..][..head_dim]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_same_gradients, random};
    use super::*;

    #[test]
    fn fused_equals_composed() {
        for (n_heads, n_kv_heads, head_dim) in [(4, 2, 8), (2, 2, 34), (3, 1, 32)] {
            let layout = HeadLayout { n_heads, n_kv_heads, head_dim };
            let segments = Segments::from_lengths([1, 45, 3, 140]);
            let inputs = [random((189, layout.row_width()), 1)];
            assert_same_gradients(&inputs, |t| attention(&t[0], &segments, layout));
        }
    }
}
