//! Parts under way: files in `staging/`, and a record of each finished part.

use std::collections::BTreeMap;

use envace_schemas::Table;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use crate::key::hash_hex;
use crate::{Artifact, PartRecord, PipelineError, StageId, StageKey, Store, checkpoint, json, manifest};

/// The record of a finished part, written after its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StagedPart {
    pub(crate) part: u32,
    #[serde(with = "manifest::by_name")]
    pub(crate) tables: BTreeMap<Table, PartRecord>,
    pub(crate) artifacts: BTreeMap<String, Artifact>,
}

/// The staging folder of one key.
#[derive(Debug, Clone)]
pub(crate) struct Staging {
    pub(crate) folder: Path,
}

impl Staging {
    pub(crate) fn new(id: &StageId, key: &StageKey) -> Self {
        Self { folder: id.staging_dir(&key.0) }
    }

    pub(crate) fn file_path(&self, table: Table, part: u32) -> Path {
        self.folder.clone().join(table.name()).join(crate::stage::part_name(part).as_str())
    }

    fn record_path(&self, part: u32) -> Path {
        self.folder.clone().join(format!("part-{part:05}.json").as_str())
    }

    /// The record of a part; `None` if there is none or it cannot be understood, as after a loss of power.
    pub(crate) async fn record(&self, store: &Store, part: u32) -> Result<Option<StagedPart>, PipelineError> {
        let path = self.record_path(part);
        let Some(bytes) = store.get_if_present(&path).await? else { return Ok(None) };
        Ok(json::from_bytes(path.as_ref(), &bytes).ok().filter(|record: &StagedPart| record.part == part))
    }

    pub(crate) async fn write_record(&self, store: &Store, record: &StagedPart) -> Result<(), PipelineError> {
        let path = self.record_path(record.part);
        store.put(&path, json::to_bytes(path.as_ref(), record)?).await
    }

    pub(crate) async fn delete_record(&self, store: &Store, part: u32) -> Result<(), PipelineError> {
        let path = self.record_path(part);
        if store.exists(&path).await? { store.delete(&path).await } else { Ok(()) }
    }

    /// The record of a part if all its files are there. They stay until the manifest is written.
    pub(crate) async fn finished(
        &self,
        store: &Store,
        part: u32,
    ) -> Result<Option<StagedPart>, PipelineError> {
        let Some(record) = self.record(store, part).await? else { return Ok(None) };
        for (&table, file) in &record.tables {
            if table == Table::Timings {
                continue;
            }
            let staged = store.get_if_present(&self.file_path(table, part)).await?;
            if staged.is_none_or(|bytes| hash_hex(&bytes) != file.byte_hash) {
                return Ok(None);
            }
        }
        for artifact in record.artifacts.values() {
            if !checkpoint::is_intact(store, artifact).await? {
                return Ok(None);
            }
        }
        Ok(Some(record))
    }
}

/// Fails if two results of one key differ. Timings may, and only tables that both have are compared.
pub(crate) fn check_same(id: &StageId, ours: &StagedPart, theirs: &StagedPart) -> Result<(), PipelineError> {
    let differ = |what: String, ours: &str, theirs: &str| {
        Err(PipelineError::NotReproducible {
            id: Box::new(id.clone()),
            what,
            ours: ours.to_owned(),
            theirs: theirs.to_owned(),
        })
    };
    for (table, file) in ours.tables.iter().filter(|(table, _)| **table != Table::Timings) {
        if let Some(other) = theirs.tables.get(table).filter(|other| other.content_hash != file.content_hash)
        {
            let what = format!("part {} of `{table}`", ours.part);
            return differ(what, &file.content_hash.0, &other.content_hash.0);
        }
    }
    for (name, artifact) in &ours.artifacts {
        if let Some(other) = theirs.artifacts.get(name).filter(|other| *other != artifact) {
            return differ(format!("artifact `{name}`"), artifact.digest(), other.digest());
        }
    }
    Ok(())
}
