//! What can be chosen about an advantage, and what each choice means.

use std::fmt;

/// Who speaks: which of the two parts of the one policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// It calls tools and answers the user.
    Actor,
    /// It writes the response each call would get.
    Rehearsal,
}

/// What is compared with one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grouping {
    /// The generations of one role in the trajectories of one task: each role has a baseline of its own.
    Role,
    /// Those of both roles: one baseline for the task, as in plain GRPO.
    Task,
}

/// What has one vote in the baseline of a (group, role).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weighting {
    /// Every generation: a trajectory with more generations of the role weighs more (the published method).
    Generation,
    /// Every trajectory, with the mean reward of its generations of the role, rounded to a billionth. Its
    /// number of generations has no influence.
    Trajectory,
}

/// Which members are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Baseline {
    /// All of them, the compared one included.
    Mean,
    /// Those of the *other trajectories*: under either weighting the whole trajectory is left out, because its
    /// generations share one reward.
    LeaveOneOut,
    /// None: the reward itself is what is scaled or whitened, and nothing is a singleton.
    Zero,
}

/// What becomes of a generation that has nothing to be compared with: the only member of its (group, role),
/// or, with leave-one-out, of the only trajectory in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Singleton {
    /// Its advantage is 0, and it stays in the loss.
    Zero,
    /// It is excluded.
    Exclude,
    /// Its advantage is its reward, uncentered and unscaled (the reference implementation).
    Raw,
}

/// What becomes of a (group, role) whose members all have one reward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZeroVariance {
    /// Its advantages are 0 and stay in the loss.
    Keep,
    /// It is excluded, and so gives no divergence gradient either.
    Exclude,
}

/// What a rehearsal generation that broke its output format is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malfunction {
    /// A reward of its own, in billionths, even where its trajectory has none: the format is learned, and
    /// nobody else is punished. It enters the rehearsal baseline.
    Reward(i64),
    /// Nothing: it is excluded.
    Exclude,
    /// The reward of its trajectory, as any other generation (the reference implementation).
    Trajectory,
}

/// How rewards become advantages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rules {
    /// What is compared with one another.
    pub grouping: Grouping,
    /// What has one vote.
    pub weighting: Weighting,
    /// Which members are compared with.
    pub baseline: Baseline,
    /// `Some(epsilon)`: the difference is divided by the sample deviation (n - 1) of all members of the
    /// (group, role), own trajectory included, plus `epsilon`, in reward units; a deviation of 0 divides
    /// nothing. `None`: it is only centered.
    pub scale: Option<f64>,
    /// `Some(epsilon)`: what has become of all generations given, rounded to a billionth, is centered once more and divided by
    /// its sample deviation plus `epsilon`: over each role, or over both where they are compared. A deviation of 0 divides
    /// nothing. Not together with `scale`.
    pub whiten: Option<f64>,
    /// The rule for a lone member.
    pub singleton: Singleton,
    /// The rule for equal members.
    pub zero_variance: ZeroVariance,
    /// The rule for malformed rehearsal output.
    pub malfunction: Malfunction,
    /// Taken, in billionths, from the reward of a generation without visible text; it enters the baseline. Not
    /// taken from the reward that [`Malfunction::Reward`] gives.
    pub blank_penalty: i64,
    /// What the advantages of the rehearsal role are multiplied with at the end.
    pub rehearsal_weight: f64,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            grouping: Grouping::Role,
            weighting: Weighting::Generation,
            baseline: Baseline::Mean,
            scale: None,
            whiten: None,
            singleton: Singleton::Zero,
            zero_variance: ZeroVariance::Keep,
            malfunction: Malfunction::Reward(0),
            blank_penalty: 0,
            rehearsal_weight: 1.0,
        }
    }
}

/// Why a generation has no advantage. Where several hold, the first in this order is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exclusion {
    /// It lies after the user turn in which a required item failed.
    BeyondGate,
    /// No token was sampled, so there is nothing to train.
    NoTokens,
    /// It broke its format, and [`Malfunction::Exclude`] holds.
    Malfunction,
    /// Its trajectory has no reward for its role.
    Ungraded,
    /// It has nothing to be compared with, and [`Singleton::Exclude`] holds.
    Singleton,
    /// All members have one reward, and [`ZeroVariance::Exclude`] holds.
    ZeroVariance,
}

impl Exclusion {
    /// As written in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::BeyondGate => "beyond_gate",
            Self::NoTokens => "no_tokens",
            Self::Malfunction => "malfunction",
            Self::Ungraded => "ungraded",
            Self::Singleton => "singleton",
            Self::ZeroVariance => "zero_variance",
        }
    }
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
