//! The optimizer's state: one safetensors file with master values and moments by tensor name.

use std::path::Path;

use super::trainer::Trainer;
use crate::checkpoint::sync_folder;
use crate::error::ModelError;
use crate::weights::{OutputTensor, Source, StoredDtype, WeightFiles, write_safetensors};

const MASTER: &str = "master.";
const FIRST_MOMENT: &str = "first_moment.";
const SECOND_MOMENT: &str = "second_moment.";
/// The one key of the file's metadata: the number of optimizer steps made.
const STEP: &str = "step";

impl Trainer {
    /// Writes master values, moments and step counter; the gradient is not part of it.
    ///
    /// Training that goes on from the saved checkpoint and state gives the same bits as training that never
    /// stopped. The file's bytes depend on the content alone.
    ///
    /// # Errors
    /// [`ModelError::Write`] on the file; [`ModelError::Read`] on the scratch file.
    pub fn save_state(&self, path: &Path) -> Result<(), ModelError> {
        if let Some(folder) = path.parent() {
            fs_err::create_dir_all(folder)
                .map_err(|source| ModelError::Write { path: folder.into(), source })?;
        }
        self.check_whole()?;
        let tensors = self.parameters.iter().flat_map(|trained| {
            trained.parameter.pieces.iter().flat_map(move |piece| {
                let parameter = &trained.parameter;
                let [first, second] = trained.moments();
                let sources: [(&str, Source<'_>); 3] = [
                    (MASTER, Box::new(|| trained.master())),
                    (FIRST_MOMENT, Box::new(|| first.read())),
                    (SECOND_MOMENT, Box::new(|| second.read())),
                ];
                sources.map(|(prefix, values)| {
                    let tensor = OutputTensor { parameter, piece, values, dtype: StoredDtype::F32 };
                    (format!("{prefix}{}", piece.name), tensor)
                })
            })
        });
        write_safetensors(path, tensors, (STEP, self.step.to_string()))?;
        path.parent().map_or(Ok(()), sync_folder)
    }

    /// Takes over a saved state, which must belong to the loaded weights.
    pub(super) fn load_state(&mut self, path: &Path) -> Result<(), ModelError> {
        let files = WeightFiles::open(&[path.to_owned()])?;
        let step = files.metadata(STEP).and_then(|step| step.parse().ok());
        self.step = step.ok_or_else(|| ModelError::ConfigKey {
            path: path.into(),
            key: STEP.into(),
            problem: "is missing in the metadata or not a number".into(),
        })?;
        for trained in self.parameters.iter_mut() {
            let master = trained.parameter.read(&files, MASTER)?;
            let is_same =
                |(master, weight): (&f32, &f32)| trained.dtype.round(*master).to_bits() == weight.to_bits();
            if !master.iter().zip(trained.weights()).all(is_same) {
                return Err(ModelError::invalid(format!(
                    "the optimizer's state does not belong to the weights: `{}` differs in `{}`",
                    trained.parameter.pieces[0].name,
                    path.display()
                )));
            }
            trained.set_master(master)?;
            for (index, prefix) in [FIRST_MOMENT, SECOND_MOMENT].into_iter().enumerate() {
                let values = trained.parameter.read(&files, prefix)?;
                trained.moments_mut()[index].write(values)?;
            }
        }
        Ok(())
    }
}
