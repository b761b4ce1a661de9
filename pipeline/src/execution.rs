mod notes;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use arrow::array::RecordBatch;
use bytes::Bytes;
use envace_schemas::{Row, Table, batches_of, content_hash, read_batches, rows_of};

use crate::catalog::Claim;
use crate::check::{Encoded, encode};
use crate::key::hash_hex;
use crate::staging::{StagedPart, Staging, check_same};
use crate::{
    Artifact, MadeBy, Manifest, PartRecord, PipelineError, Plan, Provenance, StageId, StageKey, Store,
};

/// A stage being made: takes rows part by part and commits them.
///
/// All methods take `&self`, so parts may be written concurrently. Several executions of one plan, in one
/// process or in many, share their finished parts; the first commit wins and the others compare themselves
/// with it.
#[derive(Debug)]
pub struct Execution {
    store: Store,
    plan: Plan,
    staging: Staging,
    parts: Mutex<Parts>,
}

/// What this execution wrote itself.
#[derive(Debug, Default)]
struct Parts {
    open: BTreeMap<u32, StagedPart>,
    finished: BTreeMap<u32, StagedPart>,
}

impl Execution {
    /// Begins, or goes on with, what a plan says. A plan to reuse an output gives it back on commit.
    pub fn new(store: &Store, plan: Plan) -> Self {
        let staging = Staging::new(&plan.id, &plan.key);
        Self { store: store.clone(), plan, staging, parts: Mutex::default() }
    }

    /// The output being made.
    pub fn id(&self) -> &StageId {
        &self.plan.id
    }

    /// Its key.
    pub fn key(&self) -> &StageKey {
        &self.plan.key
    }

    /// The plan it follows.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Writes one table of one part, sorted by the table's grain. A table without rows is written as such.
    ///
    /// # Errors
    /// [`PipelineError::UndeclaredOutput`] and [`PipelineError::NoSuch`] for a table or part the stage does not
    /// have; [`PipelineError::Table`], [`PipelineError::Unsorted`] or [`PipelineError::Duplicate`] for rows
    /// that break the table's rules; [`PipelineError::Object`] if the store fails.
    pub async fn write<R: Row>(&self, part: u32, rows: &[R]) -> Result<(), PipelineError> {
        let table = R::TABLE;
        let batches = batches_of(rows).map_err(|source| PipelineError::Table { table, part, source })?;
        self.write_batches(table, part, &batches).await
    }

    /// As [`Execution::write`], for rows that are record batches already.
    ///
    /// # Errors
    /// As [`Execution::write`].
    pub async fn write_batches(
        &self,
        table: Table,
        part: u32,
        batches: &[RecordBatch],
    ) -> Result<(), PipelineError> {
        self.check_part(part)?;
        if table != Table::Timings && !self.plan.spec.outputs.contains(&table) {
            return Err(PipelineError::UndeclaredOutput { stage: self.plan.id.stage.clone(), table });
        }
        let encoded = encode(table, part, batches)?;
        let record = record(self.plan.id.part_path(table, part).as_ref(), &encoded);
        self.store.put(&self.staging.file_path(table, part), encoded.bytes).await?;
        self.open(part, |open| open.tables.insert(table, record));
        Ok(())
    }

    /// States that a part also made a checkpoint or optimizer state, which is in the store by now.
    ///
    /// # Errors
    /// [`PipelineError::NoSuch`] for a part the stage does not have.
    pub fn add_artifact(&self, part: u32, name: &str, artifact: Artifact) -> Result<(), PipelineError> {
        self.check_part(part)?;
        self.open(part, |open| open.artifacts.insert(name.to_owned(), artifact));
        Ok(())
    }

    /// Records that a part is complete: a process that comes later skips it.
    ///
    /// # Errors
    /// [`PipelineError::MissingOutput`] if a declared table was not written; [`PipelineError::NotReproducible`]
    /// if another process finished the part with other rows; [`PipelineError::Object`] if the store fails.
    pub async fn finish_part(&self, part: u32) -> Result<(), PipelineError> {
        self.check_part(part)?;
        let staged = self.open(part, |open| open.clone());
        if let Some(&table) = self.plan.spec.outputs.iter().find(|table| !staged.tables.contains_key(table)) {
            return Err(PipelineError::MissingOutput { stage: self.plan.id.stage.clone(), part, table });
        }
        if let Some(theirs) = self.staging.record(&self.store, part).await? {
            check_same(&self.plan.id, &staged, &theirs)?;
        }
        self.staging.write_record(&self.store, &staged).await?;
        let mut parts = self.parts();
        parts.open.remove(&part);
        parts.finished.insert(part, staged);
        Ok(())
    }

    /// Parts that no process has finished yet. Empty after a commit.
    ///
    /// # Errors
    /// [`PipelineError::Object`] if the store fails.
    pub async fn missing_parts(&self) -> Result<Vec<u32>, PipelineError> {
        if Manifest::read(&self.store, &self.plan.id.manifest_path()).await?.is_some() {
            return Ok(Vec::new());
        }
        let mut missing = Vec::new();
        for part in 0..self.n_parts() {
            if self.staging.finished(&self.store, part).await?.is_none() {
                missing.push(part);
            }
        }
        Ok(missing)
    }

    /// Rows of a part that is finished, by whichever process, and not committed yet; `None` if it is not.
    ///
    /// # Errors
    /// [`PipelineError::Table`] if the staged file is no sound table; [`PipelineError::Object`] if the store fails.
    pub async fn read_finished<R: Row>(&self, part: u32) -> Result<Option<Vec<R>>, PipelineError> {
        self.check_part(part)?;
        let table = R::TABLE;
        if self.staging.finished(&self.store, part).await?.is_none() {
            return Ok(None);
        }
        // A commit by another process may take the file away in between.
        let Some(bytes) = self.store.get_if_present(&self.staging.file_path(table, part)).await? else {
            return Ok(None);
        };
        let rows = read_batches(table, bytes).and_then(|batches| rows_of(&batches));
        rows.map(Some).map_err(|source| PipelineError::Table { table, part, source })
    }

    /// Moves the parts to their place and writes the manifest. Safe to be killed in, and to be raced.
    ///
    /// # Errors
    /// [`PipelineError::Incomplete`] if a part is not finished: another process may have it;
    /// [`PipelineError::NotReproducible`] if another process committed other rows from the same key;
    /// [`PipelineError::KeyConflict`] or [`PipelineError::Taken`] if the attempt now belongs to something else;
    /// [`PipelineError::Object`] if the store fails.
    pub async fn commit(&self) -> Result<Manifest, PipelineError> {
        let path = self.plan.id.manifest_path();
        let manifest = match Manifest::read(&self.store, &path).await? {
            Some(there) => there,
            None => match self.publish().await {
                Ok(manifest) => manifest,
                // What went wrong may be that another process was first and has cleaned up.
                Err(error) => match Manifest::read(&self.store, &path).await {
                    Ok(Some(there)) => there,
                    _ => return Err(error),
                },
            },
        };
        self.settle(&manifest)?;
        if let Err(error) = self.store.delete_all(&self.staging.folder).await {
            tracing::warn!(id = %self.plan.id, %error, "staging could not be removed; it does no harm");
        }
        Ok(manifest)
    }

    async fn publish(&self) -> Result<Manifest, PipelineError> {
        let Plan { id, key, key_parts, inputs, .. } = &self.plan;
        let mut staged = Vec::new();
        let mut missing = Vec::new();
        for part in 0..self.n_parts() {
            match self.staging.finished(&self.store, part).await? {
                Some(record) => staged.push(record),
                None => missing.push(part),
            }
        }
        if !missing.is_empty() {
            return Err(PipelineError::Incomplete {
                id: Box::new(id.clone()),
                n_parts: self.n_parts(),
                missing,
            });
        }
        let claim =
            Claim { key: key.clone(), key_parts: key_parts.clone(), inputs: inputs.clone(), put: None };
        if !claim.take(&self.store, id).await? {
            return Err(match Claim::read(&self.store, id).await? {
                Some(other) if other.put.is_none() => {
                    self.plan.conflict(id, (&other.key_parts, &other.inputs))
                }
                _ => PipelineError::Taken { id: Box::new(id.clone()) },
            });
        }
        let mut outputs: BTreeMap<Table, Vec<PartRecord>> = BTreeMap::new();
        let mut artifacts = BTreeMap::new();
        for record in staged {
            for (&table, file) in &record.tables {
                let moved = self.move_file(table, record.part, file).await?;
                outputs.entry(table).or_default().push(moved);
            }
            for (name, artifact) in record.artifacts {
                let digest = artifact.digest().to_owned();
                if let Some(other) =
                    artifacts.insert(name.clone(), artifact).filter(|o: &Artifact| o.digest() != digest)
                {
                    return Err(PipelineError::NotReproducible {
                        id: Box::new(id.clone()),
                        what: format!("artifact `{name}`"),
                        ours: digest,
                        theirs: other.digest().to_owned(),
                    });
                }
            }
        }
        let manifest = Manifest::new(
            id.clone(),
            key_parts.clone(),
            inputs.clone(),
            outputs,
            artifacts,
            Provenance::of_stage(),
        );
        Ok(manifest.publish(&self.store).await?.unwrap_or(manifest))
    }

    /// Copies a staged file to its final place, and returns the record of what lies there.
    async fn move_file(
        &self,
        table: Table,
        part: u32,
        file: &PartRecord,
    ) -> Result<PartRecord, PipelineError> {
        let path = self.plan.id.part_path(table, part);
        let is_timing = table == Table::Timings;
        if let Some(there) = self.store.get_if_present(&path).await? {
            if hash_hex(&there) == file.byte_hash {
                self.store.sync(&path)?;
                return Ok(file.clone());
            }
            match recorded(table, part, path.as_ref(), there) {
                // Whoever moved timings first decides; they are in no comparison.
                Some(there) if is_timing => return Ok(there),
                Some(there) if there.content_hash != file.content_hash => {
                    return Err(PipelineError::NotReproducible {
                        id: Box::new(self.plan.id.clone()),
                        what: format!("part {part} of `{table}`"),
                        ours: file.content_hash.0.clone(),
                        theirs: there.content_hash.0,
                    });
                }
                // Torn by a loss of power, or the same rows by another Parquet writer: written anew below.
                _ => self.store.delete(&path).await?,
            }
        }
        let staged_path = self.staging.file_path(table, part);
        let staged = self.store.get(&staged_path).await?;
        if !is_timing && hash_hex(&staged) != file.byte_hash {
            let what = "staged file was changed by another process".to_owned();
            return Err(PipelineError::Damaged { path: staged_path.to_string(), what });
        }
        self.store.put_if_absent(&path, staged).await?;
        if !is_timing {
            return Ok(file.clone());
        }
        // Another process may have overwritten the staged timings, or moved its own first.
        let there = self.store.get(&path).await?;
        recorded(table, part, path.as_ref(), there).ok_or_else(|| PipelineError::Damaged {
            path: path.to_string(),
            what: "timings cannot be read".to_owned(),
        })
    }

    /// Compares what this execution wrote with what is committed.
    fn settle(&self, manifest: &Manifest) -> Result<(), PipelineError> {
        let id = &self.plan.id;
        if manifest.key != self.plan.key {
            return Err(self.plan.conflict(id, (&manifest.key_parts, &manifest.inputs)));
        }
        if manifest.provenance.made_by == MadeBy::Put && self.plan.reused().is_none() {
            return Err(PipelineError::Taken { id: Box::new(id.clone()) });
        }
        for (&part, ours) in &self.parts().finished {
            let theirs = StagedPart {
                part,
                tables: ours
                    .tables
                    .keys()
                    .filter_map(|&table| {
                        let file = manifest.outputs.get(&table)?.get(part as usize)?;
                        Some((table, file.clone()))
                    })
                    .collect(),
                artifacts: manifest.artifacts.clone(),
            };
            check_same(id, ours, &theirs)?;
        }
        Ok(())
    }

    /// Number of parts that the stage has.
    pub fn n_parts(&self) -> u32 {
        self.plan.key_parts.n_parts
    }

    fn check_part(&self, part: u32) -> Result<(), PipelineError> {
        if part < self.n_parts() {
            return Ok(());
        }
        Err(PipelineError::NoSuch { id: Box::new(self.plan.id.clone()), what: format!("part {part}") })
    }

    fn open<T>(&self, part: u32, change: impl FnOnce(&mut StagedPart) -> T) -> T {
        let mut parts = self.parts();
        let open = parts.open.entry(part).or_insert_with(|| StagedPart {
            part,
            tables: BTreeMap::new(),
            artifacts: BTreeMap::new(),
        });
        change(open)
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        // The map is whole between any two statements, so a panic elsewhere leaves it usable.
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn record(path: &str, encoded: &Encoded) -> PartRecord {
    PartRecord {
        path: path.to_owned(),
        n_rows: encoded.n_rows,
        n_bytes: encoded.bytes.len() as u64,
        content_hash: encoded.content_hash.clone(),
        byte_hash: encoded.byte_hash.clone(),
    }
}

/// The record of a file as it lies there; `None` if it is no readable table.
fn recorded(table: Table, part: u32, path: &str, bytes: Bytes) -> Option<PartRecord> {
    let read = read_batches(table, bytes.clone());
    let batches = read.inspect_err(|error| tracing::warn!(path, part, %error, "file cannot be read")).ok()?;
    Some(PartRecord {
        path: path.to_owned(),
        n_rows: batches.iter().map(|batch| batch.num_rows() as u64).sum(),
        n_bytes: bytes.len() as u64,
        content_hash: content_hash(table, &batches).ok()?,
        byte_hash: hash_hex(&bytes),
    })
}
