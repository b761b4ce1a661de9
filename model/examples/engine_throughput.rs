//! Measures the engine on a small random model: tokens per second of decoding and of prompts, by batch.
//!
//! `cargo run --release -p envace-model --example engine_throughput [BATCH…]`

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::Instant;

use envace_model::Model;
use envace_model::engine::{Engine, EngineOptions, GenerationRequest, LocalEngine, Sampling};
use support::{Sizes, write_model};

const N_PROMPT: usize = 300;
const N_NEW: usize = 100;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sizes = Sizes {
        vocab: 800,
        hidden: 192,
        intermediate: 576,
        layers: 4,
        heads: 6,
        kv_heads: 2,
        head_dim: 32,
        context: 2048,
    };
    let dir = tempfile::tempdir()?;
    write_model(dir.path(), sizes);
    let model = Arc::new(Model::load(dir.path(), &candle_core::Device::Cpu)?);
    println!(
        "{} parameters, {N_PROMPT} prompt tokens of which 200 are shared",
        model.config().n_parameters()
    );
    let batches: Vec<usize> =
        std::env::args().skip(1).map(|batch| batch.parse()).collect::<Result<_, _>>()?;
    for batch in if batches.is_empty() { vec![1, 8, 32, 64] } else { batches } {
        let options = EngineOptions { max_batch: batch, ..EngineOptions::default() };
        let mut engine = LocalEngine::new(Arc::clone(&model), options);
        for id in 0..batch as u64 * 2 {
            let prompt =
                (0..N_PROMPT as u64).map(|i| ((i * 31 + if i < 200 { 0 } else { id * 7 + i }) % 800) as u32);
            engine.submit(GenerationRequest {
                id,
                prompt: prompt.collect(),
                sampling: Sampling::default(),
                seed: [id as u8; 32],
                max_new_tokens: N_NEW,
                stop_ids: Arc::from([]),
            })?;
        }
        let (mut n_new, mut n_prefilled) = (0, 0);
        let (mut decode_secs, mut mixed_secs, mut n_decoded) = (0.0, 0.0, 0);
        while engine.n_active() + engine.n_waiting() > 0 {
            let start = Instant::now();
            let n_waiting = engine.n_waiting();
            let done = engine.poll()?;
            // Rounds in which nothing can begin and nothing ends are pure decoding, but for the first few.
            if done.is_empty() && engine.n_waiting() == n_waiting && engine.n_active() == batch {
                decode_secs += start.elapsed().as_secs_f64();
                n_decoded += batch;
            } else {
                mixed_secs += start.elapsed().as_secs_f64();
            }
            for generated in done {
                n_new += generated.token_ids.len();
                n_prefilled += generated.n_prefilled;
            }
        }
        println!(
            "batch {batch}: {:.0} tokens/s in decoding rounds, {:.0} generated tokens/s over all, {n_prefilled} of {} prompt tokens computed",
            n_decoded as f64 / decode_secs,
            n_new as f64 / (decode_secs + mixed_secs),
            batch * 2 * N_PROMPT,
        );
    }
    Ok(())
}
