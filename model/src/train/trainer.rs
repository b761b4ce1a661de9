//! A model under training.

use std::path::{Path, PathBuf};

use candle_core::Device;

use super::composed::Composed;
use super::fused::Fused;
use super::optimizer::{self, AdamW, ApplyReport};
use super::packing::{Packed, PolicyLogprobs, TrainSequence};
use super::trained::{Parameters, Trained};
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::transformer::RopeTable;
use crate::weights;

/// How a trainer computes. Only `adamw` changes what is computed; the others change memory and speed, or bits.
#[derive(Debug, Clone)]
pub struct TrainerOptions {
    /// Where forward and backward run; master values and moments stay in main memory.
    pub device: Device,
    /// Keep only the layers' inputs and compute each layer again in the backward pass.
    pub recompute_layers: bool,
    /// The optimizer.
    pub adamw: AdamW,
    /// Compute by the tensor library's operations also on the CPU, in `f64`: slow, to check the kernels against.
    pub is_composed: bool,
    /// Rows whose logits over the whole vocabulary exist at a time.
    pub logprob_chunk_rows: usize,
}

impl Default for TrainerOptions {
    fn default() -> Self {
        Self {
            device: Device::Cpu,
            recompute_layers: false,
            is_composed: false,
            adamw: AdamW::default(),
            logprob_chunk_rows: 256,
        }
    }
}

/// Who computes.
enum Compute {
    Fused(Fused),
    Composed(Composed),
}

/// Weights with `f32` master values, gradients and the optimizer's moments.
///
/// Forward and backward read the master values rounded to the format of the checkpoint, so a logprob computed here
/// has the same bits as that of a [`crate::Model`] loaded from what [`Trainer::save`] writes.
pub struct Trainer {
    pub(super) config: ModelConfig,
    pub(super) options: TrainerOptions,
    /// The folder the weights came from; its tokenizer and template go into every checkpoint.
    pub(super) source: PathBuf,
    pub(super) parameters: Parameters,
    compute: Compute,
    rope: RopeTable,
    /// Optimizer steps made so far.
    pub(super) step: u64,
}

impl Trainer {
    /// Loads a model folder and, if given, the optimizer's state that was saved with it.
    ///
    /// # Errors
    /// Those of [`crate::Model::load`]; the same for the state; [`ModelError::Invalid`] if the state's master values
    /// do not round to the folder's weights.
    pub fn load(dir: &Path, state: Option<&Path>, options: TrainerOptions) -> Result<Self, ModelError> {
        let config = ModelConfig::load(dir)?;
        let mut parameters = Vec::new();
        weights::load_each(dir, &config, |loaded| {
            parameters.push(Trained::new(loaded));
            Ok(())
        })?;
        let parameters = Parameters::new(parameters);
        let is_composed = options.is_composed || !options.device.is_cpu();
        let compute = match is_composed {
            true => Compute::Composed(Composed::new(&config, &parameters, &options.device)?),
            false => Compute::Fused(Fused::default()),
        };
        let rope = RopeTable::new(&config);
        let source = dir.to_owned();
        let mut trainer = Self { config, options, source, parameters, compute, rope, step: 0 };
        if let Some(path) = state {
            trainer.load_state(path)?;
        }
        Ok(trainer)
    }

    /// Sizes and switches of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Optimizer steps made so far, those before the loaded state included.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Logprobs of the trained positions of each sequence, in nats; no gradient.
    ///
    /// On the CPU they have the bits that sampling from the saved checkpoint gives, whatever the sequences are
    /// packed with.
    ///
    /// # Errors
    /// [`ModelError::Invalid`], [`ModelError::TokenRange`] and [`ModelError::ContextOverflow`] for a sequence that
    /// the model cannot take.
    pub fn logprobs(&self, sequences: &[TrainSequence]) -> Result<Vec<PolicyLogprobs>, ModelError> {
        let packed = self.pack(sequences)?;
        if packed.predicting.is_empty() {
            return Ok(packed.split(&[]));
        }
        let rows = match &self.compute {
            Compute::Fused(fused) => {
                rayon::scope(|_| fused.forward(&self.config, &self.parameters, &packed))?
            }
            Compute::Composed(composed) => composed.forward(&self.config, &packed)?,
        };
        Ok(packed.split(&rows))
    }

    /// Adds the gradient of `sum(coefficient * logprob)` over the sequences to the gradient buffers.
    ///
    /// All sequences are computed in one pass; the caller splits a batch into as many calls as memory demands.
    /// `coefficients` is called once with the logprobs and returns, for each sequence and trained position, the
    /// derivative of the loss with respect to the logprob. The result does not depend on the split beyond rounding
    /// as long as the coefficients do not.
    ///
    /// # Errors
    /// As [`Trainer::logprobs`]; [`ModelError::Invalid`] if the callback returns another number of coefficients.
    pub fn accumulate(
        &mut self,
        sequences: &[TrainSequence],
        coefficients: &mut dyn FnMut(&[PolicyLogprobs]) -> Vec<Vec<f32>>,
    ) -> Result<(), ModelError> {
        let packed = self.pack(sequences)?;
        let mut coefficients = |rows: Vec<f32>| packed.join(&coefficients(&packed.split(&rows)));
        if packed.predicting.is_empty() {
            return coefficients(Vec::new()).map(drop);
        }
        let Self { config, options, parameters, compute, .. } = self;
        let recomputes = options.recompute_layers;
        match compute {
            Compute::Fused(fused) => {
                fused.forward_backward(config, recomputes, parameters, &packed, &mut coefficients)
            }
            Compute::Composed(composed) => {
                composed.forward_backward(config, recomputes, parameters, &packed, &mut coefficients)
            }
        }
    }

    /// Norm of the gradient added up so far, over all parameters, summed in a fixed order.
    pub fn gradient_norm(&self) -> f64 {
        optimizer::gradient_norm(&self.parameters)
    }

    /// Makes an optimizer step and clears the gradient.
    ///
    /// The gradient is scaled down to `max_norm` if it is longer. If its norm is not finite, weights, moments and
    /// step counter stay as they are.
    ///
    /// # Errors
    /// [`ModelError::Compute`] if the new weights do not fit the device.
    pub fn apply(&mut self, learning_rate: f64, max_norm: Option<f64>) -> Result<ApplyReport, ModelError> {
        let gradient_norm = self.gradient_norm();
        let is_skipped = !gradient_norm.is_finite();
        if !is_skipped {
            let scale = max_norm.filter(|max| gradient_norm > *max).map_or(1.0, |max| max / gradient_norm);
            self.step += 1;
            optimizer::step(&mut self.parameters, self.options.adamw, self.step, learning_rate, scale);
            if let Compute::Composed(composed) = &self.compute {
                composed.publish(&self.parameters)?;
            }
        }
        self.parameters.iter_mut().for_each(Trained::clear_gradient);
        Ok(ApplyReport { gradient_norm, is_skipped })
    }

    /// The gradient of one tensor as it is named and laid out in the model folder; for tests and inspection.
    pub fn gradient(&self, name: &str) -> Option<Vec<f32>> {
        self.parameters.iter().find_map(|trained| {
            let piece = trained.parameter.pieces.iter().find(|piece| piece.name == name)?;
            Some(trained.parameter.piece_values(piece, &trained.gradient))
        })
    }

    /// Names of all trained tensors as in the model folder.
    pub fn tensor_names(&self) -> Vec<String> {
        let pieces = self.parameters.iter().flat_map(|trained| &trained.parameter.pieces);
        pieces.map(|piece| piece.name.clone()).collect()
    }

    fn pack(&self, sequences: &[TrainSequence]) -> Result<Packed, ModelError> {
        Packed::new(sequences, &self.config, &self.rope, self.options.logprob_chunk_rows)
    }
}
