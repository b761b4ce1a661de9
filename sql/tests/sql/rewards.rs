//! `rewards.sql` on hand-worked trajectories.

use crate::common::{block_on, decimal, rows, table_of, trajectory, verdict};
use envace_schemas::tables::{RewardRow, TrajectoryRow, VerdictRow};
use envace_sql::{OnOverlong, OnRehearsalFailed, OnUngraded, RewardParams, queries};

/// One item: user turn, weight, required, passed.
type Item = (i32, &'static str, bool, Option<bool>);

/// One trajectory, and the actor's row.
struct Case {
    name: &'static str,
    /// User turns begun, and of the script.
    user_turns: (i32, i32),
    items: &'static [Item],
    reward: Option<&'static str>,
    reason: Option<&'static str>,
    is_success: Option<bool>,
    /// Graded items, items, kept user turns.
    counts: (i64, i64, i64),
}

const PASS: Option<bool> = Some(true);
const FAIL: Option<bool> = Some(false);

const CASES: &[Case] = &[
    Case {
        name: "all passed",
        user_turns: (1, 1),
        items: &[(0, "0.4", true, PASS), (0, "0.6", false, PASS)],
        reward: Some("1"),
        reason: None,
        is_success: Some(true),
        counts: (2, 2, 1),
    },
    Case {
        name: "an optional item failed: 0.4, and still a success",
        user_turns: (1, 1),
        items: &[(0, "0.4", true, PASS), (0, "0.6", false, FAIL)],
        reward: Some("0.4"),
        reason: None,
        is_success: Some(true),
        counts: (2, 2, 1),
    },
    Case {
        name: "none is required, so all are: no success",
        user_turns: (1, 1),
        items: &[(0, "0.4", false, PASS), (0, "0.6", false, FAIL)],
        reward: Some("0.4"),
        reason: None,
        is_success: Some(false),
        counts: (2, 2, 1),
    },
    Case {
        name: "a required item of user turn 0 failed: user turn 1 is dropped, (0.3 + 0) / 2",
        user_turns: (2, 2),
        items: &[(0, "0.7", true, FAIL), (0, "0.3", false, PASS), (1, "1", false, PASS)],
        reward: Some("0.15"),
        reason: None,
        is_success: Some(false),
        counts: (2, 2, 1),
    },
    Case {
        name: "an ungraded item beyond the gate does not matter",
        user_turns: (2, 2),
        items: &[(0, "1", true, FAIL), (1, "1", false, None)],
        reward: Some("0"),
        reason: None,
        is_success: Some(false),
        counts: (1, 1, 1),
    },
    Case {
        name: "stopped by itself in user turn 0 of 3, no rows for the others: 1 / 3",
        user_turns: (1, 3),
        items: &[(0, "1", true, PASS)],
        reward: Some("0.333333333"),
        reason: None,
        is_success: Some(false),
        counts: (1, 1, 1),
    },
    Case {
        name: "the same with failed rows for the next; 2 / 3 is rounded up",
        user_turns: (2, 3),
        items: &[(0, "1", true, PASS), (1, "1", true, PASS), (2, "1", true, FAIL)],
        reward: Some("0.666666667"),
        reason: None,
        is_success: Some(false),
        counts: (3, 3, 2),
    },
    Case {
        name: "weights that do not sum to 1 are shares: 1 / 3 of user turn 0, 1 of 1, over 2",
        user_turns: (2, 2),
        items: &[(0, "1", false, PASS), (0, "2", false, FAIL), (1, "5", false, PASS)],
        // (0.333333333 + 1) / 2 = 0.6666666665, half away from zero.
        reward: Some("0.666666667"),
        reason: None,
        is_success: Some(false),
        counts: (3, 3, 2),
    },
    Case {
        name: "an ungraded item: no reward",
        user_turns: (1, 1),
        items: &[(0, "0.5", true, PASS), (0, "0.5", false, None)],
        reward: None,
        reason: Some("ungraded_item"),
        is_success: Some(true),
        counts: (1, 2, 1),
    },
    Case {
        name: "an ungraded required item: success is not known either",
        user_turns: (2, 2),
        items: &[(0, "0.5", true, None), (0, "0.5", false, PASS), (1, "1", true, PASS)],
        reward: None,
        reason: Some("ungraded_item"),
        is_success: None,
        counts: (1, 2, 1),
    },
    Case {
        name: "no items at all",
        user_turns: (1, 1),
        items: &[],
        reward: None,
        reason: Some("no_items"),
        is_success: None,
        counts: (0, 0, 1),
    },
    Case {
        name: "items of no weight",
        user_turns: (1, 1),
        items: &[(0, "0", false, PASS)],
        reward: None,
        reason: Some("no_weight"),
        is_success: Some(true),
        counts: (1, 1, 1),
    },
];

fn verdicts_of(sample: i32, items: &[Item]) -> Vec<VerdictRow> {
    let items =
        items.iter().enumerate().map(|(index, (user_turn, weight, is_required, is_passed))| VerdictRow {
            is_required: *is_required,
            ..verdict(sample, *user_turn, &format!("i{index}"), weight, *is_passed)
        });
    items.collect()
}

fn rewards(trajectories: &[TrajectoryRow], verdicts: &[VerdictRow], params: RewardParams) -> Vec<RewardRow> {
    let inputs = [table_of(trajectories), table_of(verdicts)];
    block_on(rows(queries::REWARDS, &inputs, &params.to_params(), 3)).unwrap()
}

#[test]
fn rewards_are_the_hand_worked_ones() {
    // All cases are trajectories of one table, so that none sees another's items.
    let mut trajectories = Vec::new();
    let mut verdicts = Vec::new();
    for (sample, case) in CASES.iter().enumerate() {
        let sample = sample as i32;
        trajectories.push(trajectory("t", sample, case.user_turns.0, case.user_turns.1));
        verdicts.extend(verdicts_of(sample, case.items));
    }
    let found = rewards(&trajectories, &verdicts, RewardParams::default());
    assert_eq!(found.len(), CASES.len());
    for (row, case) in found.iter().zip(CASES) {
        let counts = (row.n_graded, row.n_items, row.n_kept_user_turns);
        let found = (row.reward, row.ungraded_reason.as_deref(), row.is_success, counts);
        let expected = (case.reward.map(decimal), case.reason, case.is_success, case.counts);
        assert_eq!(found, expected, "{}", case.name);
        assert_eq!(row.role, "actor");
        assert_eq!(row.n_scripted_user_turns, i64::from(case.user_turns.1));
    }
}

/// Name, user turns begun and of the script, items, reward, reason.
type SkipCase = (&'static str, (i32, i32), &'static [Item], Option<&'static str>, Option<&'static str>);

#[test]
fn skipped_items_leave_their_user_turn() {
    let cases: &[SkipCase] = &[
        (
            "0.3 of the graded 0.4",
            (1, 1),
            &[(0, "0.3", false, PASS), (0, "0.1", false, FAIL), (0, "0.6", false, None)],
            Some("0.75"),
            None,
        ),
        (
            "a required one in the last user turn gates nothing",
            (1, 1),
            &[(0, "0.5", true, None), (0, "0.5", false, PASS)],
            Some("1"),
            None,
        ),
        (
            "but in an earlier one it does",
            (2, 2),
            &[(0, "0.5", true, None), (0, "0.5", false, PASS), (1, "1", false, PASS)],
            None,
            Some("ungraded_gate"),
        ),
        (
            "unless another one has failed there",
            (2, 2),
            &[(0, "0.5", true, None), (0, "0.5", true, FAIL), (1, "1", false, PASS)],
            Some("0"),
            None,
        ),
        (
            "nothing graded in a user turn",
            (2, 2),
            &[(0, "1", false, PASS), (1, "1", false, None)],
            None,
            Some("ungraded_item"),
        ),
    ];
    let params = RewardParams { on_ungraded: OnUngraded::Skip, ..RewardParams::default() };
    for (name, user_turns, items, reward, reason) in cases {
        let found =
            rewards(&[trajectory("t", 0, user_turns.0, user_turns.1)], &verdicts_of(0, items), params);
        assert_eq!(found[0].reward, reward.map(decimal), "{name}");
        assert_eq!(found[0].ungraded_reason.as_deref(), *reason, "{name}");
    }
}

#[test]
fn a_failed_rehearsal_is_not_the_actors_fault() {
    let failed = |sample| TrajectoryRow {
        end_reason: "rehearsal_failed".to_owned(),
        n_rehearsals: 2,
        ..trajectory("t", sample, 2, 3)
    };
    let mut verdicts = verdicts_of(0, &[(0, "1", true, PASS), (1, "1", true, None), (2, "1", true, None)]);
    // A required item had failed before: what came after is dropped, the failure too.
    verdicts.extend(verdicts_of(1, &[(0, "0.5", true, FAIL), (0, "0.5", false, PASS), (1, "1", true, None)]));
    let found = rewards(&[failed(0), failed(1)], &verdicts, RewardParams::default());
    let shown: Vec<_> = found
        .iter()
        .map(|row| {
            (row.sample, row.role.as_str(), row.reward, row.ungraded_reason.as_deref(), row.is_success)
        })
        .collect();
    let sixth = Some(decimal("0.166666667"));
    assert_eq!(
        shown,
        [
            (0, "actor", None, Some("rehearsal_failed"), None),
            (0, "rehearsal", None, Some("rehearsal_failed"), None),
            (1, "actor", sixth, None, Some(false)),
            (1, "rehearsal", sixth, None, Some(false)),
        ]
    );
    let params = RewardParams { on_rehearsal_failed: OnRehearsalFailed::Score, ..RewardParams::default() };
    let found = rewards(&[failed(0)], &verdicts, params);
    // User turn 0 of 3 counts, the others have failed.
    assert_eq!(found[0].reward, Some(decimal("0.333333333")));
    assert_eq!((found[0].ungraded_reason.as_deref(), found[0].is_success), (None, Some(false)));
}

#[test]
fn what_is_overlong_can_be_left_out() {
    let cut = |sample, end_reason: &str| TrajectoryRow {
        end_reason: end_reason.to_owned(),
        n_rehearsals: 1,
        ..trajectory("t", sample, 2, 3)
    };
    let mut verdicts = Vec::new();
    for sample in 0..3 {
        verdicts
            .extend(verdicts_of(sample, &[(0, "1", true, PASS), (1, "1", true, FAIL), (2, "1", true, FAIL)]));
    }
    // The required item had failed before the limit was met: what came after is dropped, the limit too.
    verdicts.extend(verdicts_of(3, &[(0, "1", true, FAIL), (1, "1", true, FAIL)]));
    let trajectories = [cut(0, "length"), cut(1, "max_turns"), cut(2, "malformed_calls"), cut(3, "length")];
    let found = |on_overlong| {
        let params = RewardParams { on_overlong, ..RewardParams::default() };
        let rows = rewards(&trajectories, &verdicts, params);
        let shown =
            rows.iter().map(|row| (row.sample, row.reward, row.ungraded_reason.clone(), row.is_success));
        shown.collect::<Vec<_>>()
    };
    let third = Some(decimal("0.333333333"));
    let both = |sample, reward, reason: Option<&str>| {
        let row = (sample, reward, reason.map(str::to_owned), Some(false));
        [row.clone(), row]
    };
    let zero = Some(decimal("0"));
    let overlong = Some("overlong");
    assert_eq!(
        found(OnOverlong::Null),
        [both(0, None, overlong), both(1, None, overlong), both(2, third, None), both(3, zero, None)]
            .concat()
    );
    assert_eq!(
        found(OnOverlong::Score),
        [both(0, third, None), both(1, third, None), both(2, third, None), both(3, zero, None)].concat()
    );
}

#[test]
fn the_rehearsal_roles_checklist_is_a_share_of_its_reward_alone() {
    let mut trajectory = trajectory("t", 0, 1, 1);
    trajectory.n_rehearsals = 1;
    let own = |item: &str, weight: &str, is_passed| VerdictRow {
        grader: "rehearsal_checklist".to_owned(),
        ..verdict(0, 0, item, weight, is_passed)
    };
    let found = |own: Vec<VerdictRow>, weight: &str, on_ungraded| {
        let mut verdicts = verdicts_of(0, &[(0, "0.4", true, PASS), (0, "0.6", false, FAIL)]);
        verdicts.extend(own);
        let params = RewardParams {
            on_ungraded,
            rehearsal_checklist_weight: decimal(weight),
            ..RewardParams::default()
        };
        let rows = rewards(std::slice::from_ref(&trajectory), &verdicts, params);
        assert!(rows.iter().all(|row| row.n_items == 2), "its items are its own");
        assert_eq!(rows[0].reward, Some(decimal("0.4")), "the actor's reward is as it was");
        (rows[1].reward.map(|reward| reward.to_string()), rows[1].ungraded_reason.clone())
    };
    let reward = |text: &str| (Some(text.to_owned()), None);
    let third = vec![own("a", "1", PASS), own("b", "2", FAIL)];
    // 0.75 * 0.4 + 0.25 * 0.333333333 = 0.38333333325, to a billionth.
    assert_eq!(found(third.clone(), "0.25", OnUngraded::Null), reward("0.383333333"));
    assert_eq!(found(third.clone(), "1", OnUngraded::Null), reward("0.333333333"));
    assert_eq!(found(third, "0", OnUngraded::Null), reward("0.4"));
    assert_eq!(found(Vec::new(), "0.25", OnUngraded::Null), reward("0.4"), "there is no such checklist");
    let open = vec![own("a", "1", PASS), own("b", "2", None)];
    let ungraded = (None, Some("ungraded_rehearsal_item".to_owned()));
    assert_eq!(found(open.clone(), "0.25", OnUngraded::Null), ungraded);
    // 0.75 * 0.4 + 0.25 * 1.
    assert_eq!(found(open.clone(), "0.25", OnUngraded::Skip), reward("0.55"));
    assert_eq!(found(open, "0", OnUngraded::Null), reward("0.4"), "what does not count does no harm");
}
