//! A row's bits do not depend on what it is computed with.

use candle_core::{DType, Tensor};
use envace_model::{KvCache, LogSoftmax, Model, ModelFolder, Piece, TrainSequence, Trainer, TrainerOptions};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::devices::devices;
use super::{random_model, sequence, tokens, with_threads};

/// Hidden states of a sequence, bit by bit, cut into calls of the given lengths.
fn in_chunks(model: &Model, token_ids: &[u32], lengths: &[usize]) -> Vec<Vec<u32>> {
    let mut kv = KvCache::new(model.config(), 4);
    let mut hidden = Vec::new();
    let mut start = 0;
    for length in lengths {
        let end = (start + length).min(token_ids.len());
        let piece = Piece { token_ids: &token_ids[start..end], position: start, blocks: &[2, 0, 3, 1] };
        hidden.extend(bits(&model.forward_cached(&[piece], &mut kv).unwrap()));
        start = end;
    }
    assert_eq!(start, token_ids.len());
    hidden
}

fn bits(rows: &Tensor) -> Vec<Vec<u32>> {
    let rows = rows.to_vec2::<f32>().unwrap();
    rows.into_iter().map(|row| row.into_iter().map(f32::to_bits).collect()).collect()
}

#[test]
fn prefill_equals_decoding_at_every_size() {
    let shapes: [Value; 4] = [
        json!({}),
        json!({"hidden_size": 192, "intermediate_size": 384, "num_attention_heads": 6, "head_dim": 32,
               "vocab_size": 700, "num_hidden_layers": 1}),
        json!({"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3,
               "head_dim": 64, "vocab_size": 300, "num_hidden_layers": 1, "model_type": "llama"}),
        json!({"hidden_size": 48, "num_key_value_heads": 4, "head_dim": 12, "model_type": "qwen2"}),
    ];
    for shape in shapes {
        let dir = tempfile::tempdir().unwrap();
        let model = random_model(dir.path(), shape.clone());
        let token_ids = tokens(90, 1, model.config().vocab_size);
        let whole = with_threads(1, || in_chunks(&model, &token_ids, &[90]));
        let one_by_one = with_threads(2, || in_chunks(&model, &token_ids, &[1; 90]));
        assert_eq!(whole, one_by_one, "{shape}");
        assert_eq!(whole, with_threads(2, || in_chunks(&model, &token_ids, &[1, 2, 64, 7, 16])), "{shape}");
    }
}

#[test]
fn logits_of_a_row_do_not_depend_on_the_batch() {
    let dir = tempfile::tempdir().unwrap();
    let model = random_model(dir.path(), json!({"hidden_size": 576, "vocab_size": 50}));
    let token_ids = tokens(70, 2, 50);
    let piece = Piece { token_ids: &token_ids, position: 0, blocks: &[0, 1, 2] };
    let hidden = model.forward_cached(&[piece], &mut KvCache::new(model.config(), 3)).unwrap();
    let all = bits(&model.logits(&hidden).unwrap());
    for (first, n) in [(0, 1), (5, 2), (13, 40), (69, 1)] {
        let some = bits(&model.logits(&hidden.narrow(0, first, n).unwrap()).unwrap());
        assert_eq!(some, all[first..first + n]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..Default::default() })]

    /// Three sequences advance by random amounts in mixed calls; each has the bits it has alone.
    #[test]
    fn mixed_batches_have_the_bits_of_single_sequences(
        steps in prop::collection::vec(prop::collection::vec(0_usize..20, 3), 1..6),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let model = random_model(dir.path(), json!({}));
        let sequences: Vec<Vec<u32>> = (0..3).map(|i| tokens(100, i, 123)).collect();
        let mut kv = KvCache::new(model.config(), 12);
        let blocks: Vec<Vec<usize>> = (0..3).map(|i| (0..4).map(|j| 3 * j + i).collect()).collect();
        let mut found: Vec<Vec<Vec<u32>>> = vec![Vec::new(); 3];
        for step in &steps {
            let lengths = step.iter().enumerate().filter(|(_, n)| **n > 0);
            let pieces: Vec<Piece> = lengths
                .clone()
                .map(|(i, n)| {
                    let position = found[i].len();
                    Piece { token_ids: &sequences[i][position..position + n], position, blocks: &blocks[i] }
                })
                .collect();
            if pieces.is_empty() {
                continue;
            }
            let mut hidden = bits(&model.forward_cached(&pieces, &mut kv).unwrap()).into_iter();
            for (i, &n) in lengths {
                found[i].extend(hidden.by_ref().take(n));
            }
        }
        for (sequence, found) in sequences.iter().zip(found).filter(|(_, found)| !found.is_empty()) {
            let alone = in_chunks(&model, &sequence[..found.len()], &[found.len()]);
            prop_assert_eq!(alone, found);
        }
    }
}

#[test]
fn shared_and_copied_blocks_go_on_as_if_computed_there() {
    let dir = tempfile::tempdir().unwrap();
    let model = random_model(dir.path(), json!({}));
    let token_ids = tokens(60, 3, 123);
    let expected = in_chunks(&model, &token_ids, &[60]);
    let mut kv = KvCache::new(model.config(), 8);
    let run = |kv: &mut KvCache, blocks: &[usize], token_ids: &[u32], position: usize| {
        bits(&model.forward_cached(&[Piece { token_ids, position, blocks }], kv).unwrap())
    };
    // Block 5 holds something else first, so that stale keys lie behind what is copied.
    run(&mut kv, &[4, 5, 6], &tokens(80, 9, 123), 0);
    run(&mut kv, &[0, 1], &token_ids[..45], 0);
    kv.copy(1, 5).unwrap();
    // Block 0 is shared; of block 1 the first five positions are used in the copy.
    assert_eq!(run(&mut kv, &[0, 5], &token_ids[37..], 37), expected[37..]);
    // The original goes on by itself, and may be written over from an earlier position on.
    assert_eq!(run(&mut kv, &[0, 1], &token_ids[45..], 45), expected[45..]);
    assert_eq!(run(&mut kv, &[0, 1], &token_ids[33..], 33), expected[33..]);
}

#[test]
fn pieces_that_do_not_fit_are_refused_and_store_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let model = random_model(dir.path(), json!({"dtype": "float32"}));
    let token_ids = tokens(40, 3, 123);
    let expected = in_chunks(&model, &token_ids, &[40]);
    assert_eq!(bits(&after_refusals(&model, &token_ids)), expected[39..]);
    for device in devices() {
        let model = Model::load_composed(&ModelFolder::open(dir.path()).unwrap(), &device).unwrap();
        let last = after_refusals(&model, &token_ids).to_dtype(DType::F32).unwrap().to_vec2::<f32>().unwrap();
        let pairs = last[0].iter().zip(&expected[39]);
        assert!(pairs.map(|(x, bits)| (x - f32::from_bits(*bits)).abs()).all(|difference| difference < 1e-4));
    }
}

/// The last of 40 hidden states, after the others were computed and calls were refused.
fn after_refusals(model: &Model, token_ids: &[u32]) -> Tensor {
    let mut kv = model.cache(4);
    let piece = |n: usize, position: usize, blocks: &'static [usize]| Piece {
        token_ids: &token_ids[position..position + n],
        position,
        blocks,
    };
    model.forward_cached(&[piece(39, 0, &[0, 1])], &mut kv).unwrap();
    for (pieces, message) in [
        (vec![], "nothing to compute"),
        (vec![piece(0, 39, &[0, 1])], "a piece of 0 tokens"),
        (vec![piece(1, 39, &[0])], "does not fit the room of its blocks: 32"),
        (vec![piece(1, 39, &[0, 4])], "no such block: 4"),
        (vec![piece(1, 39, &[0, 1]), piece(1, 33, &[2, 1])], "stored in one block: 1"),
        (vec![Piece { token_ids: &[5000], position: 39, blocks: &[0, 1] }], "outside the vocabulary"),
        (vec![Piece { token_ids: &[5], position: 1 << 20, blocks: &[0, 1] }], "more than the limit"),
    ] {
        let error = model.forward_cached(&pieces, &mut kv).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    assert!(kv.copy(0, 0).is_err() && kv.copy(0, 4).is_err() && kv.copy(4, 0).is_err());
    model.forward_cached(&[piece(1, 39, &[0, 1])], &mut kv).unwrap()
}

/// What an engine would report for the trained tokens of a sequence, decoding token by token.
fn sampled_logprobs(model: &Model, sequence: &TrainSequence) -> Vec<u32> {
    let mut kv = KvCache::new(model.config(), 2);
    let mut found = Vec::new();
    for (position, token) in sequence.token_ids.iter().enumerate() {
        let piece = Piece { token_ids: std::slice::from_ref(token), position, blocks: &[0, 1] };
        let hidden = model.forward_cached(&[piece], &mut kv).unwrap();
        if sequence.trained.contains(&(position as u32 + 1)) {
            let logits = model.logits(&hidden).unwrap().to_vec2::<f32>().unwrap().remove(0);
            let next = sequence.token_ids[position + 1] as usize;
            found.push(LogSoftmax::new(&logits, sequence.temperature).logprob(logits[next]).to_bits());
        }
    }
    found
}

#[test]
fn policy_logprobs_are_sampling_logprobs_to_the_bit() {
    for changes in
        [json!({}), json!({"tie_word_embeddings": false, "model_type": "qwen2", "dtype": "float16"})]
    {
        let dir = tempfile::tempdir().unwrap();
        let model = random_model(dir.path(), changes);
        let sequences: Vec<TrainSequence> = [50, 9, 33].map(|n| sequence(n, n as u32, 123)).to_vec();
        let options = TrainerOptions { logprob_chunk_rows: 7, ..Default::default() };
        let mut trainer = Trainer::load(dir.path(), None, options).unwrap();
        let expected: Vec<Vec<u32>> = sequences.iter().map(|s| sampled_logprobs(&model, s)).collect();
        let to_bits = |logprobs: &[f32]| logprobs.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
        let together = trainer.logprobs(&sequences).unwrap();
        for (found, expected) in together.iter().zip(&expected) {
            assert_eq!(&to_bits(&found.logprobs), expected);
        }
        let alone = with_threads(1, || trainer.logprobs(&sequences[1..2]).unwrap());
        assert_eq!(alone[0], together[1]);
        // With a gradient, and after a step and a save, still the same code and the same bits.
        trainer
            .accumulate(&sequences, &mut |rows| {
                assert_eq!(rows, together);
                rows.iter().map(|row| vec![-1.0; row.logprobs.len()]).collect()
            })
            .unwrap();
        trainer.apply(1e-2, None).unwrap();
        let saved = tempfile::tempdir().unwrap();
        trainer.save(saved.path()).unwrap();
        let model = Model::load(saved.path(), &candle_core::Device::Cpu).unwrap();
        let after = trainer.logprobs(&sequences).unwrap();
        assert_ne!(after, together);
        for (sequence, found) in sequences.iter().zip(&after) {
            assert_eq!(to_bits(&found.logprobs), sampled_logprobs(&model, sequence));
        }
    }
}
