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
    /// Puts the tensors in their places: `matrix` and `vector` give those of a kind, if there are any.
    pub(crate) fn assemble(
        config: &ModelConfig,
        matrix: impl Fn(Kind) -> Option<Projection>,
        vector: impl Fn(Kind) -> Option<Tensor>,
    ) -> Result<Self, ModelError> {
        let missing = |kind| ModelError::invalid(format!("a tensor is missing: {kind:?}"));
        let matrix = |kind| matrix(kind).ok_or_else(|| missing(kind));
        let required = |kind| vector(kind).ok_or_else(|| missing(kind));
        let layers = (0..config.n_layers)
            .map(|layer| {
                Ok(LayerWeights {
                    input_norm: required(Kind::InputNorm(layer))?,
                    qkv: matrix(Kind::Qkv(layer))?,
                    qkv_bias: vector(Kind::QkvBias(layer)),
                    head_norms: vector(Kind::QueryNorm(layer)).zip(vector(Kind::KeyNorm(layer))),
                    output: matrix(Kind::AttentionOutput(layer))?,
                    output_bias: vector(Kind::AttentionOutputBias(layer)),
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
