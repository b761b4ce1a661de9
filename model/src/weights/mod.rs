//! Weights between the Hugging Face files and the fused tensors that the transformer computes with.

mod files;
mod parameters;
mod write;

use std::path::Path;

pub(crate) use files::{StoredDtype, WeightFiles};
pub(crate) use parameters::{Kind, Parameter, parameters};
pub(crate) use write::{OutputTensor, Source, write_safetensors};

use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::lora::{Adapter, ModelFolder};

/// One parameter of the model with its values as `f32`.
pub(crate) struct LoadedParameter {
    pub(crate) parameter: Parameter,
    /// How the values are stored in the model folder.
    pub(crate) dtype: StoredDtype,
    /// In the layout of [`Parameter::shape`].
    pub(crate) values: Vec<f32>,
}

/// Calls `take` with each parameter of a model folder, in the order of [`parameters`]; one is in memory at a time.
///
/// # Errors
/// Every way in which the files can be missing, damaged, or not fit the configuration; each error names the file
/// and the tensor. Whatever `take` returns.
pub(crate) fn load_each(
    dir: &Path,
    config: &ModelConfig,
    mut take: impl FnMut(LoadedParameter) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    let files = WeightFiles::open_model(dir)?;
    let parameters = parameters(config);
    refuse_extra_tensors(&files, &parameters, config)?;
    for parameter in parameters {
        let dtype = parameter.dtype(&files)?;
        let values = parameter.read(&files, "")?;
        take(LoadedParameter { parameter, dtype, values })?;
    }
    Ok(())
}

/// Checks that a model can be loaded: that its tensors are there, fit the configuration and are finite, also with what an
/// adapter adds to them. One is in memory at a time.
///
/// # Errors
/// Those of [`crate::Model::load_from`].
pub fn check_weights(folder: &ModelFolder) -> Result<(), ModelError> {
    let config = ModelConfig::load(&folder.base)?;
    let adapter = folder.adapter.as_ref().map(|dir| Adapter::load(dir, &config)).transpose()?;
    load_each(&folder.base, &config, |mut loaded| {
        adapter.as_ref().map_or(Ok(()), |adapter| adapter.merge_into(&mut loaded))
    })
}

fn refuse_extra_tensors(
    files: &WeightFiles,
    parameters: &[Parameter],
    config: &ModelConfig,
) -> Result<(), ModelError> {
    let known: std::collections::BTreeSet<&str> = parameters
        .iter()
        .flat_map(|parameter| parameter.pieces.iter().map(|piece| piece.name.as_str()))
        .collect();
    for name in files.names().filter(|name| !known.contains(name)) {
        // Old checkpoints carry the rotary table, which follows from the configuration.
        if name.ends_with(".rotary_emb.inv_freq") {
            continue;
        }
        // Some tied checkpoints store the embedding twice.
        if config.is_tied && name == "lm_head.weight" {
            let shape = [config.vocab_size, config.hidden_size];
            let head = files.tensor(name, &shape)?;
            if head.is_same(&files.tensor("model.embed_tokens.weight", &shape)?)? {
                continue;
            }
        }
        return Err(ModelError::ExtraTensor { path: files.path_of(name), name: name.into() });
    }
    Ok(())
}
