//! The tensors of a model by what they do.

use candle_core::Tensor;

use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::weights::Kind;

/// All tensors that the forward pass reads.
pub(crate) struct Weights {
    /// `(vocabulary, hidden)`.
    pub(crate) embedding: Tensor,
    pub(crate) layers: Vec<LayerWeights>,
    /// `(hidden)`.
    pub(crate) final_norm: Tensor,
    /// `(hidden, vocabulary)`; a transposed copy of the embedding in tied models.
    pub(crate) head: Tensor,
}

/// The tensors of one decoder layer; projections are `(in, out)`.
pub(crate) struct LayerWeights {
    pub(crate) input_norm: Tensor,
    pub(crate) qkv: Tensor,
    pub(crate) qkv_bias: Option<Tensor>,
    pub(crate) head_norms: Option<(Tensor, Tensor)>,
    pub(crate) output: Tensor,
    pub(crate) output_bias: Option<Tensor>,
    pub(crate) feed_forward_norm: Tensor,
    pub(crate) gate_up: Tensor,
    pub(crate) down: Tensor,
}

impl Weights {
    /// Puts the tensors in their places; `get` finds a tensor by its kind.
    pub(crate) fn assemble(
        config: &ModelConfig,
        head: Tensor,
        get: impl Fn(Kind) -> Option<Tensor>,
    ) -> Result<Self, ModelError> {
        let required =
            |kind| get(kind).ok_or_else(|| ModelError::invalid(format!("a tensor is missing: {kind:?}")));
        let layers = (0..config.n_layers)
            .map(|layer| {
                Ok(LayerWeights {
                    input_norm: required(Kind::InputNorm(layer))?,
                    qkv: required(Kind::Qkv(layer))?,
                    qkv_bias: get(Kind::QkvBias(layer)),
                    head_norms: get(Kind::QueryNorm(layer)).zip(get(Kind::KeyNorm(layer))),
                    output: required(Kind::AttentionOutput(layer))?,
                    output_bias: get(Kind::AttentionOutputBias(layer)),
                    feed_forward_norm: required(Kind::FeedForwardNorm(layer))?,
                    gate_up: required(Kind::GateUp(layer))?,
                    down: required(Kind::Down(layer))?,
                })
            })
            .collect::<Result<_, ModelError>>()?;
        Ok(Self {
            embedding: required(Kind::Embedding)?,
            layers,
            final_norm: required(Kind::FinalNorm)?,
            head,
        })
    }
}
