//! The form that a GPU computes, on the CPU and, where there is one, on a GPU: it gives what the kernels give.

use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device};
use envace_model::engine::{Engine, EngineOptions, GenerationRequest, LocalEngine, Sampling};
use envace_model::{DeviceName, KvCache, Model, ModelFolder, Piece};
use serde_json::{Value, json};

use super::{config, random_model, tokens};

/// The CPU, and the first GPU if there is one.
pub(super) fn devices() -> Vec<Device> {
    let gpu = DeviceName::Cuda(0).open();
    if let Err(error) = &gpu {
        println!("not tested on cuda:0: {error}");
    }
    [Device::Cpu].into_iter().chain(gpu).collect()
}

fn on(device: &Device, dir: &Path) -> Model {
    Model::load_composed(&ModelFolder::open(dir).unwrap(), device).unwrap()
}

fn logits(model: &Model, kv: &mut KvCache, pieces: &[Piece<'_>]) -> Vec<Vec<f32>> {
    let hidden = model.forward_cached(pieces, kv).unwrap();
    model.logits(&hidden).unwrap().to_dtype(DType::F32).unwrap().to_vec2().unwrap()
}

/// The largest difference, and the largest value.
fn compare(found: &[Vec<f32>], expected: &[Vec<f32>]) -> (f32, f32) {
    let shape = |rows: &[Vec<f32>]| rows.iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(shape(found), shape(expected));
    let pairs = found.iter().flatten().zip(expected.iter().flatten());
    pairs.fold((0.0, 0.0), |(worst, size), (found, expected)| {
        assert!(found.is_finite());
        (worst.max((found - expected).abs()), size.max(expected.abs()))
    })
}

/// Logits of calls of every kind: pieces of one token and of many, of ragged sequences, over shared, copied and newly
/// added blocks, and over more rows than are attended for at a time.
fn script(model: &Model) -> Vec<Vec<f32>> {
    let vocab_size = model.config().vocab_size;
    let [long, a, b] = [(300, 5), (60, 3), (40, 4)].map(|(n, seed)| tokens(n, seed, vocab_size));
    let mut kv = model.cache(8);
    let piece = |token_ids, position, blocks| Piece { token_ids, position, blocks };
    // Block 5 holds something else first, so that stale keys lie behind what is copied.
    let mut out = logits(model, &mut kv, &[piece(&b[..30], 0, &[5]), piece(&a[..45], 0, &[4, 1])]);
    kv.copy(1, 5).unwrap();
    let pieces = [piece(&a[37..59], 37, &[4, 5]), piece(&b[..4], 0, &[7]), piece(&a[45..46], 45, &[4, 1])];
    out.extend(logits(model, &mut kv, &pieces));
    let pieces = [piece(&b[4..5], 4, &[7, 0]), piece(&a[59..], 59, &[4, 5]), piece(&a[46..47], 46, &[4, 1])];
    out.extend(logits(model, &mut kv, &pieces));
    kv.grow(18);
    let blocks: Vec<usize> = (8..18).rev().collect();
    for (from, to) in [(0, 140), (140, 141), (141, 300)] {
        let single = piece(&b[from / 20 + 5..][..1], from / 20 + 5, &[7, 0]);
        out.extend(logits(model, &mut kv, &[piece(&long[from..to], from, &blocks), single]));
    }
    out
}

fn shapes() -> [Value; 3] {
    [
        json!({}),
        json!({"model_type": "llama", "attention_bias": true, "tie_word_embeddings": false}),
        json!({"model_type": "qwen2", "hidden_size": 48, "num_key_value_heads": 4, "head_dim": 12}),
    ]
}

#[test]
fn a_device_gives_the_logits_of_the_kernels() {
    for mut shape in shapes() {
        let dir = tempfile::tempdir().unwrap();
        shape["dtype"] = json!("float32");
        let expected = script(&random_model(dir.path(), shape.clone()));
        for device in devices() {
            let (worst, size) = compare(&script(&on(&device, dir.path())), &expected);
            assert!(worst <= 1e-4 * size.max(1.0), "{shape} on {device:?}: {worst} of {size}");
        }
    }
}

#[test]
fn products_in_bf16_stay_near() {
    for shape in shapes() {
        let dir = tempfile::tempdir().unwrap();
        let expected = script(&random_model(dir.path(), shape.clone()));
        for device in devices() {
            let (worst, size) = compare(&script(&on(&device, dir.path())), &expected);
            // Eight bits of precision, over two layers.
            assert!(worst <= 0.03 * size, "{shape} on {device:?}: {worst} of {size}");
            assert!(worst > 1e-4 * size, "{shape} on {device:?}: no product was in bf16");
        }
    }
}

#[test]
fn on_a_device_prefill_is_near_decoding() {
    let dir = tempfile::tempdir().unwrap();
    let config = random_model(dir.path(), json!({"dtype": "float32"})).config().clone();
    let token_ids = tokens(90, 1, config.vocab_size);
    for device in devices() {
        let model = on(&device, dir.path());
        let in_chunks = |lengths: &[usize]| {
            let (mut kv, mut out, mut position) = (model.cache(4), Vec::new(), 0);
            for n in lengths {
                let token_ids = &token_ids[position..position + n];
                out.extend(logits(&model, &mut kv, &[Piece { token_ids, position, blocks: &[2, 0, 3, 1] }]));
                position += n;
            }
            out
        };
        let whole = in_chunks(&[90]);
        for lengths in [&[1; 90][..], &[1, 2, 64, 7, 16]] {
            let (worst, size) = compare(&in_chunks(lengths), &whole);
            assert!(worst <= 1e-4 * size.max(1.0), "{lengths:?} on {device:?}: {worst} of {size}");
        }
    }
}

#[test]
fn an_engine_on_a_device_takes_the_same_likeliest_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let host = Arc::new(random_model(dir.path(), json!({"dtype": "float32"})));
    let requests = (0..9_u64).map(|id| {
        // Three groups that share 40 tokens, and within them more: blocks are shared, and copied where prompts part.
        let mut prompt = tokens(40, 7, 123);
        prompt.extend(tokens(13 * (id as usize / 3), 8, 123));
        prompt.push(id as u32);
        GenerationRequest {
            id,
            prompt,
            sampling: Sampling { temperature: 0.0, ..Sampling::default() },
            seed: [0; 32],
            max_new_tokens: 10 + id as usize,
            stop_ids: Arc::from([]),
        }
    });
    let requests: Vec<_> = requests.collect();
    let run = |model: &Arc<Model>, options: EngineOptions| {
        let mut engine = LocalEngine::new(Arc::clone(model), options);
        requests.iter().for_each(|request| engine.submit(request.clone()).unwrap());
        let mut all = Vec::new();
        while engine.n_active() + engine.n_waiting() > 0 {
            all.extend(engine.poll().unwrap());
        }
        all.sort_by_key(|generated| generated.id);
        all
    };
    let expected = run(&host, EngineOptions::default());
    for device in devices() {
        let model = Arc::new(on(&device, dir.path()));
        let kv_bytes = |n_blocks: usize| (n_blocks * model.block_bytes()) as u64;
        for options in [
            EngineOptions::default(),
            EngineOptions { max_batch: 4, prefill_tokens: 9, ..Default::default() },
            // Hardly more than one sequence needs: others are paused. And nothing, which is enlarged.
            EngineOptions { kv_bytes: kv_bytes(6), ..Default::default() },
            EngineOptions { kv_bytes: 0, is_kv_enlarged: true, ..Default::default() },
        ] {
            for (found, expected) in run(&model, options).iter().zip(&expected) {
                assert_eq!(found.token_ids, expected.token_ids, "{options:?} on {device:?}");
                let pairs = found.logprobs.iter().zip(&expected.logprobs);
                assert!(pairs.map(|(x, y)| (x - y).abs()).all(|difference| difference < 1e-4));
            }
        }
    }
}

#[test]
fn a_cache_is_of_its_models_device() {
    let dir = tempfile::tempdir().unwrap();
    let host = random_model(dir.path(), json!({}));
    let other = on(&Device::Cpu, dir.path());
    let piece = Piece { token_ids: &[1], position: 0, blocks: &[0] };
    for (model, mut kv) in [(&host, other.cache(1)), (&other, host.cache(1))] {
        let error = model.forward_cached(&[piece], &mut kv).unwrap_err().to_string();
        assert_eq!(error, "the cache is of a model on another device; make it with the model");
    }
}

#[test]
fn the_cache_of_a_device_takes_what_it_says() {
    let dir = tempfile::tempdir().unwrap();
    for (dtype, n_bytes) in [("float32", 8), ("bfloat16", 2)] {
        let shape = config(json!({"dtype": dtype}));
        let model = {
            random_model(dir.path(), json!({"dtype": dtype}));
            on(&Device::Cpu, dir.path())
        };
        // Keys and values of two heads of 24 elements, in two layers; on the CPU the wide numbers are in f64.
        assert_eq!((shape.n_kv_heads, shape.head_dim, shape.n_layers), (2, 24, 2));
        assert_eq!(model.block_bytes(), 2 * 2 * KvCache::BLOCK_LEN * 2 * 24 * n_bytes);
    }
}
