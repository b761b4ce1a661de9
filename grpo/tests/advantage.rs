//! Advantages: hand-worked groups, and properties of all groups.

use envace_grpo::advantage::{
    Advantage, Baseline, Generation, Malfunction, Role, Rules, Weighting, advantages,
};
use proptest::prelude::*;

#[path = "cases/advantage.rs"]
mod cases;

use cases::{B, Case, Expected};

#[test]
fn advantages_are_the_hand_worked_ones() {
    for Case { name, rules, rows } in cases::cases() {
        let generations: Vec<_> = rows.iter().map(|(generation, _)| *generation).collect();
        let found = advantages(&generations, &rules).unwrap();
        assert_eq!(found.len(), rows.len());
        for (index, (found, (_, expected))) in found.iter().zip(&rows).enumerate() {
            let Advantage { reward, baseline, deviation, group_size, outcome } = *found;
            let found = Expected { reward, baseline, deviation, group_size, outcome };
            assert_eq!(found, *expected, "row {index}: {name}");
        }
    }
}

#[test]
fn rewards_too_large_to_square_are_an_error() {
    let row = |sample, reward| Generation {
        task_id: "huge",
        sample,
        role: Role::Actor,
        user_turn: 0,
        n_tokens: 1,
        is_blank: false,
        is_malformed: false,
        reward: Some(reward),
        n_kept_user_turns: None,
    };
    let rows = vec![row(0, i64::MAX), row(1, 0), row(2, i64::MAX), row(3, 0)];
    let error = advantages(&rows, &Rules { scale: Some(1e-6), ..Rules::default() }).unwrap_err();
    assert_eq!(error.to_string(), "rewards of task `huge` are too large to sum exactly");
    assert!(advantages(&rows, &Rules::default()).is_ok());
}

/// Trajectories of one group: reward, actor generations, rehearsal generations (at least one of each).
fn group() -> impl Strategy<Value = Vec<(i64, usize, usize)>> {
    proptest::collection::vec((0..=B, 1..5_usize, 1..5_usize), 2..7)
}

fn rows_of(group: &[(i64, usize, usize)]) -> Vec<Generation<'static>> {
    let mut rows = Vec::new();
    for (sample, (reward, n_actor, n_rehearsal)) in group.iter().enumerate() {
        for index in 0..n_actor + n_rehearsal {
            rows.push(Generation {
                task_id: "t",
                sample: sample as i32,
                role: if index < *n_actor { Role::Actor } else { Role::Rehearsal },
                user_turn: 0,
                n_tokens: 1,
                is_blank: false,
                is_malformed: false,
                reward: Some(*reward),
                n_kept_user_turns: Some(1),
            });
        }
    }
    rows
}

proptest! {
    #[test]
    fn by_trajectory_both_roles_have_one_baseline(group in group(), leave_one_out: bool) {
        let baseline = if leave_one_out { Baseline::LeaveOneOut } else { Baseline::Mean };
        let rules = Rules { weighting: Weighting::Trajectory, baseline, ..Rules::default() };
        let rows = rows_of(&group);
        let found = advantages(&rows, &rules).unwrap();
        for (row, one) in rows.iter().zip(&found) {
            let other = rows.iter().position(|other| other.sample == row.sample && other.role != row.role);
            prop_assert_eq!(one.baseline, found[other.unwrap()].baseline);
            prop_assert!(one.baseline.is_some());
        }
    }

    #[test]
    fn by_trajectory_repeated_turns_leave_the_baseline(group in group(), at in 0..2_usize, times in 2..4_usize) {
        let rules = Rules { weighting: Weighting::Trajectory, scale: Some(1e-6), ..Rules::default() };
        let mut longer = group.clone();
        longer[at].1 *= times;
        let short = advantages(&rows_of(&group), &rules).unwrap();
        let long = advantages(&rows_of(&longer), &rules).unwrap();
        // The first row of the group is an actor's in both.
        prop_assert_eq!(short[0].baseline, long[0].baseline);
        prop_assert_eq!(short[0].deviation, long[0].deviation);
        let by_generation = Rules { weighting: Weighting::Generation, ..rules };
        if group.iter().any(|(reward, ..)| *reward != group[at].0) {
            let short = advantages(&rows_of(&group), &by_generation).unwrap();
            let long = advantages(&rows_of(&longer), &by_generation).unwrap();
            prop_assert_ne!(short[0].baseline, long[0].baseline);
        }
    }

    #[test]
    fn order_does_not_matter(group in group(), seed: u64, scale: bool) {
        let scale = scale.then_some(1e-6);
        let rules = Rules { scale, malfunction: Malfunction::Trajectory, ..Rules::default() };
        let rows = rows_of(&group);
        let found = advantages(&rows, &rules).unwrap();
        let mut order: Vec<usize> = (0..rows.len()).collect();
        envace_grpo::seeds::Draw::new(seed, "test").shuffle(&mut order);
        let shuffled: Vec<_> = order.iter().map(|index| rows[*index]).collect();
        for (index, again) in order.iter().zip(advantages(&shuffled, &rules).unwrap()) {
            prop_assert_eq!(found[*index], again);
        }
    }

    #[test]
    fn centered_advantages_of_a_role_sum_to_zero(group in group()) {
        let rows = rows_of(&group);
        let found = advantages(&rows, &Rules::default()).unwrap();
        for role in [Role::Actor, Role::Rehearsal] {
            let of_role = rows.iter().zip(&found).filter(|(row, _)| row.role == role);
            let sum: f64 = of_role.map(|(_, one)| one.outcome.unwrap()).sum();
            prop_assert!(sum.abs() < 1e-12, "{}", sum);
        }
    }
}
