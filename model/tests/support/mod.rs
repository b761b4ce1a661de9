//! A small model with random weights, in Hugging Face layout.

use std::collections::BTreeMap;
use std::path::Path;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;

/// Sizes of a model of the family `qwen3` with tied embeddings.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub vocab: usize,
    pub hidden: usize,
    pub intermediate: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub context: usize,
}

/// Writes `config.json` and `model.safetensors`; weights are uniform with deviation 1/sqrt(inputs).
pub fn write_model(dir: &Path, sizes: Sizes) {
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": sizes.vocab,
        "hidden_size": sizes.hidden, "intermediate_size": sizes.intermediate, "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads, "num_key_value_heads": sizes.kv_heads, "head_dim": sizes.head_dim,
        "max_position_embeddings": sizes.context, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "attention_bias": false, "hidden_act": "silu", "torch_dtype": "float32",
    });
    fs_err::write(dir.join("config.json"), config.to_string()).unwrap();
    let mut shapes: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    shapes.insert("model.embed_tokens.weight".into(), vec![sizes.vocab, sizes.hidden]);
    shapes.insert("model.norm.weight".into(), vec![sizes.hidden]);
    let (queries, keys) = (sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim);
    for layer in 0..sizes.layers {
        let mut insert = |name: &str, shape: Vec<usize>| {
            shapes.insert(format!("model.layers.{layer}.{name}.weight"), shape);
        };
        insert("self_attn.q_proj", vec![queries, sizes.hidden]);
        insert("self_attn.k_proj", vec![keys, sizes.hidden]);
        insert("self_attn.v_proj", vec![keys, sizes.hidden]);
        insert("self_attn.o_proj", vec![sizes.hidden, queries]);
        insert("self_attn.q_norm", vec![sizes.head_dim]);
        insert("self_attn.k_norm", vec![sizes.head_dim]);
        insert("mlp.gate_proj", vec![sizes.intermediate, sizes.hidden]);
        insert("mlp.up_proj", vec![sizes.intermediate, sizes.hidden]);
        insert("mlp.down_proj", vec![sizes.hidden, sizes.intermediate]);
        insert("input_layernorm", vec![sizes.hidden]);
        insert("post_attention_layernorm", vec![sizes.hidden]);
    }
    let mut random = ChaCha8Rng::from_seed([3; 32]);
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = shapes
        .into_iter()
        .map(|(name, shape)| {
            let deviation = (*shape.last().unwrap() as f32).sqrt().recip();
            let mut draw = || {
                let uniform = (random.next_u32() >> 8) as f32 / (1 << 24) as f32;
                if shape.len() == 1 { 0.5 + uniform } else { (uniform - 0.5) * 12f32.sqrt() * deviation }
            };
            let n: usize = shape.iter().product();
            let bytes = (0..n).flat_map(|_| draw().to_le_bytes()).collect();
            (name, shape, bytes)
        })
        .collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name.clone(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    let bytes = safetensors::serialize(views, None).unwrap();
    fs_err::write(dir.join("model.safetensors"), bytes).unwrap();
}
