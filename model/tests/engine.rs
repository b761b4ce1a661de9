//! The engine on a real model: what is cached, batched or cut into pieces never changes a bit of a result.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use envace_model::engine::{
    Engine, EngineOptions, FinishReason, Generated, GenerationRequest, LocalEngine, Sampling, uniform,
};
use envace_model::{KvCache, LogSoftmax, Model, Piece, TrainSequence, Trainer, TrainerOptions};
use support::{Sizes, write_model};

const SIZES: Sizes = Sizes {
    vocab: 300,
    hidden: 128,
    intermediate: 192,
    layers: 2,
    heads: 4,
    kv_heads: 2,
    head_dim: 32,
    context: 256,
};

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), SIZES);
    dir
}

fn model() -> Arc<Model> {
    Arc::new(Model::load(folder().path(), &candle_core::Device::Cpu).unwrap())
}

/// Twelve prompts: four groups of three that share 40 tokens, in groups of different length.
fn requests() -> Vec<GenerationRequest> {
    (0..12u64)
        .map(|id| {
            let group = (id / 3) as u32;
            let mut prompt: Vec<u32> = (0..40).map(|i| (i * 37 + 5) % 300).collect();
            prompt.extend((0..group * 9).map(|i| (i * 11 + group) % 300));
            prompt.push(id as u32);
            GenerationRequest {
                id,
                prompt,
                sampling: Sampling {
                    temperature: [1.0, 0.7, 0.0][(id % 3) as usize],
                    top_p: if id % 2 == 0 { 1.0 } else { 0.9 },
                    top_k: if id % 4 == 3 { 20 } else { 0 },
                },
                seed: [id as u8; 32],
                max_new_tokens: 8 + id as usize * 2,
                stop_ids: Arc::from((0..15).collect::<Vec<u32>>()),
            }
        })
        .collect()
}

fn run(engine: &mut LocalEngine, requests: &[GenerationRequest]) -> BTreeMap<u64, Generated> {
    for request in requests {
        engine.submit(request.clone()).unwrap();
    }
    let mut out = BTreeMap::new();
    while engine.n_active() + engine.n_waiting() > 0 {
        out.extend(engine.poll().unwrap().into_iter().map(|generated| (generated.id, generated)));
    }
    out
}

/// The next turn of each dialogue.
fn next_turn(requests: &[GenerationRequest], results: &BTreeMap<u64, Generated>) -> Vec<GenerationRequest> {
    requests
        .iter()
        .map(|request| {
            let mut next = request.clone();
            next.prompt.extend(&results[&request.id].token_ids);
            next.prompt.extend([7, 250, request.id as u32 + 20]);
            next.seed[0] ^= 0xff;
            next
        })
        .collect()
}

type Bits = (Vec<u32>, Vec<u32>, FinishReason);

fn bits(generated: &Generated) -> Bits {
    let logprobs = generated.logprobs.iter().map(|logprob| logprob.to_bits()).collect();
    (generated.token_ids.clone(), logprobs, generated.finish_reason)
}

/// Two turns of every dialogue: the bits of all results, and how many prompt tokens were reused.
fn two_turns(model: &Arc<Model>, options: EngineOptions, reversed: bool) -> (Vec<Bits>, usize) {
    let mut engine = LocalEngine::new(Arc::clone(model), options);
    let mut first = requests();
    if reversed {
        first.reverse();
    }
    let results = run(&mut engine, &first);
    let second = run(&mut engine, &next_turn(&first, &results));
    let n_reused = results.values().chain(second.values()).map(|generated| generated.n_reused).sum();
    (results.values().chain(second.values()).map(bits).collect(), n_reused)
}

/// One request by the model's own methods, the whole sequence computed anew for every token.
fn by_hand(model: &Model, request: &GenerationRequest) -> (Vec<u32>, Vec<u32>) {
    let (mut token_ids, mut logprobs) = (Vec::new(), Vec::new());
    let mut sequence = request.prompt.clone();
    while token_ids.len() < request.max_new_tokens {
        let blocks: Vec<usize> = (0..sequence.len().div_ceil(KvCache::BLOCK_LEN)).collect();
        let mut kv = KvCache::new(model.config(), blocks.len());
        let piece = Piece { token_ids: &sequence, position: 0, blocks: &blocks };
        let hidden = model.forward_cached(&[piece], &mut kv).unwrap();
        let logits = model.logits(&hidden).unwrap().to_vec2::<f32>().unwrap().pop().unwrap();
        let row = LogSoftmax::new(&logits, request.sampling.temperature);
        let target = uniform(request.seed, token_ids.len());
        let mut probabilities = Vec::new();
        row.write_probabilities(&logits, &mut probabilities);
        let total: f64 = probabilities.iter().map(|&share| f64::from(share)).sum();
        let mut sum = 0.0;
        let token = probabilities
            .iter()
            .position(|&share| {
                sum += f64::from(share);
                sum > target * total
            })
            .unwrap();
        token_ids.push(token as u32);
        logprobs.push(row.logprob(logits[token]).to_bits());
        sequence.push(token as u32);
        if request.stop_ids.contains(&(token as u32)) {
            break;
        }
    }
    (token_ids, logprobs)
}

#[test]
fn results_have_the_same_bits_however_they_are_computed() {
    let model = model();
    let kv_bytes = |n_blocks: usize| (n_blocks * KvCache::block_bytes(model.config())) as u64;
    let plain = EngineOptions {
        max_batch: 1,
        prefill_tokens: 512,
        kv_bytes: kv_bytes(200),
        is_kv_enlarged: false,
        reuses_prefixes: false,
    };
    let (expected, n_reused) = two_turns(&model, plain, false);
    assert_eq!(n_reused, 0);
    let stops = expected.iter().filter(|(_, _, reason)| *reason == FinishReason::Stop).count();
    assert!(stops > 0 && stops < expected.len(), "both ways to end occur, stops: {stops}");
    let cases = [
        (EngineOptions { max_batch: 1, reuses_prefixes: true, ..plain }, false),
        (EngineOptions { max_batch: 4, ..plain }, false),
        (EngineOptions { max_batch: 4, prefill_tokens: 7, reuses_prefixes: true, ..plain }, true),
        (EngineOptions { max_batch: 32, prefill_tokens: 33, reuses_prefixes: true, ..plain }, false),
        (EngineOptions { max_batch: 32, reuses_prefixes: true, ..plain }, true),
        (
            EngineOptions {
                max_batch: 5,
                kv_bytes: kv_bytes(9),
                prefill_tokens: 1,
                reuses_prefixes: true,
                ..plain
            },
            false,
        ),
        // Hardly more than one sequence needs: others are paused, and go on as if nothing had been.
        (EngineOptions { max_batch: 32, kv_bytes: kv_bytes(6), reuses_prefixes: true, ..plain }, false),
        (EngineOptions { max_batch: 32, kv_bytes: kv_bytes(6), reuses_prefixes: false, ..plain }, true),
        (EngineOptions { max_batch: 8, kv_bytes: 0, is_kv_enlarged: true, ..plain }, true),
    ];
    for (options, reversed) in cases {
        let (found, n_reused) = two_turns(&model, options, reversed);
        assert!(found == expected, "{options:?}, reversed: {reversed}");
        assert_eq!(n_reused > 0, options.reuses_prefixes, "{options:?}");
    }
}

#[test]
fn a_generation_is_what_the_model_and_the_seed_say() {
    let model = model();
    let request = GenerationRequest { sampling: Sampling::default(), ..requests().swap_remove(3) };
    let expected = by_hand(&model, &request);
    let mut engine = LocalEngine::new(Arc::clone(&model), EngineOptions::default());
    let found = bits(&run(&mut engine, std::slice::from_ref(&request))[&request.id]);
    assert_eq!((found.0, found.1), expected);
}

#[test]
fn sampling_logprobs_are_the_trainers_policy_logprobs_bit_for_bit() {
    let dir = folder();
    let model = Arc::new(Model::load(dir.path(), &candle_core::Device::Cpu).unwrap());
    let requests = requests();
    let results = run(&mut LocalEngine::new(model, EngineOptions::default()), &requests);
    let sequences: Vec<TrainSequence> = requests
        .iter()
        .map(|request| {
            let first = request.prompt.len() as u32;
            let token_ids = [request.prompt.clone(), results[&request.id].token_ids.clone()].concat();
            let trained = (first..token_ids.len() as u32).collect();
            TrainSequence { token_ids, trained, temperature: request.sampling.temperature }
        })
        .collect();
    let trainer = Trainer::load(dir.path(), None, TrainerOptions::default()).unwrap();
    let policy = trainer.logprobs(&sequences).unwrap();
    for (request, policy) in requests.iter().zip(policy) {
        assert_eq!(results[&request.id].logprobs, policy.logprobs, "request {}", request.id);
    }
}

#[test]
fn a_later_turn_computes_only_its_new_tokens() {
    let model = model();
    let mut engine = LocalEngine::new(Arc::clone(&model), EngineOptions::default());
    let first = requests();
    let results = run(&mut engine, &first);
    let n_prefilled: usize = results.values().map(|generated| generated.n_prefilled).sum();
    // Without reuse: 4 groups of 3 prompts of 41, 50, 59 and 68 tokens, 654 in all. Shared: the 40 of the first prompt;
    // 9, 18 and 27 more of the other groups; and the last token of each prompt.
    assert!(n_prefilled <= 40 + 9 + 18 + 27 + 12, "{n_prefilled}");
    let second = run(&mut engine, &next_turn(&first, &results));
    for (id, generated) in &second {
        // The three new tokens, and the last one of the turn before, which was sampled but not computed.
        assert_eq!(generated.n_prefilled, 4, "request {id}");
    }
}
