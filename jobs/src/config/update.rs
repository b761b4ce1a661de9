use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ConfigError, require};

/// How advantages become new weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UpdateConfig {
    /// Roles whose generations are trained on. Default: both.
    pub train_roles: Vec<TrainRole>,
    /// What makes good tokens likelier. Default: `ppo`.
    pub loss: PolicyLoss,
    /// How far below 1 the ratio counts; not in `reinforce`, which has none. Default: 0.2.
    pub clip_low: f64,
    /// How far above 1 the ratio counts. Default: 0.2.
    pub clip_high: f64,
    /// Bound on the loss for negative advantages, in multiples of the advantage; 0 is off. Only with `ppo`. Default: 0.
    pub dual_clip: f64,
    /// What counts once in the loss. Default: `token`.
    pub aggregation: Aggregation,
    /// Tokens that the sum over a generation is divided by, where `aggregation` is `constant`; else 0. Default: 0.
    pub aggregation_tokens: u32,
    /// Correction for a sampler that computes other probabilities than the trainer, by importance weights
    /// `exp(logprob before the update - sampling logprob)`. It costs a pass over all sequences. The engine on the CPU needs
    /// none: there all weights are 1. Left out: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correction: Option<CorrectionConfig>,
    /// Divergence from a frozen reference.
    pub kl: KlConfig,
    /// Passes over the stage's sequences. Default: 1.
    pub epochs: i32,
    /// Optimizer applications of one pass. Default: 1.
    pub minibatches: i32,
    /// Peak learning rate. Default: 1e-6.
    pub learning_rate: f64,
    /// How the learning rate changes.
    pub schedule: ScheduleConfig,
    /// Largest norm of the gradient; 0 is off. Default: 1.
    pub max_gradient_norm: f64,
    /// The optimizer.
    pub adamw: AdamWConfig,
    /// Whether layers are computed again in the backward pass, to save memory. Default: false.
    pub recompute_layers: bool,
    /// Tokens that go through the model at once. It can change the last bits, so it is in the key.
    /// Default: 4096.
    pub micro_batch_tokens: usize,
}

/// A role that an update trains.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum TrainRole {
    /// The role that calls tools.
    Actor,
    /// The role that answers the calls.
    Rehearsal,
}

impl TrainRole {
    /// The name in the tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Actor => "actor",
            Self::Rehearsal => "rehearsal",
        }
    }
}

/// What makes good tokens likelier. The ratio is that of a token's probability to the one that it was sampled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PolicyLoss {
    /// The ratio times the advantage, no better than at the bounds of the ratio.
    Ppo,
    /// The same with one ratio for a generation, the geometric mean of its tokens'.
    Gspo,
    /// The logprob times the advantage, weighted by the bounded ratio: every token keeps a gradient.
    Cispo,
    /// The logprob times the advantage.
    Reinforce,
}

/// Correction for a sampler that computes other probabilities than the trainer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CorrectionConfig {
    /// What one weight is of. Default: `token`.
    pub level: CorrectionLevel,
    /// What becomes of weights far from 1. Default: `truncate`.
    pub limit: CorrectionLimit,
    /// The least weight that counts, with `mask`. Default: 0.5.
    pub low: f64,
    /// The most. Default: 2.
    pub high: f64,
}

/// What one importance weight is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CorrectionLevel {
    /// One token.
    Token,
    /// One generation: the product over its tokens.
    Generation,
    /// One generation: the geometric mean over its tokens.
    GeometricMean,
}

/// What becomes of an importance weight that is far from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CorrectionLimit {
    /// Beyond `high` it is `high`.
    Truncate,
    /// Beyond `low` or `high` its tokens are left out; they count in what the loss is divided by all the same.
    Mask,
}

/// What counts once in the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Aggregation {
    /// Each token.
    Token,
    /// Each sequence, by the mean of its tokens.
    Sequence,
    /// Each generation, by the mean of its tokens.
    Generation,
    /// Each generation, by the sum over its tokens divided by `aggregation_tokens`.
    Constant,
}

/// Divergence from a frozen reference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KlConfig {
    /// Weight in the loss; 0 loads no reference. Default: 0.
    pub coefficient: f64,
    /// Estimator of the divergence. Default: `k3`.
    pub estimator: KlEstimator,
    /// Roles that are held to the reference. Default: both. A rehearsal role alone is kept from making its responses
    /// ever easier to act on, while the actor is free to learn.
    pub roles: Vec<TrainRole>,
}

/// Estimator of the divergence from the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KlEstimator {
    /// The log ratio.
    K1,
    /// Half its square.
    K2,
    /// Ratio less log ratio less one.
    K3,
}

/// How the learning rate changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleConfig {
    /// Optimizer applications over which it rises from 0. Default: 0.
    pub warmup_steps: u64,
    /// What it does then. Default: `constant`.
    pub kind: ScheduleKind,
    /// Optimizer applications after which a cosine has reached its floor. Default: 0, only with `constant`.
    pub total_steps: u64,
    /// The floor, as a share of the peak. Default: 0.1.
    pub floor: f64,
}

/// What the learning rate does after warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// Stays.
    Constant,
    /// Falls along half a cosine to the floor.
    Cosine,
}

/// The optimizer's constants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdamWConfig {
    /// Decay of the first moment. Default: 0.9.
    pub beta1: f64,
    /// Decay of the second moment. Default: 0.999.
    pub beta2: f64,
    /// Added to the root of the second moment. Default: 1e-8.
    pub epsilon: f64,
    /// Decoupled weight decay. Default: 0.01.
    pub weight_decay: f64,
}

impl Default for CorrectionConfig {
    fn default() -> Self {
        Self { level: CorrectionLevel::Token, limit: CorrectionLimit::Truncate, low: 0.5, high: 2.0 }
    }
}

impl CorrectionConfig {
    fn check(&self) -> Result<(), ConfigError> {
        let key = "update.correction";
        require(self.high.is_finite() && self.high >= 1.0, key, "needs a `high` of 1 or more")?;
        require((0.0..=1.0).contains(&self.low), key, "needs a `low` in [0, 1]")?;
        let is_used = self.limit == CorrectionLimit::Mask || self.low == Self::default().low;
        require(is_used, key, "has a `low` for `limit = \"mask\"` alone")
    }
}

impl Default for KlConfig {
    fn default() -> Self {
        Self {
            coefficient: 0.0,
            estimator: KlEstimator::K3,
            roles: vec![TrainRole::Actor, TrainRole::Rehearsal],
        }
    }
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self { warmup_steps: 0, kind: ScheduleKind::Constant, total_steps: 0, floor: 0.1 }
    }
}

impl ScheduleConfig {
    pub(super) fn check(&self, key: &'static str) -> Result<(), ConfigError> {
        let fits = self.kind == ScheduleKind::Constant || self.total_steps > self.warmup_steps;
        require(fits, key, "a cosine needs `total_steps` beyond `warmup_steps`")?;
        require((0.0..=1.0).contains(&self.floor), key, "`floor` must be in [0, 1]")
    }
}

impl Default for AdamWConfig {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 }
    }
}

impl AdamWConfig {
    pub(super) fn check(&self, key: &'static str) -> Result<(), ConfigError> {
        require((0.0..1.0).contains(&self.beta1), key, "needs a `beta1` in [0, 1)")?;
        require((0.0..1.0).contains(&self.beta2), key, "needs a `beta2` in [0, 1)")?;
        require(self.epsilon.is_finite() && self.epsilon > 0.0, key, "needs an `epsilon` above 0")?;
        let decay = self.weight_decay;
        require(decay.is_finite() && decay >= 0.0, key, "needs a `weight_decay` of 0 or more")
    }
}

impl Default for UpdateConfig {
    fn default() -> Self {
        Self {
            train_roles: vec![TrainRole::Actor, TrainRole::Rehearsal],
            loss: PolicyLoss::Ppo,
            clip_low: 0.2,
            clip_high: 0.2,
            dual_clip: 0.0,
            aggregation: Aggregation::Token,
            aggregation_tokens: 0,
            correction: None,
            kl: KlConfig::default(),
            epochs: 1,
            minibatches: 1,
            learning_rate: 1e-6,
            schedule: ScheduleConfig::default(),
            max_gradient_norm: 1.0,
            adamw: AdamWConfig::default(),
            recompute_layers: false,
            micro_batch_tokens: 4_096,
        }
    }
}

impl UpdateConfig {
    /// The reference's values: its `token-mean` over micro-batches of one row is a mean over generations.
    pub fn paper() -> Self {
        Self { dual_clip: 3.0, aggregation: Aggregation::Generation, ..Self::default() }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(!self.train_roles.is_empty(), "update.train_roles", "must name a role")?;
        require((0.0..=1.0).contains(&self.clip_low), "update.clip_low", "must be in [0, 1]")?;
        let at_least = |value: f64, least: f64| value.is_finite() && value >= least;
        require(at_least(self.clip_high, 0.0), "update.clip_high", "must be 0 or more")?;
        let dual = self.dual_clip;
        require(dual == 0.0 || (dual > 1.0 && dual.is_finite()), "update.dual_clip", "must be 0 or above 1")?;
        let is_ppo = self.loss == PolicyLoss::Ppo;
        require(
            dual == 0.0 || is_ppo,
            "update.dual_clip",
            "is for `update.loss = \"ppo\"`; else it must be 0",
        )?;
        require(
            (self.aggregation_tokens > 0) == (self.aggregation == Aggregation::Constant),
            "update.aggregation_tokens",
            "must be above 0 with `update.aggregation = \"constant\"`, and 0 without",
        )?;
        self.correction.as_ref().map_or(Ok(()), CorrectionConfig::check)?;
        require(!self.kl.roles.is_empty(), "update.kl.roles", "must name a role")?;
        require(at_least(self.kl.coefficient, 0.0), "update.kl.coefficient", "must be 0 or more")?;
        require(self.epochs > 0, "update.epochs", "must be at least 1")?;
        require(self.minibatches > 0, "update.minibatches", "must be at least 1")?;
        let rate = self.learning_rate;
        require(rate.is_finite() && rate > 0.0, "update.learning_rate", "must be above 0")?;
        require(at_least(self.max_gradient_norm, 0.0), "update.max_gradient_norm", "must be 0 or more")?;
        require(self.micro_batch_tokens > 0, "update.micro_batch_tokens", "must be at least 1")?;
        self.adamw.check("update.adamw")?;
        self.schedule.check("update.schedule")
    }
}
