//! The tensors of a model by what they do.

use candle_core::Tensor;

use super::Projection;
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::weights::Kind;

/// All tensors that the forward pass reads.
pub(crate) struct Weights {
    /// Looked up by token; `(vocabulary, hidden)` where it is a tensor.
    pub(crate) embedding: Projection,
    pub(crate) layers: Vec<LayerWeights>,
    /// `(hidden)`.
    pub(crate) final_norm: Tensor,
    /// From hidden states to logits; the embedding itself in tied models.
    pub(crate) head: Projection,
}

/// The tensors of one decoder layer.
pub(crate) struct LayerWeights {
    pub(crate) input_norm: Tensor,
    pub(crate) qkv: Projection,
    pub(crate) qkv_bias: Option<Tensor>,
    pub(crate) head_norms: Option<(Tensor, Tensor)>,
    pub(crate) output: Projection,
    pub(crate) output_bias: Option<Tensor>,
    pub(crate) feed_forward_norm: Tensor,
    pub(crate) gate_up: Projection,
    pub(crate) down: Projection,
}

impl Weights {
    /// Puts the tensors in their places: `matrix` and `vector` give those of a kind. One that the configuration asks for and
    /// that is missing is an error.
    pub(crate) fn assemble(
        config: &ModelConfig,
        matrix: impl Fn(Kind) -> Option<Projection>,
        vector: impl Fn(Kind) -> Option<Tensor>,
    ) -> Result<Self, ModelError> {
        let missing = |kind| ModelError::invalid(format!("a tensor is missing: {kind:?}"));
        let matrix = |kind| matrix(kind).ok_or_else(|| missing(kind));
        let required = |kind| vector(kind).ok_or_else(|| missing(kind));
        let optional = |is_there: bool, kind| is_there.then(|| required(kind)).transpose();
        let layers = (0..config.n_layers)
            .map(|layer| {
                Ok(LayerWeights {
                    input_norm: required(Kind::InputNorm(layer))?,
                    qkv: matrix(Kind::Qkv(layer))?,
                    qkv_bias: optional(config.has_qkv_bias, Kind::QkvBias(layer))?,
                    head_norms: optional(config.has_qk_norm, Kind::QueryNorm(layer))?
                        .zip(optional(config.has_qk_norm, Kind::KeyNorm(layer))?),
                    output: matrix(Kind::AttentionOutput(layer))?,
                    output_bias: optional(config.has_output_bias, Kind::AttentionOutputBias(layer))?,
                    feed_forward_norm: required(Kind::FeedForwardNorm(layer))?,
                    gate_up: matrix(Kind::GateUp(layer))?,
                    down: matrix(Kind::Down(layer))?,
                })
            })
            .collect::<Result<_, ModelError>>()?;
        Ok(Self {
            embedding: matrix(Kind::Embedding)?,
            layers,
            final_norm: required(Kind::FinalNorm)?,
            head: matrix(if config.is_tied { Kind::Embedding } else { Kind::Head })?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use candle_core::{DType, Device};
    use serde_json::json;

    use super::*;
    use crate::weights::{Parameter, parameters};

    #[test]
    fn a_tensor_that_is_missing_is_not_taken_for_one_that_is_not_needed() {
        for family in ["qwen3", "qwen2", "llama"] {
            let config = json!({
                "model_type": family, "vocab_size": 30, "hidden_size": 8, "intermediate_size": 12,
                "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
                "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "max_position_embeddings": 64,
                "tie_word_embeddings": false, "attention_bias": family == "llama",
            });
            let config = ModelConfig::from_json(config, Path::new("config.json")).unwrap();
            let tensor = Tensor::zeros((2, 2), DType::F32, &Device::Cpu).unwrap();
            let assemble = |without: Option<Kind>| {
                let tensor = |kind: Kind| (Some(kind) != without).then(|| tensor.clone());
                Weights::assemble(&config, |kind| tensor(kind).map(Projection::Direct), tensor)
            };
            assert!(assemble(None).is_ok());
            for Parameter { kind, .. } in parameters(&config) {
                let error = assemble(Some(kind)).err().expect("it is needed").to_string();
                assert_eq!(error, format!("a tensor is missing: {kind:?}"));
            }
        }
    }
}
