use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Config, EvaluateConfig, JudgeConfig, RolloutConfig, ScoreConfig, TasksConfig, UpdateConfig, advantage,
};

/// Where a configuration starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// The method with the reference's known defects repaired.
    #[default]
    Default,
    /// The reference run's values and its behavior, defects included where they change results.
    Paper,
}

impl Preset {
    /// What `[score.judge]` starts from where a configuration has it; without it no judge is asked.
    pub fn judge(self) -> JudgeConfig {
        match self {
            Self::Default => JudgeConfig::default(),
            Self::Paper => JudgeConfig::paper(),
        }
    }

    /// The whole configuration of the preset.
    pub fn config(self) -> Config {
        match self {
            Self::Default => Config::default(),
            Self::Paper => Config {
                preset: Self::Paper,
                tasks: TasksConfig::paper(),
                rollout: RolloutConfig::paper(),
                score: ScoreConfig::paper(),
                advantage: advantage::paper(),
                update: UpdateConfig::paper(),
                evaluate: EvaluateConfig::paper(),
                ..Config::default()
            },
        }
    }
}
