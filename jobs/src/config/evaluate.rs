use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ConfigError, SamplingConfig, require};
use crate::rollout::Environment;

/// Evaluation during `run`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EvaluateConfig {
    /// Evaluate before the first step, after every this many steps, and after the last that `run` is asked for; 0 never.
    /// Default: 0.
    pub every: u32,
    /// Splits of the task set. Default: `held_out`.
    pub splits: Vec<String>,
    /// Tasks of each split, from its first; 0 is all. Default: 0.
    pub n_tasks: usize,
    /// Trials of each task. Default: 1.
    pub n_trials: i32,
    /// What answers the calls. Default: `rehearsal`; `world` executes them where the task has a world.
    pub environment: Environment,
    /// How the actor is sampled. Default: temperature 0.6, top-p 0.95.
    pub actor: SamplingConfig,
    /// How the rehearsal role is sampled, where it answers. Default: as in training.
    pub rehearsal: SamplingConfig,
}

impl Default for EvaluateConfig {
    fn default() -> Self {
        Self {
            every: 0,
            splits: vec!["held_out".to_owned()],
            n_tasks: 0,
            n_trials: 1,
            environment: Environment::Rehearsal,
            actor: SamplingConfig { temperature: 0.6, top_p: 0.95, ..SamplingConfig::default() },
            rehearsal: SamplingConfig::default(),
        }
    }
}

impl EvaluateConfig {
    /// The reference's values: every 10 steps, 100 tasks, 4 trials, by rehearsal.
    pub fn paper() -> Self {
        let sampling = SamplingConfig { temperature: 0.6, top_p: 0.95, ..SamplingConfig::paper() };
        Self {
            every: 10,
            n_tasks: 100,
            n_trials: 4,
            actor: sampling.clone(),
            rehearsal: sampling,
            ..Self::default()
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(self.n_trials > 0, "evaluate.n_trials", "must be at least 1")?;
        require(!self.splits.is_empty(), "evaluate.splits", "must name a split")?;
        let mut splits = self.splits.clone();
        splits.sort_unstable();
        splits.dedup();
        require(splits.len() == self.splits.len(), "evaluate.splits", "must name each split once")?;
        self.actor.check("evaluate.actor")?;
        self.rehearsal.check("evaluate.rehearsal")
    }
}
