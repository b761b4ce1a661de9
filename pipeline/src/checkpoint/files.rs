//! Files of checkpoints, on this machine and in the store.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::PathBuf;

use object_store::path::Path;
use object_store::{ObjectStoreExt, WriteMultipart};

use super::{FileRecord, MARKER, OTHER_BYTES, STATE_PREFIX};
use crate::key::hash_hex;
use crate::{PipelineError, Store, json};

/// Bytes read at a time.
const CHUNK_BYTES: usize = 1 << 20;
/// Uploads of one file under way at a time.
const N_CONCURRENT_UPLOADS: usize = 4;
/// Kinds of files that make a checkpoint.
const EXTENSIONS: [&str; 5] = ["safetensors", "json", "jinja", "txt", "model"];

pub(super) fn model_folder(path: PathBuf, reason: String) -> PipelineError {
    PipelineError::ModelFolder { path, reason }
}

/// Files of a model folder by name.
pub(super) fn model_files(dir: &std::path::Path) -> Result<BTreeMap<String, PathBuf>, PipelineError> {
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

pub(super) fn hash_file(path: &std::path::Path) -> Result<FileRecord, PipelineError> {
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
pub(super) async fn upload(
    store: &Store,
    from: &std::path::Path,
    to: &Path,
) -> Result<FileRecord, PipelineError> {
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
pub(super) async fn download(
    store: &Store,
    from: &Path,
    to: &std::path::Path,
    byte_hash: &str,
) -> Result<(), PipelineError> {
    let failed = |source| PipelineError::File { path: to.to_owned(), source };
    let bytes = store.get(from).await?;
    if hash_hex(&bytes) != byte_hash {
        let what = OTHER_BYTES.to_owned();
        return Err(PipelineError::Damaged { path: from.to_string(), what });
    }
    let folder = to.parent().unwrap_or_else(|| std::path::Path::new("."));
    fs_err::create_dir_all(folder).map_err(failed)?;
    let temporary = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    fs_err::write(temporary.path(), &bytes).map_err(failed)?;
    temporary.persist(to).map_err(|error| failed(error.error))?;
    Ok(())
}
