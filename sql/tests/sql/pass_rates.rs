//! `pass_rates.sql` on a hand-worked evaluation.

use crate::common::{block_on, decimal, reward, rows, table_of, trajectory};
use envace_schemas::tables::{PassRateRow, RewardRow, TrajectoryRow};
use envace_sql::{EvaluationParams, queries};

#[test]
fn chances_are_the_hand_worked_ones_and_null_below_k_valid_trials() {
    let (yes, no) = (Some(true), Some(false));
    // Of four trials each: a passes two of four, b one of three valid ones, c has none.
    let tasks = [
        ("a", Some("order"), [yes, yes, no, no]),
        ("b", Some("order"), [no, yes, no, None]),
        ("c", None, [None, None, None, None]),
    ];
    let mut trajectories = Vec::new();
    let mut rewards = Vec::new();
    for (task_id, family, trials) in tasks {
        for (sample, is_success) in (0..).zip(trials) {
            trajectories.push(TrajectoryRow {
                split: "held_out".to_owned(),
                family: family.map(str::to_owned),
                ..trajectory(task_id, sample, 1, 1)
            });
            let row = reward(task_id, sample, "actor", is_success.map(|_| decimal("1")));
            rewards.push(RewardRow { is_success, ..row });
            // The other role's row is of no matter.
            rewards.push(RewardRow { is_success: yes, ..reward(task_id, sample, "rehearsal", None) });
        }
    }
    let params = EvaluationParams { suite: "world".to_owned(), checkpoint: "abc".to_owned() };
    let inputs = [table_of(&trajectories), table_of(&rewards)];
    for n_partitions in [1, 3] {
        let found: Vec<PassRateRow> =
            block_on(rows(queries::PASS_RATES, &inputs, &params.to_params(), n_partitions)).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|row| {
                let rates = [row.pass_at_k, row.pass_hat_k, row.success_mean];
                (row.family.as_str(), row.k, row.n_tasks, row.n_scored_tasks, rates)
            })
            .collect();
        // a: k = 1: 2/4. k = 2: 1 - 2/4 1/3 = 5/6, and 2/4 1/3 = 1/6. k = 3: 1 - 0, and 0. k = 4: 1 and 0.
        // b: k = 1: 1/3. k = 2: 1 - 2/3 1/2 = 2/3, and 0. k = 3: 1 and 0. k = 4: not known.
        // To a billionth: 1/3 = 0.333333333, 5/6 = 0.833333333, 2/3 = 0.666666667, 1/6 = 0.166666667.
        let rates = |a: f64, b: f64, c: f64| [Some(a), Some(b), Some(c)];
        let expected = |family, n_tasks| {
            [
                (family, 1, n_tasks, 2, rates(0.4166666665, 0.4166666665, 0.4166666665)),
                (family, 2, n_tasks, 2, rates(0.75, 0.0833333335, 0.4166666665)),
                (family, 3, n_tasks, 2, rates(1.0, 0.0, 0.4166666665)),
                (family, 4, n_tasks, 1, rates(1.0, 0.0, 0.5)),
            ]
        };
        assert_eq!(found, [expected("all", 3), expected("order", 2)].concat());
    }
    // Without a valid trial nothing is known, and that is said.
    let of_c = |task: &str| task == "c";
    let trajectories: Vec<_> = trajectories.into_iter().filter(|row| of_c(&row.task_id)).collect();
    let rewards: Vec<_> = rewards.into_iter().filter(|row| of_c(&row.task_id)).collect();
    let inputs = [table_of(&trajectories), table_of(&rewards)];
    let found: Vec<PassRateRow> =
        block_on(rows(queries::PASS_RATES, &inputs, &params.to_params(), 2)).unwrap();
    assert_eq!(found.len(), 4);
    assert!(
        found
            .iter()
            .all(|row| row.n_scored_tasks == 0 && row.pass_at_k.is_none() && row.pass_hat_k.is_none())
    );
}
