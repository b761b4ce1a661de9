use std::path::Path;

use super::{Adapter, ModelFolder};
use crate::checkpoint::{WEIGHTS_FILE, copy_companions, sync_folder};
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::weights::{LoadedParameter, OutputTensor, Source, load_each, write_safetensors};

/// Writes a whole model folder of an adapter and its base: what the adapter changes in `f32`, all other weights in the
/// base's formats, and the base's configuration, tokenizer and templates. The whole model is in memory meanwhile, as
/// `f32`.
///
/// The merged model has the logits of the adapter on its base, bit for bit. What an adapter adds is often smaller than
/// half a step of `bf16`: rounded to a 16-bit base's format, most of it would be gone.
///
/// # Errors
/// Those of loading the adapter and the base; [`ModelError::Invalid`] if `dir` is no adapter; [`ModelError::AdapterSum`]
/// if a sum is not finite; [`ModelError::Write`] on the new files.
pub fn merge_adapter(dir: &Path, to: &Path) -> Result<(), ModelError> {
    let ModelFolder { base, adapter } = ModelFolder::open(dir)?;
    let Some(adapter) = adapter else {
        return Err(ModelError::invalid(format!("the folder holds no adapter: {}", dir.display())));
    };
    let config = ModelConfig::load(&base)?;
    let adapter = Adapter::load(&adapter, &config)?;
    let mut all = Vec::new();
    load_each(&base, &config, |mut loaded| {
        adapter.merge_into(&mut loaded)?;
        all.push(loaded);
        Ok(())
    })?;
    fs_err::create_dir_all(to).map_err(|source| ModelError::Write { path: to.into(), source })?;
    let tensors = all.iter().flat_map(|loaded| {
        let LoadedParameter { parameter, dtype, values } = loaded;
        parameter.pieces.iter().map(move |piece| {
            let values: Source<'_> = Box::new(|| Ok(values.into()));
            (piece.name.clone(), OutputTensor { parameter, piece, values, dtype: *dtype })
        })
    });
    write_safetensors(&to.join(WEIGHTS_FILE), tensors, ("format", "pt".into()))?;
    copy_companions(&base, to)?;
    sync_folder(to)
}
