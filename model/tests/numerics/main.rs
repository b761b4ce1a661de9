//! The numbers of the model: against `transformers`, against themselves in other batches, in training, with adapters, on devices, on bad files.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests are tests")]

mod bad_files;
mod devices;
mod golden;
mod invariance;
mod lora;
mod training;

use std::path::Path;

use candle_core::Device;
use envace_model::{Model, ModelConfig, TrainSequence, init};
use serde_json::{Value, json};

/// The smallest model that has what the invariance depends on: grouped heads, widths that fill no panel.
fn config(changes: Value) -> ModelConfig {
    let mut value = json!({
        "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 100, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "vocab_size": 123,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "dtype": "bfloat16",
    });
    for (key, change) in changes.as_object().unwrap() {
        value[key] = change.clone();
    }
    ModelConfig::from_json(value, Path::new("config.json")).unwrap()
}

/// Writes a random model and loads it.
fn random_model(dir: &Path, changes: Value) -> Model {
    init::random(&config(changes), dir, [9; 32], init::InitScale::default()).unwrap();
    Model::load(dir, &Device::Cpu).unwrap()
}

/// Token ids below `vocab_size` that do not repeat soon.
fn tokens(n: usize, seed: u32, vocab_size: usize) -> Vec<u32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % vocab_size as u32
        })
        .collect()
}

/// A sequence in which two of three tokens are trained.
fn sequence(n: usize, seed: u32, vocab_size: usize) -> TrainSequence {
    let trained = (1..n as u32).filter(|position| position % 3 != 1).collect();
    TrainSequence { token_ids: tokens(n, seed, vocab_size), trained, temperature: 0.8 }
}

/// Runs `f` on a pool of its own.
fn with_threads<T: Send>(n_threads: usize, f: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap().install(f)
}
