//! Measures training and decoding of a small random model in tokens per second.
//!
//! `cargo run --release -p envace-model --example throughput [HIDDEN]`

use std::time::Instant;

use candle_core::Device;
use envace_model::{CacheRow, KvCache, Model, ModelConfig, TrainSequence, Trainer, TrainerOptions, init};
use serde_json::json;

const VOCAB: usize = 800;
const N_TOKENS: usize = 512;
const N_SEQUENCES: usize = 8;
const BATCH: usize = 32;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let hidden: usize = std::env::args().nth(1).map_or(Ok(192), |text| text.parse())?;
    let config = json!({
        "model_type": "qwen3", "hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": 4,
        "num_attention_heads": hidden / 32, "num_key_value_heads": hidden / 64, "head_dim": 32,
        "vocab_size": VOCAB, "max_position_embeddings": 2048, "tie_word_embeddings": true,
    });
    let config = ModelConfig::from_json(config, "config.json".as_ref())?;
    let dir = tempfile::tempdir()?;
    init::random(&config, dir.path(), [1; 32], init::InitScale::default())?;
    println!("{} parameters, {} threads", config.n_parameters(), rayon::current_num_threads());
    train(dir.path(), false)?;
    train(dir.path(), true)?;
    decode(dir.path())
}

fn tokens(n: usize, seed: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * 7 + i * i * 3 + seed * 31) % VOCAB) as u32).collect()
}

fn train(dir: &std::path::Path, recompute_layers: bool) -> Result<(), Box<dyn std::error::Error>> {
    let options = TrainerOptions { recompute_layers, ..Default::default() };
    let mut trainer = Trainer::load(dir, None, options)?;
    let batch: Vec<TrainSequence> = (0..N_SEQUENCES)
        .map(|i| TrainSequence {
            token_ids: tokens(N_TOKENS, i),
            trained: (1..N_TOKENS as u32).filter(|position| position % 2 == 0).collect(),
            temperature: 1.0,
        })
        .collect();
    let mut best = (f64::MAX, f64::MAX);
    for _ in 0..5 {
        let start = Instant::now();
        trainer.accumulate(&batch, &mut |rows| {
            rows.iter().map(|row| vec![-1e-3; row.logprobs.len()]).collect()
        })?;
        let gradient = start.elapsed().as_secs_f64();
        trainer.apply(1e-4, Some(1.0))?;
        best = (best.0.min(gradient), best.1.min(start.elapsed().as_secs_f64() - gradient));
    }
    let n = (N_TOKENS * N_SEQUENCES) as f64;
    println!(
        "train, recompute {recompute_layers}: {:.0} tokens/s, optimizer step {:.1} ms",
        n / best.0,
        best.1 * 1e3
    );
    let start = Instant::now();
    trainer.logprobs(&batch)?;
    println!("logprobs: {:.0} tokens/s", n / start.elapsed().as_secs_f64());
    Ok(())
}

fn decode(dir: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    let model = Model::load(dir, &Device::Cpu)?;
    let mut kv = KvCache::new(model.config(), BATCH);
    let start = Instant::now();
    for slot in 0..BATCH {
        let rows: Vec<CacheRow> = (0..256).map(|position| CacheRow { slot, position }).collect();
        model.forward_cached(&tokens(256, slot), &rows, &mut kv)?;
    }
    println!("prefill: {:.0} tokens/s", 256.0 * BATCH as f64 / start.elapsed().as_secs_f64());
    for batch in [1, 8, BATCH] {
        let start = Instant::now();
        let n_steps = 100;
        for step in 0..n_steps {
            let rows: Vec<CacheRow> =
                (0..batch).map(|slot| CacheRow { slot, position: kv.len(slot) }).collect();
            let hidden = model.forward_cached(&tokens(batch, step), &rows, &mut kv)?;
            model.logits(&hidden)?;
        }
        println!(
            "decode, batch {batch}: {:.0} tokens/s",
            (batch * n_steps) as f64 / start.elapsed().as_secs_f64()
        );
    }
    Ok(())
}
