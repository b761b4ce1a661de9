//! The forward pass over packed sequences and its backward pass, one layer at a time.
//!
//! Each layer is a graph of its own between a variable for its input and its output, so that a layer's activations
//! are freed as soon as its gradient is known, or, with recomputation, never kept.

use candle_core::backprop::GradStore;
use candle_core::{Device, Tensor, Var};

use super::packing::Packed;
use super::trainer::Trainer;
use crate::error::{ComputeContext, ModelError};
use crate::ops::{attention, pull_back, rms_norm, token_logprobs, with_elements};
use crate::transformer::{LayerContext, embed, layer_forward, layout};
use crate::weights::Kind;

impl Trainer {
    /// Rows of `[logprob, entropy]` for all predicting rows; no gradient.
    pub(super) fn forward(&self, packed: &Packed) -> Result<Vec<f32>, ModelError> {
        if packed.predicting.is_empty() {
            return Ok(Vec::new());
        }
        let context = self.context(packed);
        let mut x = embed(&packed.tokens, &self.weights.embedding)?;
        for layer in 0..self.config.n_layers {
            x = self.layer(layer, &x, &context, packed)?.detach();
        }
        let selected = select(&x, packed)?;
        read(&self.head_rows(&selected, packed)?)
    }

    /// Adds the gradient of `sum(coefficient * logprob)`; the coefficients come from the callback.
    pub(super) fn forward_backward(
        &mut self,
        packed: &Packed,
        coefficients: &mut dyn FnMut(Vec<f32>) -> Result<Vec<f32>, ModelError>,
    ) -> Result<(), ModelError> {
        if packed.predicting.is_empty() {
            return coefficients(Vec::new()).map(drop);
        }
        let context = self.context(packed);
        let mut inputs = Vec::new();
        let mut outputs = Vec::new();
        let mut x = embed(&packed.tokens, &self.weights.embedding)?;
        for layer in 0..self.config.n_layers {
            let input = variable(&x)?;
            let out = self.layer(layer, &input, &context, packed)?;
            x = out.detach();
            inputs.push(input);
            if !self.options.recompute_layers {
                outputs.push(out);
            }
        }
        let selected = variable(&select(&x, packed)?)?;
        let rows = self.head_rows(&selected, packed)?;
        let coefficients = coefficients(read(&rows)?)?;
        let mut gradient = self.head_backward(&x, &selected, rows, coefficients, packed)?;
        drop(selected);
        while let Some(input) = inputs.pop() {
            let layer = inputs.len();
            let out = match outputs.pop() {
                Some(out) => out,
                None => self.layer(layer, &input, &context, packed)?,
            };
            let mut gradients = pull_back(&out, gradient).computing("the backward pass of a layer")?;
            gradient = take(&mut gradients, &input)?;
            self.add_gradients(&mut gradients, |kind| kind.layer() == Some(layer))?;
        }
        self.add_embedding_gradient(&packed.tokens, &gradient)
    }

    fn context(&self, packed: &Packed) -> LayerContext {
        LayerContext {
            layout: layout(&self.config),
            eps: self.config.rms_norm_eps,
            angles: packed.angles.clone(),
        }
    }

    fn layer(
        &self,
        layer: usize,
        x: &Tensor,
        context: &LayerContext,
        packed: &Packed,
    ) -> Result<Tensor, ModelError> {
        layer_forward(x, &self.weights.layers[layer], context, |qkv| {
            attention(qkv, &packed.segments, context.layout)
        })
        .computing("a decoder layer")
    }

    /// Final norm and vocabulary projection of the predicting rows.
    fn head_rows(&self, selected: &Tensor, packed: &Packed) -> Result<Tensor, ModelError> {
        rms_norm(selected, &self.weights.final_norm, self.config.rms_norm_eps)
            .and_then(|hidden| token_logprobs(&hidden, &self.weights.head, &packed.targets))
            .computing("the vocabulary projection")
    }

    /// Backpropagates from the logprobs to the last layer's output, of which `x` is the value.
    fn head_backward(
        &mut self,
        x: &Tensor,
        selected: &Var,
        rows: Tensor,
        coefficients: Vec<f32>,
        packed: &Packed,
    ) -> Result<Tensor, ModelError> {
        let what = "the backward pass of the vocabulary projection";
        let seed: Vec<f32> = coefficients.into_iter().flat_map(|coefficient| [coefficient, 0.0]).collect();
        let seed = Tensor::from_vec(seed, rows.shape(), rows.device()).computing(what)?;
        let mut gradients = pull_back(&rows, seed).computing(what)?;
        let head = gradients.remove(&self.weights.head).ok_or_else(|| no_gradient("the head"))?;
        match self.index.get(&Kind::Head) {
            Some(&index) => self.parameters[index].add_gradient(&head)?,
            None => self.embedding_mut()?.add_transposed_gradient(&head)?,
        }
        self.add_gradients(&mut gradients, |kind| kind == Kind::FinalNorm)?;
        let selected_gradient = take(&mut gradients, selected)?;
        let ids = Tensor::new(packed.predicting.as_slice(), x.device()).computing(what)?;
        x.zeros_like().and_then(|zeros| zeros.index_add(&ids, &selected_gradient, 0)).computing(what)
    }

    /// Moves the gradients of some parameters into their buffers; each must have one.
    fn add_gradients(
        &mut self,
        gradients: &mut GradStore,
        is_meant: impl Fn(Kind) -> bool,
    ) -> Result<(), ModelError> {
        for trained in self.parameters.iter_mut().filter(|trained| is_meant(trained.parameter.kind)) {
            let gradient = gradients
                .remove(trained.var.as_tensor())
                .ok_or_else(|| no_gradient(&format!("{:?}", trained.parameter.kind)))?;
            trained.add_gradient(&gradient)?;
        }
        Ok(())
    }

    /// Adds the gradient of each row to that of its token's embedding, in row order.
    fn add_embedding_gradient(&mut self, tokens: &[u32], gradient: &Tensor) -> Result<(), ModelError> {
        let width = self.config.hidden_size;
        let target = &mut self.embedding_mut()?.gradient;
        gradient
            .to_device(&Device::Cpu)
            .and_then(|gradient| {
                with_elements(&gradient, |gradient| {
                    for (&token, row) in tokens.iter().zip(gradient.chunks_exact(width)) {
                        let start = token as usize * width;
                        crate::kernels::add_to(&mut target[start..start + width], row);
                    }
                    Ok(())
                })
            })
            .computing("the backward pass of the embedding")
    }
}

fn variable(x: &Tensor) -> Result<Var, ModelError> {
    Var::from_tensor(&x.detach()).computing("the forward pass")
}

fn select(x: &Tensor, packed: &Packed) -> Result<Tensor, ModelError> {
    Tensor::new(packed.predicting.as_slice(), x.device())
        .and_then(|ids| x.index_select(&ids, 0))
        .computing("the forward pass")
}

fn read(rows: &Tensor) -> Result<Vec<f32>, ModelError> {
    rows.detach().flatten_all().and_then(|rows| rows.to_vec1()).computing("reading logprobs")
}

fn take(gradients: &mut GradStore, var: &Var) -> Result<Tensor, ModelError> {
    gradients.remove(var.as_tensor()).ok_or_else(|| no_gradient("an activation"))
}

fn no_gradient(what: &str) -> ModelError {
    ModelError::invalid(format!("the backward pass gave no gradient for {what}"))
}
