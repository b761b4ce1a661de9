//! Forward and backward pass by the tensor library's operations, one layer at a time: for every device but the CPU, and
//! in `f64` on the CPU to check the kernels against.
//!
//! Each layer is a graph of its own between a variable for its input and its output, so that a layer's activations
//! are freed as soon as its gradient is known, or, with recomputation, never kept.

use std::collections::BTreeMap;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};

use super::packing::Packed;
use super::trained::{Parameters, Trained};
use crate::config::ModelConfig;
use crate::error::{ComputeContext, ModelError};
use crate::ops::{attention, pull_back, rms_norm, token_logprobs};
use crate::transformer::{LayerContext, Projection, Weights, embed, layer_forward, layout};
use crate::weights::Kind;

/// The tensors that the operations read: the parameters' weights on a device.
pub(super) struct Composed {
    device: Device,
    dtype: DType,
    vars: BTreeMap<Kind, Var>,
    weights: Weights,
}

impl Composed {
    pub(super) fn new(
        config: &ModelConfig,
        parameters: &Parameters,
        device: &Device,
    ) -> Result<Self, ModelError> {
        let dtype = if device.is_cpu() { DType::F64 } else { DType::F32 };
        let mut vars = BTreeMap::new();
        for trained in parameters.of_model() {
            let var = tensor(trained, device, dtype).and_then(|tensor| Var::from_tensor(&tensor));
            vars.insert(trained.parameter.kind, var.computing("loading weights")?);
        }
        let get = |kind: Kind| vars.get(&kind).map(|var: &Var| var.as_tensor().clone());
        let matrix = |kind| {
            get(kind).map(|tensor| match kind {
                Kind::Embedding | Kind::Head => Projection::Transposed(tensor),
                _ => Projection::Direct(tensor),
            })
        };
        let weights = Weights::assemble(config, matrix, get)?;
        Ok(Self { device: device.clone(), dtype, vars, weights })
    }

    /// Takes over changed weights.
    pub(super) fn publish(&self, parameters: &Parameters) -> Result<(), ModelError> {
        for trained in parameters.of_model() {
            let Some(var) = self.vars.get(&trained.parameter.kind) else { continue };
            let set = tensor(trained, &self.device, self.dtype).and_then(|tensor| var.set(&tensor));
            set.computing("publishing weights")?;
        }
        Ok(())
    }

    /// Rows of `[logprob, entropy]` of all targets; no gradient.
    pub(super) fn forward(&self, config: &ModelConfig, packed: &Packed) -> Result<Vec<f32>, ModelError> {
        let context = context(config, packed);
        let mut x = self.embed(packed)?;
        for layer in 0..config.n_layers {
            x = self.layer(layer, &x, &context, packed)?.detach();
        }
        let selected = select(&x, packed)?;
        read(&self.head_rows(&selected, config, packed)?)
    }

    /// Adds the gradient of `sum(coefficient * logprob)`; the coefficients come from the callback.
    pub(super) fn forward_backward(
        &self,
        config: &ModelConfig,
        recomputes: bool,
        parameters: &mut Parameters,
        packed: &Packed,
        coefficients: &mut dyn FnMut(Vec<f32>) -> Result<Vec<f32>, ModelError>,
    ) -> Result<(), ModelError> {
        let context = context(config, packed);
        let mut inputs = Vec::new();
        let mut outputs = Vec::new();
        let mut x = self.embed(packed)?;
        for layer in 0..config.n_layers {
            let input = variable(&x)?;
            let out = self.layer(layer, &input, &context, packed)?;
            x = out.detach();
            inputs.push(input);
            if !recomputes {
                outputs.push(out);
            }
        }
        let selected = variable(&select(&x, packed)?)?;
        let rows = self.head_rows(&selected, config, packed)?;
        let coefficients = coefficients(read(&rows)?)?;
        let mut gradients = self.head_gradients(rows, coefficients)?;
        let head = if config.is_tied { Kind::Embedding } else { Kind::Head };
        self.add_gradients(parameters, &mut gradients, |kind| kind == head || kind == Kind::FinalNorm)?;
        let selected_gradient = take(&mut gradients, &selected)?;
        drop(selected);
        let ids = Tensor::new(packed.predicting.as_slice(), &self.device);
        let mut gradient = ids
            .and_then(|ids| x.zeros_like()?.index_add(&ids, &selected_gradient, 0))
            .computing("the backward pass of the vocabulary projection")?;
        while let Some(input) = inputs.pop() {
            let layer = inputs.len();
            let out = match outputs.pop() {
                Some(out) => out,
                None => self.layer(layer, &input, &context, packed)?,
            };
            let mut gradients = pull_back(&out, gradient).computing("the backward pass of a layer")?;
            gradient = take(&mut gradients, &input)?;
            self.add_gradients(parameters, &mut gradients, |kind| kind.layer() == Some(layer))?;
        }
        let gradient = host(&gradient)?;
        let embedding = parameters.need_mut(Kind::Embedding)?;
        if embedding.is_frozen() {
            return Ok(());
        }
        embedding.fetch_gradient()?;
        let width = embedding.parameter.shape[1];
        for (&token, row) in packed.tokens.iter().zip(gradient.chunks_exact(width)) {
            let target = &mut embedding.gradient[token as usize * width..][..width];
            target.iter_mut().zip(row).for_each(|(target, value)| *target += value);
        }
        embedding.store_gradient()
    }

    fn embed(&self, packed: &Packed) -> Result<Tensor, ModelError> {
        embed(&packed.tokens, &self.weights.embedding, &self.device)
    }

    fn layer(
        &self,
        layer: usize,
        x: &Tensor,
        context: &LayerContext,
        packed: &Packed,
    ) -> Result<Tensor, ModelError> {
        layer_forward(x, &self.weights.layers[layer], context, |qkv| {
            attention(qkv, &packed.forest, context.layout)
        })
        .computing("a decoder layer")
    }

    /// Final norm and vocabulary projection of the predicting rows.
    fn head_rows(
        &self,
        selected: &Tensor,
        config: &ModelConfig,
        packed: &Packed,
    ) -> Result<Tensor, ModelError> {
        let Projection::Transposed(head) = &self.weights.head else {
            return Err(ModelError::invalid("a trained head is kept by rows"));
        };
        rms_norm(selected, &self.weights.final_norm, config.rms_norm_eps)
            .and_then(|hidden| token_logprobs(&hidden, head, &packed.targets))
            .computing("the vocabulary projection")
    }

    fn head_gradients(&self, rows: Tensor, coefficients: Vec<f32>) -> Result<GradStore, ModelError> {
        let seed: Vec<f32> = coefficients.into_iter().flat_map(|coefficient| [coefficient, 0.0]).collect();
        Tensor::from_vec(seed, rows.shape(), &self.device)
            .and_then(|seed| pull_back(&rows, seed.to_dtype(self.dtype)?))
            .computing("the backward pass of the vocabulary projection")
    }

    /// Adds the gradients of some parameters to their buffers, or those of their adapters; each must have one.
    fn add_gradients(
        &self,
        parameters: &mut Parameters,
        gradients: &mut GradStore,
        is_meant: impl Fn(Kind) -> bool,
    ) -> Result<(), ModelError> {
        for (&kind, var) in self.vars.iter().filter(|(kind, _)| is_meant(**kind)) {
            let mut take = || {
                let gradient = gradients.remove(var.as_tensor());
                host(&gradient.ok_or_else(|| no_gradient(&format!("{kind:?}")))?)
            };
            if let Some(adapter) = &mut parameters.adapter {
                if adapter.changes(kind) {
                    let stride = var.dims().last().copied().unwrap_or_default();
                    adapter.add_full_gradient(kind, &take()?, stride);
                }
            } else {
                let trained = parameters.need_mut(kind)?;
                trained.fetch_gradient()?;
                trained.gradient.iter_mut().zip(take()?).for_each(|(target, value)| *target += value);
                trained.store_gradient()?;
            }
        }
        Ok(())
    }
}

fn context(config: &ModelConfig, packed: &Packed) -> LayerContext {
    LayerContext { layout: layout(config), eps: config.rms_norm_eps, angles: packed.angles.clone() }
}

fn tensor(trained: &Trained, device: &Device, dtype: DType) -> candle_core::Result<Tensor> {
    Tensor::from_slice(trained.weights(), trained.parameter.shape.as_slice(), device)?.to_dtype(dtype)
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
    host(&rows.detach())
}

/// The elements in main memory, as `f32`.
fn host(tensor: &Tensor) -> Result<Vec<f32>, ModelError> {
    let values = tensor.to_dtype(DType::F32).and_then(|tensor| tensor.flatten_all()?.to_vec1());
    values.computing("reading from the device")
}

fn take(gradients: &mut GradStore, var: &Var) -> Result<Tensor, ModelError> {
    gradients.remove(var.as_tensor()).ok_or_else(|| no_gradient("an activation"))
}

fn no_gradient(what: &str) -> ModelError {
    ModelError::invalid(format!("the backward pass gave no gradient for {what}"))
}
