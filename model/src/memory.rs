//! How much memory sampling and training need on the CPU: the one place where this is worked out.
//!
//! All figures are bytes, and upper bounds of what is held at the worst moment but for small change: buffers of a fixed
//! size, the program itself, stacks. In the formulas `P` is the number of weights, `L` that of layers, `H` the hidden
//! size, `I` the inner size of the feed-forward block, `Q` the width of all query heads, `W` that of a row `[queries |
//! keys | values]`, `V` the vocabulary and `R` the number of rows computed at once. A number takes 4 bytes, or 2 where
//! sampling reads `bf16`.

use std::fmt;
use std::path::Path;

use envace_kernels::HeadLayout;

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

/// Memory at the worst moment, by what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemoryNeed {
    /// What it is for and its bytes; parts of nothing are left out.
    pub parts: Vec<(&'static str, u64)>,
}

impl MemoryNeed {
    fn of<const N: usize>(parts: [(&'static str, u64); N]) -> Self {
        Self { parts: parts.into_iter().filter(|(_, bytes)| *bytes > 0).collect() }
    }

    /// The sum in bytes.
    pub fn total(&self) -> u64 {
        self.parts.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Adds what is held at the same time; parts of one name become one.
    pub fn add(&mut self, other: Self) {
        for (what, bytes) in other.parts {
            match self.parts.iter_mut().find(|(name, _)| *name == what) {
                Some((_, sum)) => *sum = sum.saturating_add(bytes),
                None => self.parts.push((what, bytes)),
            }
        }
    }
}

impl fmt::Display for MemoryNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> =
            self.parts.iter().map(|(what, bytes)| format!("{what} {}", Bytes(*bytes))).collect();
        write!(f, "{}: {}", Bytes(self.total()), parts.join(", "))
    }
}

/// A number of bytes as people read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0 as f64;
        match self.0 {
            1_000_000_000.. => write!(f, "{:.1} GB", value / 1e9),
            1_000_000.. => write!(f, "{:.0} MB", value / 1e6),
            _ => write!(f, "{:.0} kB", value / 1e3),
        }
    }
}

/// A number of bytes, and the same in a unit if it is a large one.
pub(crate) struct Exactly(pub(crate) u64);

impl fmt::Display for Exactly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0)?;
        if self.0 < KIB { Ok(()) } else { write!(f, " ({})", Setting(self.0)) }
    }
}

/// A number of bytes as a setting can be given: rounded up to a whole unit, so that it is enough.
pub(crate) struct Setting(pub(crate) u64);

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = if self.0 < 10 * KIB * KIB { (KIB, "KiB") } else { (KIB * KIB, "MiB") };
        write!(f, "{} {name}", self.0.div_ceil(unit))
    }
}

const KIB: u64 = 1 << 10;

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
mod tests {
    use serde_json::json;

    use super::*;
    use crate::init::{self, InitScale};

    fn size(changes: &[(&str, serde_json::Value)]) -> ModelSize {
        let mut config = json!({
            "model_type": "qwen3", "vocab_size": 100, "hidden_size": 8, "intermediate_size": 12, "head_dim": 16,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "rope_theta": 10000.0,
            "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "torch_dtype": "float32",
            "tie_word_embeddings": true,
        });
        for (key, value) in changes {
            config[*key] = value.clone();
        }
        let dir = tempfile::tempdir().unwrap();
        let config = ModelConfig::from_json(config, Path::new("config.json")).unwrap();
        init::random(&config, dir.path(), [9; 32], InitScale::default()).unwrap();
        ModelSize::read(dir.path()).unwrap()
    }

    // By hand: H 8, I 12, Q 2 · 16 = 32, W (2 + 2) · 16 = 64, V 100. A layer has 8 · 64 + 32 · 8 + 8 · 24 + 12 · 8 = 1056
    // weights in matrices and 8 + 8 + 16 + 16 = 48 in norms: 1104. All: 800 + 2 · 1104 + 8 = 3016.
    const P: u64 = 3_016;

    const WORK: TrainingWork = TrainingWork {
        n_tokens: 10,
        n_trained: 9,
        recompute_layers: false,
        has_scratch: false,
        logprob_chunk_rows: 256,
        adapter_rank: None,
    };

    #[test]
    fn training_by_hand() {
        // Kept: 2 · 8 + 2 · 64 + 32 + 2 · 12 = 200 elements of 10 rows in each of 2 layers. The layer under way: 4 · 12 +
        // 3 · 8 + 64 + 64 = 200 of 10 rows. Logits: 9 · 100, and 9 · 32 around them.
        let need = size(&[]).training(&WORK);
        let expected = [
            ("weights", 4 * P),
            ("gradients", 4 * P),
            ("optimizer state", 8 * P),
            ("kept activations", 4 * 2 * 2_000),
            ("activations of a layer", 4 * 2_000),
            ("logits", 4 * (900 + 288)),
        ];
        assert_eq!(need.parts, expected);
        // 16 · 3016 + 16,000 + 8,000 + 4,752.
        assert_eq!(need.total(), 77_008);
    }

    #[test]
    fn recomputation_and_a_scratch_file_by_hand() {
        let work = TrainingWork { recompute_layers: true, ..WORK };
        // Kept: 8 elements of 10 rows of 2 layers. The layer under way: 200 as above and 200 that are no longer kept.
        let need = size(&[]).training(&work);
        assert_eq!(need.parts[3..5], [("kept activations", 640), ("activations of a layer", 4 * 4_000)]);
        // Of the moments a layer is the worst: 640 + 4 · 1104 + 16,000, against 640 + 3,200 + 4,752 + 320.
        let need = size(&[]).training(&TrainingWork { has_scratch: true, ..work });
        let expected = [
            ("weights", 4 * P),
            ("kept activations", 640),
            ("gradients", 4 * 1_104),
            ("activations of a layer", 16_000),
        ];
        assert_eq!(need.parts, expected);
        // With one row it is the logits: 64 + 3,200 + 4 · (100 + 32) + 32, against 64 + 4,416 + 1,600. No: the layer.
        let one = TrainingWork { n_tokens: 1, n_trained: 1, has_scratch: true, ..work };
        assert_eq!(size(&[]).training(&one).total(), 4 * P + 64 + 4_416 + 1_600);
        // With a vocabulary of 1000 it is: 64 + 32,000 + 4 · (1,000 + 32) + 32; 7,200 weights more.
        let wide = size(&[("vocab_size", json!(1_000))]);
        assert_eq!(wide.training(&one).total(), 4 * (P + 7_200) + 64 + 32_000 + 4_128 + 32);
    }

    #[test]
    fn an_adapter_by_hand() {
        // In and out of a layer's seven: 8 + 32, twice 8 + 16, 32 + 8, three times 8 + 12, in all 188; rank 4, 2 layers.
        let need = size(&[]).training(&TrainingWork { adapter_rank: Some(4), ..WORK });
        assert_eq!(need.parts[..2], [("weights", 4 * P), ("adapter", 16 * 4 * 2 * 188)]);
        assert_eq!(need.total(), 77_008 - 12 * P + 24_064);
    }

    #[test]
    fn sixteen_bit_weights_by_hand() {
        let short = size(&[("torch_dtype", json!("bfloat16"))]);
        assert_eq!(short.training(&WORK).parts[1], ("master values", 4 * P));
        // Gradient, two moments and master values; those of `f32` are the weights.
        assert_eq!([short.scratch_bytes(), size(&[]).scratch_bytes()], [16 * P, 12 * P]);
        // Matrices 800 + 2 · 1056 = 2912 in 2 bytes, norms 104 in 4. 3 + 4 rows of 4 · 8 + 2 · 64 + 32 + 3 · 12 = 228
        // activations. Keys and values of 50 tokens are those of 64, 2 blocks of 32: in 4 bytes 2 layers of one head of
        // 16 elements of a key, and as many of a value, rounded up to whole vectors.
        let n_value = 16_usize.next_multiple_of(envace_kernels::panel_width()) as u64;
        let kv_bytes = 4 * 64 * 2 * (16 + n_value);
        assert_eq!(short.kv_bytes(50), kv_bytes);
        let work = SamplingWork { max_batch: 3, kv_bytes: short.kv_bytes(50), prefill_tokens: 4 };
        let expected = [
            ("weights", 2 * 2_912 + 4 * 104),
            ("keys and values", kv_bytes),
            ("activations", 4 * 7 * 228),
            ("logits", 2 * 4 * 3 * 100),
        ];
        assert_eq!(short.sampling(&work).parts, expected);
        assert_eq!(size(&[]).sampling(&work).parts[0], ("weights", 4 * P));
    }

    #[test]
    fn the_reference_by_hand() {
        // 10 rows of 200 + 16 + 12 + 32; logits 9 · 100 and 9 · 16 around them.
        let need = size(&[]).reference(&WORK);
        assert_eq!(need.total(), 4 * P + 4 * 10 * 260 + 4 * (900 + 144));
    }

    #[test]
    fn a_setting_is_enough() {
        for (bytes, text) in [(1, "1 KiB"), (1_024, "1 KiB"), (404_480, "395 KiB"), (10 << 20, "10 MiB")] {
            assert_eq!(Setting(bytes).to_string(), text);
        }
        assert_eq!(Setting((11 << 20) + 1).to_string(), "12 MiB");
        assert_eq!(
            [Exactly(400), Exactly(20_480)].map(|size| size.to_string()),
            ["400 bytes", "20480 bytes (20 KiB)"]
        );
    }

    #[test]
    fn a_need_is_readable() {
        let mut need = MemoryNeed::of([("weights", 2_384_000_000), ("nothing", 0), ("logits", 155_600_000)]);
        assert_eq!(need.to_string(), "2.5 GB: weights 2.4 GB, logits 156 MB");
        need.add(MemoryNeed::of([("logits", 400_000), ("more", 5_400)]));
        assert_eq!(need.to_string(), "2.5 GB: weights 2.4 GB, logits 156 MB, more 5 kB");
    }
}
