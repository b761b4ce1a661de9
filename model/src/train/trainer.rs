//! A model under training.

use std::path::{Path, PathBuf};

use candle_core::Device;

use super::adapter::TrainedAdapter;
use super::composed::Composed;
use super::fused::Fused;
use super::kept::Place;
use super::optimizer::{self, AdamW, ApplyReport};
use super::packing::{Packed, PolicyLogprobs, TrainSequence};
use super::scratch::{Scratch, scratch_len};
use super::trained::{Parameters, Trained};
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::lora::{Adapter, AdapterConfig, ModelFolder, NewAdapter, check_adapter};
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
    /// Compute by the tensor library's operations, as on a GPU, also on the CPU, there in `f64`: slow, to check the kernels
    /// against.
    pub is_composed: bool,
    /// Rows whose logits over the whole vocabulary exist at a time.
    pub logprob_chunk_rows: usize,
    /// Train a new low-rank adapter instead of the model. Of an adapter's folder, that adapter is trained; it must then
    /// be of this kind, if one is given.
    pub adapter: Option<NewAdapter>,
    /// Keep gradients, moments and, of weights that are not stored as `f32`, master values in a file without a name in
    /// this folder, not in memory: memory holds the weights, the gradients of one layer, and activations. The file has
    /// 12 bytes for each weight stored as `f32`, else 16. Best on a fast local disk; a folder in memory, as `/tmp`
    /// often is, saves nothing. An adapter is small and stays in memory.
    pub scratch: Option<PathBuf>,
}

impl Default for TrainerOptions {
    fn default() -> Self {
        Self {
            device: Device::Cpu,
            recompute_layers: false,
            is_composed: false,
            adamw: AdamW::default(),
            logprob_chunk_rows: 256,
            adapter: None,
            scratch: None,
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
    /// Whether an error left gradients or an optimizer step half done.
    is_broken: bool,
}

impl Trainer {
    /// Loads a model folder, or that of an adapter, and, if given, the optimizer's state that was saved with it.
    ///
    /// An adapter's base is read only: it has neither gradients nor moments.
    ///
    /// # Errors
    /// Those of [`crate::Model::load`] and of [`crate::check_trainable`]; the same for the state;
    /// [`ModelError::Invalid`] if the state's master values do not round to the folder's weights; [`ModelError::Scratch`] if there is no room for a scratch file.
    pub fn load(dir: &Path, state: Option<&Path>, options: TrainerOptions) -> Result<Self, ModelError> {
        let folder = ModelFolder::open(dir)?;
        let config = ModelConfig::load(&folder.base)?;
        let adapter = adapter_of(&folder, &config, options.adapter.as_ref())?;
        let mut loaded = Vec::new();
        weights::load_each(&folder.base, &config, |mut parameter| {
            if let Some(adapter) = &adapter {
                adapter.merge_into(&mut parameter)?;
            }
            loaded.push(parameter);
            Ok(())
        })?;
        let mut parameters = match &adapter {
            Some(_) => Parameters::new(loaded.into_iter().map(Trained::frozen).collect()),
            None => {
                let len = loaded.iter().map(|loaded| scratch_len(loaded.values.len(), loaded.dtype)).sum();
                let scratch = options.scratch.as_deref().map(|folder| Scratch::create(folder, len));
                let mut place = Place::new(scratch.transpose()?);
                let trained = loaded.into_iter().map(|parameter| Trained::new(parameter, &mut place));
                Parameters::new(trained.collect())
            }
        };
        if let Some(adapter) = adapter {
            parameters.adapter = Some(Box::new(TrainedAdapter::new(adapter, &folder.base)?));
        }
        let is_composed = options.is_composed || !options.device.is_cpu();
        let compute = match is_composed {
            true => Compute::Composed(Composed::new(&config, &parameters, &options.device)?),
            false => Compute::Fused(Fused::new(options.scratch.is_some())),
        };
        let rope = RopeTable::new(&config);
        let source = folder.base;
        let mut trainer =
            Self { config, options, source, parameters, compute, rope, step: 0, is_broken: false };
        if let Some(path) = state {
            trainer.load_state(path)?;
        }
        Ok(trainer)
    }

    /// Sizes and switches of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The adapter that is trained in place of the model, if any.
    pub fn adapter(&self) -> Option<&AdapterConfig> {
        self.parameters.adapter.as_ref().map(|adapter| adapter.config())
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
        self.check_whole()?;
        let packed = self.pack(sequences)?;
        let mut coefficients = |rows: Vec<f32>| packed.join(&coefficients(&packed.split(&rows)));
        if packed.predicting.is_empty() {
            return coefficients(Vec::new()).map(drop);
        }
        let Self { config, options, parameters, compute, .. } = self;
        let recomputes = options.recompute_layers;
        let result = match compute {
            Compute::Fused(fused) => {
                fused.forward_backward(config, recomputes, parameters, &packed, &mut coefficients)
            }
            Compute::Composed(composed) => {
                composed.forward_backward(config, recomputes, parameters, &packed, &mut coefficients)
            }
        };
        self.is_broken |= result.is_err();
        result
    }

    /// Norm of the gradient added up so far, over all parameters, summed in a fixed order.
    ///
    /// # Errors
    /// [`ModelError::Read`] on a scratch file.
    pub fn gradient_norm(&mut self) -> Result<f64, ModelError> {
        optimizer::gradient_norm(&mut self.parameters)
    }

    /// Makes an optimizer step and clears the gradient.
    ///
    /// The gradient is scaled down to `max_norm` if it is longer. If its norm is not finite, weights, moments and
    /// step counter stay as they are.
    ///
    /// # Errors
    /// [`ModelError::Compute`] if the new weights do not fit the device; [`ModelError::Read`] and
    /// [`ModelError::Write`] on a scratch file; [`ModelError`] if an adapter's base cannot be read any more. After an
    /// error the step may be half done: the trainer saves nothing any more and must be loaded again.
    pub fn apply(&mut self, learning_rate: f64, max_norm: Option<f64>) -> Result<ApplyReport, ModelError> {
        self.check_whole()?;
        let result = self.try_apply(learning_rate, max_norm);
        self.is_broken = result.is_err();
        result
    }

    fn try_apply(&mut self, learning_rate: f64, max_norm: Option<f64>) -> Result<ApplyReport, ModelError> {
        let gradient_norm = self.gradient_norm()?;
        let is_skipped = !gradient_norm.is_finite();
        if !is_skipped {
            let scale = max_norm.filter(|max| gradient_norm > *max).map_or(1.0, |max| max / gradient_norm);
            self.step += 1;
            optimizer::step(&mut self.parameters, self.options.adamw, self.step, learning_rate, scale)?;
            self.publish(true)?;
        }
        self.parameters.iter_mut().for_each(Trained::clear_gradient);
        Ok(ApplyReport { gradient_norm, is_skipped })
    }

    /// Refuses to go on after an error that left something half done.
    pub(super) fn check_whole(&self) -> Result<(), ModelError> {
        if self.is_broken {
            return Err(ModelError::invalid("the trainer failed before and must be loaded again"));
        }
        Ok(())
    }

    /// The gradient of one tensor as it is named and laid out in the model folder; for tests and inspection.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] if there is no such tensor; [`ModelError::Read`] on a scratch file.
    pub fn gradient(&self, name: &str) -> Result<Vec<f32>, ModelError> {
        let pieces = self
            .parameters
            .iter()
            .flat_map(|trained| trained.parameter.pieces.iter().map(move |piece| (trained, piece)));
        let (trained, piece) = pieces
            .into_iter()
            .find(|(_, piece)| piece.name == name)
            .ok_or_else(|| ModelError::invalid(format!("there is no trained tensor of the name: {name}")))?;
        Ok(trained.parameter.piece_values(piece, &trained.read_gradient()?))
    }

    /// Names of all trained tensors as in the model folder.
    pub fn tensor_names(&self) -> Vec<String> {
        let pieces = self.parameters.iter().flat_map(|trained| &trained.parameter.pieces);
        pieces.map(|piece| piece.name.clone()).collect()
    }

    /// Calls `f` with a trainer whose weights are those of the adapter's base. Nothing is loaded beside them.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] if no adapter is trained; as [`Trainer::apply`].
    pub fn with_base<T>(&mut self, f: impl FnOnce(&Self) -> T) -> Result<T, ModelError> {
        if self.parameters.adapter.is_none() {
            return Err(ModelError::invalid("a model that is trained whole has no base"));
        }
        // If one of them fails half-way, what is there is neither the base nor the adapted weights.
        self.is_broken = true;
        self.publish(false)?;
        let result = f(self);
        self.publish(true)?;
        self.is_broken = false;
        Ok(result)
    }

    /// Makes changed values what the forward pass reads, or those of an adapter's base alone.
    fn publish(&mut self, is_adapted: bool) -> Result<(), ModelError> {
        self.parameters.merge(is_adapted)?;
        match &self.compute {
            Compute::Fused(_) => Ok(()),
            Compute::Composed(composed) => composed.publish(&self.parameters),
        }
    }

    fn pack(&self, sequences: &[TrainSequence]) -> Result<Packed, ModelError> {
        Packed::new(sequences, &self.config, &self.rope, self.options.logprob_chunk_rows)
    }
}

/// The adapter to train, if any: the folder's, else a new one.
fn adapter_of(
    folder: &ModelFolder,
    config: &ModelConfig,
    new: Option<&NewAdapter>,
) -> Result<Option<Adapter>, ModelError> {
    check_adapter(folder, config, new)?;
    match &folder.adapter {
        None => new.map(|new| new.begin(config)).transpose(),
        Some(dir) => Adapter::load(dir, config).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::init::{self, InitScale};

    #[test]
    fn after_a_failed_step_nothing_is_saved() {
        let dir = tempfile::tempdir().unwrap();
        let config = json!({
            "model_type": "llama", "vocab_size": 30, "hidden_size": 8, "intermediate_size": 12,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "rope_theta": 10000.0,
            "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "torch_dtype": "float32",
        });
        let config = ModelConfig::from_json(config, Path::new("config.json")).unwrap();
        init::random(&config, dir.path(), [9; 32], InitScale::default()).unwrap();
        let options = TrainerOptions { scratch: Some(dir.path().join("scratch")), ..Default::default() };
        let mut trainer = Trainer::load(dir.path(), None, options).unwrap();
        let sequence =
            TrainSequence { token_ids: vec![1, 2, 3, 4], trained: vec![1, 2, 3], temperature: 1.0 };
        trainer.accumulate(&[sequence], &mut |rows| vec![vec![1.0; rows[0].logprobs.len()]]).unwrap();
        let first = trainer.parameters.iter().next().unwrap();
        first.moments()[0].cut_file();
        // The file cannot be read any more: neither saved from nor stepped.
        let state = dir.path().join("saved").join("state.safetensors");
        let error = trainer.save_state(&state).unwrap_err();
        assert!(error.to_string().starts_with("cannot read"), "{error}");
        assert_eq!(fs_err::read_dir(dir.path().join("saved")).unwrap().count(), 0);
        let error = trainer.apply(1e-2, None).unwrap_err();
        assert!(error.to_string().starts_with("cannot read"), "{error}");
        let expected = "the trainer failed before and must be loaded again";
        assert_eq!(trainer.save(&dir.path().join("weights")).unwrap_err().to_string(), expected);
        assert_eq!(trainer.save_state(&state).unwrap_err().to_string(), expected);
        assert_eq!(trainer.apply(1e-2, None).unwrap_err().to_string(), expected);
        assert_eq!(trainer.accumulate(&[], &mut |_| Vec::new()).unwrap_err().to_string(), expected);
        assert!(!dir.path().join("weights").exists());
    }
}
