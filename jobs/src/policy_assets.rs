//! The policy that comes with envace, as files inside the program.

use std::path::Path;

use envace_grpo::seeds::Draw;
use envace_model::ModelConfig;
use envace_model::init::{self, InitScale};
use tempfile::TempDir;

use crate::error::JobError;

const WEIGHTS: (&str, &[u8]) = ("model.safetensors", include_bytes!("../assets/policy/model.safetensors"));
const FILES: [(&str, &[u8]); 5] = [
    ("config.json", include_bytes!("../assets/policy/config.json")),
    ("generation_config.json", include_bytes!("../assets/policy/generation_config.json")),
    ("tokenizer.json", include_bytes!("../assets/policy/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../assets/policy/tokenizer_config.json")),
    ("chat_template.jinja", include_bytes!("../assets/policy/chat_template.jinja")),
];

/// Writes the policy into a temporary folder in Hugging Face layout.
///
/// # Errors
/// [`JobError::File`] if the folder cannot be written.
pub fn unpack() -> Result<TempDir, JobError> {
    let dir = unpack_text()?;
    write(dir.path(), WEIGHTS)?;
    Ok(dir)
}

/// The same with random weights: what the bundled policy was before it learned anything.
///
/// # Errors
/// As [`unpack`].
pub fn unpack_untrained(seed: u64) -> Result<TempDir, JobError> {
    let dir = unpack_text()?;
    let config = ModelConfig::load(dir.path())?;
    let seed = Draw::new(seed, "initial_weights").seed();
    init::random(&config, dir.path(), seed, InitScale::default())?;
    Ok(dir)
}

fn unpack_text() -> Result<TempDir, JobError> {
    let dir = tempfile::tempdir()
        .map_err(JobError::file("cannot make a temporary folder", std::env::temp_dir()))?;
    for file in FILES {
        write(dir.path(), file)?;
    }
    Ok(dir)
}

fn write(dir: &Path, (name, bytes): (&str, &[u8])) -> Result<(), JobError> {
    let path = dir.join(name);
    fs_err::write(&path, bytes).map_err(JobError::file("cannot write the bundled policy", &path))
}
