//! What an execution keeps beside its parts until the commit.

use bytes::Bytes;
use object_store::path::Path;

use super::Execution;
use crate::PipelineError;

impl Execution {
    /// Takes back that parts are finished, so that the next process makes them again: what they hold must not be
    /// committed, and what made them so may pass. Notes stay.
    ///
    /// # Errors
    /// [`PipelineError::Object`] if the store fails.
    pub async fn reopen_parts(&self) -> Result<(), PipelineError> {
        for part in 0..self.n_parts() {
            self.staging.delete_record(&self.store, part).await?;
        }
        Ok(())
    }

    /// Keeps `bytes` beside the parts under way, as a file `name` in `folder`: what was dear to get and must outlive a
    /// kill. It goes with the commit, so the rows must hold what matters of it.
    ///
    /// # Errors
    /// [`PipelineError::Object`] if the store fails.
    pub async fn keep_note(
        &self,
        folder: &str,
        name: &str,
        bytes: impl Into<Bytes>,
    ) -> Result<(), PipelineError> {
        self.store.put(&self.staging.folder.clone().join(folder).join(name), bytes).await
    }

    /// The notes kept in `folder`, by any process and of any configuration this attempt was tried with, by their paths.
    ///
    /// # Errors
    /// [`PipelineError::Object`] if the store fails.
    pub async fn notes(&self, folder: &str) -> Result<Vec<Bytes>, PipelineError> {
        let of_attempt: Path =
            self.staging.folder.parts().take(self.staging.folder.parts_count() - 1).collect();
        let mut notes = Vec::new();
        for (path, _) in self.store.list(&of_attempt).await? {
            let is_note = path.parts().nth_back(1).is_some_and(|part| part.as_ref() == folder);
            // A commit by another process may take the file away in between.
            if is_note && let Some(bytes) = self.store.get_if_present(&path).await? {
                notes.push(bytes);
            }
        }
        Ok(notes)
    }
}
