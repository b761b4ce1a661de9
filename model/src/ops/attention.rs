//! Causal attention over the rows of a prefix tree.

use candle_core::{D, DType, Result, Tensor};
use envace_kernels::{Forest, HeadLayout};

use super::{from_fill, is_fused, with_elements};

/// Query rows of the composed form whose scores exist at a time.
const COMPOSED_ROWS: usize = 128;

/// Attends within each sequence: `[queries | keys | values]` rows in, rows of all query heads out.
///
/// Scores are scaled by `1 / sqrt(head_dim)`; a row sees itself and the earlier rows of its sequence. The score
/// matrix never exists whole.
pub(crate) fn attention(qkv: &Tensor, forest: &Forest, layout: HeadLayout) -> Result<Tensor> {
    if is_fused(qkv) {
        let (n_rows, width) = (qkv.dim(0)?, layout.query_width());
        return with_elements(qkv, |rows| {
            from_fill(n_rows, width, qkv, |out| envace_kernels::attend_forest(rows, forest, layout, out))
        });
    }
    composed(qkv, forest, layout)
}

fn composed(qkv: &Tensor, forest: &Forest, layout: HeadLayout) -> Result<Tensor> {
    let HeadLayout { n_heads, n_kv_heads, head_dim } = layout;
    let mut out = Vec::new();
    for run in forest.runs().iter().filter(|run| run.own.len > 0) {
        let (start, n_own, length) = (run.own.position, run.own.len, run.len());
        let rows: Vec<u32> = run.rows_from(0).map(|row| row as u32).collect();
        let rows = qkv.index_select(&Tensor::new(rows, qkv.device())?, 0)?;
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
        for first in (start..start + n_own).step_by(COMPOSED_ROWS) {
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

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_same_gradients, flat, random};
    use super::*;

    /// Sequences of these lengths; each shares with the one before it as many tokens as `shared` says.
    fn sequences(lengths: &[(usize, usize)]) -> Vec<Vec<u32>> {
        let mut all: Vec<Vec<u32>> = Vec::new();
        for (index, &(length, shared)) in lengths.iter().enumerate() {
            let mut sequence: Vec<u32> = all.last().map(|last| last[..shared].to_vec()).unwrap_or_default();
            sequence.extend((shared..length).map(|position| (index * 1000 + position) as u32));
            all.push(sequence);
        }
        assert!(all.is_sorted());
        all
    }

    fn forest(sequences: &[Vec<u32>]) -> Forest {
        Forest::new(&sequences.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    #[test]
    fn fused_equals_composed() {
        let shapes = [
            vec![(1, 0), (45, 0), (3, 0), (140, 0)],
            // Branches within and at panels, a sequence that extends another, one that ends early.
            vec![(40, 0), (90, 33), (97, 90), (64, 32), (64, 64), (20, 7), (30, 0), (31, 30)],
        ];
        for (n_heads, n_kv_heads, head_dim) in [(4, 2, 8), (2, 2, 34), (3, 1, 32)] {
            let layout = HeadLayout { n_heads, n_kv_heads, head_dim };
            for shape in &shapes {
                let forest = forest(&sequences(shape));
                let inputs = [random((forest.n_rows(), layout.row_width()), 1)];
                assert_same_gradients(
                    &inputs,
                    |t| attention(&t[0], &forest, layout),
                    |inputs, gradient| {
                        let mut out = vec![0.0; inputs[0].len()];
                        envace_kernels::attend_forest_backward(
                            &inputs[0], gradient, &forest, layout, &mut out,
                        );
                        vec![out]
                    },
                );
            }
        }
    }

    #[test]
    fn shared_rows_have_the_bits_of_separate_ones() {
        let layout = HeadLayout { n_heads: 4, n_kv_heads: 2, head_dim: 16 };
        let sequences = sequences(&[(64, 0), (90, 64), (70, 33), (20, 7)]);
        let shared = forest(&sequences);
        let rows = random((shared.n_rows(), layout.row_width()), 5);
        let together = flat(&attention(&rows, &shared, layout).unwrap());
        for (sequence, run) in sequences.iter().zip(shared.runs()) {
            let ids: Vec<u32> = run.rows_from(0).map(|row| row as u32).collect();
            let own = rows.index_select(&Tensor::new(ids.clone(), rows.device()).unwrap(), 0).unwrap();
            let alone = flat(&attention(&own, &Forest::new(&[sequence.as_slice()]), layout).unwrap());
            let width = layout.query_width();
            for (row, alone) in ids.iter().zip(alone.chunks_exact(width)) {
                assert_eq!(&together[*row as usize * width..][..width], alone);
            }
        }
    }
}
