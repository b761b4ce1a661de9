//! The computation: members, their sums, one division.

use std::collections::BTreeMap;

use super::rules::{
    Baseline, Exclusion, Grouping, Malfunction, Role, Rules, Singleton, Weighting, ZeroVariance,
};
use super::whiten::whiten;

/// Billionths in one unit of reward.
pub(super) const UNIT: i128 = 1_000_000_000;

/// One policy output, and what its trajectory got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation<'a> {
    /// The task: with the role, the group.
    pub task_id: &'a str,
    /// The trajectory within its group.
    pub sample: i32,
    /// Who spoke.
    pub role: Role,
    /// 0-based user turn.
    pub user_turn: i32,
    /// Sampled tokens.
    pub n_tokens: i32,
    /// Whether it holds no visible text.
    pub is_blank: bool,
    /// Whether it broke its output format; only a rehearsal generation is judged by that.
    pub is_malformed: bool,
    /// Reward of the trajectory for this role, billionths. `None`: ungraded.
    pub reward: Option<i64>,
    /// User turns in the gated prefix. `None`: not known, so nothing is dropped.
    pub n_kept_user_turns: Option<i64>,
}

/// The advantage of one generation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Advantage {
    /// Reward with its penalties, billionths. `None`: ungraded.
    pub reward: Option<i64>,
    /// Mean it is compared with. `None`: there is none.
    pub baseline: Option<f64>,
    /// What it was divided by. `None`: it was only centered.
    pub deviation: Option<f64>,
    /// Members that entered the baseline: generations, or trajectories if they have the votes.
    pub group_size: i64,
    /// Reward less baseline, scaled or whitened if asked for, and weighted; or why there is none.
    pub outcome: Result<f64, Exclusion>,
}

/// Rewards whose sums do not fit 127 bits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rewards of task `{task_id}` are too large to sum exactly")]
pub struct AdvantageError {
    /// The task.
    pub task_id: String,
}

/// The advantage of each generation, in the order given; any order gives the same bits.
///
/// With members of rewards `r` and sum `S = sum(r)` over `n` of them, the baseline is `S / n` and the
/// advantage `(n r - S) / n`, each from exact integers by one division. The deviation is
/// `sqrt((n sum(r^2) - S^2) / (n (n - 1))) + epsilon`, again exact up to its division.
///
/// # Errors
/// [`AdvantageError`] if a sum does not fit; rewards below 10^6 in groups below 10^6 always do.
///
/// # Source
/// DeepSeekMath, <https://arxiv.org/abs/2402.03300>, section 4.1.2; without the deviation,
/// <https://arxiv.org/abs/2503.20783>; one baseline per role, <https://arxiv.org/abs/2602.08847>; leave-one-out, RLOO,
/// <https://arxiv.org/abs/2402.14740>; whitened over the step, REINFORCE++, <https://arxiv.org/abs/2501.03262>.
pub fn advantages(generations: &[Generation<'_>], rules: &Rules) -> Result<Vec<Advantage>, AdvantageError> {
    let mut groups: BTreeMap<(&str, Option<Role>), Group> = BTreeMap::new();
    for generation in generations {
        if let Ok(reward) = member_reward(generation, rules) {
            let group = groups.entry((generation.task_id, pool(generation.role, rules))).or_default();
            let trajectory = group.trajectories.entry(generation.sample).or_default();
            trajectory.sum += i128::from(reward);
            trajectory.n += 1;
            group.rewards.push(i128::from(reward));
        }
    }
    let too_large = |task_id: &str| AdvantageError { task_id: task_id.to_owned() };
    let mut all = Vec::with_capacity(generations.len());
    for generation in generations {
        let group = groups.get(&(generation.task_id, pool(generation.role, rules)));
        let advantage = advantage_in(generation, group.unwrap_or(&Group::EMPTY), rules);
        all.push(advantage.ok_or_else(|| too_large(generation.task_id))?);
    }
    if let Some(epsilon) = rules.whiten {
        let pools: Vec<_> = generations.iter().map(|generation| pool(generation.role, rules)).collect();
        whiten(&mut all, &pools, epsilon).ok_or_else(|| too_large("all"))?;
    }
    for (advantage, generation) in all.iter_mut().zip(generations) {
        if let (Role::Rehearsal, Ok(value)) = (generation.role, &mut advantage.outcome) {
            *value *= rules.rehearsal_weight;
        }
    }
    Ok(all)
}

/// Whom a role is compared with: itself, or both.
fn pool(role: Role, rules: &Rules) -> Option<Role> {
    match rules.grouping {
        Grouping::Role => Some(role),
        Grouping::Task => None,
    }
}

/// The scorable generations that are compared with one another.
#[derive(Debug, Default)]
struct Group {
    rewards: Vec<i128>,
    trajectories: BTreeMap<i32, Votes>,
}

/// A sum of rewards, billionths, and how many there are.
#[derive(Debug, Clone, Copy, Default)]
struct Votes {
    sum: i128,
    n: i128,
}

impl Group {
    const EMPTY: Self = Self { rewards: Vec::new(), trajectories: BTreeMap::new() };

    /// What has one vote each.
    fn votes(&self, weighting: Weighting) -> Vec<i128> {
        match weighting {
            Weighting::Generation => self.rewards.clone(),
            Weighting::Trajectory => self.trajectories.values().map(|votes| votes.rounded_mean()).collect(),
        }
    }

    /// What `sample` is compared with.
    fn compared(&self, sample: i32, rules: &Rules) -> Votes {
        let votes = self.votes(rules.weighting);
        let all = Votes { sum: votes.iter().sum(), n: votes.len() as i128 };
        let own = match rules.baseline {
            Baseline::Mean | Baseline::Zero => Votes::default(),
            Baseline::LeaveOneOut => {
                let own = self.trajectories.get(&sample).copied().unwrap_or_default();
                match rules.weighting {
                    Weighting::Generation => own,
                    Weighting::Trajectory => Votes { sum: own.rounded_mean(), n: own.n.min(1) },
                }
            }
        };
        Votes { sum: all.sum - own.sum, n: all.n - own.n }
    }

    fn is_constant(&self) -> bool {
        self.rewards.iter().min() == self.rewards.iter().max()
    }
}

impl Votes {
    /// The mean, rounded half away from zero to a billionth; 0 of nothing.
    fn rounded_mean(self) -> i128 {
        if self.n == 0 {
            return 0;
        }
        let half = if self.sum < 0 { -self.n } else { self.n };
        (2 * self.sum + half) / (2 * self.n)
    }
}

/// Its reward with penalties, whether or not it becomes a member.
fn shaped_reward(generation: &Generation<'_>, rules: &Rules) -> Option<i64> {
    let is_malfunction = generation.role == Role::Rehearsal && generation.is_malformed;
    match rules.malfunction {
        Malfunction::Reward(reward) if is_malfunction => Some(reward),
        _ => {
            let penalty = if generation.is_blank { rules.blank_penalty } else { 0 };
            generation.reward.map(|reward| reward - penalty)
        }
    }
}

/// The reward with which it enters the statistics of its (group, role), or why it does not.
fn member_reward(generation: &Generation<'_>, rules: &Rules) -> Result<i64, Exclusion> {
    let is_malfunction = generation.role == Role::Rehearsal && generation.is_malformed;
    if generation.n_kept_user_turns.is_some_and(|n_kept| i64::from(generation.user_turn) >= n_kept) {
        Err(Exclusion::BeyondGate)
    } else if generation.n_tokens == 0 {
        Err(Exclusion::NoTokens)
    } else if is_malfunction && rules.malfunction == Malfunction::Exclude {
        Err(Exclusion::Malfunction)
    } else {
        shaped_reward(generation, rules).ok_or(Exclusion::Ungraded)
    }
}

/// `None` if a number does not fit.
fn advantage_in(generation: &Generation<'_>, group: &Group, rules: &Rules) -> Option<Advantage> {
    let compared = group.compared(generation.sample, rules);
    let mut result = Advantage {
        reward: shaped_reward(generation, rules),
        baseline: None,
        deviation: None,
        group_size: i64::try_from(compared.n).ok()?,
        outcome: Ok(0.0),
    };
    let reward = match member_reward(generation, rules) {
        Ok(reward) => i128::from(reward),
        Err(exclusion) => return Some(Advantage { outcome: Err(exclusion), ..result }),
    };
    let is_singleton = match rules.baseline {
        Baseline::Mean => compared.n == 1,
        Baseline::LeaveOneOut => compared.n == 0,
        Baseline::Zero => false,
    };
    if is_singleton {
        result.outcome = match rules.singleton {
            Singleton::Zero => Ok(0.0),
            Singleton::Exclude => Err(Exclusion::Singleton),
            Singleton::Raw => Ok(reward as f64 / UNIT as f64),
        };
        return Some(result);
    }
    if rules.zero_variance == ZeroVariance::Exclude && group.is_constant() {
        return Some(Advantage { outcome: Err(Exclusion::ZeroVariance), ..result });
    }
    let centered = if rules.baseline == Baseline::Zero {
        reward as f64 / UNIT as f64
    } else {
        let divisor = (compared.n * UNIT) as f64;
        result.baseline = Some(compared.sum as f64 / divisor);
        reward.checked_mul(compared.n)?.checked_sub(compared.sum)? as f64 / divisor
    };
    if let Some(epsilon) = rules.scale {
        // Of a lone member, which only goes without a baseline, there is none.
        let votes = group.votes(rules.weighting);
        let deviation = if votes.len() > 1 { sample_deviation(&votes)? } else { 0.0 };
        result.deviation = (deviation > 0.0).then_some(deviation + epsilon);
    }
    result.outcome = Ok(result.deviation.map_or(centered, |deviation| centered / deviation));
    Some(result)
}

/// Sample deviation of at least two rewards, in reward units; `None` if a number does not fit.
pub(super) fn sample_deviation(rewards: &[i128]) -> Option<f64> {
    let n = rewards.len() as i128;
    let sum: i128 = rewards.iter().sum();
    let mut squares: i128 = 0;
    for reward in rewards {
        squares = squares.checked_add(reward.checked_mul(*reward)?)?;
    }
    let numerator = n.checked_mul(squares)?.checked_sub(sum.checked_mul(sum)?)?;
    Some((numerator as f64 / (n * (n - 1)) as f64).sqrt() / UNIT as f64)
}
