//! Log probabilities of given tokens, without a tensor of tokens times vocabulary.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp2, D, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::{elements, from_rows, is_fused, output, with_elements};
use crate::kernels::{Left, LogSoftmax, Panels, Right, Sizes, product};

/// Which token each row predicts, at which temperature, and how many rows' logits may exist at a time.
#[derive(Debug, Clone)]
pub(crate) struct Targets {
    pub(crate) token_ids: Arc<[u32]>,
    pub(crate) temperatures: Arc<[f32]>,
    pub(crate) chunk_rows: usize,
}

/// Returns `(rows, 2)`: the logprob of each row's token and the entropy of its distribution, both in nats.
///
/// `hidden` is `(rows, hidden)`, `weight` the vocabulary projection `(hidden, vocabulary)`. Both columns are
/// differentiable. The backward pass computes the logits again, chunk by chunk. Sums over rows are taken in row
/// order, whatever the chunks.
pub(crate) fn token_logprobs(hidden: &Tensor, weight: &Tensor, targets: &Targets) -> Result<Tensor> {
    if is_fused(hidden) {
        hidden.apply_op2(weight, TokenLogprobs { targets: targets.clone() })
    } else {
        composed(hidden, weight, targets)
    }
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
        let logits = hidden.narrow(0, first, n)?.matmul(weight)?;
        let logits =
            logits.broadcast_sub(&logits.detach().max_keepdim(D::Minus1)?)?.broadcast_mul(&inverse)?;
        let log_sum = logits.exp()?.sum_keepdim(D::Minus1)?.log()?;
        let logprobs = logits.broadcast_sub(&log_sum)?;
        let entropy = (logprobs.exp()? * &logprobs)?.sum_keepdim(D::Minus1)?.neg()?;
        chunks.push(Tensor::cat(&[logprobs.gather(&ids, 1)?, entropy], 1)?);
    }
    Tensor::cat(&chunks, 0)
}

struct TokenLogprobs {
    targets: Targets,
}

impl TokenLogprobs {
    /// Calls `f` with the first row and the logits of each chunk, in order.
    fn each_chunk(&self, hidden: &[f32], weight: &[f32], sizes: Sizes, mut f: impl FnMut(usize, &mut [f32])) {
        let Sizes { n_rows, depth, width } = sizes;
        let chunk_rows = self.targets.chunk_rows.max(1);
        let panels = Panels::from_rows(weight, depth, width);
        let mut logits = vec![0.0; chunk_rows.min(n_rows) * width];
        for first in (0..n_rows).step_by(chunk_rows) {
            let n_rows = chunk_rows.min(n_rows - first);
            let logits = &mut logits[..n_rows * width];
            let left = Left::rows(&hidden[first * depth..], depth);
            product(left, panels.right(), Sizes { n_rows, depth, width }, false, logits);
            f(first, logits);
        }
    }
}

impl CustomOp2 for TokenLogprobs {
    fn name(&self) -> &'static str {
        "token_logprobs"
    }

    fn cpu_fwd(
        &self,
        hidden: &CpuStorage,
        hidden_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (n_rows, depth) = hidden_layout.shape().dims2()?;
        let width = weight_layout.shape().dims2()?.1;
        let (hidden, weight) = (elements(hidden, hidden_layout)?, elements(weight, weight_layout)?);
        let Targets { token_ids, temperatures, .. } = &self.targets;
        let mut out = vec![0.0; n_rows * 2];
        self.each_chunk(hidden, weight, Sizes { n_rows, depth, width }, |first, logits| {
            let rows = logits.par_chunks_exact(width).zip(out[first * 2..].par_chunks_exact_mut(2));
            rows.enumerate().for_each(|(i, (logits, out))| {
                let row = LogSoftmax::new(logits, temperatures[first + i]);
                out[0] = row.logprob(logits[token_ids[first + i] as usize]);
                out[1] = row.entropy(logits);
            });
        });
        Ok(output(out, (n_rows, 2)))
    }

    fn bwd(
        &self,
        hidden: &Tensor,
        weight: &Tensor,
        _res: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (n_rows, depth) = hidden.dims2()?;
        let width = weight.dim(1)?;
        let Targets { token_ids, temperatures, .. } = &self.targets;
        let gradient = gradient.contiguous()?.flatten_all()?.to_vec1::<f32>()?;
        let mut hidden_gradient = vec![0.0; n_rows * depth];
        let mut weight_gradient = vec![0.0; depth * width];
        with_elements(hidden, |hidden| {
            with_elements(weight, |weight| {
                let transposed = Panels::from_transposed(weight, width, depth);
                self.each_chunk(hidden, weight, Sizes { n_rows, depth, width }, |first, logits| {
                    logits.par_chunks_exact_mut(width).enumerate().for_each(|(i, logits)| {
                        let (row, target) = (first + i, token_ids[first + i] as usize);
                        LogSoftmax::new(logits, temperatures[row]).backward(
                            logits,
                            target,
                            gradient[row * 2],
                            gradient[row * 2 + 1],
                        );
                    });
                    let n_rows = logits.len() / width;
                    let out = &mut hidden_gradient[first * depth..][..n_rows * depth];
                    let sizes = Sizes { n_rows, depth: width, width: depth };
                    product(Left::rows(logits, width), transposed.right(), sizes, false, out);
                    let left = Left::transposed(&hidden[first * depth..], depth);
                    let sizes = Sizes { n_rows: depth, depth: n_rows, width };
                    product(
                        left,
                        Right::Rows { values: logits, stride: width },
                        sizes,
                        true,
                        &mut weight_gradient,
                    );
                });
                Ok(())
            })
        })?;
        Ok((Some(from_rows(hidden_gradient, hidden)?), Some(from_rows(weight_gradient, weight)?)))
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
        let inputs = [random((90, 24), 1), random((24, 53), 2)];
        assert_same_gradients(&inputs, |t| token_logprobs(&t[0], &t[1], &targets(32)));
    }

    #[test]
    fn chunks_do_not_change_a_bit() {
        let (hidden, weight) = (random((90, 24), 1), random((24, 53), 2));
        let run = |chunk_rows| {
            let tensor = token_logprobs(&hidden, &weight, &targets(chunk_rows)).unwrap();
            tensor.to_vec2::<f32>().unwrap()
        };
        assert_eq!(run(7), run(90));
    }
}
