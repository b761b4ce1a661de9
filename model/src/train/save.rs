//! Writing a checkpoint in Hugging Face layout.

use std::path::Path;

use super::trainer::Trainer;
use crate::checkpoint::{WEIGHTS_FILE, copy_companions, sync_folder};
use crate::error::ModelError;
use crate::weights::{OutputTensor, Source, write_safetensors};

impl Trainer {
    /// Writes a model folder: the weights in the format they were loaded in, and the configuration, tokenizer and
    /// templates of the folder they came from. Of an adapter, only its own two files are written. The bytes depend on
    /// the content alone.
    ///
    /// # Errors
    /// [`ModelError::Write`] and [`ModelError::Read`] on the files; [`ModelError::Invalid`] after an optimizer step that
    /// failed half-way.
    pub fn save(&self, dir: &Path) -> Result<(), ModelError> {
        self.check_whole()?;
        fs_err::create_dir_all(dir).map_err(|source| ModelError::Write { path: dir.into(), source })?;
        if let Some(adapter) = &self.parameters.adapter {
            adapter.save(dir)?;
            return sync_folder(dir);
        }
        let tensors = self.parameters.iter().flat_map(|trained| {
            trained.parameter.pieces.iter().map(|piece| {
                let (parameter, dtype) = (&trained.parameter, trained.dtype);
                let values: Source<'_> = Box::new(|| Ok(trained.weights().into()));
                (piece.name.clone(), OutputTensor { parameter, piece, values, dtype })
            })
        });
        write_safetensors(&dir.join(WEIGHTS_FILE), tensors, ("format", "pt".into()))?;
        copy_companions(&self.source, dir)?;
        sync_folder(dir)
    }
}
