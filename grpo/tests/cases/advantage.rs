// Groups and their advantages, worked out by hand: one table for the Rust reference and for the SQL.
//
// Included as a module by the tests of both crates. All generations of a case belong to one task. Rewards are
// in billionths; `B` is one.

use envace_grpo::advantage::{
    Baseline, Exclusion, Generation, Grouping, Malfunction, Role, Rules, Singleton, Weighting, ZeroVariance,
};

/// One reward unit in billionths.
pub const B: i64 = 1_000_000_000;

/// One group and what must come of it.
pub struct Case {
    pub name: &'static str,
    pub rules: Rules,
    pub rows: Vec<(Generation<'static>, Expected)>,
}

/// What must come of one generation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expected {
    pub reward: Option<i64>,
    pub baseline: Option<f64>,
    pub deviation: Option<f64>,
    pub group_size: i64,
    pub outcome: Result<f64, Exclusion>,
}

fn generation(role: Role, sample: i32, reward: Option<i64>) -> Generation<'static> {
    let task_id = "task";
    Generation {
        task_id,
        sample,
        role,
        user_turn: 0,
        n_tokens: 5,
        is_blank: false,
        is_malformed: false,
        reward,
        n_kept_user_turns: Some(1),
    }
}

fn actor(sample: i32, reward: i64) -> Generation<'static> {
    generation(Role::Actor, sample, Some(reward))
}

fn rehearsal(sample: i32, reward: i64) -> Generation<'static> {
    generation(Role::Rehearsal, sample, Some(reward))
}

/// Compared with `baseline`, the mean of `group_size` members, and only centered.
fn centered(reward: i64, baseline: f64, group_size: i64, advantage: f64) -> Expected {
    let baseline = Some(baseline);
    Expected { reward: Some(reward), baseline, deviation: None, group_size, outcome: Ok(advantage) }
}

fn alone(reward: i64, group_size: i64, outcome: Result<f64, Exclusion>) -> Expected {
    Expected { reward: Some(reward), baseline: None, deviation: None, group_size, outcome }
}

/// Without a baseline, divided by `deviation`.
fn scaled(reward: i64, group_size: i64, deviation: f64, advantage: f64) -> Expected {
    let deviation = Some(deviation);
    Expected { reward: Some(reward), baseline: None, deviation, group_size, outcome: Ok(advantage) }
}

fn excluded(reward: Option<i64>, group_size: i64, exclusion: Exclusion) -> Expected {
    Expected { reward, baseline: None, deviation: None, group_size, outcome: Err(exclusion) }
}

pub fn cases() -> Vec<Case> {
    let default = Rules::default();
    let by_trajectory = Rules { weighting: Weighting::Trajectory, ..default };
    let leave_one_out = Rules { baseline: Baseline::LeaveOneOut, ..default };
    vec![
        Case {
            name: "each role has its own mean: actor (1 + 0) / 2, rehearsal (1 + 1 + 1 + 0) / 4",
            rules: default,
            rows: vec![
                (actor(0, B), centered(B, 0.5, 2, 0.5)),
                (rehearsal(0, B), centered(B, 0.75, 4, 0.25)),
                (rehearsal(0, B), centered(B, 0.75, 4, 0.25)),
                (rehearsal(0, B), centered(B, 0.75, 4, 0.25)),
                (actor(1, 0), centered(0, 0.5, 2, -0.5)),
                (rehearsal(1, 0), centered(0, 0.75, 4, -0.75)),
            ],
        },
        Case {
            name: "by trajectory the same group has mean (1 + 0) / 2 in both roles",
            rules: by_trajectory,
            rows: vec![
                (actor(0, B), centered(B, 0.5, 2, 0.5)),
                (rehearsal(0, B), centered(B, 0.5, 2, 0.5)),
                (rehearsal(0, B), centered(B, 0.5, 2, 0.5)),
                (rehearsal(0, B), centered(B, 0.5, 2, 0.5)),
                (actor(1, 0), centered(0, 0.5, 2, -0.5)),
                (rehearsal(1, 0), centered(0, 0.5, 2, -0.5)),
            ],
        },
        Case {
            name: "by task both roles have the mean (1 + 1 + 1 + 1 + 0 + 0) / 6",
            rules: Rules { grouping: Grouping::Task, ..default },
            rows: vec![
                (actor(0, B), centered(B, 4.0 / 6.0, 6, 2.0 / 6.0)),
                (rehearsal(0, B), centered(B, 4.0 / 6.0, 6, 2.0 / 6.0)),
                (rehearsal(0, B), centered(B, 4.0 / 6.0, 6, 2.0 / 6.0)),
                (rehearsal(0, B), centered(B, 4.0 / 6.0, 6, 2.0 / 6.0)),
                (actor(1, 0), centered(0, 4.0 / 6.0, 6, -4.0 / 6.0)),
                (rehearsal(1, 0), centered(0, 4.0 / 6.0, 6, -4.0 / 6.0)),
            ],
        },
        Case {
            name: "the rehearsal role counts a quarter, its baseline is what it was",
            rules: Rules { rehearsal_weight: 0.25, ..default },
            rows: vec![
                (actor(0, B), centered(B, 0.5, 2, 0.5)),
                (actor(1, 0), centered(0, 0.5, 2, -0.5)),
                (rehearsal(0, B), centered(B, 0.5, 2, 0.125)),
                (rehearsal(1, 0), centered(0, 0.5, 2, -0.125)),
            ],
        },
        Case {
            name: "without a baseline the advantage is the reward, also of one alone",
            rules: Rules { baseline: Baseline::Zero, singleton: Singleton::Exclude, ..default },
            rows: vec![
                (actor(0, B), alone(B, 2, Ok(1.0))),
                (actor(1, -B / 2), alone(-B / 2, 2, Ok(-0.5))),
                (rehearsal(0, B), alone(B, 1, Ok(1.0))),
            ],
        },
        Case {
            name: "whitened: actor 1, 0, 0, 0 less 1/4 by 1/2; rehearsal 1, 0 less 1/2 by sqrt(1/2)",
            rules: Rules { baseline: Baseline::Zero, whiten: Some(0.0), ..default },
            rows: vec![
                (actor(0, B), scaled(B, 4, 0.5, 1.5)),
                (actor(1, 0), scaled(0, 4, 0.5, -0.5)),
                (actor(2, 0), scaled(0, 4, 0.5, -0.5)),
                (actor(3, 0), scaled(0, 4, 0.5, -0.5)),
                (rehearsal(0, B), scaled(B, 2, 0.5_f64.sqrt(), 0.5 / 0.5_f64.sqrt())),
                (rehearsal(1, 0), scaled(0, 2, 0.5_f64.sqrt(), -0.5 / 0.5_f64.sqrt())),
            ],
        },
        Case {
            name: "whitened by task: 1, 0, 0, 0 of both roles; the deviation has its epsilon",
            rules: Rules { grouping: Grouping::Task, baseline: Baseline::Zero, whiten: Some(0.5), ..default },
            rows: vec![
                (actor(0, B), scaled(B, 4, 1.0, 0.75)),
                (actor(1, 0), scaled(0, 4, 1.0, -0.25)),
                (rehearsal(1, 0), scaled(0, 4, 1.0, -0.25)),
                (rehearsal(2, 0), scaled(0, 4, 1.0, -0.25)),
            ],
        },
        Case {
            name: "leave-one-out drops the own trajectory: 0 is left with 1 and 0, sample 1 with 1, 1 and 0",
            rules: leave_one_out,
            rows: vec![
                (actor(0, B), centered(B, 0.5, 2, 0.5)),
                (actor(0, B), centered(B, 0.5, 2, 0.5)),
                (actor(1, B), centered(B, 2.0 / 3.0, 3, 1.0 / 3.0)),
                (actor(2, 0), centered(0, 1.0, 3, -1.0)),
            ],
        },
        Case {
            name: "leave-one-out by trajectory: each is compared with the mean of the two others",
            rules: Rules { weighting: Weighting::Trajectory, ..leave_one_out },
            rows: vec![
                (actor(0, B), centered(B, 0.5, 2, 0.5)),
                (actor(0, B), centered(B, 0.5, 2, 0.5)),
                (actor(1, B), centered(B, 0.5, 2, 0.5)),
                (actor(2, 0), centered(0, 1.0, 2, -1.0)),
            ],
        },
        Case {
            name: "scaled: mean 2, sample deviation sqrt((4 + 0 + 4) / 2) = 2, plus epsilon 2",
            rules: Rules { scale: Some(2.0), ..default },
            rows: [(0, -0.5), (2, 0.0), (4, 0.5)]
                .into_iter()
                .map(|(reward, advantage)| {
                    let expected = centered(reward * B, 2.0, 3, advantage);
                    (actor(reward as i32, reward * B), Expected { deviation: Some(4.0), ..expected })
                })
                .collect(),
        },
        Case {
            name: "scaled, equal rewards: deviation 0 divides nothing",
            rules: Rules { scale: Some(0.0), ..default },
            rows: vec![(actor(0, B), centered(B, 1.0, 2, 0.0)), (actor(1, B), centered(B, 1.0, 2, 0.0))],
        },
        Case {
            name: "scaled leave-one-out: deviation over all, sqrt(((1/2)^2 + (1/2)^2) / 1) = sqrt(1/2)",
            rules: Rules { scale: Some(0.0), ..leave_one_out },
            rows: vec![
                (
                    actor(0, B),
                    Expected { deviation: Some(0.5_f64.sqrt()), ..centered(B, 0.0, 1, 1.0 / 0.5_f64.sqrt()) },
                ),
                (
                    actor(1, 0),
                    Expected {
                        deviation: Some(0.5_f64.sqrt()),
                        ..centered(0, 1.0, 1, -1.0 / 0.5_f64.sqrt())
                    },
                ),
            ],
        },
        Case {
            name: "a lone rehearsal generation: 0 by default; the actors have their baseline",
            rules: default,
            rows: vec![
                (rehearsal(0, B), alone(B, 1, Ok(0.0))),
                (actor(0, B), centered(B, 0.5, 2, 0.5)),
                (actor(1, 0), centered(0, 0.5, 2, -0.5)),
            ],
        },
        Case {
            name: "a lone member, raw: its reward",
            rules: Rules { singleton: Singleton::Raw, scale: Some(1e-6), ..default },
            rows: vec![(actor(0, B / 4), alone(B / 4, 1, Ok(0.25)))],
        },
        Case {
            name: "the raw rule is for the lone rehearsal only; the actors are centered",
            rules: Rules { singleton: Singleton::Raw, ..default },
            rows: vec![
                (actor(0, B), centered(B, 0.5, 2, 0.5)),
                (rehearsal(0, B), alone(B, 1, Ok(1.0))),
                (actor(1, 0), centered(0, 0.5, 2, -0.5)),
            ],
        },
        Case {
            name: "a lone member, excluded",
            rules: Rules { singleton: Singleton::Exclude, ..default },
            rows: vec![(actor(0, B), excluded(Some(B), 1, Exclusion::Singleton))],
        },
        Case {
            name: "leave-one-out leaves nothing of a lone trajectory, however many generations it has",
            rules: Rules { singleton: Singleton::Exclude, ..leave_one_out },
            rows: vec![
                (actor(0, B), excluded(Some(B), 0, Exclusion::Singleton)),
                (actor(0, B), excluded(Some(B), 0, Exclusion::Singleton)),
            ],
        },
        Case {
            name: "two generations of one trajectory are two members by generation",
            rules: default,
            rows: vec![(actor(0, B), centered(B, 1.0, 2, 0.0)), (actor(0, B), centered(B, 1.0, 2, 0.0))],
        },
        Case {
            name: "and one member by trajectory",
            rules: by_trajectory,
            rows: vec![(actor(0, B), alone(B, 1, Ok(0.0))), (actor(0, B), alone(B, 1, Ok(0.0)))],
        },
        Case {
            name: "equal rewards excluded, in one role only",
            rules: Rules { zero_variance: ZeroVariance::Exclude, ..default },
            rows: vec![
                (actor(0, B), excluded(Some(B), 2, Exclusion::ZeroVariance)),
                (actor(1, B), excluded(Some(B), 2, Exclusion::ZeroVariance)),
                (rehearsal(0, B), centered(B, 0.5, 2, 0.5)),
                (rehearsal(1, 0), centered(0, 0.5, 2, -0.5)),
            ],
        },
        Case {
            name: "an ungraded trajectory leaves the mean (1 + 0) / 2",
            rules: default,
            rows: vec![
                (actor(0, B), centered(B, 0.5, 2, 0.5)),
                (generation(Role::Actor, 1, None), excluded(None, 2, Exclusion::Ungraded)),
                (actor(2, 0), centered(0, 0.5, 2, -0.5)),
            ],
        },
        Case {
            name: "all ungraded: no members at all",
            rules: default,
            rows: vec![
                (generation(Role::Actor, 0, None), excluded(None, 0, Exclusion::Ungraded)),
                (generation(Role::Actor, 1, None), excluded(None, 0, Exclusion::Ungraded)),
            ],
        },
        Case {
            name: "malformed rehearsal output has reward 0 and pulls its group's mean to (1 + 1 + 0) / 3",
            rules: default,
            rows: vec![
                (rehearsal(0, B), centered(B, 2.0 / 3.0, 3, 1.0 / 3.0)),
                (rehearsal(1, B), centered(B, 2.0 / 3.0, 3, 1.0 / 3.0)),
                (Generation { is_malformed: true, ..rehearsal(1, B) }, centered(0, 2.0 / 3.0, 3, -2.0 / 3.0)),
            ],
        },
        Case {
            name: "its own reward, -1/2, stands where the trajectory has none; mean (1 - 1/2) / 2",
            rules: Rules { malfunction: Malfunction::Reward(-B / 2), ..default },
            rows: vec![
                (rehearsal(0, B), centered(B, 0.25, 2, 0.75)),
                (
                    Generation { is_malformed: true, is_blank: true, ..generation(Role::Rehearsal, 1, None) },
                    centered(-B / 2, 0.25, 2, -0.75),
                ),
                (generation(Role::Rehearsal, 1, None), excluded(None, 2, Exclusion::Ungraded)),
                (generation(Role::Actor, 1, None), excluded(None, 1, Exclusion::Ungraded)),
                (actor(0, B), alone(B, 1, Ok(0.0))),
            ],
        },
        Case {
            name: "malformed rehearsal output excluded; a malformed actor output is an ordinary member",
            rules: Rules { malfunction: Malfunction::Exclude, ..default },
            rows: vec![
                (rehearsal(0, B), centered(B, 0.5, 2, 0.5)),
                (rehearsal(1, 0), centered(0, 0.5, 2, -0.5)),
                (
                    Generation { is_malformed: true, ..rehearsal(1, 0) },
                    excluded(Some(0), 2, Exclusion::Malfunction),
                ),
                (Generation { is_malformed: true, ..actor(0, B) }, centered(B, 0.5, 2, 0.5)),
                (actor(1, 0), centered(0, 0.5, 2, -0.5)),
            ],
        },
        Case {
            name: "malformed rehearsal output with its trajectory's reward: mean (1 + 1 + 0 + 0) / 4",
            rules: Rules { malfunction: Malfunction::Trajectory, ..default },
            rows: vec![
                (rehearsal(0, B), centered(B, 0.5, 4, 0.5)),
                (Generation { is_malformed: true, ..rehearsal(0, B) }, centered(B, 0.5, 4, 0.5)),
                (rehearsal(1, 0), centered(0, 0.5, 4, -0.5)),
                (rehearsal(1, 0), centered(0, 0.5, 4, -0.5)),
            ],
        },
        Case {
            name: "a blank output loses 1/2, which the mean (1 + 1/2) / 2 sees",
            rules: Rules { blank_penalty: B / 2, ..default },
            rows: vec![
                (actor(0, B), centered(B, 0.75, 2, 0.25)),
                (Generation { is_blank: true, ..actor(1, B) }, centered(B / 2, 0.75, 2, -0.25)),
            ],
        },
        Case {
            name: "by trajectory a mean is rounded to a billionth: (1 + 1 + 0) / 3 = 0.666666667",
            rules: Rules { blank_penalty: B, ..by_trajectory },
            rows: vec![
                // Sum 666666667 of two members; 2 * 10^9 - 666666667 = 1333333333.
                (actor(0, B), centered(B, 666_666_667.0 / 2e9, 2, 1_333_333_333.0 / 2e9)),
                (actor(0, B), centered(B, 666_666_667.0 / 2e9, 2, 1_333_333_333.0 / 2e9)),
                (
                    Generation { is_blank: true, ..actor(0, B) },
                    centered(0, 666_666_667.0 / 2e9, 2, -666_666_667.0 / 2e9),
                ),
                (actor(1, 0), centered(0, 666_666_667.0 / 2e9, 2, -666_666_667.0 / 2e9)),
            ],
        },
        Case {
            name: "and so is a negative one: (0 - 1 - 1) / 3 = -0.666666667",
            rules: Rules { blank_penalty: B, ..by_trajectory },
            rows: vec![
                (actor(0, 0), centered(0, -666_666_667.0 / 2e9, 2, 666_666_667.0 / 2e9)),
                (
                    Generation { is_blank: true, ..actor(0, 0) },
                    centered(-B, -666_666_667.0 / 2e9, 2, -1_333_333_333.0 / 2e9),
                ),
                (
                    Generation { is_blank: true, ..actor(0, 0) },
                    centered(-B, -666_666_667.0 / 2e9, 2, -1_333_333_333.0 / 2e9),
                ),
                (actor(1, 0), centered(0, -666_666_667.0 / 2e9, 2, 666_666_667.0 / 2e9)),
            ],
        },
        Case {
            name: "beyond the gate nothing counts: sample 0 keeps user turn 0, sample 1 both",
            rules: default,
            rows: vec![
                (actor(0, 0), centered(0, 2.0 / 3.0, 3, -2.0 / 3.0)),
                (Generation { user_turn: 1, ..actor(0, 0) }, excluded(Some(0), 3, Exclusion::BeyondGate)),
                (
                    Generation { n_kept_user_turns: Some(2), ..actor(1, B) },
                    centered(B, 2.0 / 3.0, 3, 1.0 / 3.0),
                ),
                (
                    Generation { n_kept_user_turns: None, user_turn: 7, ..actor(1, B) },
                    centered(B, 2.0 / 3.0, 3, 1.0 / 3.0),
                ),
            ],
        },
        Case {
            name: "an output of no tokens leaves the mean; the gate is named first",
            rules: leave_one_out,
            rows: vec![
                (Generation { n_tokens: 0, ..actor(0, B) }, excluded(Some(B), 2, Exclusion::NoTokens)),
                (
                    Generation { n_tokens: 0, user_turn: 1, ..actor(0, B) },
                    excluded(Some(B), 2, Exclusion::BeyondGate),
                ),
                (actor(1, B), centered(B, 0.0, 1, 1.0)),
                (actor(2, 0), centered(0, 1.0, 1, -1.0)),
            ],
        },
    ]
}
