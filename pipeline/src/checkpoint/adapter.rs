//! Checkpoints that are adapters: two files, and the digest of the checkpoint they change.

use std::collections::BTreeMap;

use super::files::model_folder;
use super::{CheckpointDigest, checkpoint_base, import_files, is_whole};
use crate::{PipelineError, Store, json};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// How an adapter in the store names the folder of its base, relative to its own.
pub fn adapter_base_name(base: &CheckpointDigest) -> String {
    format!("../{base}")
}

/// Copies an adapter into the store, unless it is there already: its configuration and its weights, in the layout of
/// PEFT. Its digest is also that of its base.
///
/// # Errors
/// [`PipelineError::NoCheckpoint`] if the base is not in the store; [`PipelineError::ModelFolder`] if the base is an
/// adapter itself, a file is missing, or the configuration does not name the base by [`adapter_base_name`]; otherwise
/// as [`import_checkpoint`](super::import_checkpoint).
pub async fn import_adapter(
    store: &Store,
    dir: &std::path::Path,
    base: &CheckpointDigest,
) -> Result<CheckpointDigest, PipelineError> {
    if !is_whole(store, base).await? {
        return Err(PipelineError::NoCheckpoint { digest: base.0.clone() });
    }
    let refused = |reason: String| model_folder(dir.to_owned(), reason);
    if checkpoint_base(store, base).await?.is_some() {
        return Err(refused(format!("is an adapter of another adapter, {base}")));
    }
    let files: BTreeMap<_, _> = [CONFIG, WEIGHTS].map(|name| (name.to_owned(), dir.join(name))).into();
    for (name, path) in &files {
        if !path.is_file() {
            return Err(refused(format!("of an adapter has no {name}")));
        }
    }
    let config = dir.join(CONFIG);
    let bytes =
        fs_err::read(&config).map_err(|source| PipelineError::File { path: config.clone(), source })?;
    let value: serde_json::Value = json::from_bytes(&config.display().to_string(), &bytes)?;
    let named = value.get("base_model_name_or_path").and_then(serde_json::Value::as_str);
    let expected = adapter_base_name(base);
    if named != Some(&expected) {
        return Err(refused(format!("of an adapter names another base than {expected}")));
    }
    import_files(store, &files, Some(base.clone())).await
}
