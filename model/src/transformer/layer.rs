//! One decoder layer.

use candle_core::{Result, Tensor};

use super::LayerWeights;
use crate::kernels::HeadLayout;
use crate::ops::{RopeAngles, add_bias, head_norm, linear, rms_norm, rope, silu_gate};

/// What a layer needs besides its weights.
pub(crate) struct LayerContext {
    pub(crate) layout: HeadLayout,
    pub(crate) eps: f64,
    /// Of the rows at hand.
    pub(crate) angles: RopeAngles,
}

/// Computes one layer for `(rows, hidden)`.
///
/// `attend` turns `[queries | keys | values]` rows into rows of attended values: over packed sequences in training,
/// over the cache in sampling. Everything else is the same code.
pub(crate) fn layer_forward(
    x: &Tensor,
    weights: &LayerWeights,
    context: &LayerContext,
    attend: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let LayerContext { layout, eps, angles } = context;
    let mut qkv = linear(&rms_norm(x, &weights.input_norm, *eps)?, &weights.qkv)?;
    if let Some(bias) = &weights.qkv_bias {
        qkv = add_bias(&qkv, bias)?;
    }
    if let Some((query, key)) = &weights.head_norms {
        qkv = head_norm(&qkv, query, key, *layout, *eps)?;
    }
    let mut attended = linear(&attend(&rope(&qkv, angles, *layout)?)?, &weights.output)?;
    if let Some(bias) = &weights.output_bias {
        attended = add_bias(&attended, bias)?;
    }
    let x = (x + attended)?;
    let gated = silu_gate(&linear(&rms_norm(&x, &weights.feed_forward_norm, *eps)?, &weights.gate_up)?)?;
    x + linear(&gated, &weights.down)?
}
