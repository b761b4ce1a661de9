//! A model under training.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::{Device, Var};

use super::optimizer::{self, AdamW, ApplyReport};
use super::packing::{Packed, PolicyLogprobs, TrainSequence};
use super::trained::Trained;
use crate::config::ModelConfig;
use crate::error::{ComputeContext, ModelError};
use crate::transformer::{RopeTable, Weights, head_from_embedding};
use crate::weights::{self, Kind};

/// How a trainer computes. Only `adamw` changes what is computed; the others change memory and speed, or bits.
#[derive(Debug, Clone)]
pub struct TrainerOptions {
    /// Where forward and backward run; master values and moments stay in main memory.
    pub device: Device,
    /// Keep only the layers' inputs and compute each layer again in the backward pass.
    pub recompute_layers: bool,
    /// The optimizer.
    pub adamw: AdamW,
    /// Rows whose logits over the whole vocabulary exist at a time.
    pub logprob_chunk_rows: usize,
}

impl Default for TrainerOptions {
    fn default() -> Self {
        Self {
            device: Device::Cpu,
            recompute_layers: false,
            adamw: AdamW::default(),
            logprob_chunk_rows: 256,
        }
    }
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
    pub(super) parameters: Vec<Trained>,
    pub(super) index: BTreeMap<Kind, usize>,
    pub(super) weights: Weights,
    /// The output projection of a tied model, which follows the embedding.
    tied_head: Option<Var>,
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
        let parameters = weights::load(dir, &config)?
            .into_iter()
            .map(|loaded| Trained::new(loaded, &options.device))
            .collect::<Result<Vec<_>, _>>()?;
        let index: BTreeMap<Kind, usize> =
            parameters.iter().enumerate().map(|(i, trained)| (trained.parameter.kind, i)).collect();
        let tensor = |kind| index.get(&kind).map(|i| parameters[*i].var.as_tensor().clone());
        let tied_head = match (tensor(Kind::Head), tensor(Kind::Embedding)) {
            (None, Some(embedding)) => Some(
                Var::from_tensor(&head_from_embedding(&embedding)?).computing("transposing the embedding")?,
            ),
            _ => None,
        };
        let head = tensor(Kind::Head).or_else(|| tied_head.as_ref().map(|head| head.as_tensor().clone()));
        let head = head.ok_or_else(|| ModelError::invalid("the model has no output projection"))?;
        let weights = Weights::assemble(&config, head, tensor)?;
        let rope = RopeTable::new(&config);
        let source = dir.to_owned();
        let mut trainer =
            Self { config, options, source, parameters, index, weights, tied_head, rope, step: 0 };
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
        Ok(packed.split(&self.forward(&packed)?))
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
        self.forward_backward(&packed, &mut |rows| packed.join(&coefficients(&packed.split(&rows))))
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
            optimizer::step(&mut self.parameters, self.options.adamw, self.step, learning_rate, scale)?;
            self.publish_head()?;
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

    /// Makes the output projection of a tied model follow the embedding.
    pub(super) fn publish_head(&mut self) -> Result<(), ModelError> {
        let Some(head) = &self.tied_head else { return Ok(()) };
        let transposed = head_from_embedding(&self.weights.embedding)?;
        head.set(&transposed).computing("transposing the embedding")
    }

    /// The embedding.
    pub(super) fn embedding_mut(&mut self) -> Result<&mut Trained, ModelError> {
        let index = self.index.get(&Kind::Embedding).copied().unwrap_or(usize::MAX);
        self.parameters.get_mut(index).ok_or_else(|| ModelError::invalid("the model has no embedding"))
    }

    fn pack(&self, sequences: &[TrainSequence]) -> Result<Packed, ModelError> {
        Packed::new(sequences, &self.config, &self.rope, self.options.logprob_chunk_rows)
    }
}
