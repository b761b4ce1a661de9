//! AdamW on the master values.

use super::trained::{Parameters, Trained};
use crate::error::ModelError;
use envace_kernels::{AdamWStep, adamw_step};

/// Settings of AdamW.
///
/// Weight decay is decoupled and applies to matrices (projections and the embedding), not to norms and biases.
///
/// # Source
/// <https://arxiv.org/abs/1711.05101>, with the bias corrections of <https://arxiv.org/abs/1412.6980>.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Share of a weight that is taken away, times the learning rate, each step.
    pub weight_decay: f64,
}

impl Default for AdamW {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 }
    }
}

/// What one application of the optimizer did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ApplyReport {
    /// Norm of the whole gradient before clipping.
    pub gradient_norm: f64,
    /// True if the norm was not finite: nothing was changed but the gradient, which was dropped.
    pub is_skipped: bool,
}

/// Norm over all parameters, in their order.
pub(super) fn gradient_norm(parameters: &mut Parameters) -> Result<f64, ModelError> {
    let squares = parameters.iter_mut().map(Trained::gradient_square);
    Ok(squares.sum::<Result<f64, _>>()?.sqrt())
}

/// Makes step number `step`, counted from 1, with the gradient scaled by `gradient_scale`.
pub(super) fn step(
    parameters: &mut Parameters,
    settings: AdamW,
    step: u64,
    learning_rate: f64,
    gradient_scale: f64,
) -> Result<(), ModelError> {
    let AdamW { beta1, beta2, eps, weight_decay } = settings;
    let correction = |beta: f64| 1.0 - beta.powf(step as f64);
    for trained in parameters.iter_mut() {
        let decay = if trained.parameter.is_matrix() { weight_decay } else { 0.0 };
        let arguments = AdamWStep {
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            eps: eps as f32,
            keep: (1.0 - learning_rate * decay) as f32,
            rate: (learning_rate / correction(beta1)) as f32,
            inverse_root: (1.0 / correction(beta2).sqrt()) as f32,
            gradient_scale: gradient_scale as f32,
        };
        trained.update(|master, gradient, first, second| {
            adamw_step(arguments, master, gradient, first, second)
        })?;
    }
    Ok(())
}
