//! Writes the logits of a model folder for one text, and how the model goes on, to be compared with another program's.
//!
//! ```text
//! cargo run --release -p envace-model --example logits -- MODEL OUT.json [TEXT]
//! ```
//!
//! The JSON has the keys `text`, `token_ids`, and `logits`: one list for each token, the logits of the token after
//! it, in nats; and `continuation`: the most probable next token, 64 times. Each float has the digits that read back as the same 32 bits.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use candle_core::Device;
use envace_model::chat::Tokenizer;
use envace_model::engine::{Engine, EngineOptions, GenerationRequest, LocalEngine, Sampling};
use envace_model::{KvCache, Model, Piece};
use serde_json::{Value, json};

const TEXT: &str = "<|im_start|>user\nIs order 4711 still open? Größe: XL 🙂<|im_end|>\n<|im_start|>assistant\n\
                    <tool_call>\n{\"name\": \"find_order\", \"arguments\": {\"id\": 4711, \"tags\": []}}\n</tool_call>";

const N_CONTINUATION: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (model, out, text) = match arguments.as_slice() {
        [model, out] => (model, out, TEXT),
        [model, out, text] => (model, out, text.as_str()),
        _ => return Err("usage: logits MODEL OUT.json [TEXT]".into()),
    };
    let folder = Path::new(model);
    let model = Arc::new(Model::load(folder, &Device::Cpu)?);
    let token_ids = Tokenizer::load(folder)?.encode(text)?;
    let blocks: Vec<usize> = (0..token_ids.len().div_ceil(KvCache::BLOCK_LEN)).collect();
    let piece = Piece { token_ids: &token_ids, position: 0, blocks: &blocks };
    let hidden = model.forward_cached(&[piece], &mut KvCache::new(model.config(), blocks.len()))?;
    let logits: Vec<Vec<f32>> = model.logits(&hidden)?.to_vec2()?;

    let mut engine = LocalEngine::new(model, EngineOptions::default());
    engine.submit(GenerationRequest {
        id: 0,
        prompt: token_ids.clone(),
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        seed: [0; 32],
        max_new_tokens: N_CONTINUATION,
        stop_ids: Arc::from([]),
    })?;
    let mut continuation = Vec::new();
    while engine.n_active() + engine.n_waiting() > 0 {
        continuation.extend(engine.poll()?.into_iter().flat_map(|generated| generated.token_ids));
    }

    let written = BTreeMap::from([
        ("text", Value::from(text)),
        ("token_ids", json!(token_ids)),
        ("continuation", json!(continuation)),
        // Through `f32` text, not `f64`: `0.1` stays `0.1`.
        ("logits", serde_json::from_str(&serde_json::to_string(&logits)?)?),
    ]);
    fs_err::write(out, serde_json::to_string(&written)?)?;
    Ok(())
}
