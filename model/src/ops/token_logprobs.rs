//! Log probabilities of given tokens, without a tensor of tokens times vocabulary.

use std::sync::Arc;

use candle_core::{D, Result, Tensor};
use rayon::prelude::*;

use super::{is_fused, with_elements};
use envace_kernels::{Left, LogSoftmax, Right, Sizes, product};

/// Which token each row predicts, at which temperature, and how many rows' logits may exist at a time.
#[derive(Debug, Clone)]
pub(crate) struct Targets {
    pub(crate) token_ids: Arc<[u32]>,
    pub(crate) temperatures: Arc<[f32]>,
    pub(crate) chunk_rows: usize,
}

/// Returns `(rows, 2)`: the logprob of each row's token and the entropy of its distribution, both in nats.
///
/// `hidden` is `(rows, hidden)`, `weight` the vocabulary projection `(vocabulary, hidden)`.
pub(crate) fn token_logprobs(hidden: &Tensor, weight: &Tensor, targets: &Targets) -> Result<Tensor> {
    if !is_fused(hidden) {
        return composed(hidden, weight, targets);
    }
    with_elements(hidden, |rows| {
        with_elements(weight, |weight| {
            let (values, _) = forward(rows, weight, hidden.dim(1)?, targets);
            Tensor::from_vec(values, (hidden.dim(0)?, 2), hidden.device())
        })
    })
}

fn composed(hidden: &Tensor, weight: &Tensor, targets: &Targets) -> Result<Tensor> {
    let n_rows = hidden.dim(0)?;
    let mut chunks = Vec::new();
    for first in (0..n_rows).step_by(targets.chunk_rows.max(1)) {
        let n = targets.chunk_rows.max(1).min(n_rows - first);
        let inverse: Vec<f32> = targets.temperatures[first..first + n]
            .iter()
            .map(|t| if *t > 0.0 { 1.0 / t } else { 1.0 })
            .collect();
        let inverse = Tensor::from_vec(inverse, (n, 1), hidden.device())?.to_dtype(hidden.dtype())?;
        let ids = Tensor::from_slice(&targets.token_ids[first..first + n], (n, 1), hidden.device())?;
        let logits = hidden.narrow(0, first, n)?.matmul(&weight.t()?)?;
        let logits =
            logits.broadcast_sub(&logits.detach().max_keepdim(D::Minus1)?)?.broadcast_mul(&inverse)?;
        let log_sum = logits.exp()?.sum_keepdim(D::Minus1)?.log()?;
        let logprobs = logits.broadcast_sub(&log_sum)?;
        let entropy = (logprobs.exp()? * &logprobs)?.sum_keepdim(D::Minus1)?.neg()?;
        chunks.push(Tensor::cat(&[logprobs.gather(&ids, 1)?, entropy], 1)?);
    }
    Tensor::cat(&chunks, 0)
}

/// Logits up to this many are kept for the backward pass.
const MOST_KEPT: usize = 1 << 25;

/// Of how many rows the logits exist at a time: of all, where these are few enough to be kept.
pub(crate) fn logits_rows(n_rows: usize, width: usize, chunk_rows: usize) -> usize {
    if n_rows.saturating_mul(width) <= MOST_KEPT { n_rows } else { chunk_rows.clamp(1, n_rows) }
}

/// The logits of all rows between forward and backward pass, where they are few enough; else nothing.
#[derive(Debug, Default)]
pub(crate) struct KeptLogits(Vec<f32>);

/// As [`token_logprobs`], on slices: rows of `depth` hidden elements, and a weight row of as many for each token.
pub(crate) fn forward(
    hidden: &[f32],
    weight: &[f32],
    depth: usize,
    targets: &Targets,
) -> (Vec<f32>, KeptLogits) {
    let width = weight.len() / depth;
    let Targets { token_ids, temperatures, .. } = targets;
    let mut out = vec![0.0; token_ids.len() * 2];
    let mut kept = KeptLogits::default();
    kept.each_chunk(hidden, weight, depth, targets, |first, logits| {
        let rows = logits.par_chunks_exact(width).zip(out[first * 2..].par_chunks_exact_mut(2));
        rows.enumerate().for_each(|(i, (logits, out))| {
            let row = LogSoftmax::new(logits, temperatures[first + i]);
            out[0] = row.logprob(logits[token_ids[first + i] as usize]);
            out[1] = row.entropy(logits);
        });
    });
    if token_ids.len() * width > MOST_KEPT {
        kept = KeptLogits::default();
    }
    (out, kept)
}

/// Given the gradient of [`forward`]'s rows, writes that of the hidden rows and adds that of the weight, unless it has
/// no room: a weight that is not trained.
///
/// Logits that were not kept are computed again, chunk by chunk. Sums over rows are taken in row order, whatever the
/// chunks.
pub(crate) fn backward(
    hidden: &[f32],
    weight: &[f32],
    targets: &Targets,
    mut kept: KeptLogits,
    gradient: &[f32],
    hidden_gradient: &mut [f32],
    weight_gradient: &mut [f32],
) {
    let Targets { token_ids, temperatures, .. } = targets;
    let n_rows = token_ids.len();
    if n_rows == 0 {
        return;
    }
    let depth = hidden.len() / n_rows;
    let width = weight.len() / depth;
    kept.each_chunk(hidden, weight, depth, targets, |first, logits| {
        logits.par_chunks_exact_mut(width).enumerate().for_each(|(i, logits)| {
            let (row, target) = (first + i, token_ids[first + i] as usize);
            let softmax = LogSoftmax::new(logits, temperatures[row]);
            softmax.backward(logits, target, gradient[row * 2], gradient[row * 2 + 1]);
        });
        let n_rows = logits.len() / width;
        let out = &mut hidden_gradient[first * depth..][..n_rows * depth];
        let right = Right::Rows { values: weight, stride: depth };
        product(Left::rows(logits, width), right, Sizes { n_rows, depth: width, width: depth }, false, out);
        if weight_gradient.is_empty() {
            return;
        }
        let right = Right::Rows { values: &hidden[first * depth..], stride: depth };
        let sizes = Sizes { n_rows: width, depth: n_rows, width: depth };
        product(Left::transposed(logits, width), right, sizes, true, weight_gradient);
    });
}

impl KeptLogits {
    /// Calls `f` with the first row and the logits of each chunk, in order; logits that are there are one chunk.
    fn each_chunk(
        &mut self,
        hidden: &[f32],
        weight: &[f32],
        depth: usize,
        targets: &Targets,
        mut f: impl FnMut(usize, &mut [f32]),
    ) {
        let (n_rows, width) = (targets.token_ids.len(), weight.len() / depth);
        if n_rows == 0 {
            return;
        }
        if self.0.len() == n_rows * width {
            return f(0, &mut self.0);
        }
        let chunk_rows = logits_rows(n_rows, width, targets.chunk_rows);
        self.0.resize(chunk_rows * width, 0.0);
        for first in (0..n_rows).step_by(chunk_rows) {
            let n_rows = chunk_rows.min(n_rows - first);
            let logits = &mut self.0[..n_rows * width];
            let left = Left::rows(&hidden[first * depth..], depth);
            let right = Right::Transposed { values: weight };
            product(left, right, Sizes { n_rows, depth, width }, false, logits);
            f(first, logits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_same_gradients, random};
    use super::*;

    fn targets(chunk_rows: usize) -> Targets {
        Targets {
            token_ids: (0..90).map(|i| i * 7 % 53).collect(),
            temperatures: (0..90).map(|i| [1.0, 0.7, 0.0, 2.0][i % 4]).collect(),
            chunk_rows,
        }
    }

    #[test]
    fn fused_equals_composed() {
        let inputs = [random((90, 24), 1), random((53, 24), 2)];
        for is_kept in [true, false] {
            assert_same_gradients(
                &inputs,
                |t| token_logprobs(&t[0], &t[1], &targets(32)),
                |inputs, gradient| {
                    let targets = targets(32);
                    let (_, mut kept) = forward(&inputs[0], &inputs[1], 24, &targets);
                    assert_eq!(kept.0.len(), 90 * 53);
                    if !is_kept {
                        kept = KeptLogits::default();
                    }
                    let (mut hidden, mut weight) = (vec![0.0; 90 * 24], vec![0.0; 53 * 24]);
                    let (rows, head) = (&inputs[0], &inputs[1]);
                    backward(rows, head, &targets, kept, gradient, &mut hidden, &mut weight);
                    vec![hidden, weight]
                },
            );
        }
    }
}
