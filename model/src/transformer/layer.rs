//! One decoder layer.

use candle_core::{Result, Tensor};

use super::LayerWeights;
use crate::ops::{RopeAngles, add_bias, head_norm, rms_norm, rope, silu_gate};
use envace_kernels::HeadLayout;

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
/// over the cache in sampling. Training on the CPU has its own form of this function, which also goes backward; both
/// give the same bits.
pub(crate) fn layer_forward(
    x: &Tensor,
    weights: &LayerWeights,
    context: &LayerContext,
    attend: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let LayerContext { layout, eps, angles } = context;
    let mut qkv = weights.qkv.forward(&rms_norm(x, &weights.input_norm, *eps)?)?;
    if let Some(bias) = &weights.qkv_bias {
        qkv = add_bias(&qkv, bias)?;
    }
    if let Some((query, key)) = &weights.head_norms {
        qkv = head_norm(&qkv, query, key, *layout, *eps)?;
    }
    let mut x = weights.output.forward_onto(&attend(&rope(&qkv, angles, *layout)?)?, x)?;
    if let Some(bias) = &weights.output_bias {
        x = add_bias(&x, bias)?;
    }
    let gated = silu_gate(&weights.gate_up.forward(&rms_norm(&x, &weights.feed_forward_norm, *eps)?)?)?;
    weights.down.forward_onto(&gated, &x)
}
