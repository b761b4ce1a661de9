//! Forward and backward pass on the CPU, by the kernels, one layer at a time.
//!
//! With recomputation only the layers' inputs are kept, and each layer is computed again when its turn in the backward
//! pass comes. Gradients of parameters are added up where they stay.

mod buffers;
mod layer;

use std::sync::Mutex;

use envace_kernels::rms_norm;

use super::packing::Packed;
use super::trained::Parameters;
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::ops::{self, Targets, token_logprobs_backward};
use crate::transformer::layout;
use crate::weights::Kind;
use buffers::Buffers;
use layer::{Context, Saved, backward, embedding_backward, finish, forward_to_gate, norm_backward};

/// The computation; it owns the memory that is used from call to call.
pub(super) struct Fused {
    buffers: Mutex<Buffers>,
    /// Whether memory that is not in use goes back to the system as soon as something else needs much.
    is_frugal: bool,
}

impl Fused {
    pub(super) fn new(is_frugal: bool) -> Self {
        Self { buffers: Mutex::default(), is_frugal }
    }

    fn buffers(&self) -> Buffers {
        std::mem::take(&mut *self.buffers.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn give_back(&self, mut buffers: Buffers) {
        self.trim(&mut buffers);
        *self.buffers.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = buffers;
    }

    fn trim(&self, buffers: &mut Buffers) {
        if self.is_frugal {
            *buffers = Buffers::default();
        }
    }

    /// Rows of `[logprob, entropy]` of all targets; no gradient.
    pub(super) fn forward(
        &self,
        config: &ModelConfig,
        parameters: &Parameters,
        packed: &Packed,
    ) -> Result<Vec<f32>, ModelError> {
        let context = context(config, packed);
        let mut buffers = self.buffers();
        let mut x = embed(parameters, packed, &mut buffers)?;
        for layer in 0..config.n_layers {
            let saved = forward_to_gate(x, layer, parameters, &context, &mut buffers)?;
            x = finish(&saved, layer, parameters, &context, &mut buffers)?;
            saved.free(&mut buffers);
        }
        let selected = select(&x, &packed.predicting, config.hidden_size);
        let mut hidden = vec![0.0; selected.len()];
        rms_norm(&selected, parameters.need(Kind::FinalNorm)?.weights(), context.eps, &mut hidden);
        let head = parameters.need(head_kind(config))?.weights();
        let (rows, _) = ops::token_logprobs_forward(&hidden, head, config.hidden_size, &packed.targets);
        buffers.give(x);
        self.give_back(buffers);
        Ok(rows)
    }

    /// Adds the gradient of `sum(coefficient * logprob)` over the targets; the coefficients come from the callback.
    pub(super) fn forward_backward(
        &self,
        config: &ModelConfig,
        recomputes: bool,
        parameters: &mut Parameters,
        packed: &Packed,
        coefficients: &mut dyn FnMut(Vec<f32>) -> Result<Vec<f32>, ModelError>,
    ) -> Result<(), ModelError> {
        let context = context(config, packed);
        let mut buffers = self.buffers();
        let mut kept = Vec::new();
        let mut x = embed(parameters, packed, &mut buffers)?;
        for layer in 0..config.n_layers {
            let input = recomputes.then(|| buffers.copy(&x));
            let saved = forward_to_gate(x, layer, parameters, &context, &mut buffers)?;
            x = finish(&saved, layer, parameters, &context, &mut buffers)?;
            kept.push(match input {
                Some(input) => {
                    saved.free(&mut buffers);
                    Kept::Input(input)
                }
                None => Kept::All(Box::new(saved)),
            });
        }
        self.trim(&mut buffers);
        let head = Head { config, targets: &packed.targets, eps: context.eps };
        let selected = select(&x, &packed.predicting, config.hidden_size);
        let selected_gradient = head.forward_backward(&selected, parameters, coefficients)?;
        drop(selected);
        // The last layer's output is not needed any more; its memory takes its gradient.
        let mut gradient = x;
        gradient.fill(0.0);
        let width = config.hidden_size;
        for (&row, from) in packed.predicting.iter().zip(selected_gradient.chunks_exact(width)) {
            envace_kernels::add(&mut gradient[row as usize * width..][..width], from);
        }
        for layer in (0..config.n_layers).rev() {
            let saved = match kept.pop() {
                Some(Kept::All(saved)) => *saved,
                Some(Kept::Input(input)) => {
                    forward_to_gate(input, layer, parameters, &context, &mut buffers)?
                }
                None => return Err(ModelError::invalid("a layer was not computed")),
            };
            parameters.fetch_gradients(|kind| kind.layer() == Some(layer))?;
            gradient = backward(saved, gradient, layer, parameters, &context, &mut buffers)?;
            parameters.store_gradients(|kind| kind.layer() == Some(layer))?;
        }
        self.trim(&mut buffers);
        let embedding = parameters.need_mut(Kind::Embedding)?;
        if !embedding.is_frozen() {
            embedding.fetch_gradient()?;
            embedding_backward(embedding, &packed.tokens, &gradient);
            embedding.store_gradient()?;
        }
        buffers.give(gradient);
        self.give_back(buffers);
        Ok(())
    }
}

/// What is kept of a layer until its backward pass.
enum Kept {
    All(Box<Saved>),
    Input(Vec<f32>),
}

/// Final norm and vocabulary projection of the predicting rows.
struct Head<'a> {
    config: &'a ModelConfig,
    targets: &'a Targets,
    eps: f32,
}

impl Head<'_> {
    /// Returns the gradient of the selected rows of the last layer's output.
    fn forward_backward(
        &self,
        selected: &[f32],
        parameters: &mut Parameters,
        coefficients: &mut dyn FnMut(Vec<f32>) -> Result<Vec<f32>, ModelError>,
    ) -> Result<Vec<f32>, ModelError> {
        let kind = head_kind(self.config);
        let mut hidden = vec![0.0; selected.len()];
        rms_norm(selected, parameters.need(Kind::FinalNorm)?.weights(), self.eps, &mut hidden);
        let head = parameters.need_mut(kind)?;
        let (rows, kept) =
            ops::token_logprobs_forward(&hidden, head.weights(), self.config.hidden_size, self.targets);
        let coefficients = coefficients(rows)?;
        let seed: Vec<f32> = coefficients.into_iter().flat_map(|coefficient| [coefficient, 0.0]).collect();
        let mut hidden_gradient = vec![0.0; hidden.len()];
        head.fetch_gradient()?;
        let mut sum = std::mem::take(&mut head.gradient);
        let weight = head.weights();
        token_logprobs_backward(&hidden, weight, self.targets, kept, &seed, &mut hidden_gradient, &mut sum);
        head.gradient = sum;
        head.store_gradient()?;
        let norm = parameters.need_mut(Kind::FinalNorm)?;
        norm.fetch_gradient()?;
        let mut out = vec![0.0; selected.len()];
        norm_backward(norm, selected, self.eps, &hidden_gradient, &mut out);
        norm.store_gradient()?;
        Ok(out)
    }
}

fn context<'a>(config: &'a ModelConfig, packed: &'a Packed) -> Context<'a> {
    Context {
        config,
        hidden: config.hidden_size,
        inner: config.intermediate_size,
        layout: layout(config),
        eps: config.rms_norm_eps as f32,
        forest: &packed.forest,
        angles: &packed.angles,
    }
}

fn embed(parameters: &Parameters, packed: &Packed, buffers: &mut Buffers) -> Result<Vec<f32>, ModelError> {
    let embedding = parameters.need(Kind::Embedding)?;
    let width = embedding.parameter.shape[1];
    let mut x = buffers.take(packed.tokens.len() * width);
    for (&token, row) in packed.tokens.iter().zip(x.chunks_exact_mut(width)) {
        row.copy_from_slice(&embedding.weights()[token as usize * width..][..width]);
    }
    Ok(x)
}

fn select(x: &[f32], rows: &[u32], width: usize) -> Vec<f32> {
    rows.iter().flat_map(|row| &x[*row as usize * width..][..width]).copied().collect()
}

fn head_kind(config: &ModelConfig) -> Kind {
    if config.is_tied { Kind::Embedding } else { Kind::Head }
}
