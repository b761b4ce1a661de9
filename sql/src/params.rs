//! The parameters of the queries, typed. Their defaults are those of the method with its known faults repaired.

use datafusion::scalar::ScalarValue;
use envace_schemas::Decimal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A parameter of a query: its name without the dollar sign, and its value.
pub type Param = (&'static str, ScalarValue);

macro_rules! choice {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
        pub enum $name {
            $($(#[$variant_meta])* #[serde(rename = $text)] $variant,)*
        }

        impl $name {
            /// As written in a configuration and in SQL.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

choice! {
    /// What happens to an item that could not be graded.
    OnUngraded {
        /// The trajectory has no reward.
        #[default]
        Null = "null",
        /// The item is left out of its user turn, unless later user turns hang on it.
        Skip = "skip",
    }
}

choice! {
    /// What a trajectory is worth that ended because the rehearsal role failed twice at one call.
    OnRehearsalFailed {
        /// It has no reward: that was not the actor's fault.
        #[default]
        Null = "null",
        /// What it earned until then; the rest counts as failed.
        Score = "score",
    }
}

choice! {
    /// What a trajectory is worth that was cut off at a limit of its length, turns or outputs.
    OnOverlong {
        /// What it earned until then.
        #[default]
        Score = "score",
        /// It has no reward: what is long is neither right nor wrong (DAPO's overlong filtering).
        Null = "null",
    }
}

choice! {
    /// What is compared with one another.
    Grouping {
        /// The generations of one role in the trajectories of one task.
        #[default]
        Role = "role",
        /// Those of both roles.
        Task = "task",
    }
}

choice! {
    /// What has one vote in a baseline.
    Weighting {
        /// Every generation: long trajectories weigh more.
        #[default]
        Generation = "generation",
        /// Every trajectory, with the mean reward of its generations that are compared.
        Trajectory = "trajectory",
    }
}

choice! {
    /// Which members of a (group, role) a generation is compared with.
    Baseline {
        /// All of them.
        #[default]
        Mean = "mean",
        /// Those of the other trajectories.
        LeaveOneOut = "leave_one_out",
        /// None: the reward itself counts, and nothing is a singleton.
        Zero = "zero",
    }
}

choice! {
    /// What becomes of a generation with nothing to be compared with.
    SingletonRule {
        /// Its advantage is 0.
        #[default]
        Zero = "zero",
        /// It is excluded.
        Exclude = "exclude",
        /// Its advantage is its reward.
        Raw = "raw",
    }
}

choice! {
    /// What becomes of a (group, role) whose members all have one reward.
    ZeroVarianceRule {
        /// Its advantages are 0.
        #[default]
        Keep = "keep",
        /// It is excluded.
        Exclude = "exclude",
    }
}

choice! {
    /// What rehearsal output is worth that broke its format.
    MalfunctionRule {
        /// A reward of its own.
        #[default]
        Reward = "reward",
        /// Nothing: it is excluded.
        Exclude = "exclude",
        /// The reward of its trajectory.
        Trajectory = "trajectory",
    }
}

/// Parameters of [`queries::REWARDS`](crate::queries::REWARDS).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RewardParams {
    /// What happens to an item that could not be graded.
    pub on_ungraded: OnUngraded,
    /// What a trajectory is worth that the rehearsal role cut short.
    pub on_rehearsal_failed: OnRehearsalFailed,
    /// What a trajectory is worth that was cut off at a limit.
    pub on_overlong: OnOverlong,
    /// How much of the rehearsal role's reward is its own checklist's.
    #[schemars(with = "String")]
    pub rehearsal_checklist_weight: Decimal,
}

impl RewardParams {
    /// As the query takes them.
    pub fn to_params(&self) -> Vec<Param> {
        vec![
            ("on_ungraded", text(self.on_ungraded.name())),
            ("on_rehearsal_failed", text(self.on_rehearsal_failed.name())),
            ("on_overlong", text(self.on_overlong.name())),
            ("rehearsal_checklist_weight", decimal(self.rehearsal_checklist_weight)),
        ]
    }
}

/// Parameters of [`queries::ADVANTAGES`](crate::queries::ADVANTAGES) and [`queries::WHITENED`](crate::queries::WHITENED).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdvantageParams {
    /// What is compared with one another.
    pub grouping: Grouping,
    /// What has one vote in a baseline.
    pub weighting: Weighting,
    /// Which members a generation is compared with.
    pub baseline: Baseline,
    /// Whether the difference is divided by the sample deviation of its (group, role).
    pub scale: bool,
    /// Whether the advantages of a whole step, of each role or of both as they are grouped, are centered once more and
    /// divided by their deviation. Not together with `scale`.
    pub whiten: bool,
    /// Added to that deviation, in reward units.
    pub epsilon: f64,
    /// The rule for a generation with nothing to be compared with.
    pub singleton: SingletonRule,
    /// The rule for members of one reward.
    pub zero_variance: ZeroVarianceRule,
    /// The rule for rehearsal output that broke its format.
    pub malfunction: MalfunctionRule,
    /// Its reward under the rule `reward`.
    #[schemars(with = "String")]
    pub malfunction_reward: Decimal,
    /// Taken from the reward of a generation without visible text.
    #[schemars(with = "String")]
    pub blank_penalty: Decimal,
    /// What the advantages of the rehearsal role are multiplied with at the end.
    pub rehearsal_weight: f64,
}

impl Default for AdvantageParams {
    fn default() -> Self {
        Self {
            grouping: Grouping::default(),
            weighting: Weighting::default(),
            baseline: Baseline::default(),
            scale: false,
            whiten: false,
            epsilon: 1e-6,
            singleton: SingletonRule::default(),
            zero_variance: ZeroVarianceRule::default(),
            malfunction: MalfunctionRule::default(),
            malfunction_reward: Decimal::ZERO,
            blank_penalty: Decimal::ZERO,
            rehearsal_weight: 1.0,
        }
    }
}

impl AdvantageParams {
    /// As the query that whitens takes them.
    pub fn to_whitening_params(&self) -> Vec<Param> {
        vec![
            ("grouping", text(self.grouping.name())),
            ("epsilon", ScalarValue::Float64(Some(self.epsilon))),
            ("rehearsal_weight", ScalarValue::Float64(Some(self.rehearsal_weight))),
        ]
    }

    /// As the query takes them. Where it is followed by the one that whitens, that one weights the roles.
    pub fn to_params(&self) -> Vec<Param> {
        vec![
            ("grouping", text(self.grouping.name())),
            ("weighting", text(self.weighting.name())),
            ("baseline", text(self.baseline.name())),
            ("scale", ScalarValue::Boolean(Some(self.scale))),
            ("epsilon", ScalarValue::Float64(Some(self.epsilon))),
            ("singleton", text(self.singleton.name())),
            ("zero_variance", text(self.zero_variance.name())),
            ("malfunction", text(self.malfunction.name())),
            ("malfunction_reward", decimal(self.malfunction_reward)),
            ("blank_penalty", decimal(self.blank_penalty)),
            (
                "rehearsal_weight",
                ScalarValue::Float64(Some(if self.whiten { 1.0 } else { self.rehearsal_weight })),
            ),
        ]
    }
}

/// Parameters of [`queries::EVALUATIONS`](crate::queries::EVALUATIONS).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvaluationParams {
    /// Name of the collection of tasks.
    pub suite: String,
    /// Digest of the weights that acted.
    pub checkpoint: String,
}

impl EvaluationParams {
    /// As the query takes them.
    pub fn to_params(&self) -> Vec<Param> {
        vec![("suite", text(&self.suite)), ("checkpoint", text(&self.checkpoint))]
    }
}

fn text(text: &str) -> ScalarValue {
    ScalarValue::LargeUtf8(Some(text.to_owned()))
}

fn decimal(value: Decimal) -> ScalarValue {
    ScalarValue::Decimal128(Some(i128::from(value.scaled())), Decimal::PRECISION, Decimal::SCALE)
}
