//! What is in a store: runs, outputs, attempts.

use std::collections::BTreeMap;

use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use crate::{InputRef, KeyParts, Manifest, PipelineError, StageId, StageKey, Store, check_name, json};

/// Manifests read at a time.
const N_CONCURRENT_READS: usize = 16;

/// What became of a run's configuration when it was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunConfig {
    /// It is stored now.
    Stored,
    /// The same text was there already.
    Same,
    /// Another text is there, and stays: the run began with it.
    Other(String),
}

/// The record that an attempt is being committed: what holds the place until the manifest is there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) key: StageKey,
    pub(crate) key_parts: KeyParts,
    pub(crate) inputs: Vec<InputRef>,
    /// Digest of the table that is being put; `None`: the stage itself.
    pub(crate) put: Option<String>,
}

impl Claim {
    /// The claim on an attempt; `None` if there is none or it was torn by a loss of power.
    pub(crate) async fn read(store: &Store, id: &StageId) -> Result<Option<Self>, PipelineError> {
        let path = id.claim_path();
        let bytes = store.get_if_present(&path).await?;
        Ok(bytes.and_then(|bytes| json::from_bytes(path.as_ref(), &bytes).ok()))
    }

    /// Takes the attempt; returns whether it is ours, now or from an earlier try.
    pub(crate) async fn take(&self, store: &Store, id: &StageId) -> Result<bool, PipelineError> {
        let path = id.claim_path();
        let bytes = json::to_bytes(path.as_ref(), self)?;
        if store.put_if_absent(&path, bytes.clone()).await? {
            return Ok(true);
        }
        match Self::read(store, id).await? {
            Some(there) => Ok(there.key == self.key && there.put == self.put),
            None => store.put(&path, bytes).await.map(|()| true),
        }
    }
}

impl Store {
    /// All attempts at a stage of a step that have a manifest, the earliest first.
    ///
    /// # Errors
    /// [`PipelineError::Object`] or [`PipelineError::Json`] if one cannot be read.
    pub async fn attempts(&self, run: &str, stage: &str, step: u64) -> Result<Vec<Manifest>, PipelineError> {
        let id = StageId { run: run.to_owned(), stage: stage.to_owned(), step, attempt: 0 };
        self.read_manifests(self.ids_in(&id.step_dir(), "manifest.json").await?).await
    }

    /// The latest attempt at a stage of a step: the one that counts. `None` if there is no output.
    ///
    /// # Errors
    /// As [`Store::attempts`].
    pub async fn latest(&self, run: &str, stage: &str, step: u64) -> Result<Option<Manifest>, PipelineError> {
        let id = StageId { run: run.to_owned(), stage: stage.to_owned(), step, attempt: 0 };
        match self.ids_in(&id.step_dir(), "manifest.json").await?.pop() {
            Some(id) => Manifest::read(self, &id.manifest_path()).await,
            None => Ok(None),
        }
    }

    /// The outputs that count, of one run or of all: for each stage and step the latest attempt.
    /// Sorted by run, stage and step.
    ///
    /// # Errors
    /// As [`Store::attempts`].
    pub async fn active_manifests(&self, run: Option<&str>) -> Result<Vec<Manifest>, PipelineError> {
        let mut latest = BTreeMap::new();
        for id in self.manifest_ids(run).await? {
            // Attempts come in ascending order, so the last one stays.
            latest.insert((id.run.clone(), id.stage.clone(), id.step), id);
        }
        self.read_manifests(latest.into_values().collect()).await
    }

    /// Every output with all its attempts, of one run or of all, sorted.
    ///
    /// # Errors
    /// As [`Store::attempts`].
    pub async fn manifests(&self, run: Option<&str>) -> Result<Vec<Manifest>, PipelineError> {
        self.read_manifests(self.manifest_ids(run).await?).await
    }

    /// Names of all runs, task sets and imported models, sorted.
    ///
    /// # Errors
    /// [`PipelineError::Object`] if they cannot be listed.
    pub async fn runs(&self) -> Result<Vec<String>, PipelineError> {
        let found = self.list(&Path::from("runs")).await?;
        let mut names: Vec<_> = found
            .iter()
            .filter_map(|(path, _)| path.parts().nth(1).map(|part| part.as_ref().to_owned()))
            .collect();
        names.dedup();
        Ok(names)
    }

    /// Stores a run's effective configuration, unless the run has one.
    ///
    /// # Errors
    /// [`PipelineError::InvalidName`] for an unusable run name; [`PipelineError::Object`] if it cannot be
    /// written.
    pub async fn store_run_config(&self, run: &str, text: &str) -> Result<RunConfig, PipelineError> {
        check_name("run", run)?;
        if self.put_if_absent(&config_path(run), text.to_owned()).await? {
            return Ok(RunConfig::Stored);
        }
        let there = self.run_config(run).await?.unwrap_or_default();
        Ok(if there == text { RunConfig::Same } else { RunConfig::Other(there) })
    }

    /// The configuration a run began with; `None` if none is stored.
    ///
    /// # Errors
    /// [`PipelineError::Object`] if it cannot be read.
    pub async fn run_config(&self, run: &str) -> Result<Option<String>, PipelineError> {
        let bytes = self.get_if_present(&config_path(run)).await?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    pub(crate) async fn manifest_ids(&self, run: Option<&str>) -> Result<Vec<StageId>, PipelineError> {
        let root = Path::from("runs");
        self.ids_in(&run.map_or(root.clone(), |run| root.join(run)), "manifest.json").await
    }

    /// Ids of all attempts under `prefix` that have a file of that name, sorted.
    pub(crate) async fn ids_in(&self, prefix: &Path, file: &str) -> Result<Vec<StageId>, PipelineError> {
        let found = self.list(prefix).await?;
        let mut ids: Vec<_> = found.iter().filter_map(|(path, _)| StageId::of_path(path, file)).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    async fn read_manifests(&self, ids: Vec<StageId>) -> Result<Vec<Manifest>, PipelineError> {
        let reads = ids.into_iter().map(|id| async move { Manifest::read(self, &id.manifest_path()).await });
        // A manifest that is gone between listing and reading was deleted; it is no output.
        let read: Vec<_> = stream::iter(reads).buffered(N_CONCURRENT_READS).try_collect().await?;
        Ok(read.into_iter().flatten().collect())
    }
}

fn config_path(run: &str) -> Path {
    Path::from_iter(["runs", run, "config.toml"])
}
