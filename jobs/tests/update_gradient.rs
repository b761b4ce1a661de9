//! The gradient of the whole objective, against automatic differentiation of the reference implementation; see
//! `golden/update/update.py` for the minibatch, the files and the versions.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use envace_grpo::loss::{
    Aggregation, Clip, KlEstimator, LossParts, Objective, PolicyLoss, Span, Tokens, Totals, sequence_loss,
};
use envace_model::{PolicyLogprobs, TrainSequence, Trainer, TrainerOptions};
use safetensors::SafeTensors;
use serde::Deserialize;

/// Largest difference of an element of a gradient, by the largest element of its tensor.
const GRADIENT: f32 = 1e-4;
/// Largest relative error of the gradient between cuts of one minibatch.
const PASSES: f64 = 1e-6;
/// Largest difference of a part of the loss.
const LOSS: f64 = 1e-5;

#[derive(Deserialize)]
struct Minibatch {
    clip_low: f64,
    clip_high: f64,
    kl_coefficient: f64,
    temperature: f32,
    rows: Vec<Row>,
    sequences: Vec<Sequence>,
}

/// One objective over the generations of one role, or of all.
#[derive(Deserialize)]
struct Row {
    aggregation: String,
    dual: Option<f64>,
    role: String,
    parts: BTreeMap<String, Parts>,
}

/// What a role has in the loss, and how many of its tokens each bound holds.
#[derive(Deserialize)]
struct Parts {
    policy: f64,
    kl: f64,
    low: u64,
    high: u64,
    dual: u64,
}

#[derive(Deserialize)]
struct Sequence {
    task: String,
    role: String,
    token_ids: Vec<u32>,
    trained: Vec<u32>,
    spans: Vec<GoldenSpan>,
    sampling_logprobs: Vec<f32>,
}

#[derive(Deserialize)]
struct GoldenSpan {
    start: usize,
    len: usize,
    advantage: f64,
}

impl Sequence {
    fn spans(&self) -> Vec<Span> {
        let span = |span: &GoldenSpan| Span { start: span.start, len: span.len, advantage: span.advantage };
        self.spans.iter().map(span).collect()
    }

    fn to_train(&self, temperature: f32) -> TrainSequence {
        TrainSequence { token_ids: self.token_ids.clone(), trained: self.trained.clone(), temperature }
    }
}

impl Row {
    fn objective(&self, minibatch: &Minibatch) -> Objective {
        Objective {
            policy: PolicyLoss::Ppo(Clip {
                low: minibatch.clip_low,
                high: minibatch.clip_high,
                dual: self.dual,
            }),
            correction: None,
            aggregation: match self.aggregation.as_str() {
                "token" => Aggregation::Token,
                "sequence" => Aggregation::Sequence,
                "generation" => Aggregation::Generation,
                other => panic!("no such aggregation: {other}"),
            },
            kl: KlEstimator::K3,
            kl_coefficient: minibatch.kl_coefficient,
        }
    }
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/update").join(name)
}

fn minibatch() -> Minibatch {
    serde_json::from_str(&fs_err::read_to_string(golden("minibatch.json")).unwrap()).unwrap()
}

/// The gradients of each tensor, one for each row.
fn gradients(n_rows: usize) -> BTreeMap<String, Vec<Vec<f32>>> {
    let bytes = fs_err::read(golden("gradients.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let rows = |data: &[u8]| -> Vec<Vec<f32>> {
        let row = data.chunks_exact(data.len() / n_rows);
        row.map(|row| row.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()).collect()
    };
    file.tensors().into_iter().map(|(name, view)| (name, rows(view.data()))).collect()
}

/// Accumulates the gradient of the sequences with these indices, each list of them in a pass of its own, and returns
/// what each role has in the loss.
fn accumulate(
    trainer: &mut Trainer,
    reference: &Trainer,
    minibatch: &Minibatch,
    objective: &Objective,
    micro_batches: &[Vec<usize>],
) -> BTreeMap<String, LossParts> {
    let mut totals = Totals::default();
    for sequence in &minibatch.sequences {
        totals.add_sequence(&sequence.spans());
    }
    let mut sums: BTreeMap<String, LossParts> = BTreeMap::new();
    for micro_batch in micro_batches {
        let own: Vec<&Sequence> = micro_batch.iter().map(|index| &minibatch.sequences[*index]).collect();
        let to_train: Vec<TrainSequence> =
            own.iter().map(|sequence| sequence.to_train(minibatch.temperature)).collect();
        let ref_logprobs = reference.logprobs(&to_train).unwrap();
        let mut coefficients = |policy: &[PolicyLogprobs]| {
            let each = own.iter().zip(policy).zip(&ref_logprobs).map(|((sequence, policy), reference)| {
                let tokens = Tokens {
                    policy_logprobs: &policy.logprobs,
                    sampling_logprobs: &sequence.sampling_logprobs,
                    old_logprobs: None,
                    ref_logprobs: Some(&reference.logprobs),
                    entropies: Some(&policy.entropies),
                    spans: &sequence.spans(),
                };
                let (parts, gradient) = sequence_loss(&tokens, objective, &totals).unwrap();
                sums.entry(sequence.role.clone()).or_default().add(&parts);
                gradient
            });
            each.collect()
        };
        trainer.accumulate(&to_train, &mut coefficients).unwrap();
    }
    sums
}

fn check_parts(found: &BTreeMap<String, LossParts>, row: &Row, what: &str) {
    assert_eq!(found.len(), row.parts.len(), "{what}");
    for (role, expected) in &row.parts {
        let parts = &found[role];
        let is_near = |found: f64, expected: f64| (found - expected).abs() < LOSS;
        assert!(
            is_near(parts.policy, expected.policy),
            "{what}, {role}: {} {}",
            parts.policy,
            expected.policy
        );
        assert!(is_near(parts.kl, expected.kl), "{what}, {role}: {} {}", parts.kl, expected.kl);
        let clipped = (parts.n_clipped_low, parts.n_clipped_high, parts.n_clipped_dual);
        assert_eq!(clipped, (expected.low, expected.high, expected.dual), "{what}, {role}");
    }
}

/// The largest difference of a gradient, by the largest element of its tensor.
fn worst_difference(trainer: &Trainer, golden: &BTreeMap<String, Vec<Vec<f32>>>, row: usize) -> f32 {
    let names = trainer.tensor_names();
    assert_eq!(names.len(), golden.len());
    let of_tensor = names.iter().map(|name| {
        let (found, expected) = (trainer.gradient(name).unwrap(), &golden[name][row]);
        assert_eq!(found.len(), expected.len(), "{name}");
        let size = expected.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
        assert!(size > 0.0, "{name}");
        let differences = found.iter().zip(expected).map(|(x, y)| (x - y).abs() / size);
        // A difference that is no number is the largest.
        differences.fold(0.0_f32, |m, x| if x.is_nan() || x > m { x } else { m })
    });
    of_tensor.fold(0.0_f32, |m, x| if x.is_nan() || x > m { x } else { m })
}

/// The relative error of a gradient: the norm of the difference over that of the gradient.
fn relative_error(trainer: &Trainer, expected: &Trainer) -> f64 {
    let whole = |trainer: &Trainer| -> Vec<f32> {
        trainer.tensor_names().iter().flat_map(|name| trainer.gradient(name).unwrap()).collect()
    };
    let (found, expected) = (whole(trainer), whole(expected));
    assert_eq!(found.len(), expected.len());
    let squared = |sum: f64, x: f32| sum + f64::from(x).powi(2);
    let difference = found.iter().zip(&expected).map(|(x, y)| x - y).fold(0.0, squared);
    (difference / expected.iter().copied().fold(0.0, squared)).sqrt()
}

/// The minibatch cut into passes, with a name for each way.
fn cuts(indices: &[usize]) -> Vec<(&'static str, Vec<Vec<usize>>)> {
    let in_runs = |indices: &[usize], n: usize| indices.chunks(n).map(<[usize]>::to_vec).collect();
    let reversed: Vec<usize> = indices.iter().rev().copied().collect();
    vec![
        ("at once", in_runs(indices, indices.len())),
        ("one by one", in_runs(indices, 1)),
        ("3, 3 and 2", in_runs(indices, 3)),
        ("reversed", in_runs(&reversed, reversed.len())),
        ("reversed, 3, 3 and 2", in_runs(&reversed, 3)),
    ]
}

#[test]
fn the_gradient_of_the_objective_is_that_of_the_reference() {
    let minibatch = minibatch();
    assert_eq!((minibatch.sequences.len(), minibatch.rows.len()), (8, 18));
    let golden_gradients = gradients(minibatch.rows.len());
    let reference = Trainer::load(&golden("reference"), None, TrainerOptions::default()).unwrap();
    println!("largest difference of a gradient, by the largest element of its tensor");
    for (index, row) in minibatch.rows.iter().enumerate() {
        let objective = row.objective(&minibatch);
        let of_role = |sequence: &Sequence| row.role == "all" || sequence.role == row.role;
        let indices: Vec<usize> =
            (0..minibatch.sequences.len()).filter(|index| of_role(&minibatch.sequences[*index])).collect();
        let mut worst = 0.0_f32;
        for recompute_layers in [false, true] {
            let options = TrainerOptions { recompute_layers, ..Default::default() };
            for (how, micro_batches) in cuts(&indices) {
                let mut trainer = Trainer::load(&golden("policy"), None, options.clone()).unwrap();
                let parts = accumulate(&mut trainer, &reference, &minibatch, &objective, &micro_batches);
                let what = format!("{}, dual {:?}, {}, {how}", row.aggregation, row.dual, row.role);
                check_parts(&parts, row, &what);
                let difference = worst_difference(&trainer, &golden_gradients, index);
                assert!(difference < GRADIENT, "{what}, recompute {recompute_layers}: {difference}");
                worst = worst.max(difference);
            }
        }
        let dual = row.dual.map_or("no dual".to_owned(), |dual| format!("dual {dual}"));
        println!("{:10} {dual:7} {:9} {worst:.1e}", row.aggregation, row.role);
    }
}

/// Cut into `n` passes, as even as may be.
fn passes(n_sequences: usize, n: usize) -> Vec<Vec<usize>> {
    let mut passes = vec![Vec::new(); n];
    (0..n_sequences).for_each(|index| passes[index * n / n_sequences].push(index));
    passes
}

#[test]
fn the_gradient_is_that_of_the_whole_in_1_2_3_and_7_passes() {
    let minibatch = minibatch();
    let reference = Trainer::load(&golden("reference"), None, TrainerOptions::default()).unwrap();
    let clip = Clip { low: minibatch.clip_low, high: minibatch.clip_high, dual: None };
    let losses =
        [PolicyLoss::Ppo(clip), PolicyLoss::Gspo(clip), PolicyLoss::Cispo(clip), PolicyLoss::Reinforce];
    let aggregations =
        [Aggregation::Token, Aggregation::Sequence, Aggregation::Generation, Aggregation::Constant(8)];
    let mut worst = 0.0_f64;
    for policy in losses {
        for aggregation in aggregations {
            let objective = Objective {
                policy,
                correction: None,
                aggregation,
                kl: KlEstimator::K3,
                kl_coefficient: minibatch.kl_coefficient,
            };
            let trained = |n: usize| {
                let mut trainer = Trainer::load(&golden("policy"), None, TrainerOptions::default()).unwrap();
                accumulate(&mut trainer, &reference, &minibatch, &objective, &passes(8, n));
                trainer
            };
            let whole = trained(1);
            for n in [2, 3, 7] {
                let error = relative_error(&trained(n), &whole);
                assert!(error < PASSES, "{policy:?}, {aggregation:?}, {n} passes: {error}");
                worst = worst.max(error);
            }
        }
    }
    println!("largest relative error of a gradient in 2, 3 and 7 passes: {worst:.1e}");
}

#[test]
fn the_minibatch_has_what_it_is_meant_to_have() {
    let minibatch = minibatch();
    let of = |role: &'static str| minibatch.sequences.iter().filter(move |sequence| sequence.role == role);
    assert!(of("actor").all(|sequence| sequence.spans.len() == 2) && of("actor").count() == 4);
    assert!(of("rehearsal").all(|sequence| sequence.spans.len() == 1) && of("rehearsal").count() == 4);
    // The prompt of a group is one and the same, and all rehearsal sequences begin alike.
    for (one, two) in of("actor").zip(of("actor").skip(1)).filter(|(one, two)| one.task == two.task) {
        assert_eq!(one.token_ids[..20], two.token_ids[..20]);
    }
    for (one, two) in of("rehearsal").zip(of("rehearsal").skip(1)) {
        assert_eq!(one.token_ids[..14], two.token_ids[..14]);
    }
    // Each kind of bound holds somewhere, for each role.
    let held = |role: &str| {
        let of_rows = minibatch.rows.iter().filter_map(|row| row.parts.get(role));
        of_rows.fold([0, 0, 0], |[low, high, dual], parts| {
            [low + parts.low, high + parts.high, dual + parts.dual]
        })
    };
    for role in ["actor", "rehearsal"] {
        assert!(held(role).iter().all(|n| *n > 0), "{role}: {:?}", held(role));
    }
}
