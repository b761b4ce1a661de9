use arrow::array::RecordBatch;
use bytes::Bytes;
use envace_schemas::{Row, Table, read_batches, rows_of};
use object_store::path::Path;

use crate::key::hash_hex;
use crate::{Manifest, PartRecord, PipelineError, StageId, Store};

/// Reads what a stage made. Every file is checked against its manifest as it is read.
#[derive(Debug, Clone)]
pub struct StageOutput {
    store: Store,
    manifest: Manifest,
}

impl StageOutput {
    /// A reader of the output a manifest describes.
    pub fn new(store: &Store, manifest: Manifest) -> Self {
        Self { store: store.clone(), manifest }
    }

    /// A reader of the latest attempt at a stage of a step.
    ///
    /// # Errors
    /// [`PipelineError::NoOutput`] if there is none; [`PipelineError::Object`] if the store fails.
    pub async fn latest(store: &Store, run: &str, stage: &str, step: u64) -> Result<Self, PipelineError> {
        let manifest = store.latest(run, stage, step).await?.ok_or_else(|| PipelineError::NoOutput {
            id: Box::new(StageId { run: run.to_owned(), stage: stage.to_owned(), step, attempt: 0 }),
        })?;
        Ok(Self::new(store, manifest))
    }

    /// What it is, and what it was made from.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The files of a table, in order.
    ///
    /// # Errors
    /// [`PipelineError::NoSuch`] if the stage does not make it.
    pub fn parts(&self, table: Table) -> Result<&[PartRecord], PipelineError> {
        let parts = self.manifest.outputs.get(&table).map(Vec::as_slice);
        parts.ok_or_else(|| self.no_such(format!("table `{table}`")))
    }

    /// Reads one part of a table, in the order of its grain.
    ///
    /// # Errors
    /// [`PipelineError::NoSuch`] if there is no such table or part; [`PipelineError::Damaged`] if the file is not
    /// what the manifest says; [`PipelineError::Table`] if it is no sound table; [`PipelineError::Object`] if the
    /// store fails.
    pub async fn read<R: Row>(&self, part: u32) -> Result<Vec<R>, PipelineError> {
        let batches = self.read_batches(R::TABLE, part).await?;
        rows_of(&batches).map_err(|source| PipelineError::Table { table: R::TABLE, part, source })
    }

    /// Reads all parts of a table.
    ///
    /// # Errors
    /// As [`StageOutput::read`].
    pub async fn read_all<R: Row>(&self) -> Result<Vec<R>, PipelineError> {
        let mut rows = Vec::new();
        for part in 0..self.n_parts(R::TABLE)? {
            rows.extend(self.read::<R>(part).await?);
        }
        Ok(rows)
    }

    /// As [`StageOutput::read`], as record batches.
    ///
    /// # Errors
    /// As [`StageOutput::read`].
    pub async fn read_batches(&self, table: Table, part: u32) -> Result<Vec<RecordBatch>, PipelineError> {
        let bytes = self.read_file(table, part).await?;
        read_batches(table, bytes).map_err(|source| PipelineError::Table { table, part, source })
    }

    /// The file of one part of a table.
    ///
    /// # Errors
    /// As [`StageOutput::read`], but for what only its rows show.
    pub async fn read_file(&self, table: Table, part: u32) -> Result<Bytes, PipelineError> {
        let record = self.parts(table)?.get(part as usize);
        let record = record.ok_or_else(|| self.no_such(format!("part {part} of `{table}`")))?;
        let bytes = self.store.get(&Path::from(record.path.as_str())).await?;
        if hash_hex(&bytes) != record.byte_hash {
            let what = "file of an output has other bytes".to_owned();
            return Err(PipelineError::Damaged { path: record.path.clone(), what });
        }
        Ok(bytes)
    }

    /// Number of parts of a table.
    ///
    /// # Errors
    /// [`PipelineError::NoSuch`] if the stage does not make it.
    pub fn n_parts(&self, table: Table) -> Result<u32, PipelineError> {
        Ok(u32::try_from(self.parts(table)?.len()).unwrap_or(u32::MAX))
    }

    fn no_such(&self, what: String) -> PipelineError {
        PipelineError::NoSuch { id: Box::new(self.manifest.id.clone()), what }
    }
}
