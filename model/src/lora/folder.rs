use std::path::{Path, PathBuf};

use super::{ADAPTER_CONFIG_FILE, AdapterConfig};
use crate::error::ModelError;

/// Where a model is: its folder, or those of an adapter and of the base it changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFolder {
    /// The model in Hugging Face layout, with configuration, tokenizer and templates.
    pub base: PathBuf,
    /// The adapter in PEFT's layout.
    pub adapter: Option<PathBuf>,
}

impl ModelFolder {
    /// Looks at a folder: it is an adapter if it holds `adapter_config.json`, whose `base_model_name_or_path` then is
    /// the base's folder, relative to the adapter's.
    ///
    /// # Errors
    /// Those of [`AdapterConfig::load`]; [`ModelError::ConfigKey`] if the base is no folder, or is an adapter too.
    pub fn open(dir: &Path) -> Result<Self, ModelError> {
        if !dir.join(ADAPTER_CONFIG_FILE).exists() {
            return Ok(Self { base: dir.into(), adapter: None });
        }
        let config = AdapterConfig::load(dir)?;
        let folder = Self { base: dir.join(&config.base), adapter: Some(dir.into()) };
        let problem = match () {
            () if !folder.base.is_dir() => "is not a folder",
            () if folder.base.join(ADAPTER_CONFIG_FILE).exists() => "is an adapter itself",
            () => return Ok(folder),
        };
        Err(ModelError::ConfigKey {
            path: dir.join(ADAPTER_CONFIG_FILE),
            key: "base_model_name_or_path".into(),
            problem: format!("{problem}: {}", config.base),
        })
    }
}
