use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Read;
use std::path::PathBuf;

use futures::StreamExt;
use object_store::path::Path;
use object_store::{ObjectStoreExt, WriteMultipart};
use serde::{Deserialize, Serialize};

use crate::key::{hash_hex, update_framed};
use crate::{Artifact, PipelineError, Store, json};

/// Bytes read at a time.
const CHUNK_BYTES: usize = 1 << 20;
/// Uploads of one file under way at a time.
const N_CONCURRENT_UPLOADS: usize = 4;
/// Kinds of files that make a checkpoint.
const EXTENSIONS: [&str; 5] = ["safetensors", "json", "jinja", "txt", "model"];
/// Written last: without it there is no checkpoint.
const MARKER: &str = "complete.json";
const STATE_PREFIX: &str = "state-";

/// Hex digest of a checkpoint: of the names and contents of its weight, config and tokenizer files.
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
    let mut marker = Marker { files: BTreeMap::new() };
    let files = model_files(dir)?;
    for (name, path) in &files {
        marker.files.insert(name.clone(), hash_file(path)?);
    }
    let digest = marker.digest();
    // A copy that was damaged since is written anew: the source is at hand and sound.
    let there = Artifact::Checkpoint { digest: digest.clone() };
    if is_whole(store, &digest).await? && damage(store, &there).await?.is_empty() {
        return Ok(digest);
    }
    for (name, path) in &files {
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

/// A local folder with the checkpoint's files: in place in a local store, else a copy in a cache.
///
/// The cache is [`Store::cache`]. A copy found there is hashed before it is used; files of a local store are only
/// looked at, so that planning is cheap: see [`check_artifact`].
///
/// # Errors
/// [`PipelineError::NoCheckpoint`] if the checkpoint is not whole; [`PipelineError::Damaged`] if a download is
/// not what it should be; [`PipelineError::File`] and [`PipelineError::Object`] if reading or writing fails.
pub async fn checkpoint_dir(store: &Store, digest: &CheckpointDigest) -> Result<PathBuf, PipelineError> {
    let missing = || PipelineError::NoCheckpoint { digest: digest.0.clone() };
    if !is_whole(store, digest).await? {
        return Err(missing());
    }
    if let Some(dir) = store.local_path(&digest.folder()) {
        return Ok(dir);
    }
    let marker = Marker::read(store, digest).await?.ok_or_else(missing)?;
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

/// Hashes all of a checkpoint or optimizer state. Whoever computes from it does so first: weights that have changed on
/// disk would make outputs that no manifest tells from sound ones.
///
/// # Errors
/// [`PipelineError::Damaged`] if a file is not what it should be; [`PipelineError::Object`] if the store fails.
pub async fn check_artifact(store: &Store, artifact: &Artifact) -> Result<(), PipelineError> {
    match damage(store, artifact).await?.into_iter().next() {
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
    let Some(marker) = Marker::read(store, digest).await? else { return Ok(false) };
    for (name, file) in &marker.files {
        if store.size(&digest.folder().join(name.as_str())).await? != Some(file.n_bytes) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Hashes all of an artifact; returns what is wrong, with the path.
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
        return Ok((!is_same).then(|| "file of a checkpoint has other bytes".to_owned()));
    }
    let failed = |source| PipelineError::object("read", path, source);
    let mut stream = match store.object_store().get(path).await {
        Ok(found) => found.into_stream(),
        Err(object_store::Error::NotFound { .. }) => {
            return Ok(Some("file of a checkpoint is missing".to_owned()));
        }
        Err(source) => return Err(failed(source)),
    };
    let mut hasher = blake3::Hasher::new();
    while let Some(chunk) = stream.next().await {
        hasher.update(&chunk.map_err(failed)?);
    }
    let is_same = hasher.finalize().to_hex().as_str() == byte_hash;
    Ok((!is_same).then(|| "file of a checkpoint has other bytes".to_owned()))
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

fn model_folder(path: PathBuf, reason: String) -> PipelineError {
    PipelineError::ModelFolder { path, reason }
}

/// Files of a model folder by name.
fn model_files(dir: &std::path::Path) -> Result<BTreeMap<String, PathBuf>, PipelineError> {
    let failed = |source| PipelineError::File { path: dir.to_owned(), source };
    if !dir.is_dir() {
        return Err(model_folder(dir.to_owned(), "does not exist".to_owned()));
    }
    let mut files = BTreeMap::new();
    for entry in fs_err::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let is_kind =
            EXTENSIONS.iter().any(|kind| name.rsplit_once('.').is_some_and(|(_, end)| end == *kind));
        let is_ours = name == MARKER || name.starts_with(STATE_PREFIX) || name.starts_with('.');
        // Links are followed: caches of downloaded models are made of them.
        if is_kind && !is_ours && path.is_file() {
            files.insert(name.to_owned(), path);
        }
    }
    let missing = |name: &str| Err(model_folder(dir.to_owned(), format!("has no {name}")));
    if !files.contains_key("config.json") {
        return missing("config.json");
    }
    if !files.keys().any(|name| name.ends_with(".safetensors")) {
        return missing("safetensors file");
    }
    if let Some(index) = files.get("model.safetensors.index.json") {
        let bytes =
            fs_err::read(index).map_err(|source| PipelineError::File { path: index.clone(), source })?;
        let index: serde_json::Value = json::from_bytes(&index.display().to_string(), &bytes)?;
        let shards = index.get("weight_map").and_then(serde_json::Value::as_object);
        let shards: BTreeSet<_> = shards
            .into_iter()
            .flat_map(serde_json::Map::values)
            .filter_map(serde_json::Value::as_str)
            .collect();
        if let Some(shard) = shards.into_iter().find(|shard| !files.contains_key(*shard)) {
            return missing(shard);
        }
    }
    Ok(files)
}

fn hash_file(path: &std::path::Path) -> Result<FileRecord, PipelineError> {
    let mut hasher = blake3::Hasher::new();
    let mut n_bytes = 0;
    read_chunks(path, |chunk| {
        hasher.update(chunk);
        n_bytes += chunk.len() as u64;
    })?;
    Ok(FileRecord { n_bytes, byte_hash: hasher.finalize().to_hex().to_string() })
}

fn read_chunks(path: &std::path::Path, mut take: impl FnMut(&[u8])) -> Result<(), PipelineError> {
    let failed = |source| PipelineError::File { path: path.to_owned(), source };
    let mut file = fs_err::File::open(path).map_err(failed)?;
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let n_read = file.read(&mut buffer).map_err(failed)?;
        match buffer.get(..n_read) {
            None | Some([]) => return Ok(()),
            Some(chunk) => take(chunk),
        }
    }
}

/// Copies a file into the store, chunk by chunk and atomically; returns what was copied.
async fn upload(store: &Store, from: &std::path::Path, to: &Path) -> Result<FileRecord, PipelineError> {
    let failed = |source| PipelineError::object("write", to, source);
    let unread = |source| PipelineError::File { path: from.to_owned(), source };
    let mut file = fs_err::File::open(from).map_err(unread)?;
    let upload = store.object_store().put_multipart(to).await.map_err(failed)?;
    let mut upload = WriteMultipart::new(upload);
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut n_bytes = 0;
    loop {
        let n_read = match file.read(&mut buffer) {
            Ok(n_read) => n_read,
            Err(source) => {
                abort(upload, to).await;
                return Err(unread(source));
            }
        };
        let Some(chunk) = buffer.get(..n_read).filter(|chunk| !chunk.is_empty()) else { break };
        hasher.update(chunk);
        n_bytes += chunk.len() as u64;
        upload.write(chunk);
        if let Err(source) = upload.wait_for_capacity(N_CONCURRENT_UPLOADS).await {
            abort(upload, to).await;
            return Err(failed(source));
        }
    }
    // On failure `finish` aborts by itself.
    upload.finish().await.map_err(failed)?;
    store.sync(to)?;
    Ok(FileRecord { n_bytes, byte_hash: hasher.finalize().to_hex().to_string() })
}

async fn abort(upload: WriteMultipart, to: &Path) {
    if let Err(error) = upload.abort().await {
        tracing::warn!(%to, %error, "upload could not be aborted");
    }
}

/// Copies an object into a file: to a temporary name first, then renamed.
async fn download(
    store: &Store,
    from: &Path,
    to: &std::path::Path,
    byte_hash: &str,
) -> Result<(), PipelineError> {
    let failed = |source| PipelineError::File { path: to.to_owned(), source };
    let bytes = store.get(from).await?;
    if hash_hex(&bytes) != byte_hash {
        let what = "file of a checkpoint has other bytes".to_owned();
        return Err(PipelineError::Damaged { path: from.to_string(), what });
    }
    let folder = to.parent().unwrap_or_else(|| std::path::Path::new("."));
    fs_err::create_dir_all(folder).map_err(failed)?;
    let temporary = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    fs_err::write(temporary.path(), &bytes).map_err(failed)?;
    temporary.persist(to).map_err(|error| failed(error.error))?;
    Ok(())
}
