//! The files of a model folder besides the weights.

use std::path::Path;

use crate::config::CONFIG_FILE;
use crate::error::ModelError;

/// The weights of a folder that this crate writes.
pub(crate) const WEIGHTS_FILE: &str = "model.safetensors";

/// What a checkpoint takes over from the folder it was trained from.
const COMPANIONS: [&str; 10] = [
    CONFIG_FILE,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
];

/// Copies configuration, tokenizer and templates, byte for byte, as far as they exist.
pub(crate) fn copy_companions(from: &Path, to: &Path) -> Result<(), ModelError> {
    for name in COMPANIONS {
        let source_path = from.join(name);
        let target_path = to.join(name);
        if !source_path.exists() || source_path == target_path {
            continue;
        }
        let bytes = fs_err::read(&source_path)
            .map_err(|source| ModelError::Read { path: source_path.clone(), source })?;
        write_synced(&target_path, &bytes)?;
    }
    Ok(())
}

/// Writes a file and waits until it is on the disk.
pub(crate) fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), ModelError> {
    use std::io::Write;
    let write = || {
        let mut file = fs_err::File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|source| ModelError::Write { path: path.into(), source })
}

/// Waits until a folder's entries are on the disk.
pub(crate) fn sync_folder(dir: &Path) -> Result<(), ModelError> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    fs_err::File::open(dir)
        .and_then(|folder| folder.sync_all())
        .map_err(|source| ModelError::Write { path: dir.into(), source })
}
