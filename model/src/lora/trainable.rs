use std::path::Path;

use super::{ADAPTER_CONFIG_FILE, AdapterConfig, ModelFolder, Module, NewAdapter};
use crate::config::ModelConfig;
use crate::error::ModelError;

/// Checks that training can begin with what is in a folder: that a new adapter fits the model, or that the adapter there
/// is of the kind of the new one, if one is given, and can be trained. Configurations are read, weights are not.
///
/// # Errors
/// Those of [`ModelFolder::open`] and [`ModelConfig::load`]; [`ModelError::ConfigKey`] and [`ModelError::Unsupported`] for a
/// new adapter that cannot be; [`ModelError::AdapterKind`] if the one in the folder is another;
/// [`ModelError::AdapterDropout`] if its training would drop inputs.
pub fn check_trainable(dir: &Path, new: Option<&NewAdapter>) -> Result<(), ModelError> {
    let folder = ModelFolder::open(dir)?;
    check_adapter(&folder, &ModelConfig::load(&folder.base)?, new)
}

/// As [`check_trainable`], of a folder and a configuration that are known.
pub(crate) fn check_adapter(
    folder: &ModelFolder,
    base: &ModelConfig,
    new: Option<&NewAdapter>,
) -> Result<(), ModelError> {
    let Some(dir) = &folder.adapter else { return new.map_or(Ok(()), |new| new.modules(base).map(drop)) };
    let config = AdapterConfig::load(dir)?;
    Module::of(&config, base, &dir.join(ADAPTER_CONFIG_FILE))?;
    if let Some(difference) = new.and_then(|new| config.difference(&new.config)) {
        return Err(ModelError::AdapterKind { dir: dir.clone(), difference });
    }
    if config.dropout != 0.0 {
        return Err(ModelError::AdapterDropout { dir: dir.clone(), dropout: config.dropout });
    }
    Ok(())
}
