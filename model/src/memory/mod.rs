//! How much memory sampling and training need on the CPU: the one place where this is worked out.
//!
//! All figures are bytes, and upper bounds of what is held at the worst moment but for small change: buffers of a fixed
//! size, the program itself, stacks. In the formulas `P` is the number of weights, `L` that of layers, `H` the hidden
//! size, `I` the inner size of the feed-forward block, `Q` the width of all query heads, `W` that of a row `[queries |
//! keys | values]`, `V` the vocabulary and `R` the number of rows computed at once. A number takes 4 bytes, or 2 where
//! sampling reads `bf16`.

mod bytes;
mod need;

use std::path::Path;

use envace_kernels::HeadLayout;

pub use bytes::Bytes;
pub(crate) use bytes::{Exactly, Setting};
pub use need::MemoryNeed;

use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::ops::logits_rows;
use crate::train::scratch_len;
use crate::transformer::{KvCache, layout};
use crate::weights::{Parameter, StoredDtype, WeightFiles, parameters};

/// Bytes of a number that is computed with.
const F32: u64 = 4;

/// What memory depends on of a model: its configuration and how its weights are stored.
#[derive(Debug, Clone)]
pub struct ModelSize {
    config: ModelConfig,
    parameters: Vec<(Parameter, StoredDtype)>,
}

/// What a trainer is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrainingWork {
    /// Tokens that one pass computes at most, a shared prefix counted once: `R`.
    pub n_tokens: usize,
    /// Tokens among them whose successor is trained, at most `n_tokens`: `T`.
    pub n_trained: usize,
    /// As in [`crate::TrainerOptions`].
    pub recompute_layers: bool,
    /// Whether gradients and optimizer state are kept in a scratch file.
    pub has_scratch: bool,
    /// As in [`crate::TrainerOptions`].
    pub logprob_chunk_rows: usize,
    /// Rank of the adapter that is trained in place of the weights.
    pub adapter_rank: Option<usize>,
}

/// What an engine is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplingWork {
    /// Generations decoded together.
    pub max_batch: usize,
    /// Bytes of keys and values; see [`ModelSize::kv_bytes`].
    pub kv_bytes: u64,
    /// Most prompt tokens computed in one round.
    pub prefill_tokens: usize,
}

impl ModelSize {
    /// Reads a model folder: its configuration and the headers of its weight files.
    ///
    /// # Errors
    /// Those of [`crate::Model::load`] on these.
    pub fn read(dir: &Path) -> Result<Self, ModelError> {
        let config = ModelConfig::load(dir)?;
        let files = WeightFiles::open_model(dir)?;
        let parameters = parameters(&config).into_iter();
        let parameters = parameters.map(|parameter| {
            let dtype = parameter.dtype(&files)?;
            Ok((parameter, dtype))
        });
        Ok(Self { parameters: parameters.collect::<Result<_, ModelError>>()?, config })
    }

    /// The same with all matrices in 32 bits, as those are that an adapter is merged into.
    pub fn widened(mut self) -> Self {
        self.parameters.iter_mut().for_each(|(_, dtype)| *dtype = StoredDtype::F32);
        self
    }

    /// Bytes of the scratch file of [`crate::TrainerOptions::scratch`].
    pub fn scratch_bytes(&self) -> u64 {
        let lens = self.parameters.iter().map(|(parameter, dtype)| scratch_len(parameter.len(), *dtype));
        F32 * lens.sum::<u64>()
    }

    /// Longest sequence in tokens.
    pub fn context_length(&self) -> usize {
        self.config.context_length
    }

    /// Bytes of keys and values that some tokens take, in whole blocks of the cache: of `L` layers keys, and values
    /// rounded up to whole vectors.
    pub fn kv_bytes(&self, n_tokens: usize) -> u64 {
        product(&[n_tokens.div_ceil(KvCache::BLOCK_LEN), KvCache::block_bytes(&self.config)])
    }

    /// Tokens whose keys and values have room in so many bytes.
    pub fn kv_tokens(&self, n_bytes: u64) -> usize {
        let n_blocks = n_bytes / KvCache::block_bytes(&self.config).max(1) as u64;
        usize::try_from(n_blocks).unwrap_or(usize::MAX).saturating_mul(KvCache::BLOCK_LEN)
    }

    /// What an engine with a model of its own holds.
    ///
    /// - weights: those of matrices in 2 bytes where they are stored as `bf16`, else 4;
    /// - activations of one round, `R` being `max_batch + prefill_tokens`: `R · (4 H + 2 W + Q + 3 I)`, all that a layer
    ///   makes;
    /// - logits: `max_batch · V`, once as they are computed and once as they are given out.
    pub fn sampling(&self, work: &SamplingWork) -> MemoryNeed {
        let weights = self.parameters.iter().map(|(parameter, dtype)| {
            let is_short = *dtype == StoredDtype::Bf16 && parameter.is_matrix();
            parameter.len() as u64 * if is_short { 2 } else { F32 }
        });
        let Widths { hidden, inner, queries, row } = self.widths();
        let n_rows = work.max_batch.saturating_add(work.prefill_tokens);
        let activations = F32 * product(&[n_rows, 4 * hidden + 2 * row + queries + 3 * inner]);
        let logits = 2 * F32 * product(&[work.max_batch, self.config.vocab_size]);
        MemoryNeed::of([
            ("weights", weights.sum()),
            ("keys and values", work.kv_bytes),
            ("activations", activations),
            ("logits", logits),
        ])
    }

    /// What a trainer holds.
    ///
    /// - weights: `4 P`, and as much again of master values where weights are not stored as `f32`;
    /// - gradients: `4 P`; with a scratch file those of one layer, or of the embedding;
    /// - optimizer state: `8 P`; with a scratch file nothing;
    /// - activations kept for the backward pass, of each layer `R · (2 H + 2 W + Q + 2 I)` (`W` once in a model without
    ///   norms of heads), or with recomputation `R · H`;
    /// - the layer under way: with recomputation what else would be kept of it; its gradients, `R · (4 I + 3 H + W)`;
    ///   and what attention hands over, `R · W`;
    /// - logits: of the rows of a chunk, or of all where these are few, and `T · 4 H` around them.
    ///
    /// Of an adapter of rank `r` with factors on all projections of a layer, `r · (in + out)` of each, these have master
    /// values, gradients and optimizer state, in 16 bytes, and the weights have none; a scratch file is not used for them.
    ///
    /// Without a scratch file, memory that was used once is kept, so all of these count. With one, what is not in use
    /// goes back, and the largest counts of the three moments of a pass: logits with the gradient of the output
    /// projection, a layer with its gradients, the rows of the embedding with its gradient.
    pub fn training(&self, work: &TrainingWork) -> MemoryNeed {
        let Widths { hidden, row, .. } = self.widths();
        let n_weights: u64 = self.parameters.iter().map(|(parameter, _)| parameter.len() as u64).sum();
        let n_masters: u64 =
            self.parameters.iter().filter(|(_, dtype)| *dtype != StoredDtype::F32).map(len).sum();
        let (n_layers, n_rows) = (self.config.n_layers, work.n_tokens);
        let of_layer = F32 * product(&[n_rows, self.saved_width()]);
        let inputs = F32 * product(&[n_layers, n_rows, hidden]);
        let kept = if work.recompute_layers { inputs } else { of_layer.saturating_mul(n_layers as u64) };
        let mut layer = self.layer_bytes(n_rows) + F32 * product(&[n_rows, row]);
        if work.recompute_layers {
            layer += of_layer;
        }
        let around = F32 * product(&[work.n_trained, 4 * hidden]);
        let logits = around + self.logits_bytes(work);
        let rows = F32 * product(&[n_rows, hidden]);
        if let Some(rank) = work.adapter_rank {
            return MemoryNeed::of([
                ("weights", F32 * n_weights),
                ("adapter", (4 * F32 * self.adapter_width()).saturating_mul(rank as u64)),
                ("kept activations", kept),
                ("activations of a layer", layer),
                ("logits", logits),
            ]);
        }
        if !work.has_scratch {
            return MemoryNeed::of([
                ("weights", F32 * n_weights),
                ("master values", F32 * n_masters),
                ("gradients", F32 * n_weights),
                ("optimizer state", 2 * F32 * n_weights),
                ("kept activations", kept),
                ("activations of a layer", layer),
                ("logits", logits),
            ]);
        }
        let embedding = F32 * product(&[self.config.vocab_size, hidden]);
        let largest = (0..n_layers).map(|layer| self.layer_weights(layer)).max().unwrap_or_default();
        let moments = [
            [("kept activations", kept), ("gradients", embedding), ("logits", logits + rows)],
            [("kept activations", kept), ("gradients", F32 * largest), ("activations of a layer", layer)],
            [("kept activations", 0), ("gradients", embedding), ("activations of a layer", rows)],
        ];
        let mut need = MemoryNeed::of([("weights", F32 * n_weights)]);
        let worst = moments.into_iter().map(MemoryNeed::of).max_by_key(MemoryNeed::total);
        need.add(worst.unwrap_or_default());
        need
    }

    /// What a model that only gives logprobs holds beside another that is trained: the reference of a divergence.
    ///
    /// - weights: `4 P`;
    /// - the layer under way: `R · (2 H + 2 W + Q + 2 I)` that a backward pass would need, and `R · (2 H + I + Q)`;
    /// - logits: as in training, and `T · 2 H` around them.
    pub fn reference(&self, work: &TrainingWork) -> MemoryNeed {
        let Widths { hidden, inner, queries, .. } = self.widths();
        let n_weights: u64 = self.parameters.iter().map(len).sum();
        let layer = product(&[work.n_tokens, self.saved_width() + 2 * hidden + inner + queries]);
        let around = F32 * product(&[work.n_trained, 2 * hidden]);
        MemoryNeed::of([
            ("weights of the reference", F32 * n_weights),
            ("activations of the reference", F32 * layer),
            ("logits", around + self.logits_bytes(work)),
        ])
    }

    /// Gradients of one layer's activations.
    fn layer_bytes(&self, n_rows: usize) -> u64 {
        let Widths { hidden, inner, row, .. } = self.widths();
        F32 * product(&[n_rows, 4 * inner + 3 * hidden + row])
    }

    /// Elements that the backward pass of a layer needs of each row.
    fn saved_width(&self) -> usize {
        let Widths { hidden, inner, queries, row } = self.widths();
        let n_raw = if self.config.has_qk_norm { 2 } else { 1 };
        2 * hidden + n_raw * row + queries + 2 * inner
    }

    fn logits_bytes(&self, work: &TrainingWork) -> u64 {
        let (n_rows, vocabulary) = (work.n_trained, self.config.vocab_size);
        F32 * product(&[logits_rows(n_rows, vocabulary, work.logprob_chunk_rows), vocabulary])
    }

    fn layer_weights(&self, layer: usize) -> u64 {
        let of_layer = self.parameters.iter().filter(|(parameter, _)| parameter.kind.layer() == Some(layer));
        of_layer.map(len).sum()
    }

    /// Inputs and outputs of all projections.
    fn adapter_width(&self) -> u64 {
        let of_layers = self.parameters.iter().map(|(parameter, _)| parameter);
        let matrices =
            of_layers.filter(|parameter| parameter.kind.layer().is_some() && parameter.is_matrix());
        matrices.flat_map(|matrix| &matrix.pieces).map(|piece| piece.shape.iter().sum::<usize>() as u64).sum()
    }

    fn layout(&self) -> HeadLayout {
        layout(&self.config)
    }

    fn widths(&self) -> Widths {
        let layout = self.layout();
        Widths {
            hidden: self.config.hidden_size,
            inner: self.config.intermediate_size,
            queries: layout.query_width(),
            row: layout.row_width(),
        }
    }
}

/// `H`, `I`, `Q` and `W`.
struct Widths {
    hidden: usize,
    inner: usize,
    queries: usize,
    row: usize,
}

fn len((parameter, _): &(Parameter, StoredDtype)) -> u64 {
    parameter.len() as u64
}

/// The largest number there is stands for all that are larger.
fn product(factors: &[usize]) -> u64 {
    // Divided by the bytes of a number, so that these can be multiplied in.
    let product = factors.iter().fold(1_u64, |product, factor| product.saturating_mul(*factor as u64));
    product.min(u64::MAX / 64)
}

#[cfg(test)]
mod tests;
