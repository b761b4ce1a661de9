//! Logits, logprobs, gradients and greedy generations of `transformers`; see `golden/numerics.py` for the files and
//! the versions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::Device;
use envace_model::engine::{Engine, EngineOptions, FinishReason, GenerationRequest, LocalEngine, Sampling};
use envace_model::{KvCache, Model, Piece, TrainSequence, Trainer, TrainerOptions};
use safetensors::SafeTensors;
use serde_json::Value;

const CASES: [&str; 4] = ["qwen3", "qwen2", "llama", "smollm2"];

/// Largest difference of a logit.
const LOGITS: f32 = 1e-5;
/// Largest difference of a logprob, nats.
const LOGPROBS: f32 = 1e-5;
/// Largest difference of an element of a gradient, by the largest element of its tensor.
const GRADIENT: f32 = 2e-5;
/// Prompts of each case.
const N_PROMPTS: usize = 3;
/// What a likeliest token led the second by at least, as a logit: far more than the rounding of a logit.
const LEAST_GAP: f64 = 1e-3;

pub(super) struct Golden {
    pub(super) dir: PathBuf,
    bytes: Vec<u8>,
    settings: Value,
}

impl Golden {
    pub(super) fn open(case: &str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/numerics");
        let bytes = fs_err::read(root.join(format!("{case}.safetensors"))).unwrap();
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        let settings = serde_json::from_str(&metadata.metadata().as_ref().unwrap()["settings"]).unwrap();
        Self { dir: root.join(case), bytes, settings }
    }

    fn words<T>(&self, name: &str, read: impl Fn([u8; 4]) -> T) -> Vec<T> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        file.tensor(name).unwrap().data().as_chunks().0.iter().map(|bytes| read(*bytes)).collect()
    }

    pub(super) fn values(&self, name: &str) -> Vec<f32> {
        self.words(name, f32::from_le_bytes)
    }

    pub(super) fn token_ids(&self, name: &str) -> Vec<u32> {
        self.words(name, u32::from_le_bytes)
    }

    fn trainer(&self, recompute_layers: bool) -> Trainer {
        let options = TrainerOptions { recompute_layers, logprob_chunk_rows: 5, ..Default::default() };
        Trainer::load(&self.dir, None, options).unwrap()
    }

    pub(super) fn sequence(&self) -> TrainSequence {
        let token_ids = self.token_ids("token_ids");
        let trained = (1..token_ids.len() as u32).collect();
        let temperature = self.settings["temperature"].as_f64().unwrap() as f32;
        TrainSequence { token_ids, trained, temperature }
    }
}

/// Largest difference, and largest expected value.
pub(super) fn difference(found: &[f32], expected: &[f32]) -> (f32, f32) {
    assert_eq!(found.len(), expected.len());
    // A difference that is no number is the largest.
    let worst = found.iter().zip(expected).map(|(x, y)| (x - y).abs());
    let worst = worst.fold(0.0_f32, |m, x| if x.is_nan() || x > m { x } else { m });
    (worst, expected.iter().fold(0.0_f32, |m, x| m.max(x.abs())))
}

/// The logits of a sequence, row by row.
pub(super) fn logits(dir: &Path, token_ids: &[u32]) -> Vec<f32> {
    let model = Model::load(dir, &Device::Cpu).unwrap();
    let blocks: Vec<usize> = (0..token_ids.len().div_ceil(KvCache::BLOCK_LEN)).collect();
    let mut kv = KvCache::new(model.config(), blocks.len());
    let piece = Piece { token_ids, position: 0, blocks: &blocks };
    let hidden = model.forward_cached(&[piece], &mut kv).unwrap();
    model.logits(&hidden).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn logits_difference(golden: &Golden) -> f32 {
    let found = logits(&golden.dir, &golden.token_ids("token_ids"));
    let (worst, size) = difference(&found, &golden.values("logits"));
    assert!(size > 1.0);
    worst
}

/// Largest difference of a logprob, and the tensor with the largest relative difference of a gradient.
fn training_differences(golden: &Golden, recompute_layers: bool) -> (f32, f32, String) {
    let mut trainer = golden.trainer(recompute_layers);
    let mut logprobs = f32::NAN;
    trainer
        .accumulate(&[golden.sequence()], &mut |rows| {
            (logprobs, _) = difference(&rows[0].logprobs, &golden.values("logprobs"));
            vec![golden.values("coefficients")]
        })
        .unwrap();
    let (mut gradient, mut tensor) = (0.0, String::new());
    for name in trainer.tensor_names() {
        let found = trainer.gradient(&name).unwrap();
        let (worst, size) = difference(&found, &golden.values(&format!("gradient.{name}")));
        // A bias on the keys moves all scores of a row alike, so its exact gradient is zero.
        let relative = if name.ends_with("k_proj.bias") { worst } else { worst / size };
        if relative.is_nan() || relative > gradient {
            (gradient, tensor) = (relative, name);
        }
    }
    (logprobs, gradient, tensor)
}

#[test]
fn numbers_are_those_of_the_reference() {
    println!(
        "largest differences of logits, of logprobs (nats), of gradients by the largest element of the tensor"
    );
    for case in CASES {
        let golden = Golden::open(case);
        let logits = logits_difference(&golden);
        for recompute_layers in [false, true] {
            let (logprobs, gradient, tensor) = training_differences(&golden, recompute_layers);
            let how = if recompute_layers { "recomputed" } else { "kept" };
            println!("{case:8} {how:10} {logits:.1e} {logprobs:.1e} {gradient:.1e} ({tensor})");
            assert!(logits < LOGITS && logprobs < LOGPROBS && gradient < GRADIENT, "{case}, {tensor}");
        }
    }
}

#[test]
fn one_case_goes_beyond_the_positions_its_rope_scaling_starts_from() {
    let golden = Golden::open("llama");
    let config = fs_err::read_to_string(golden.dir.join("config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    let original = config["rope_scaling"]["original_max_position_embeddings"].as_u64().unwrap() as usize;
    assert!(golden.token_ids("token_ids").len() > 2 * original);
}

#[test]
fn greedy_generations_are_those_of_the_reference() {
    for case in CASES {
        let golden = Golden::open(case);
        let gaps: Vec<f64> = serde_json::from_value(golden.settings["gaps"].clone()).unwrap();
        assert!(gaps.len() == N_PROMPTS && gaps.iter().all(|gap| *gap > LEAST_GAP), "{case}: {gaps:?}");
        let model = Arc::new(Model::load(&golden.dir, &Device::Cpu).unwrap());
        let mut engine = LocalEngine::new(model, EngineOptions::default());
        let expected: Vec<Vec<u32>> =
            (0..N_PROMPTS).map(|i| golden.token_ids(&format!("continuation.{i}"))).collect();
        for (i, expected) in expected.iter().enumerate() {
            let request = GenerationRequest {
                id: i as u64,
                prompt: golden.token_ids(&format!("prompt.{i}")),
                sampling: Sampling { temperature: 0.0, ..Default::default() },
                seed: [0; 32],
                max_new_tokens: expected.len(),
                stop_ids: Arc::from([]),
            };
            engine.submit(request).unwrap();
        }
        let mut found = BTreeMap::new();
        while engine.n_active() + engine.n_waiting() > 0 {
            found.extend(engine.poll().unwrap().into_iter().map(|generated| (generated.id, generated)));
        }
        for (i, expected) in expected.iter().enumerate() {
            let generated = &found[&(i as u64)];
            assert_eq!(expected.len(), 64);
            assert_eq!(&generated.token_ids, expected, "{case}, prompt {i}");
            assert_eq!(generated.finish_reason, FinishReason::Length);
        }
    }
}
