use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ConfigError, require};
use crate::rollout::EpisodeOptions;

/// The tasks a step draws.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TasksConfig {
    /// Name of the task set in the store. Default: `world`.
    pub set: String,
    /// Split to train on. Default: `train`.
    pub split: String,
    /// Tasks of one step, each sampled `rollout.group_size` times. Default: 16.
    pub per_step: usize,
    /// Tasks of one part: what is computed, stored and resumed as a whole. Default: 4.
    pub per_part: usize,
}

impl Default for TasksConfig {
    fn default() -> Self {
        Self { set: "world".to_owned(), split: "train".to_owned(), per_step: 16, per_part: 4 }
    }
}

impl TasksConfig {
    /// The reference's values.
    pub fn paper() -> Self {
        Self { per_step: 16, ..Self::default() }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(self.per_step > 0, "tasks.per_step", "must be at least 1")?;
        require(self.per_part > 0, "tasks.per_part", "must be at least 1")
    }
}

/// How trajectories are sampled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RolloutConfig {
    /// Trajectories of each task. Default: 8.
    pub group_size: i32,
    /// What happens where the chat template rewrites history. Default: `template`.
    pub history: HistoryMode,
    /// How the actor is sampled.
    pub actor: SamplingConfig,
    /// How the rehearsal role is sampled.
    pub rehearsal: SamplingConfig,
    /// Longest sequence, prompt and output together; 0 is the model's own limit. Default: 0.
    pub max_sequence_tokens: usize,
    /// Whether the chat template turns thinking on. Left out: the template's own default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<bool>,
    /// Whether the tools are written into the system message, for chat templates that ignore them.
    /// Default: false.
    pub tools_in_prompt: bool,
    /// The rules of the episode.
    pub episode: EpisodeOptions,
}

/// What happens where the chat template rewrites history, as Qwen3's drops the thinking of earlier user turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HistoryMode {
    /// A new sequence starts there: what the model will meet when it is served.
    Template,
    /// The stream goes on with the tokens as sampled.
    AsSampled,
}

/// How one role is sampled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingConfig {
    /// Temperature; 0 is greedy. Default: 1.
    pub temperature: f32,
    /// Nucleus mass; 1 is off. Default: 1.
    pub top_p: f32,
    /// Candidates kept; 0 is off. Default: 0.
    pub top_k: u32,
    /// Tokens of one output, at most. Default: 512.
    pub max_new_tokens: usize,
}

impl Default for SamplingConfig {
    fn default() -> Self {
        Self { temperature: 1.0, top_p: 1.0, top_k: 0, max_new_tokens: 512 }
    }
}

impl SamplingConfig {
    /// The reference's values.
    pub fn paper() -> Self {
        Self { max_new_tokens: 8_000, ..Self::default() }
    }

    pub(super) fn check(&self, key: &'static str) -> Result<(), ConfigError> {
        require(
            self.temperature.is_finite() && self.temperature >= 0.0,
            key,
            "needs a `temperature` of 0 or more",
        )?;
        require(self.top_p > 0.0 && self.top_p <= 1.0, key, "needs a `top_p` in (0, 1]")?;
        require(self.max_new_tokens > 0, key, "needs `max_new_tokens` of at least 1")
    }
}

impl Default for RolloutConfig {
    fn default() -> Self {
        Self {
            group_size: 8,
            history: HistoryMode::Template,
            actor: SamplingConfig::default(),
            rehearsal: SamplingConfig::default(),
            max_sequence_tokens: 0,
            thinking: None,
            tools_in_prompt: false,
            episode: EpisodeOptions::default(),
        }
    }
}

impl RolloutConfig {
    /// The reference's values.
    pub fn paper() -> Self {
        Self {
            group_size: 4,
            history: HistoryMode::AsSampled,
            actor: SamplingConfig::paper(),
            rehearsal: SamplingConfig::paper(),
            max_sequence_tokens: 20_000,
            thinking: Some(true),
            episode: EpisodeOptions::paper(),
            ..Self::default()
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let is_sound = (1..=65_536).contains(&self.group_size);
        require(is_sound, "rollout.group_size", "must be between 1 and 65536")?;
        if let Some(reason) = self.episode.problem() {
            return require(false, "rollout.episode", &reason);
        }
        self.actor.check("rollout.actor")?;
        self.rehearsal.check("rollout.rehearsal")
    }
}
