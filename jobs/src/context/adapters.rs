//! Models and adapters on their way into the store.

use std::path::Path;

use envace_model::chat::ChatFormat;
use envace_model::{AdapterConfig, Device, Model, ModelFolder, NewAdapter, Trainer, check_weights};
use envace_pipeline::{
    CheckpointDigest, PipelineError, Store, adapter_base_name, checkpoint_dir, import_adapter,
    import_checkpoint,
};

use super::PolicySource;
use crate::config::LoraConfig;
use crate::error::JobError;

/// Weights of an adapter, as PEFT names them.
const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";

/// Copies a model folder, or an adapter with its base, into the store.
///
/// # Errors
/// [`JobError::Model`] and [`JobError::Chat`] for what cannot be loaded; [`JobError::Pipeline`] if the store fails.
pub async fn import_model(store: &Store, folder: &ModelFolder) -> Result<CheckpointDigest, JobError> {
    // Loading says what is wrong with a folder better than a later stage would, wherever that will compute.
    Model::load_from(folder, &Device::Cpu)?;
    ChatFormat::load(&folder.base)?;
    let base = import_checkpoint(store, &folder.base).await?;
    let Some(adapter) = &folder.adapter else { return Ok(base) };
    for name in ["tokenizer.json", "chat_template.jinja"] {
        let read = |folder: &Path| fs_err::read(folder.join(name)).ok();
        if read(adapter).is_some_and(|own| Some(own) != read(&folder.base)) {
            let file = adapter.join(name);
            tracing::warn!(
                "prompts are made with the base's {name}, which is not that of: {}",
                file.display()
            );
        }
    }
    // The base's folder in the store is another than the one that the adapter names.
    let renamed = temporary()?;
    AdapterConfig { base: adapter_base_name(&base), ..AdapterConfig::load(adapter)? }.save(renamed.path())?;
    let from = adapter.join(ADAPTER_WEIGHTS);
    fs_err::copy(&from, renamed.path().join(ADAPTER_WEIGHTS))
        .map_err(JobError::file("cannot copy the adapter", &from))?;
    Ok(import_adapter(store, renamed.path(), &base).await?)
}

/// Stores what was trained from `source`: a whole model, or an adapter alone.
///
/// # Errors
/// As [`import_model`].
pub async fn import_trained(
    store: &Store,
    trainer: &Trainer,
    source: &PolicySource,
) -> Result<CheckpointDigest, JobError> {
    let saved = temporary()?;
    trainer.save(saved.path())?;
    // What the next step could not load, such as a weight that is not finite, is not stored.
    if trainer.adapter().is_none() {
        check_weights(&ModelFolder { base: saved.path().to_owned(), adapter: None })?;
        return Ok(import_checkpoint(store, saved.path()).await?);
    }
    let folder = ModelFolder { base: source.model_dir.clone(), adapter: Some(saved.path().to_owned()) };
    check_weights(&folder)?;
    import_adapter_of(store, saved.path(), source).await
}

/// Sees to it that weights of another store, as they are, lie in this one.
///
/// # Errors
/// [`JobError::Pipeline`] if a store fails.
pub async fn import_unchanged(store: &Store, source: &PolicySource) -> Result<(), JobError> {
    if checkpoint_dir(store, &source.digest).await.is_ok() {
        return Ok(());
    }
    match source.base {
        None => import_checkpoint(store, &source.dir).await?,
        Some(_) => import_adapter_of(store, &source.dir, source).await?,
    };
    Ok(())
}

async fn import_adapter_of(
    store: &Store,
    folder: &Path,
    source: &PolicySource,
) -> Result<CheckpointDigest, JobError> {
    let base = source.model_digest();
    match import_adapter(store, folder, base).await {
        // A store for comparing does not have it yet.
        Err(PipelineError::NoCheckpoint { .. }) => {
            import_checkpoint(store, &source.model_dir).await?;
            Ok(import_adapter(store, folder, base).await?)
        }
        imported => Ok(imported?),
    }
}

/// The adapter that training from `source` begins with, if its configuration asks for one.
pub fn new_adapter(config: Option<&LoraConfig>, seed: u64, source: &PolicySource) -> Option<NewAdapter> {
    config.map(|config| {
        let mut target_modules = config.target_modules.clone();
        target_modules.sort_unstable();
        target_modules.dedup();
        let config = AdapterConfig {
            base: adapter_base_name(source.model_digest()),
            rank: config.rank,
            alpha: config.alpha,
            is_rank_stabilized: config.rank_stabilized,
            target_modules,
            dropout: 0.0,
        };
        NewAdapter { config, seed: envace_grpo::seeds::Draw::new(seed, "lora").seed() }
    })
}

/// Copies a checkpoint out of the store into an empty folder: an adapter names its base by `base`, or else by the base's
/// folder in the store.
///
/// # Errors
/// [`JobError::Model`] and [`JobError::File`] if a file cannot be read or written.
pub fn export_model(source: &PolicySource, to: &Path, base: Option<&str>) -> Result<(), JobError> {
    for entry in fs_err::read_dir(&source.dir).map_err(JobError::file("cannot read", &source.dir))? {
        let entry = entry.map_err(JobError::file("cannot read", &source.dir))?;
        let (name, path) = (entry.file_name(), entry.path());
        let shown = name.to_string_lossy();
        // Neither the optimizer's state nor the mark that the copy is whole belongs to a model folder.
        let is_state = shown.starts_with("state-") || shown == "complete.json";
        if path.is_file() && !is_state {
            fs_err::copy(&path, to.join(&name)).map_err(JobError::file("cannot copy", &path))?;
        }
    }
    if source.base.is_some() {
        let folder = || std::path::absolute(&source.model_dir);
        let base = match base {
            Some(base) => base.to_owned(),
            None => folder().map_err(JobError::file("cannot find", &source.model_dir))?.display().to_string(),
        };
        AdapterConfig { base, ..AdapterConfig::load(to)? }.save(to)?;
    }
    Ok(())
}

fn temporary() -> Result<tempfile::TempDir, JobError> {
    tempfile::tempdir().map_err(JobError::file("cannot make a temporary folder", std::env::temp_dir()))
}
