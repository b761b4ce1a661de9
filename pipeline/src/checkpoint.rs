mod adapter;
mod files;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use futures::StreamExt;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use crate::key::update_framed;
use crate::{Artifact, PipelineError, Store, json};
pub use adapter::{adapter_base_name, import_adapter};
use files::{download, hash_file, model_files, model_folder, upload};

/// Written last: without it there is no checkpoint.
const MARKER: &str = "complete.json";
const STATE_PREFIX: &str = "state-";
/// What is wrong with a file of a checkpoint, in the words of every command that finds it.
const OTHER_BYTES: &str = "file of a checkpoint has other bytes";
const NO_FILE: &str = "file of a checkpoint is missing";

/// Hex digest of a checkpoint: of the names and contents of its weight, config and tokenizer files, and of an adapter's
/// base.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CheckpointDigest(pub String);

impl fmt::Display for CheckpointDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl CheckpointDigest {
    fn folder(&self) -> Path {
        Path::from_iter(["checkpoints", &self.0])
    }

    fn state_path(&self, state: &str) -> Path {
        self.folder().join(format!("{STATE_PREFIX}{state}.safetensors").as_str())
    }
}

/// The files of a checkpoint, as its marker lists them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Marker {
    /// The checkpoint that an adapter changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base: Option<CheckpointDigest>,
    files: BTreeMap<String, FileRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FileRecord {
    n_bytes: u64,
    byte_hash: String,
}

impl Marker {
    fn digest(&self) -> CheckpointDigest {
        let mut hasher = blake3::Hasher::new();
        update_framed(&mut hasher, b"envace checkpoint 1");
        hasher.update(&(self.files.len() as u64).to_le_bytes());
        for (name, file) in &self.files {
            update_framed(&mut hasher, name.as_bytes());
            update_framed(&mut hasher, file.byte_hash.as_bytes());
        }
        if let Some(base) = &self.base {
            update_framed(&mut hasher, b"base");
            update_framed(&mut hasher, base.0.as_bytes());
        }
        CheckpointDigest(hasher.finalize().to_hex().to_string())
    }

    async fn read(store: &Store, digest: &CheckpointDigest) -> Result<Option<Self>, PipelineError> {
        let path = digest.folder().join(MARKER);
        match store.get_if_present(&path).await? {
            Some(bytes) => json::from_bytes(path.as_ref(), &bytes).map(Some),
            None => Ok(None),
        }
    }
}

/// Copies a model folder in Hugging Face layout into the store, unless it is there already.
///
/// Taken are all files at its top whose names end in `safetensors`, `json`, `jinja`, `txt` or `model`; hidden
/// files and optimizer states are not. The marker is written last, so half a copy is never taken for a whole one.
///
/// # Errors
/// [`PipelineError::ModelFolder`] if the folder, its config, its weights or a shard the index names is missing,
/// or if a file changes while it is read; [`PipelineError::File`] and [`PipelineError::Object`] if reading or
/// writing fails.
pub async fn import_checkpoint(
    store: &Store,
    dir: &std::path::Path,
) -> Result<CheckpointDigest, PipelineError> {
    import_files(store, &model_files(dir)?, None).await
}

/// Copies files, of a model or of an adapter with its base, and then writes their marker.
async fn import_files(
    store: &Store,
    files: &BTreeMap<String, PathBuf>,
    base: Option<CheckpointDigest>,
) -> Result<CheckpointDigest, PipelineError> {
    let mut marker = Marker { base, files: BTreeMap::new() };
    for (name, path) in files {
        marker.files.insert(name.clone(), hash_file(path)?);
    }
    let digest = marker.digest();
    // A copy that was damaged since is written anew: the source is at hand and sound.
    let there = Artifact::Checkpoint { digest: digest.clone() };
    if is_whole(store, &digest).await? && damage(store, &there).await?.is_empty() {
        return Ok(digest);
    }
    for (name, path) in files {
        let copied = upload(store, path, &digest.folder().join(name.as_str())).await?;
        if marker.files.get(name) != Some(&copied) {
            return Err(model_folder(path.clone(), "has a file that changed while it was read".to_owned()));
        }
    }
    let path = digest.folder().join(MARKER);
    let bytes = json::to_bytes(path.as_ref(), &marker)?;
    store.put(&path, bytes).await?;
    store.sync(&path)?;
    Ok(digest)
}

/// Copies a file of optimizer state beside a checkpoint, and returns the digest of its bytes.
///
/// # Errors
/// [`PipelineError::NoCheckpoint`] if the checkpoint is not there; [`PipelineError::File`] and
/// [`PipelineError::Object`] if reading or writing fails.
pub async fn add_optimizer_state(
    store: &Store,
    checkpoint: &CheckpointDigest,
    file: &std::path::Path,
) -> Result<String, PipelineError> {
    if !is_whole(store, checkpoint).await? {
        return Err(PipelineError::NoCheckpoint { digest: checkpoint.0.clone() });
    }
    let record = hash_file(file)?;
    let path = checkpoint.state_path(&record.byte_hash);
    let is_there = file_damage(store, &path, &record.byte_hash).await?.is_none();
    if !is_there && upload(store, file, &path).await? != record {
        return Err(model_folder(file.to_owned(), "has a state that changed while it was read".to_owned()));
    }
    Ok(record.byte_hash)
}

/// A local folder with the checkpoint's files: in place in a local store, else a copy in a cache. The folder of an
/// adapter's base lies beside it, under its digest.
///
/// The cache is [`Store::cache`]. A copy found there is hashed before it is used; files of a local store are only
/// looked at, so that planning is cheap: see [`check_artifact`].
///
/// # Errors
/// [`PipelineError::NoCheckpoint`] if the checkpoint is not there; [`PipelineError::Damaged`] if one of its files is
/// missing or has another size, or a download is not what it should be; [`PipelineError::File`] and [`PipelineError::Object`] if reading or writing fails.
pub async fn checkpoint_dir(store: &Store, digest: &CheckpointDigest) -> Result<PathBuf, PipelineError> {
    if let Some(base) = checkpoint_base(store, digest).await? {
        dir_of_files(store, &base).await?;
    }
    dir_of_files(store, digest).await
}

/// The checkpoint that an adapter changes; `None` for a whole model, or if there is no such checkpoint.
///
/// # Errors
/// [`PipelineError::Object`] and [`PipelineError::Json`] if the checkpoint's marker cannot be read.
pub async fn checkpoint_base(
    store: &Store,
    digest: &CheckpointDigest,
) -> Result<Option<CheckpointDigest>, PipelineError> {
    Ok(Marker::read(store, digest).await?.and_then(|marker| marker.base))
}

async fn dir_of_files(store: &Store, digest: &CheckpointDigest) -> Result<PathBuf, PipelineError> {
    let Some(marker) = Marker::read(store, digest).await? else {
        return Err(PipelineError::NoCheckpoint { digest: digest.0.clone() });
    };
    if let Some((path, what)) = damage_by_size(store, digest, &marker).await? {
        return Err(PipelineError::Damaged { path: path.to_string(), what: what.to_owned() });
    }
    if let Some(dir) = store.local_path(&digest.folder()) {
        return Ok(dir);
    }
    let dir = store.cache().join(&digest.0);
    for (name, record) in &marker.files {
        let file = dir.join(name);
        if !file.is_file() || hash_file(&file)? != *record {
            download(store, &digest.folder().join(name.as_str()), &file, &record.byte_hash).await?;
        }
    }
    Ok(dir)
}

/// A local file with the optimizer's state; as [`checkpoint_dir`].
///
/// # Errors
/// As [`checkpoint_dir`].
pub async fn optimizer_state_path(
    store: &Store,
    checkpoint: &CheckpointDigest,
    state: &str,
) -> Result<PathBuf, PipelineError> {
    let path = checkpoint.state_path(state);
    if !store.exists(&path).await? {
        return Err(PipelineError::NoCheckpoint {
            digest: format!("{checkpoint} with optimizer state {state}"),
        });
    }
    if let Some(file) = store.local_path(&path) {
        return Ok(file);
    }
    let file = store.cache().join(&checkpoint.0).join(path.filename().unwrap_or_default());
    if !file.is_file() || hash_file(&file)?.byte_hash != state {
        download(store, &path, &file, state).await?;
    }
    Ok(file)
}

/// Hashes all of a checkpoint, with an adapter's base, or of an optimizer state. Whoever computes from it does so first: weights that have changed on
/// disk would make outputs that no manifest tells from sound ones.
///
/// # Errors
/// [`PipelineError::Damaged`] if a file is not what it should be; [`PipelineError::Object`] if the store fails.
pub async fn check_artifact(store: &Store, artifact: &Artifact) -> Result<(), PipelineError> {
    let mut found = damage(store, artifact).await?;
    if let (Artifact::Checkpoint { digest }, true) = (artifact, found.is_empty())
        && let Some(digest) = checkpoint_base(store, digest).await?
    {
        found = damage(store, &Artifact::Checkpoint { digest }).await?;
    }
    match found.into_iter().next() {
        None => Ok(()),
        Some((path, what)) => Err(PipelineError::Damaged { path: path.to_string(), what }),
    }
}

/// Whether an artifact is there, by sizes.
pub(crate) async fn is_intact(store: &Store, artifact: &Artifact) -> Result<bool, PipelineError> {
    match artifact {
        Artifact::Checkpoint { digest } => is_whole(store, digest).await,
        Artifact::OptimizerState { checkpoint, digest } => store.exists(&checkpoint.state_path(digest)).await,
    }
}

async fn is_whole(store: &Store, digest: &CheckpointDigest) -> Result<bool, PipelineError> {
    let base = checkpoint_base(store, digest).await?;
    let has_base = match &base {
        None => true,
        Some(base) => has_files(store, base).await?,
    };
    Ok(has_base && has_files(store, digest).await?)
}

async fn has_files(store: &Store, digest: &CheckpointDigest) -> Result<bool, PipelineError> {
    let Some(marker) = Marker::read(store, digest).await? else { return Ok(false) };
    Ok(damage_by_size(store, digest, &marker).await?.is_none())
}

/// The first file that is missing or has another size, with its path and what is wrong.
async fn damage_by_size(
    store: &Store,
    digest: &CheckpointDigest,
    marker: &Marker,
) -> Result<Option<(Path, &'static str)>, PipelineError> {
    for (name, file) in &marker.files {
        let path = digest.folder().join(name.as_str());
        match store.size(&path).await? {
            Some(n_bytes) if n_bytes == file.n_bytes => {}
            Some(_) => return Ok(Some((path, OTHER_BYTES))),
            None => return Ok(Some((path, NO_FILE))),
        }
    }
    Ok(None)
}

/// Hashes all of an artifact but an adapter's base; returns what is wrong, with the path.
pub(crate) async fn damage(store: &Store, artifact: &Artifact) -> Result<Vec<(Path, String)>, PipelineError> {
    let digest = match artifact {
        Artifact::OptimizerState { checkpoint, digest } => {
            let path = checkpoint.state_path(digest);
            return Ok(file_damage(store, &path, digest)
                .await?
                .map(|what| (path, what))
                .into_iter()
                .collect());
        }
        Artifact::Checkpoint { digest } => digest,
    };
    let Some(marker) = Marker::read(store, digest).await? else {
        return Ok(vec![(digest.folder(), "checkpoint is missing or not whole".to_owned())]);
    };
    let mut found = Vec::new();
    if let Some(base) = &marker.base
        && !has_files(store, base).await?
    {
        found.push((digest.folder(), format!("adapter's base is missing or not whole, {base}")));
    }
    if marker.digest() != *digest {
        found.push((
            digest.folder().join(MARKER),
            "checkpoint lists other files than its digest says".to_owned(),
        ));
    }
    for (name, record) in &marker.files {
        let path = digest.folder().join(name.as_str());
        found.extend(file_damage(store, &path, &record.byte_hash).await?.map(|what| (path, what)));
    }
    Ok(found)
}

async fn file_damage(store: &Store, path: &Path, byte_hash: &str) -> Result<Option<String>, PipelineError> {
    if let Some(file) = store.local_path(path).filter(|file| file.is_file()) {
        let is_same = hash_file(&file)?.byte_hash == byte_hash;
        return Ok((!is_same).then(|| OTHER_BYTES.to_owned()));
    }
    let failed = |source| PipelineError::object("read", path, source);
    let mut stream = match store.object_store().get(path).await {
        Ok(found) => found.into_stream(),
        Err(object_store::Error::NotFound { .. }) => {
            return Ok(Some(NO_FILE.to_owned()));
        }
        Err(source) => return Err(failed(source)),
    };
    let mut hasher = blake3::Hasher::new();
    while let Some(chunk) = stream.next().await {
        hasher.update(&chunk.map_err(failed)?);
    }
    let is_same = hasher.finalize().to_hex().as_str() == byte_hash;
    Ok((!is_same).then(|| OTHER_BYTES.to_owned()))
}

/// Deletes checkpoints that have no marker; returns how many files they had.
pub(crate) async fn delete_half(store: &Store) -> Result<usize, PipelineError> {
    let found = store.list(&Path::from("checkpoints")).await?;
    let digest = |path: &Path| path.parts().nth(1).map(|part| CheckpointDigest(part.as_ref().to_owned()));
    let digests: BTreeSet<_> = found.iter().filter_map(|(path, _)| digest(path)).collect();
    let mut n_deleted = 0;
    for digest in digests {
        if Marker::read(store, &digest).await?.is_none() {
            n_deleted += store.delete_all(&digest.folder()).await?;
        }
    }
    Ok(n_deleted)
}
