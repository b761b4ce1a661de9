//! One decoder layer, forward and backward.

use envace_kernels::{
    Forest, HeadLayout, Left, Right, Sizes, add, add_bias, add_row_sum, attend_forest,
    attend_forest_backward, gate_rows, gate_rows_backward, head_norm, head_norm_backward, product, rms_norm,
    rms_norm_backward,
};

use super::buffers::Buffers;
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::ops::RopeAngles;
use crate::train::adapter::LinearRows;
use crate::train::trained::{Parameters, Trained};
use crate::weights::Kind;

/// What all layers share.
pub(super) struct Context<'a> {
    /// Says which of the norms of heads and the biases there are.
    pub(super) config: &'a ModelConfig,
    pub(super) hidden: usize,
    pub(super) inner: usize,
    pub(super) layout: HeadLayout,
    pub(super) eps: f32,
    pub(super) forest: &'a Forest,
    pub(super) angles: &'a RopeAngles,
}

/// What the backward pass of a layer needs of its forward pass, in rows.
pub(super) struct Saved {
    /// The layer's input.
    x: Vec<f32>,
    /// Queries, keys and values before the norms of heads; empty in a model without them.
    raw_qkv: Vec<f32>,
    /// The same as attention reads them.
    qkv: Vec<f32>,
    attended: Vec<f32>,
    /// The residual stream between attention and feed-forward block.
    middle: Vec<f32>,
    gate_up: Vec<f32>,
}

impl Saved {
    /// Gives the memory back.
    pub(super) fn free(self, buffers: &mut Buffers) {
        let Self { x, raw_qkv, qkv, attended, middle, gate_up } = self;
        [x, raw_qkv, qkv, attended, middle, gate_up].into_iter().for_each(|buffer| buffers.give(buffer));
    }
}

/// Computes everything of a layer but the last product; a parameter that is missing is an error, here and below.
pub(super) fn forward_to_gate(
    x: Vec<f32>,
    layer: usize,
    parameters: &Parameters,
    context: &Context<'_>,
    buffers: &mut Buffers,
) -> Result<Saved, ModelError> {
    let Context { config, hidden, inner, layout, eps, forest, angles } = *context;
    let n_rows = forest.n_rows();
    let weights = |kind| parameters.need(kind).map(Trained::weights);
    let multiply = |kind: Kind, x: &[f32], out: &mut [f32]| {
        let trained = parameters.need(kind)?;
        let sizes = Sizes { n_rows, depth: trained.parameter.shape[0], width: trained.parameter.shape[1] };
        let right = Right::Rows { values: trained.weights(), stride: sizes.width };
        product(Left::rows(x, sizes.depth), right, sizes, false, out);
        Ok::<_, ModelError>(())
    };
    let mut normed = buffers.take(n_rows * hidden);
    rms_norm(&x, weights(Kind::InputNorm(layer))?, eps, &mut normed);
    let mut raw_qkv = buffers.take(n_rows * layout.row_width());
    multiply(Kind::Qkv(layer), &normed, &mut raw_qkv)?;
    if config.has_qkv_bias {
        add_bias(&mut raw_qkv, weights(Kind::QkvBias(layer))?);
    }
    let (raw_qkv, mut qkv) = if config.has_qk_norm {
        let norms = (weights(Kind::QueryNorm(layer))?, weights(Kind::KeyNorm(layer))?);
        let mut qkv = buffers.take(raw_qkv.len());
        head_norm(&raw_qkv, norms, layout, eps, &mut qkv);
        (raw_qkv, qkv)
    } else {
        (Vec::new(), raw_qkv)
    };
    angles.turn(&mut qkv, layout, 1.0);
    let mut attended = buffers.take(n_rows * layout.query_width());
    attend_forest(&qkv, forest, layout, &mut attended);
    let mut middle = buffers.take(n_rows * hidden);
    multiply(Kind::AttentionOutput(layer), &attended, &mut middle)?;
    add(&mut middle, &x);
    if config.has_output_bias {
        add_bias(&mut middle, weights(Kind::AttentionOutputBias(layer))?);
    }
    rms_norm(&middle, weights(Kind::FeedForwardNorm(layer))?, eps, &mut normed);
    let mut gate_up = buffers.take(n_rows * 2 * inner);
    multiply(Kind::GateUp(layer), &normed, &mut gate_up)?;
    buffers.give(normed);
    Ok(Saved { x, raw_qkv, qkv, attended, middle, gate_up })
}

/// The layer's output.
pub(super) fn finish(
    saved: &Saved,
    layer: usize,
    parameters: &Parameters,
    context: &Context<'_>,
    buffers: &mut Buffers,
) -> Result<Vec<f32>, ModelError> {
    let Context { hidden, inner, forest, .. } = *context;
    let down = parameters.need(Kind::Down(layer))?;
    let sizes = Sizes { n_rows: forest.n_rows(), depth: inner, width: hidden };
    let mut gated = buffers.take(sizes.n_rows * inner);
    gate_rows(&saved.gate_up, inner, &mut gated);
    let mut out = buffers.take(sizes.n_rows * hidden);
    let right = Right::Rows { values: down.weights(), stride: hidden };
    product(Left::rows(&gated, inner), right, sizes, false, &mut out);
    add(&mut out, &saved.middle);
    buffers.give(gated);
    Ok(out)
}

/// Turns the gradient of a layer's output into that of its input, and adds those of its parameters to their buffers.
pub(super) fn backward(
    saved: Saved,
    mut gradient: Vec<f32>,
    layer: usize,
    parameters: &mut Parameters,
    context: &Context<'_>,
    buffers: &mut Buffers,
) -> Result<Vec<f32>, ModelError> {
    let Context { config, hidden, inner, layout, eps, forest, angles } = *context;
    let n_rows = forest.n_rows();
    // Feed-forward block.
    let mut gated = buffers.take(n_rows * inner);
    gate_rows(&saved.gate_up, inner, &mut gated);
    let mut gated_gradient = buffers.take(n_rows * inner);
    linear_backward(parameters, Kind::Down(layer), &gated, &gradient, &mut gated_gradient)?;
    let mut gate_up_gradient = buffers.take(n_rows * 2 * inner);
    gate_rows_backward(&saved.gate_up, inner, &gated_gradient, &mut gate_up_gradient);
    buffers.give(gated);
    buffers.give(gated_gradient);
    let mut normed = buffers.take(n_rows * hidden);
    let mut normed_gradient = buffers.take(n_rows * hidden);
    let norm = Kind::FeedForwardNorm(layer);
    rms_norm(&saved.middle, parameters.need(norm)?.weights(), eps, &mut normed);
    linear_backward(parameters, Kind::GateUp(layer), &normed, &gate_up_gradient, &mut normed_gradient)?;
    buffers.give(gate_up_gradient);
    norm_backward(parameters.need_mut(norm)?, &saved.middle, eps, &normed_gradient, &mut gradient);
    // Attention.
    if config.has_output_bias {
        bias_backward(parameters.need_mut(Kind::AttentionOutputBias(layer))?, &gradient);
    }
    let mut attended_gradient = buffers.take(n_rows * layout.query_width());
    let kind = Kind::AttentionOutput(layer);
    linear_backward(parameters, kind, &saved.attended, &gradient, &mut attended_gradient)?;
    let mut qkv_gradient = buffers.take(n_rows * layout.row_width());
    attend_forest_backward(&saved.qkv, &attended_gradient, forest, layout, &mut qkv_gradient);
    buffers.give(attended_gradient);
    angles.turn(&mut qkv_gradient, layout, -1.0);
    if config.has_qk_norm {
        let (query, key) = parameters.pair_mut(Kind::QueryNorm(layer), Kind::KeyNorm(layer))?;
        let mut sums = match query.is_frozen() {
            true => vec![0.0; 2 * layout.head_dim],
            false => [query.gradient.as_slice(), &key.gradient].concat(),
        };
        let weights = (query.weights(), key.weights());
        head_norm_backward(&saved.raw_qkv, weights, layout, eps, &mut qkv_gradient, &mut sums);
        if !query.is_frozen() {
            let (of_query, of_key) = sums.split_at(layout.head_dim);
            query.gradient.copy_from_slice(of_query);
            key.gradient.copy_from_slice(of_key);
        }
    }
    if config.has_qkv_bias {
        bias_backward(parameters.need_mut(Kind::QkvBias(layer))?, &qkv_gradient);
    }
    let norm = Kind::InputNorm(layer);
    rms_norm(&saved.x, parameters.need(norm)?.weights(), eps, &mut normed);
    linear_backward(parameters, Kind::Qkv(layer), &normed, &qkv_gradient, &mut normed_gradient)?;
    norm_backward(parameters.need_mut(norm)?, &saved.x, eps, &normed_gradient, &mut gradient);
    for buffer in [normed, normed_gradient, qkv_gradient] {
        buffers.give(buffer);
    }
    saved.free(buffers);
    Ok(gradient)
}

/// Writes the gradient of the rows that a weight of `(in, out)` was applied to, and adds that of the weight, or of its
/// adapter.
fn linear_backward(
    parameters: &mut Parameters,
    kind: Kind,
    x: &[f32],
    gradient: &[f32],
    x_gradient: &mut [f32],
) -> Result<(), ModelError> {
    let weight = parameters.need_mut(kind)?;
    let (depth, width) = (weight.parameter.shape[0], weight.parameter.shape[1]);
    let n_rows = x.len() / depth;
    let right = Right::Transposed { values: weight.weights() };
    let sizes = Sizes { n_rows, depth: width, width: depth };
    product(Left::rows(gradient, width), right, sizes, false, x_gradient);
    if weight.is_frozen() {
        if let Some(adapter) = &mut parameters.adapter {
            adapter.add_gradient(kind, LinearRows { x, n_in: depth, gradient, n_out: width });
        }
        return Ok(());
    }
    let right = Right::Rows { values: gradient, stride: width };
    let sizes = Sizes { n_rows: depth, depth: n_rows, width };
    product(Left::transposed(x, depth), right, sizes, true, &mut weight.gradient);
    Ok(())
}

/// Adds the gradient of a bias, if it is trained.
fn bias_backward(bias: &mut Trained, gradient: &[f32]) {
    if !bias.is_frozen() {
        add_row_sum(gradient, &mut bias.gradient);
    }
}

/// Adds the gradient of the rows of a norm to `out`, and that of its weight.
pub(super) fn norm_backward(weight: &mut Trained, x: &[f32], eps: f32, gradient: &[f32], out: &mut [f32]) {
    let mut sum = std::mem::take(&mut weight.gradient);
    let is_frozen = sum.is_empty();
    if is_frozen {
        sum.resize(weight.weights().len(), 0.0);
    }
    rms_norm_backward(x, weight.weights(), eps, gradient, out, &mut sum);
    if !is_frozen {
        weight.gradient = sum;
    }
}

/// Adds the rows' gradients to those of their tokens' embeddings, in row order.
pub(super) fn embedding_backward(embedding: &mut Trained, tokens: &[u32], gradient: &[f32]) {
    let width = embedding.parameter.shape[1];
    for (&token, row) in tokens.iter().zip(gradient.chunks_exact(width)) {
        add(&mut embedding.gradient[token as usize * width..][..width], row);
    }
}
