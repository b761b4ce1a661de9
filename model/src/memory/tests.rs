//! Every formula, worked by hand for a small model.

use serde_json::json;

use super::*;
use crate::init::{self, InitScale};

fn size(changes: &[(&str, serde_json::Value)]) -> ModelSize {
    let mut config = json!({
        "model_type": "qwen3", "vocab_size": 100, "hidden_size": 8, "intermediate_size": 12, "head_dim": 16,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "torch_dtype": "float32",
        "tie_word_embeddings": true,
    });
    for (key, value) in changes {
        config[*key] = value.clone();
    }
    let dir = tempfile::tempdir().unwrap();
    let config = ModelConfig::from_json(config, Path::new("config.json")).unwrap();
    init::random(&config, dir.path(), [9; 32], InitScale::default()).unwrap();
    ModelSize::read(dir.path()).unwrap()
}

// By hand: H 8, I 12, Q 2 · 16 = 32, W (2 + 2) · 16 = 64, V 100. A layer has 8 · 64 + 32 · 8 + 8 · 24 + 12 · 8 = 1056
// weights in matrices and 8 + 8 + 16 + 16 = 48 in norms: 1104. All: 800 + 2 · 1104 + 8 = 3016.
const P: u64 = 3_016;

const WORK: TrainingWork = TrainingWork {
    n_tokens: 10,
    n_trained: 9,
    recompute_layers: false,
    has_scratch: false,
    logprob_chunk_rows: 256,
    adapter_rank: None,
};

#[test]
fn training_by_hand() {
    // Kept: 2 · 8 + 2 · 64 + 32 + 2 · 12 = 200 elements of 10 rows in each of 2 layers. The layer under way: 4 · 12 +
    // 3 · 8 + 64 + 64 = 200 of 10 rows. Logits: 9 · 100, and 9 · 32 around them.
    let need = size(&[]).training(&WORK);
    let expected = [
        ("weights", 4 * P),
        ("gradients", 4 * P),
        ("optimizer state", 8 * P),
        ("kept activations", 4 * 2 * 2_000),
        ("activations of a layer", 4 * 2_000),
        ("logits", 4 * (900 + 288)),
    ];
    assert_eq!(need.parts, expected);
    // 16 · 3016 + 16,000 + 8,000 + 4,752.
    assert_eq!(need.total(), 77_008);
}

#[test]
fn recomputation_and_a_scratch_file_by_hand() {
    let work = TrainingWork { recompute_layers: true, ..WORK };
    // Kept: 8 elements of 10 rows of 2 layers. The layer under way: 200 as above and 200 that are no longer kept.
    let need = size(&[]).training(&work);
    assert_eq!(need.parts[3..5], [("kept activations", 640), ("activations of a layer", 4 * 4_000)]);
    // Of the moments a layer is the worst: 640 + 4 · 1104 + 16,000, against 640 + 3,200 + 4,752 + 320.
    let need = size(&[]).training(&TrainingWork { has_scratch: true, ..work });
    let expected = [
        ("weights", 4 * P),
        ("kept activations", 640),
        ("gradients", 4 * 1_104),
        ("activations of a layer", 16_000),
    ];
    assert_eq!(need.parts, expected);
    // With one row it is the logits: 64 + 3,200 + 4 · (100 + 32) + 32, against 64 + 4,416 + 1,600. No: the layer.
    let one = TrainingWork { n_tokens: 1, n_trained: 1, has_scratch: true, ..work };
    assert_eq!(size(&[]).training(&one).total(), 4 * P + 64 + 4_416 + 1_600);
    // With a vocabulary of 1000 it is: 64 + 32,000 + 4 · (1,000 + 32) + 32; 7,200 weights more.
    let wide = size(&[("vocab_size", json!(1_000))]);
    assert_eq!(wide.training(&one).total(), 4 * (P + 7_200) + 64 + 32_000 + 4_128 + 32);
}

#[test]
fn an_adapter_by_hand() {
    // In and out of a layer's seven: 8 + 32, twice 8 + 16, 32 + 8, three times 8 + 12, in all 188; rank 4, 2 layers.
    let need = size(&[]).training(&TrainingWork { adapter_rank: Some(4), ..WORK });
    assert_eq!(need.parts[..2], [("weights", 4 * P), ("adapter", 16 * 4 * 2 * 188)]);
    assert_eq!(need.total(), 77_008 - 12 * P + 24_064);
}

#[test]
fn sixteen_bit_weights_by_hand() {
    let short = size(&[("torch_dtype", json!("bfloat16"))]);
    assert_eq!(short.training(&WORK).parts[1], ("master values", 4 * P));
    // Gradient, two moments and master values; those of `f32` are the weights.
    assert_eq!([short.scratch_bytes(), size(&[]).scratch_bytes()], [16 * P, 12 * P]);
    // Matrices 800 + 2 · 1056 = 2912 in 2 bytes, norms 104 in 4. 3 + 4 rows of 4 · 8 + 2 · 64 + 32 + 3 · 12 = 228
    // activations. Keys and values of 50 tokens are those of 64, 2 blocks of 32: in 4 bytes 2 layers of one head of
    // 16 elements of a key, and as many of a value, rounded up to whole vectors.
    let n_value = 16_usize.next_multiple_of(envace_kernels::panel_width()) as u64;
    let kv_bytes = 4 * 64 * 2 * (16 + n_value);
    assert_eq!(short.kv_bytes(50), kv_bytes);
    let work = SamplingWork { max_batch: 3, kv_bytes: short.kv_bytes(50), prefill_tokens: 4 };
    let expected = [
        ("weights", 2 * 2_912 + 4 * 104),
        ("keys and values", kv_bytes),
        ("activations", 4 * 7 * 228),
        ("logits", 2 * 4 * 3 * 100),
    ];
    assert_eq!(short.sampling(&work).parts, expected);
    assert_eq!(size(&[]).sampling(&work).parts[0], ("weights", 4 * P));
}

#[test]
fn the_reference_by_hand() {
    // 10 rows of 200 + 16 + 12 + 32; logits 9 · 100 and 9 · 16 around them.
    let need = size(&[]).reference(&WORK);
    assert_eq!(need.total(), 4 * P + 4 * 10 * 260 + 4 * (900 + 144));
}
