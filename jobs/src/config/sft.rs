use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AdamWConfig, ConfigError, ScheduleConfig, TrainRole, require};

/// Supervised training on recorded dialogues: a cold start that small models need.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SftConfig {
    /// Split to train on. Default: `train`.
    pub split: String,
    /// Roles to train. Default: both.
    pub roles: Vec<TrainRole>,
    /// Optimizer applications of one `sft` step, after which a checkpoint is stored. Default: 100.
    pub optimizer_steps: u64,
    /// Tasks of one optimizer application. Default: 16.
    pub tasks_per_batch: usize,
    /// Rehearsal examples of each task, at most; 0 is all. Default: 0.
    pub rehearsals_per_task: usize,
    /// Peak learning rate. Default: 0.0001.
    pub learning_rate: f64,
    /// How the learning rate changes.
    pub schedule: ScheduleConfig,
    /// Largest norm of the gradient; 0 is off. Default: 1.
    pub max_gradient_norm: f64,
    /// The optimizer.
    pub adamw: AdamWConfig,
    /// Longest sequence; longer ones are left out and counted. 0 is the model's own limit. Default: 0.
    pub max_sequence_tokens: usize,
    /// Whether layers are computed again in the backward pass, to save memory. Default: false.
    pub recompute_layers: bool,
    /// Tokens that go through the model at once. Default: 4096.
    pub micro_batch_tokens: usize,
}

impl Default for SftConfig {
    fn default() -> Self {
        Self {
            split: "train".to_owned(),
            roles: vec![TrainRole::Actor, TrainRole::Rehearsal],
            optimizer_steps: 100,
            tasks_per_batch: 16,
            rehearsals_per_task: 0,
            learning_rate: 1e-4,
            schedule: ScheduleConfig::default(),
            max_gradient_norm: 1.0,
            adamw: AdamWConfig::default(),
            max_sequence_tokens: 0,
            recompute_layers: false,
            micro_batch_tokens: 4_096,
        }
    }
}

impl SftConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(!self.roles.is_empty(), "sft.roles", "must name a role")?;
        require(self.optimizer_steps > 0, "sft.optimizer_steps", "must be at least 1")?;
        let rate = self.learning_rate;
        require(rate.is_finite() && rate > 0.0, "sft.learning_rate", "must be above 0")?;
        let norm = self.max_gradient_norm;
        require(norm.is_finite() && norm >= 0.0, "sft.max_gradient_norm", "must be 0 or more")?;
        require(self.micro_batch_tokens > 0, "sft.micro_batch_tokens", "must be at least 1")?;
        require(self.tasks_per_batch > 0, "sft.tasks_per_batch", "must be at least 1")?;
        self.adamw.check("sft.adamw")?;
        self.schedule.check("sft.schedule")
    }
}
