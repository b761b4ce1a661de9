//! The schedule, on a stand-in for a model whose logits depend on every token of the sequence: whatever the cache
//! holds wrongly changes what is sampled.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::super::backend::Backend;
use super::super::request::{FinishReason, Generated, GenerationRequest, Sampling};
use super::{Batcher, Limits};
use crate::{ModelError, Piece};

const VOCAB: usize = 11;
const CONTEXT: usize = 40;
const BLOCK_LEN: usize = 4;
/// Blocks of the longest sequence.
const LONGEST: usize = CONTEXT / BLOCK_LEN;

#[derive(Default)]
struct StandIn {
    blocks: Vec<[Option<u32>; BLOCK_LEN]>,
    n_computed: usize,
    n_rounds: usize,
    largest_round: usize,
    /// A sequence of this length gives logits that are not numbers.
    breaks_at: Option<usize>,
}

impl StandIn {
    fn new(n_blocks: usize) -> Self {
        Self { blocks: vec![[None; BLOCK_LEN]; n_blocks], ..Self::default() }
    }
}

fn logits_of(sequence: &[u32]) -> Vec<f32> {
    let bytes: Vec<u8> = sequence.iter().flat_map(|token| token.to_le_bytes()).collect();
    let mut hash = blake3::Hasher::new();
    hash.update(&bytes);
    let mut out = [0; VOCAB];
    hash.finalize_xof().fill(&mut out);
    out.iter().map(|&byte| f32::from(byte) / 64.0).collect()
}

impl Backend for StandIn {
    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn context_length(&self) -> usize {
        CONTEXT
    }

    fn n_blocks(&self) -> usize {
        self.blocks.len()
    }

    fn block_len(&self) -> usize {
        BLOCK_LEN
    }

    fn block_bytes(&self) -> usize {
        100
    }

    fn forward(&mut self, pieces: &[Piece<'_>], wanted: &[usize]) -> Result<Vec<f32>, ModelError> {
        let (mut logits, mut index) = (Vec::new(), 0);
        for piece in pieces {
            for (position, &token) in (piece.position..).zip(piece.token_ids) {
                self.blocks[piece.blocks[position / BLOCK_LEN]][position % BLOCK_LEN] = Some(token);
            }
        }
        // All pieces are stored before any is attended for, so a block with two writers would be seen.
        for piece in pieces {
            let held = piece.blocks.iter().flat_map(|&block| self.blocks[block]);
            let sequence: Vec<Option<u32>> = held.take(piece.end()).collect();
            let sequence: Vec<u32> = sequence.into_iter().map(Option::unwrap).collect();
            for position in piece.position..piece.end() {
                if wanted.contains(&index) {
                    let is_broken = Some(position + 1) == self.breaks_at;
                    logits.extend(if is_broken {
                        vec![f32::NAN; VOCAB]
                    } else {
                        logits_of(&sequence[..=position])
                    });
                }
                index += 1;
            }
        }
        self.n_computed += index;
        self.n_rounds += 1;
        self.largest_round = self.largest_round.max(index);
        Ok(logits)
    }

    fn grow(&mut self, n_blocks: usize) {
        self.blocks.resize(self.blocks.len().max(n_blocks), [None; BLOCK_LEN]);
    }

    fn copy(&mut self, from: usize, to: usize) -> Result<(), ModelError> {
        assert_ne!(from, to);
        self.blocks[to] = self.blocks[from];
        Ok(())
    }
}

fn batcher(
    max_batch: usize,
    n_blocks: usize,
    prefill_tokens: usize,
    reuses_prefixes: bool,
) -> Batcher<StandIn> {
    let kv_bytes = 100 * n_blocks as u64;
    let limits = Limits { max_batch, prefill_tokens, reuses_prefixes, kv_bytes, is_enlarged: false };
    Batcher::new(StandIn::new(n_blocks), limits)
}

fn request(id: u64, prompt: &[u32], max_new_tokens: usize) -> GenerationRequest {
    GenerationRequest {
        id,
        prompt: prompt.to_vec(),
        sampling: Sampling::default(),
        seed: [id as u8; 32],
        max_new_tokens,
        stop_ids: Arc::from([0, 3]),
    }
}

/// Submits everything, polls until all is done, and returns results by id.
fn run_all(batcher: &mut Batcher<StandIn>, requests: &[GenerationRequest]) -> BTreeMap<u64, Generated> {
    for request in requests {
        batcher.submit(request.clone()).unwrap();
    }
    let mut out = BTreeMap::new();
    let mut n_rounds = 0;
    while batcher.n_waiting() + batcher.n_active() > 0 {
        for generated in batcher.poll().unwrap() {
            assert!(out.insert(generated.id, generated).is_none(), "each request is returned once");
        }
        n_rounds += 1;
        assert!(n_rounds < 10_000, "no progress");
    }
    out
}

/// What a request gives when it is run alone, token by token, without any schedule.
fn alone(request: &GenerationRequest) -> (Vec<u32>, FinishReason) {
    let mut sequence = request.prompt.clone();
    let mut token_ids = Vec::new();
    loop {
        let uniform = super::uniform(request.seed, token_ids.len());
        let scratch = &mut super::Scratch::default();
        let (token, _) = super::sample(&logits_of(&sequence), &request.sampling, uniform, scratch).unwrap();
        sequence.push(token);
        token_ids.push(token);
        if request.stop_ids.contains(&token) {
            return (token_ids, FinishReason::Stop);
        }
        if token_ids.len() == request.max_new_tokens || sequence.len() == CONTEXT {
            return (token_ids, FinishReason::Length);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn results_do_not_depend_on_the_schedule(
        // Few ids and a common start, so that prompts share prefixes of all lengths.
        prompts in prop::collection::vec(prop::collection::vec(4u32..6, 1..12), 1..12),
        shared in 0usize..20,
        max_batch in 1usize..6,
        n_blocks in prop::sample::select(vec![LONGEST, LONGEST + 1, 2 * LONGEST, 100]),
        prefill_tokens in prop::sample::select(vec![1, 3, 64]),
        reuses_prefixes: bool,
        max_new_tokens in 1usize..30,
    ) {
        let mut batcher = batcher(max_batch, n_blocks, prefill_tokens, reuses_prefixes);
        let requests: Vec<GenerationRequest> = (0u64..)
            .zip(&prompts)
            .map(|(id, tail)| request(id, &[vec![9; shared], tail.clone()].concat(), max_new_tokens))
            .collect();
        let first = run_all(&mut batcher, &requests);
        // The next turn: what was said so far and something new.
        let next: Vec<GenerationRequest> = requests
            .iter()
            .filter(|request| request.prompt.len() + first[&request.id].token_ids.len() + 2 < CONTEXT)
            .map(|given| {
                let prompt = [given.prompt.clone(), first[&given.id].token_ids.clone(), vec![7, 8]].concat();
                request(given.id + 100, &prompt, max_new_tokens)
            })
            .collect();
        let second = run_all(&mut batcher, &next);
        for request in requests.iter().chain(&next) {
            let generated = first.get(&request.id).or_else(|| second.get(&request.id)).unwrap();
            let (token_ids, finish_reason) = alone(request);
            prop_assert_eq!((&generated.token_ids, generated.finish_reason), (&token_ids, finish_reason));
            prop_assert_eq!(generated.n_prefilled + generated.n_reused, request.prompt.len());
            prop_assert_eq!(generated.logprobs.len(), token_ids.len());
            prop_assert!(reuses_prefixes || generated.n_reused == 0);
            prop_assert!(n_blocks < max_batch * LONGEST || generated.n_recomputed == 0);
        }
        let backend = batcher.backend();
        prop_assert!(backend.largest_round <= max_batch + prefill_tokens);
    }
}

#[test]
fn a_groups_prompt_is_computed_once() {
    let prompt: Vec<u32> = (0..20).map(|i| 4 + i % 5).collect();
    let requests: Vec<GenerationRequest> = (0..6).map(|id| request(id, &prompt, 1)).collect();
    let mut batcher = batcher(8, 100, 512, true);
    let results = run_all(&mut batcher, &requests);
    // The first computes 20 tokens; each of the others copies 19 and computes the last.
    assert_eq!(results[&0].n_prefilled, 20);
    assert!((1..6).all(|id| (results[&id].n_prefilled, results[&id].n_reused) == (1, 19)));
    assert_eq!(batcher.backend().n_computed, 20 + 5);
    assert_eq!(batcher.backend().n_rounds, 2);
}

#[test]
fn the_next_turn_computes_only_what_is_new() {
    let mut batcher = batcher(2, 100, 512, true);
    let first = request(1, &[4, 5, 6, 7], 5);
    let said = run_all(&mut batcher, std::slice::from_ref(&first))[&1].token_ids.clone();
    let prompt = [first.prompt, said.clone(), vec![8, 9]].concat();
    let results = run_all(&mut batcher, &[request(2, &prompt, 1)]);
    // The last token of a generation was sampled but never computed.
    assert_eq!(results[&2].n_reused, 4 + said.len() - 1);
    assert_eq!(results[&2].n_prefilled, 3);
}

#[test]
fn the_least_advanced_is_paused_and_goes_on_from_its_tokens() {
    // Room for 6 blocks of 4. Two generations of 12 tokens from prompts of 4 need 4 blocks each, so they do not fit
    // together to the end; the second one begins two rounds later.
    let never = |id, prompt: &[u32]| GenerationRequest { stop_ids: Arc::from([]), ..request(id, prompt, 12) };
    let requests = [never(1, &[4; 4]), never(2, &[5; 4])];
    let mut batcher = batcher(2, 6, 512, true);
    batcher.submit(requests[0].clone()).unwrap();
    batcher.poll().unwrap();
    batcher.poll().unwrap();
    batcher.submit(requests[1].clone()).unwrap();
    let mut was_paused = false;
    let mut results = BTreeMap::new();
    while batcher.n_active() + batcher.n_waiting() > 0 {
        results.extend(batcher.poll().unwrap().into_iter().map(|generated| (generated.id, generated)));
        let waiting: Vec<(u64, usize)> =
            batcher.waiting.iter().map(|sequence| (sequence.request.id, sequence.token_ids.len())).collect();
        was_paused |= waiting.iter().any(|&(id, n)| id == 2 && n > 0);
        assert!(waiting.iter().all(|&(id, _)| id == 2), "the one further on goes on: {waiting:?}");
    }
    assert!(was_paused);
    for request in &requests {
        assert_eq!(results[&request.id].token_ids, alone(request).0);
    }
    assert_eq!(results[&1].n_recomputed, 0);
}

#[test]
fn a_sequence_that_the_whole_cache_cannot_hold_is_refused() {
    // 3 blocks of 4 tokens hold a prompt of 5 and 8 tokens, the last of which is never computed.
    let mut batcher = batcher(2, 3, 512, true);
    batcher.limits.kv_bytes = 390;
    let error = batcher.submit(request(1, &[5; 5], 9)).unwrap_err();
    let expected = "a sequence of 13 tokens take 400 bytes, more than the size given: 390 bytes";
    assert!(error.to_string().contains(expected), "{error}");
    // The context of 40 has a last token that is never computed: 39 in 10 blocks of 100 bytes.
    let hint = error.hint().unwrap();
    assert!(hint.contains("to \"1 KiB\" or more") && hint.contains("context of 40 tokens"), "{hint}");
    let never = |id, n| GenerationRequest { stop_ids: Arc::from([]), ..request(id, &[5; 5], n) };
    assert_eq!(run_all(&mut batcher, &[never(2, 8)])[&2].token_ids.len(), 8);
    // Unless it may be enlarged: then for whatever the context holds.
    batcher.limits.is_enlarged = true;
    let results = run_all(&mut batcher, &[never(3, 9), never(4, usize::MAX)]);
    assert_eq!(results[&3].token_ids, alone(&never(3, 9)).0);
    assert_eq!(results[&4].token_ids.len(), CONTEXT - 5);
}

#[test]
fn a_generation_ends_at_the_context() {
    let mut batcher = batcher(1, 100, 512, true);
    let mut long = request(1, &[5; CONTEXT - 2], 100);
    long.stop_ids = Arc::from([]);
    let results = run_all(&mut batcher, &[long]);
    assert_eq!((results[&1].token_ids.len(), results[&1].finish_reason), (2, FinishReason::Length));
}

#[test]
fn impossible_requests_are_refused_and_change_nothing() {
    let mut batcher = batcher(1, 100, 512, true);
    let good = request(1, &[5], 1);
    batcher.submit(good.clone()).unwrap();
    let sampling = |temperature, top_p| Sampling { temperature, top_p, top_k: 0 };
    for (bad, expected) in [
        (request(2, &[], 1), "at least one token of prompt"),
        (request(2, &[5], 0), "one to generate"),
        (request(2, &[11], 1), "outside the vocabulary of 11: 11"),
        (request(2, &[5; CONTEXT], 1), "needs 41 positions, more than the limit: 40"),
        (request(1, &[5], 1), "a request of this id is not finished: 1"),
        (GenerationRequest { sampling: sampling(-1.0, 1.0), ..request(2, &[5], 1) }, "temperature"),
        (GenerationRequest { sampling: sampling(f32::NAN, 1.0), ..request(2, &[5], 1) }, "temperature"),
        (GenerationRequest { sampling: sampling(1.0, 0.0), ..request(2, &[5], 1) }, "top_p"),
        (GenerationRequest { sampling: sampling(1.0, 1.5), ..request(2, &[5], 1) }, "top_p"),
    ] {
        let message = batcher.submit(bad).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    assert_eq!(run_all(&mut batcher, &[]).len(), 1);
}

#[test]
fn logits_that_are_not_numbers_are_an_error_that_names_the_request() {
    let mut batcher = batcher(2, 100, 512, true);
    batcher.backend.breaks_at = Some(3);
    let mut broken = request(77, &[5, 6], 5);
    broken.stop_ids = Arc::from([]);
    batcher.submit(broken.clone()).unwrap();
    assert!(batcher.poll().unwrap().is_empty());
    let message = batcher.poll().unwrap_err().to_string();
    assert!(message.contains("at token 1 of request: 77"), "{message}");
    assert_eq!((batcher.n_active(), batcher.n_waiting()), (0, 0));
    // The engine is usable again, and nothing of the failed request is left.
    batcher.backend.breaks_at = None;
    let results = run_all(&mut batcher, &[broken.clone()]);
    assert_eq!(results[&77].token_ids, alone(&broken).0);
}
