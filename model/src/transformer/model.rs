//! A loaded model and its forward pass over a cache.

use std::path::Path;

use candle_core::{Device, Tensor};

use super::{CacheRow, KvCache, LayerContext, RopeTable, Weights, layer_forward};
use crate::config::ModelConfig;
use crate::error::{ComputeContext, ModelError};
use crate::kernels::HeadLayout;
use crate::ops::{linear, rms_norm, with_elements};
use crate::weights::{self, Kind};

/// A model ready to sample from. Immutable, so threads can share it.
pub struct Model {
    config: ModelConfig,
    device: Device,
    weights: Weights,
    rope: RopeTable,
}

impl Model {
    /// Loads a model folder in Hugging Face layout: `config.json` and one or more safetensors files.
    ///
    /// Weights stored in `bf16` or `f16` are widened to `f32`; no value changes.
    ///
    /// # Errors
    /// Those of [`ModelConfig::load`]; a missing, extra, damaged or wrongly shaped tensor, each named with its file.
    pub fn load(dir: &Path, device: &Device) -> Result<Self, ModelError> {
        let config = ModelConfig::load(dir)?;
        let mut tensors = std::collections::BTreeMap::new();
        for loaded in weights::load(dir, &config)? {
            let shape = loaded.parameter.shape.as_slice();
            let tensor = Tensor::from_vec(loaded.values, shape, device).computing("loading weights")?;
            tensors.insert(loaded.parameter.kind, tensor);
        }
        let head = match (tensors.get(&Kind::Head), tensors.get(&Kind::Embedding)) {
            (Some(head), _) => head.clone(),
            (None, Some(embedding)) => head_from_embedding(embedding)?,
            (None, None) => return Err(ModelError::invalid("the model has no embedding")),
        };
        let weights = Weights::assemble(&config, head, |kind| tensors.get(&kind).cloned())?;
        let rope = RopeTable::new(&config);
        Ok(Self { config, device: device.clone(), weights, rope })
    }

    /// Sizes and switches.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Where the weights lie.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Computes hidden states, after the final norm, of tokens that continue the slots of a cache.
    ///
    /// `rows[i]` is the place of `tokens[i]`. Each slot's rows must come in order and go on where the slot ends;
    /// rows of several slots may be mixed, prompts and single tokens alike. The result is `(rows, hidden)`. A row's
    /// bits depend on its sequence alone, not on what else is in the call or how the sequence is cut into calls.
    ///
    /// # Errors
    /// [`ModelError::TokenRange`] for a token outside the vocabulary; [`ModelError::Invalid`] for a row that does
    /// not continue its slot; [`ModelError::ContextOverflow`]. The cache is then as before.
    pub fn forward_cached(
        &self,
        tokens: &[u32],
        rows: &[CacheRow],
        kv: &mut KvCache,
    ) -> Result<Tensor, ModelError> {
        if tokens.len() != rows.len() || tokens.is_empty() {
            return Err(ModelError::invalid(format!(
                "{} tokens do not fit the rows: {}",
                tokens.len(),
                rows.len()
            )));
        }
        if !self.device.is_cpu() {
            return Err(ModelError::invalid("sampling needs the model on the device: cpu"));
        }
        let mut x = embed(tokens, &self.weights.embedding)?;
        kv.reserve(rows)?;
        let context = LayerContext {
            layout: layout(&self.config),
            eps: self.config.rms_norm_eps,
            angles: self.rope.angles(rows.iter().map(|row| row.position)),
        };
        let width = context.layout.query_width();
        for (layer, weights) in self.weights.layers.iter().enumerate() {
            x = layer_forward(&x, weights, &context, |qkv| {
                let attended = with_elements(qkv, |qkv| Ok(kv.attend(layer, rows, qkv)))?;
                Tensor::from_vec(attended, (rows.len(), width), &self.device)
            })
            .computing("a decoder layer")?;
        }
        kv.advance(rows);
        rms_norm(&x, &self.weights.final_norm, self.config.rms_norm_eps).computing("the final norm")
    }

    /// Projects hidden states, `(rows, hidden)`, to logits, `(rows, vocabulary)`, in nats before any temperature.
    ///
    /// # Errors
    /// [`ModelError::Compute`] if the width is not that of the model.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor, ModelError> {
        linear(hidden, &self.weights.head).computing("the vocabulary projection")
    }
}

/// How the heads of a configuration lie in a row.
pub(crate) fn layout(config: &ModelConfig) -> HeadLayout {
    HeadLayout { n_heads: config.n_heads, n_kv_heads: config.n_kv_heads, head_dim: config.head_dim }
}

/// Looks up the rows of the embedding.
pub(crate) fn embed(tokens: &[u32], embedding: &Tensor) -> Result<Tensor, ModelError> {
    let vocab_size = embedding.dim(0).computing("the embedding")?;
    if let Some(&token_id) = tokens.iter().find(|&&token| token as usize >= vocab_size) {
        return Err(ModelError::TokenRange { token_id, vocab_size });
    }
    let ids = Tensor::new(tokens, embedding.device()).computing("the embedding")?;
    embedding.detach().index_select(&ids, 0).computing("the embedding")
}

/// The output projection of a tied model: the embedding, transposed and contiguous.
pub(crate) fn head_from_embedding(embedding: &Tensor) -> Result<Tensor, ModelError> {
    embedding.detach().t().and_then(|head| head.contiguous()).computing("transposing the embedding")
}
