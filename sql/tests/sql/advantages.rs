//! `advantages.sql` against hand-worked groups and, bit for bit, against the plain Rust reference.

#[path = "../../../grpo/tests/cases/advantage.rs"]
mod cases;

use crate::common::{block_on, generation, reward, rows, table_of};
use envace_grpo::advantage::{self, Generation, Malfunction, Role, Rules, advantages};
use envace_schemas::Decimal;
use envace_schemas::tables::{AdvantageRow, GenerationRow, RewardRow};
use envace_sql::{
    AdvantageParams, Baseline, Grouping, MalfunctionRule, SingletonRule, Weighting, ZeroVarianceRule, queries,
};
use proptest::prelude::*;

use cases::{B, Case, Expected};

#[test]
fn advantages_are_the_hand_worked_ones() {
    for Case { name, rules, rows } in cases::cases() {
        let generations: Vec<_> = rows.iter().map(|(generation, _)| *generation).collect();
        let found = sql_advantages(&generations, &rules, &(0..rows.len()).collect::<Vec<_>>(), 2);
        assert_eq!(found.len(), rows.len(), "{name}");
        for (index, (found, (_, expected))) in found.iter().zip(&rows).enumerate() {
            assert_eq!(as_expected(found), *expected, "row {index}: {name}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Any rules, any groups: same bits as the reference, for shuffled input and 1, 4 and 8 partitions.
    #[test]
    fn sql_and_rust_agree(rules in rules(), generations in generations(), seed: u64) {
        let expected = advantages(&generations, &rules).unwrap();
        let straight: Vec<usize> = (0..generations.len()).collect();
        let mut shuffled = straight.clone();
        envace_grpo::seeds::Draw::new(seed, "test").shuffle(&mut shuffled);
        for (order, n_partitions) in [(&straight, 1), (&shuffled, 4), (&shuffled, 8)] {
            let found = sql_advantages(&generations, &rules, order, n_partitions);
            prop_assert_eq!(found.len(), generations.len());
            for (found, expected) in found.iter().zip(&expected) {
                let advantage::Advantage { reward, baseline, deviation, group_size, outcome } = *expected;
                let expected = Expected { reward, baseline, deviation, group_size, outcome };
                prop_assert_eq!(exactly(&as_expected(found)), exactly(&expected));
            }
        }
    }
}

/// As shown, with floats to their last bit and the sign of 0.
fn exactly(row: &Expected) -> String {
    format!("{row:?}")
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Actor => "actor",
        Role::Rehearsal => "rehearsal",
    }
}

/// The query's rows for these generations, given in `order`; generation index is the place in `generations`.
fn sql_advantages(
    generations: &[Generation<'_>],
    rules: &Rules,
    order: &[usize],
    n_partitions: usize,
) -> Vec<AdvantageRow> {
    let mut generation_rows: Vec<GenerationRow> = Vec::new();
    let mut reward_rows: Vec<RewardRow> = Vec::new();
    for index in order {
        let one = &generations[*index];
        let row = generation(one.task_id, one.sample, *index as i32, role_name(one.role));
        generation_rows.push(GenerationRow {
            user_turn: one.user_turn,
            n_tokens: one.n_tokens,
            is_blank: one.is_blank,
            error_code: one.is_malformed.then(|| "BROKEN".to_owned()),
            ..row
        });
    }
    // One reward row a (trajectory, role); a trajectory of unknown gate has none at all, or keeps all its user
    // turns.
    for one in generations {
        let key = (one.task_id, one.sample, role_name(one.role));
        let is_there = |row: &RewardRow| (row.task_id.as_str(), row.sample, row.role.as_str()) == key;
        if reward_rows.iter().any(is_there) || (one.reward.is_none() && one.n_kept_user_turns.is_none()) {
            continue;
        }
        let scaled = one.reward.map(|reward| Decimal::from_scaled(reward).unwrap());
        let n_kept = generations
            .iter()
            .filter(|other| (other.task_id, other.sample, role_name(other.role)) == key)
            .map(|other| other.n_kept_user_turns.unwrap_or(100))
            .max();
        let row = reward(one.task_id, one.sample, key.2, scaled);
        reward_rows.push(RewardRow { n_kept_user_turns: n_kept.unwrap(), ..row });
    }
    let inputs = [table_of(&generation_rows), table_of(&reward_rows)];
    let params = params_of(rules);
    let mut found: Vec<AdvantageRow> =
        block_on(rows(queries::ADVANTAGES, &inputs, &params.to_params(), n_partitions)).unwrap();
    if params.whiten {
        let (query, params) = (queries::WHITENED, params.to_whitening_params());
        found = block_on(rows(query, &[table_of(&found)], &params, n_partitions)).unwrap();
    }
    let keys: Vec<_> =
        found.iter().map(|row| (row.task_id.clone(), row.sample, row.generation_index)).collect();
    assert!(keys.is_sorted(), "{keys:?}");
    found.sort_by_key(|row| row.generation_index);
    found
}

fn params_of(rules: &Rules) -> AdvantageParams {
    AdvantageParams {
        grouping: match rules.grouping {
            advantage::Grouping::Role => Grouping::Role,
            advantage::Grouping::Task => Grouping::Task,
        },
        weighting: match rules.weighting {
            advantage::Weighting::Generation => Weighting::Generation,
            advantage::Weighting::Trajectory => Weighting::Trajectory,
        },
        baseline: match rules.baseline {
            advantage::Baseline::Mean => Baseline::Mean,
            advantage::Baseline::LeaveOneOut => Baseline::LeaveOneOut,
            advantage::Baseline::Zero => Baseline::Zero,
        },
        scale: rules.scale.is_some(),
        whiten: rules.whiten.is_some(),
        epsilon: rules.scale.or(rules.whiten).unwrap_or(0.0),
        singleton: match rules.singleton {
            advantage::Singleton::Zero => SingletonRule::Zero,
            advantage::Singleton::Exclude => SingletonRule::Exclude,
            advantage::Singleton::Raw => SingletonRule::Raw,
        },
        zero_variance: match rules.zero_variance {
            advantage::ZeroVariance::Keep => ZeroVarianceRule::Keep,
            advantage::ZeroVariance::Exclude => ZeroVarianceRule::Exclude,
        },
        malfunction: match rules.malfunction {
            Malfunction::Reward(_) => MalfunctionRule::Reward,
            Malfunction::Exclude => MalfunctionRule::Exclude,
            Malfunction::Trajectory => MalfunctionRule::Trajectory,
        },
        malfunction_reward: match rules.malfunction {
            Malfunction::Reward(reward) => Decimal::from_scaled(reward).unwrap(),
            _ => Decimal::ZERO,
        },
        blank_penalty: Decimal::from_scaled(rules.blank_penalty).unwrap(),
        rehearsal_weight: rules.rehearsal_weight,
    }
}

fn as_expected(row: &AdvantageRow) -> Expected {
    use advantage::Exclusion::{BeyondGate, Malfunction, NoTokens, Singleton, Ungraded, ZeroVariance};
    assert_eq!(row.is_included, row.exclusion_reason.is_none());
    assert_eq!(row.is_included, row.advantage.is_some());
    let exclusion = row.exclusion_reason.as_ref().map(|reason| {
        let all = [BeyondGate, NoTokens, Malfunction, Ungraded, Singleton, ZeroVariance];
        all.into_iter().find(|exclusion| exclusion.name() == reason).unwrap()
    });
    Expected {
        reward: row.reward.map(Decimal::scaled),
        baseline: row.baseline,
        deviation: row.deviation,
        group_size: row.group_size,
        outcome: exclusion.map_or_else(|| Ok(row.advantage.unwrap()), Err),
    }
}

fn rules() -> impl Strategy<Value = Rules> {
    use advantage::{Baseline, Grouping, Singleton, Weighting, ZeroVariance};
    // At most one of the two divisions: scaled, whitened, each with an epsilon.
    let division = prop_oneof![
        Just((None, None)),
        Just((Some(1e-6), None)),
        Just((Some(0.0), None)),
        Just((None, Some(1e-6))),
        Just((None, Some(0.0)))
    ];
    (
        prop_oneof![Just(Grouping::Role), Just(Grouping::Task)],
        prop_oneof![Just(Weighting::Generation), Just(Weighting::Trajectory)],
        prop_oneof![Just(Baseline::Mean), Just(Baseline::LeaveOneOut), Just(Baseline::Zero)],
        division,
        prop_oneof![Just(Singleton::Zero), Just(Singleton::Exclude), Just(Singleton::Raw)],
        prop_oneof![Just(ZeroVariance::Keep), Just(ZeroVariance::Exclude)],
        prop_oneof![
            Just(Malfunction::Reward(0)),
            Just(Malfunction::Reward(-B / 3)),
            Just(Malfunction::Exclude),
            Just(Malfunction::Trajectory)
        ],
        prop_oneof![Just(0), Just(B / 10)],
        prop_oneof![Just(1.0), Just(0.3)],
    )
        .prop_map(
            |(
                grouping,
                weighting,
                baseline,
                (scale, whiten),
                singleton,
                zero_variance,
                malfunction,
                penalty,
                weight,
            )| {
                Rules {
                    grouping,
                    weighting,
                    baseline,
                    scale,
                    whiten,
                    singleton,
                    zero_variance,
                    malfunction,
                    blank_penalty: penalty,
                    rehearsal_weight: weight,
                }
            },
        )
}

/// Some tasks of some trajectories of some generations of both roles, of every kind.
fn generations() -> impl Strategy<Value = Vec<Generation<'static>>> {
    let often = |share: f64| proptest::bool::weighted(share);
    let one = (often(0.5), 0..3_i32, often(0.9), often(0.2), often(0.3));
    let trajectory = (
        // Few values, so that equal rewards occur, and odd ones, so that rounding does.
        prop_oneof![Just(None), Just(Some(0)), Just(Some(B)), (-B..=B).prop_map(Some)],
        // Two of the three user turns are mostly kept.
        prop_oneof![1 => 0..2_i64, 3 => 2..4_i64],
        proptest::collection::vec(one, 0..6),
    );
    let task = proptest::collection::vec(trajectory, 1..5);
    proptest::collection::vec(task, 1..4).prop_map(|tasks| {
        let mut generations = Vec::new();
        for (task_id, trajectories) in ["a", "b", "c"].into_iter().zip(tasks) {
            for (sample, (reward, n_kept, ones)) in trajectories.into_iter().enumerate() {
                for (is_actor, user_turn, has_tokens, is_blank, is_malformed) in ones {
                    generations.push(Generation {
                        task_id,
                        sample: sample as i32,
                        role: if is_actor { Role::Actor } else { Role::Rehearsal },
                        user_turn,
                        n_tokens: i32::from(has_tokens),
                        is_blank,
                        is_malformed,
                        reward,
                        n_kept_user_turns: Some(n_kept),
                    });
                }
            }
        }
        generations
    })
}

/// What a query of one's own leaves out is in no statistic of the step, though it has a value.
#[test]
fn whitening_is_of_what_is_included() {
    let row = |index: i32, advantage: f64, is_included: bool| AdvantageRow {
        task_id: "t".to_owned(),
        sample: index,
        generation_index: 0,
        role: "actor".to_owned(),
        reward: Some(Decimal::ONE),
        baseline: None,
        deviation: None,
        group_size: 3,
        advantage: Some(advantage),
        is_included,
        exclusion_reason: (!is_included).then(|| "mine".to_owned()),
    };
    let given = [row(0, 3.0, true), row(1, 5.0, true), row(2, 100.0, false)];
    let params = AdvantageParams { whiten: true, epsilon: 0.0, ..AdvantageParams::default() };
    let found: Vec<AdvantageRow> =
        block_on(rows(queries::WHITENED, &[table_of(&given)], &params.to_whitening_params(), 2)).unwrap();
    // Mean 4, and deviation sqrt(1 + 1).
    let half = 0.5_f64.sqrt();
    let whitened: Vec<_> = found.iter().map(|row| row.advantage).collect();
    assert!((whitened[0].unwrap() + half).abs() < 1e-12, "{whitened:?}");
    assert!((whitened[1].unwrap() - half).abs() < 1e-12, "{whitened:?}");
    assert_eq!(whitened[2], None);
}
