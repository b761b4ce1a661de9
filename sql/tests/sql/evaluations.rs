//! `evaluations.sql` on a hand-worked evaluation.

use crate::common::{block_on, decimal, generation, reward, rows, table_of, trajectory};
use envace_schemas::tables::{EvaluationRow, GenerationRow, RewardRow, TrajectoryRow};
use envace_sql::{EvaluationParams, queries};

#[test]
fn evaluations_are_the_hand_worked_ones() {
    // Task, sample, family, success, reward, generations of the actor in user turns 0 and 1.
    let trials = [
        ("a", 0, Some("order"), Some(true), Some("1"), (1, 1)),
        ("a", 1, Some("order"), Some(false), Some("0.5"), (2, 0)),
        ("b", 0, Some("order"), Some(true), Some("1"), (3, 0)),
        ("b", 1, Some("order"), None, None, (1, 0)),
        ("c", 0, None, Some(false), Some("0"), (0, 0)),
        ("c", 1, None, Some(false), Some("0.1"), (1, 0)),
    ];
    let mut trajectories = Vec::new();
    let mut generations = Vec::new();
    let mut rewards = Vec::new();
    for (task_id, sample, family, is_success, earned, n_turns) in trials {
        trajectories.push(TrajectoryRow {
            split: "held_out".to_owned(),
            family: family.map(str::to_owned),
            environment: "world".to_owned(),
            ..trajectory(task_id, sample, 1, 1)
        });
        let row = reward(task_id, sample, "actor", earned.map(decimal));
        rewards.push(RewardRow { is_success, n_kept_user_turns: 1, ..row });
        rewards.push(reward(task_id, sample, "rehearsal", Some(decimal("100"))));
        for index in 0..n_turns.0 + n_turns.1 {
            let row = generation(task_id, sample, index, "actor");
            generations.push(GenerationRow { user_turn: i32::from(index >= n_turns.0), ..row });
        }
        generations.push(generation(task_id, sample, 99, "rehearsal"));
    }
    let params = EvaluationParams { suite: "world".to_owned(), checkpoint: "abc".to_owned() };
    let inputs = [table_of(&trajectories), table_of(&generations), table_of(&rewards)];
    let found: Vec<EvaluationRow> =
        block_on(rows(queries::EVALUATIONS, &inputs, &params.to_params(), 4)).unwrap();
    let common = EvaluationRow {
        suite: "world".to_owned(),
        split: "held_out".to_owned(),
        family: "all".to_owned(),
        environment: "world".to_owned(),
        checkpoint: "abc".to_owned(),
        n_tasks: 3,
        n_trials: 2,
        n_graded: 5,
        // 2 of 5. Tasks 1/2, 1, 0: mean 1/2, deviation sqrt((0 + 1/4 + 1/4) / 2) = 1/2, over sqrt(3).
        success_rate: Some(0.4),
        standard_error: Some((1.0_f64 / 12.0).sqrt()),
        // (1 + 0.5 + 1 + 0 + 0.1) / 5.
        reward_mean: Some(0.52),
        // User turn 1 of a's first trial is beyond its gate: (1 + 2 + 3 + 1 + 0 + 1) / 6.
        turns_mean: Some(8.0 / 6.0),
    };
    let order = EvaluationRow {
        family: "order".to_owned(),
        n_tasks: 2,
        n_graded: 3,
        success_rate: Some(2.0 / 3.0),
        // Tasks 1/2 and 1: deviation sqrt((1/16 + 1/16) / 1), over sqrt(2): 1/4.
        standard_error: Some(0.25),
        reward_mean: Some(2.5 / 3.0),
        turns_mean: Some(7.0 / 4.0),
        ..common.clone()
    };
    assert_eq!(found.len(), 2);
    for (found, expected) in found.iter().zip([&common, &order]) {
        let error = |row: &EvaluationRow| row.standard_error.unwrap();
        assert!((error(found) - error(expected)).abs() < 1e-15, "{found:?}");
        let found = EvaluationRow { standard_error: expected.standard_error, ..found.clone() };
        assert_eq!(found, *expected);
    }
}

#[test]
fn a_lone_task_has_no_standard_error_and_an_ungraded_one_no_rate() {
    let trajectories = [TrajectoryRow { split: "s".to_owned(), ..trajectory("a", 0, 1, 1) }];
    let params = EvaluationParams { suite: "x".to_owned(), checkpoint: "c".to_owned() };
    let evaluate = |rewards: &[RewardRow]| -> Vec<EvaluationRow> {
        let inputs = [table_of(&trajectories), table_of::<GenerationRow>(&[]), table_of(rewards)];
        block_on(rows(queries::EVALUATIONS, &inputs, &params.to_params(), 1)).unwrap()
    };
    let graded = RewardRow { is_success: Some(true), ..reward("a", 0, "actor", Some(decimal("1"))) };
    let found = evaluate(&[graded]);
    assert_eq!((found[0].success_rate, found[0].standard_error), (Some(1.0), None));
    let found = evaluate(&[]);
    assert_eq!((found[0].n_tasks, found[0].n_graded, found[0].n_trials), (1, 0, 1));
    assert_eq!((found[0].success_rate, found[0].reward_mean), (None, None));
    assert_eq!(found[0].turns_mean, Some(0.0));
}
