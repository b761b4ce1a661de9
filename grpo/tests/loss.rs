//! The objective: golden values, finite differences, and independence of the split into micro-batches.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests")]

use envace_grpo::loss::{
    Aggregation, Clip, Correction, KlEstimator, Level, Limit, LossError, LossParts, Objective, PolicyLoss,
    Span, Tokens, Totals, sequence_loss,
};
use proptest::prelude::*;
use serde_json::Value;

/// Owned tokens of one sequence.
#[derive(Debug, Clone, Default)]
struct Sequence {
    policy: Vec<f32>,
    sampling: Vec<f32>,
    old: Option<Vec<f32>>,
    reference: Option<Vec<f32>>,
    spans: Vec<Span>,
}

impl Sequence {
    fn tokens(&self) -> Tokens<'_> {
        Tokens {
            policy_logprobs: &self.policy,
            sampling_logprobs: &self.sampling,
            old_logprobs: self.old.as_deref(),
            ref_logprobs: self.reference.as_deref(),
            entropies: None,
            spans: &self.spans,
        }
    }
}

fn totals_of(sequences: &[Sequence]) -> Totals {
    let mut totals = Totals::default();
    for sequence in sequences {
        totals.add_sequence(&sequence.spans);
    }
    totals
}

fn loss_of(sequences: &[Sequence], objective: &Objective, totals: &Totals) -> (LossParts, Vec<Vec<f32>>) {
    let mut parts = LossParts::default();
    let mut gradients = Vec::new();
    for sequence in sequences {
        let (part, gradient) = sequence_loss(&sequence.tokens(), objective, totals).unwrap();
        parts.add(&part);
        gradients.push(gradient);
    }
    (parts, gradients)
}

const PLAIN: Objective = Objective {
    policy: PolicyLoss::Ppo(Clip { low: 0.2, high: 0.2, dual: None }),
    correction: None,
    aggregation: Aggregation::Token,
    kl: KlEstimator::K3,
    kl_coefficient: 0.0,
};

#[test]
fn losses_and_gradients_are_the_golden_ones() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("golden/loss.json")).unwrap();
    assert_eq!(cases.len(), 12);
    for case in cases {
        let objective = objective_of(&case["config"]);
        let sequences: Vec<_> = case["sequences"].as_array().unwrap().iter().map(sequence_of).collect();
        let (parts, gradients) = loss_of(&sequences, &objective, &totals_of(&sequences));
        let close = |found: f64, expected: &Value, tolerance: f64| {
            let expected = expected.as_f64().unwrap();
            assert!(
                (found - expected).abs() < tolerance,
                "{found}, expected {expected}: {:?}",
                case["config"]
            );
        };
        // The same f64 operations in another order; the gradient is rounded to f32.
        close(parts.policy, &case["policy_loss"], 1e-13);
        close(parts.kl, &case["kl_loss"], 1e-13);
        for (row, expected) in gradients.iter().zip(case["gradients"].as_array().unwrap()) {
            assert_eq!(row.len(), expected.as_array().unwrap().len());
            for (found, expected) in row.iter().zip(expected.as_array().unwrap()) {
                close(f64::from(*found), expected, 1e-7);
            }
        }
    }
}

#[test]
fn every_objective_and_correction_is_what_autograd_makes_of_it() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("golden/objectives.json")).unwrap();
    // Four objectives, each by four aggregations and with six corrections.
    assert_eq!(cases.len(), 4 * (4 + 6));
    let mut n_masked = 0;
    for case in cases {
        let config = &case["config"];
        let clip =
            Clip { low: config["low"].as_f64().unwrap(), high: config["high"].as_f64().unwrap(), dual: None };
        let number = |value: &Value, index: usize| value[1][index].as_f64().unwrap();
        let objective = Objective {
            policy: match config["loss"].as_str().unwrap() {
                "ppo" => PolicyLoss::Ppo(clip),
                "gspo" => PolicyLoss::Gspo(clip),
                "cispo" => PolicyLoss::Cispo(clip),
                _ => PolicyLoss::Reinforce,
            },
            correction: config["correction"].as_array().map(|pair| Correction {
                level: match pair[0].as_str().unwrap() {
                    "token" => Level::Token,
                    "generation" => Level::Generation,
                    _ => Level::GeometricMean,
                },
                limit: match pair[1][0].as_str().unwrap() {
                    "truncate" => Limit::Truncate(number(&config["correction"], 1)),
                    _ => Limit::Mask {
                        low: number(&config["correction"], 1),
                        high: number(&config["correction"], 2),
                    },
                },
            }),
            aggregation: match &config["aggregation"] {
                Value::Number(n_tokens) => Aggregation::Constant(n_tokens.as_u64().unwrap() as u32),
                name => aggregation_of(name.as_str().unwrap()),
            },
            kl: KlEstimator::K3,
            kl_coefficient: 0.0,
        };
        let sequences: Vec<_> = case["sequences"].as_array().unwrap().iter().map(sequence_of).collect();
        let (parts, gradients) = loss_of(&sequences, &objective, &totals_of(&sequences));
        n_masked += parts.n_masked;
        let expected = case["loss"].as_f64().unwrap();
        assert!((parts.loss() - expected).abs() < 1e-13, "{}, {expected}: {config}", parts.loss());
        for (row, expected) in gradients.iter().zip(case["gradients"].as_array().unwrap()) {
            for (found, expected) in row.iter().zip(expected.as_array().unwrap()) {
                let expected = expected.as_f64().unwrap();
                // Of numbers below 1, rounded to f32.
                assert!((f64::from(*found) - expected).abs() < 6e-8, "{found}, {expected}: {config}");
            }
        }
    }
    assert!(n_masked > 20, "the masks are not tried: {n_masked}");
}

fn aggregation_of(name: &str) -> Aggregation {
    match name {
        "token" => Aggregation::Token,
        "sequence" => Aggregation::Sequence,
        _ => Aggregation::Generation,
    }
}

fn objective_of(config: &Value) -> Objective {
    let number = |name: &str| config[name].as_f64().unwrap();
    Objective {
        policy: PolicyLoss::Ppo(Clip {
            low: number("low"),
            high: number("high"),
            dual: config["dual"].as_f64(),
        }),
        correction: None,
        aggregation: aggregation_of(config["aggregation"].as_str().unwrap()),
        kl: match config["kl"].as_str().unwrap() {
            "k1" => KlEstimator::K1,
            "k2" => KlEstimator::K2,
            _ => KlEstimator::K3,
        },
        kl_coefficient: number("coefficient"),
    }
}

fn sequence_of(value: &Value) -> Sequence {
    let floats = |name: &str| -> Option<Vec<f32>> {
        Some(value[name].as_array()?.iter().map(|number| number.as_f64().unwrap() as f32).collect())
    };
    let index = |value: &Value| value.as_u64().unwrap() as usize;
    let spans = value["spans"].as_array().unwrap().iter().map(|span| Span {
        start: index(&span["start"]),
        len: index(&span["len"]),
        advantage: span["advantage"].as_f64().unwrap(),
    });
    Sequence {
        policy: floats("policy").unwrap(),
        sampling: floats("sampling").unwrap(),
        old: floats("old"),
        reference: floats("ref"),
        spans: spans.collect(),
    }
}

/// On policy the loss is minus the mean advantage of the votes: tokens (1 + 1 + 1 - 3) / 4, sequences and
/// generations (1 - 3) / 2; the gradient of a token is minus its advantage times its weight.
#[test]
fn on_policy_by_hand() {
    let sequence = |len, advantage| Sequence {
        policy: vec![-1.5; 4],
        sampling: vec![-1.5; 4],
        spans: vec![Span { start: 1, len, advantage }],
        ..Sequence::default()
    };
    let sequences = [sequence(3, 1.0), sequence(1, -3.0)];
    let totals = totals_of(&sequences);
    assert_eq!(totals, Totals { n_tokens: 4, n_sequences: 2, n_generations: 2 });
    for (aggregation, loss, first, second) in [
        (Aggregation::Token, 0.0, -1.0 / 4.0, 3.0 / 4.0),
        (Aggregation::Sequence, 1.0, -1.0 / 6.0, 3.0 / 2.0),
        (Aggregation::Generation, 1.0, -1.0 / 6.0, 3.0 / 2.0),
    ] {
        let (parts, gradients) = loss_of(&sequences, &Objective { aggregation, ..PLAIN }, &totals);
        assert!((parts.loss() - loss).abs() < 1e-15, "{aggregation:?}: {parts:?}");
        assert_eq!(gradients[0], [0.0, first as f32, first as f32, first as f32]);
        assert_eq!(gradients[1], [0.0, second as f32, 0.0, 0.0]);
        assert_eq!(parts.clip_share(), Some(0.0));
        assert_eq!((parts.ratio_mean(), parts.mismatch_mean()), (Some(1.0), Some(0.0)));
        assert_eq!((parts.mismatch_max, parts.mismatch_k3_mean()), (0.0, Some(0.0)));
        assert_eq!((parts.kl_mean(), parts.entropy_mean()), (None, None));
        assert_eq!(parts.advantage_mean(), Some(-1.0));
    }
}

/// Two tokens, ratios 2 and 1/2: bounds high and low, mean ratio 1.25, mean mismatch 0, largest ln 2; k3 of a
/// mismatch m is exp(-m) - 1 + m: (1/2 - 1 + ln 2 + 2 - 1 - ln 2) / 2 = 1/4.
#[test]
fn figures_by_hand() {
    let ln2 = std::f32::consts::LN_2;
    let sequence = Sequence {
        policy: vec![-1.0 + ln2, -1.0 - ln2],
        sampling: vec![-1.0, -1.0],
        reference: Some(vec![-1.0, -1.0]),
        spans: vec![Span { start: 0, len: 1, advantage: 1.0 }, Span { start: 1, len: 1, advantage: -1.0 }],
        ..Sequence::default()
    };
    let entropies = [0.5, 1.5];
    let tokens = Tokens { entropies: Some(&entropies), ..sequence.tokens() };
    let (parts, gradient) =
        sequence_loss(&tokens, &PLAIN, &totals_of(std::slice::from_ref(&sequence))).unwrap();
    assert_eq!((parts.n_clipped_high, parts.n_clipped_low, parts.n_clipped_dual), (1, 1, 0));
    assert_eq!(parts.clip_share(), Some(1.0));
    assert_eq!(gradient, [0.0, 0.0]);
    let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-6, "{found}, {expected}");
    close(parts.ratio_mean().unwrap(), 1.25);
    close(parts.mismatch_mean().unwrap(), 0.0);
    close(parts.mismatch_max, f64::from(ln2));
    close(parts.mismatch_k3_mean().unwrap(), 0.25);
    close(parts.kl_mean().unwrap(), 0.25);
    close(parts.entropy_mean().unwrap(), 1.0);
    // -(1.2 * 1 - 0.8 * 1) / 2; a coefficient of 0 leaves the divergence out.
    close(parts.loss(), -0.2);
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let good = Sequence {
        policy: vec![-1.0; 3],
        sampling: vec![-1.0; 3],
        spans: vec![Span { start: 0, len: 2, advantage: 1.0 }],
        ..Sequence::default()
    };
    let totals = totals_of(std::slice::from_ref(&good));
    let message = |sequence: &Sequence, totals: &Totals| {
        sequence_loss(&sequence.tokens(), &PLAIN, totals).unwrap_err().to_string()
    };
    let short = Sequence { sampling: vec![-1.0; 2], ..good.clone() };
    assert_eq!(
        message(&short, &totals),
        "`sampling_logprobs` has another length than `policy_logprobs`: 2, expected 3"
    );
    let overlap = vec![good.spans[0], Span { start: 1, len: 1, advantage: 1.0 }];
    let many = Totals { n_tokens: 9, n_sequences: 9, n_generations: 9 };
    assert_eq!(
        message(&Sequence { spans: overlap, ..good.clone() }, &many),
        "generation span 1 covers tokens 1..2, expected within 2..3"
    );
    let past = vec![Span { start: 2, len: usize::MAX, advantage: 1.0 }];
    let error = sequence_loss(&Sequence { spans: past, ..good.clone() }.tokens(), &PLAIN, &many).unwrap_err();
    assert!(matches!(error, LossError::Span { .. } | LossError::Totals { .. }), "{error}");
    let unsampled = Sequence { sampling: vec![f32::NEG_INFINITY, -1.0, -1.0], ..good.clone() };
    assert_eq!(message(&unsampled, &totals), "`sampling_logprob` of token 0 is not finite: -inf");
    assert_eq!(message(&good, &Totals::default()), "the totals count 0 tokens, this sequence alone has 2");
    let broken = Sequence { policy: vec![f32::NAN, -1.0, -1.0], ..good };
    let (parts, gradient) = sequence_loss(&broken.tokens(), &PLAIN, &totals).unwrap();
    assert!(parts.loss().is_nan() && parts.mismatch_max.is_nan() && gradient[0].is_nan());
    assert!(!gradient[1].is_nan());
}

fn objectives() -> impl Strategy<Value = Objective> {
    let aggregation = prop_oneof![
        Just(Aggregation::Token),
        Just(Aggregation::Sequence),
        Just(Aggregation::Generation),
        Just(Aggregation::Constant(7))
    ];
    let kl = prop_oneof![Just(KlEstimator::K1), Just(KlEstimator::K2), Just(KlEstimator::K3)];
    let policy = proptest::option::of(1.5..4.0).prop_flat_map(|dual| {
        let clip = Clip { low: 0.2, high: 0.3, dual };
        prop_oneof![Just(PolicyLoss::Ppo(clip)), Just(PolicyLoss::Gspo(clip)), Just(PolicyLoss::Reinforce)]
    });
    let level = prop_oneof![Just(Level::Token), Just(Level::Generation), Just(Level::GeometricMean)];
    let limit = prop_oneof![Just(Limit::Truncate(1.2)), Just(Limit::Mask { low: 0.7, high: 1.3 })];
    let correction = proptest::option::of((level, limit))
        .prop_map(|pair| pair.map(|(level, limit)| Correction { level, limit }));
    (policy, correction, aggregation, kl, 0.0..0.5).prop_map(
        |(policy, correction, aggregation, kl, kl_coefficient)| Objective {
            policy,
            correction,
            aggregation,
            kl,
            kl_coefficient,
        },
    )
}

fn sequences() -> impl Strategy<Value = Sequence> {
    let token = (-3.0..-0.1_f32, -1.2..1.2_f32, -1.0..1.0_f32);
    (proptest::collection::vec(token, 4..12), -2.0..2.0_f64, -2.0..2.0_f64).prop_map(|(tokens, one, two)| {
        let sampling: Vec<f32> = tokens.iter().map(|token| token.0).collect();
        Sequence {
            policy: tokens.iter().map(|token| token.0 + token.1).collect(),
            reference: Some(tokens.iter().map(|token| token.0 + token.2).collect()),
            spans: vec![
                Span { start: 0, len: 2, advantage: one },
                Span { start: 3, len: sampling.len() - 3, advantage: two },
            ],
            // Another trainer than sampler, in some tokens by much.
            old: (one > 0.0).then(|| tokens.iter().map(|token| token.0 + token.2 / 2.0).collect()),
            sampling,
        }
    })
}

proptest! {
    #[test]
    fn gradients_are_the_differences(
        batch in proptest::collection::vec(sequences(), 1..4),
        objective in objectives(),
    ) {
        let totals = totals_of(&batch);
        let (_, gradients) = loss_of(&batch, &objective, &totals);
        for i in 0..batch.len() {
            for (t, found) in gradients[i].iter().enumerate() {
                let at = |policy: f32| {
                    let mut moved = batch.clone();
                    moved[i].policy[t] = policy;
                    let (parts, _) = loss_of(&moved, &objective, &totals);
                    (parts.loss(), parts.n_clipped_low, parts.n_clipped_high, parts.n_clipped_dual)
                };
                let (up, down) = (batch[i].policy[t] + 1e-2, batch[i].policy[t] - 1e-2);
                let (above, below) = (at(up), at(down));
                // A bound between the two points leaves no derivative to compare.
                if (above.1, above.2, above.3) != (below.1, below.2, below.3) {
                    continue;
                }
                let difference = (above.0 - below.0) / f64::from(up - down);
                let found = f64::from(*found);
                // Third derivative at most e^2.2 * 2 = 18 times the weight; h^2 / 6 of it is 3e-4.
                prop_assert!((difference - found).abs() < 4e-4, "{} {} {}", i, t, difference - found);
            }
        }
    }

    #[test]
    fn the_split_does_not_matter(
        batch in proptest::collection::vec(sequences(), 2..8),
        objective in objectives(),
        cut in 1..7_usize,
    ) {
        let totals = totals_of(&batch);
        let (whole, gradients) = loss_of(&batch, &objective, &totals);
        let (left, right) = batch.split_at(cut.min(batch.len()));
        let (mut parts, mut split) = loss_of(left, &objective, &totals);
        let (rest, more) = loss_of(right, &objective, &totals);
        parts.add(&rest);
        split.extend(more);
        prop_assert_eq!(gradients, split);
        prop_assert!((parts.loss() - whole.loss()).abs() <= 1e-12 * (1.0 + whole.loss().abs()));
        prop_assert_eq!(parts.n_tokens, totals.n_tokens);
        prop_assert_eq!(parts.n_generations, totals.n_generations);
    }
}

proptest! {
    #[test]
    fn what_is_not_trained_touches_nothing(
        batch in proptest::collection::vec(sequences(), 1..4),
        objective in objectives(),
        outside in prop_oneof![Just(f32::NAN), Just(f32::INFINITY), Just(f32::NEG_INFINITY), Just(0.0)],
    ) {
        let totals = totals_of(&batch);
        let mut touched = batch.clone();
        for sequence in &mut touched {
            // The one token between the two generations.
            sequence.policy[2] = outside;
            sequence.sampling[2] = outside;
            for values in [&mut sequence.old, &mut sequence.reference] {
                values.iter_mut().for_each(|values| values[2] = outside);
            }
        }
        prop_assert_eq!(loss_of(&touched, &objective, &totals), loss_of(&batch, &objective, &totals));
    }
}
