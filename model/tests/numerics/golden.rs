//! Logits, logprobs and gradients of `transformers`; see `golden/numerics.py` for the files and the versions.

use std::path::{Path, PathBuf};

use candle_core::Device;
use envace_model::{CacheRow, KvCache, Model, TrainSequence, Trainer, TrainerOptions};
use safetensors::SafeTensors;

const CASES: [&str; 3] = ["qwen3", "qwen2", "llama"];

struct Golden {
    dir: PathBuf,
    bytes: Vec<u8>,
}

impl Golden {
    fn open(case: &str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/numerics");
        let bytes = fs_err::read(root.join(format!("{case}.safetensors"))).unwrap();
        Self { dir: root.join(case), bytes }
    }

    fn values(&self, name: &str) -> Vec<f32> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let bytes = file.tensor(name).unwrap().data();
        bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    fn token_ids(&self) -> Vec<u32> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let bytes = file.tensor("token_ids").unwrap().data();
        bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
    }

    fn trainer(&self, recompute_layers: bool) -> Trainer {
        let options = TrainerOptions { recompute_layers, logprob_chunk_rows: 5, ..Default::default() };
        Trainer::load(&self.dir, None, options).unwrap()
    }

    fn sequence(&self) -> TrainSequence {
        TrainSequence { token_ids: self.token_ids(), trained: (1..24).collect(), temperature: 0.7 }
    }
}

/// Largest difference, and largest expected value.
fn difference(found: &[f32], expected: &[f32]) -> (f32, f32) {
    assert_eq!(found.len(), expected.len());
    let worst = found.iter().zip(expected).fold(0.0_f32, |m, (x, y)| m.max((x - y).abs()));
    (worst, expected.iter().fold(0.0_f32, |m, x| m.max(x.abs())))
}

#[test]
fn logits_are_those_of_the_reference() {
    for case in CASES {
        let golden = Golden::open(case);
        let model = Model::load(&golden.dir, &Device::Cpu).unwrap();
        let token_ids = golden.token_ids();
        let rows: Vec<CacheRow> =
            (0..token_ids.len()).map(|position| CacheRow { slot: 0, position }).collect();
        let mut kv = KvCache::new(model.config(), 1);
        let hidden = model.forward_cached(&token_ids, &rows, &mut kv).unwrap();
        let logits = model.logits(&hidden).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let (worst, size) = difference(&logits, &golden.values("logits"));
        assert!(size > 1.0 && worst < 1e-5, "{case}: {worst} of {size}");
    }
}

#[test]
fn gradients_are_those_of_the_reference() {
    for case in CASES {
        let golden = Golden::open(case);
        for recompute_layers in [false, true] {
            let mut trainer = golden.trainer(recompute_layers);
            let coefficients = golden.values("coefficients");
            let expected = golden.values("logprobs");
            trainer
                .accumulate(&[golden.sequence()], &mut |rows| {
                    let (worst, _) = difference(&rows[0].logprobs, &expected);
                    assert!(worst < 1e-5, "{case}: logprobs differ by {worst}");
                    vec![coefficients.clone()]
                })
                .unwrap();
            for name in trainer.tensor_names() {
                let gradient = trainer.gradient(&name).unwrap();
                let (worst, size) = difference(&gradient, &golden.values(&format!("gradient.{name}")));
                // A bias on the keys moves all scores of a row alike, so its exact gradient is zero.
                let is_zero = name.ends_with("k_proj.bias");
                assert!(worst < if is_zero { 1e-5 } else { size * 2e-5 }, "{case} {name}: {worst} of {size}");
            }
        }
    }
}
