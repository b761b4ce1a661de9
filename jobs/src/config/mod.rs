//! The configuration of a run: one TOML document, each section documented where it is declared.
//!
//! A stage is given its own section and no other. What must not change a result stands in
//! [`ExecutionConfig`], which is in no stage key.

mod advantage;
mod evaluate;
mod execution;
mod judge;
pub mod keys;
mod lora;
mod policy;
mod preset;
mod rollout;
mod score;
mod sft;
mod update;

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::Table as TomlTable;

use envace_sql::Baseline;

pub use envace_sql::AdvantageParams;
pub use evaluate::EvaluateConfig;
pub use execution::{ExecutionConfig, StatePlace};
pub use judge::{Ask, JudgeConfig, JudgeEndpoints, StructuredOutput, ToolErrors};
pub use lora::LoraConfig;
pub use policy::{PolicyConfig, RoleConfig, RolesConfig};
pub use preset::Preset;
pub use rollout::{HistoryMode, RolloutConfig, SamplingConfig, TasksConfig};
pub use score::{ProgramConfig, ScoreConfig};
pub use sft::SftConfig;
pub use update::{
    AdamWConfig, Aggregation, CorrectionConfig, CorrectionLevel, CorrectionLimit, KlConfig, KlEstimator,
    PolicyLoss, ScheduleConfig, ScheduleKind, TrainRole, UpdateConfig,
};

/// Everything a run is configured by.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The values the file starts from: `default`, or `paper` for those of the reference run.
    pub preset: Preset,
    /// Seed of every random draw of the run.
    pub seed: u64,
    /// The initial policy.
    pub policy: PolicyConfig,
    /// What differs between the roles.
    pub roles: RolesConfig,
    /// The tasks a step draws.
    pub tasks: TasksConfig,
    /// How trajectories are sampled.
    pub rollout: RolloutConfig,
    /// How verdicts become rewards.
    pub score: ScoreConfig,
    /// How rewards become advantages.
    pub advantage: AdvantageParams,
    /// How advantages become new weights.
    pub update: UpdateConfig,
    /// Supervised training on recorded dialogues.
    pub sft: SftConfig,
    /// Training of an adapter in place of the weights, by `update` and `sft`. Left out: all weights are trained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraConfig>,
    /// Evaluation during `run`.
    pub evaluate: EvaluateConfig,
    /// What must not change a result: in no stage key.
    pub execution: ExecutionConfig,
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("configuration cannot be read: {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is no TOML, or holds an unknown key or a value of the wrong type.
    #[error("configuration `{origin}` is not valid: {}", .source.message())]
    Parse {
        /// The file, or what stands for it.
        origin: String,
        /// Where and why.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// The configuration cannot be written as TOML.
    #[error("configuration cannot be written as TOML")]
    Write(#[from] toml::ser::Error),
    /// A value is out of its range, or two values contradict each other.
    #[error("configuration key `{key}`: {reason}")]
    Value {
        /// The key, dotted.
        key: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

impl Config {
    /// Reads the file at `path`: its preset's values, then its own over them.
    ///
    /// # Errors
    /// [`ConfigError`] names the file and the key.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Parses TOML `text`; `origin` names it in messages.
    ///
    /// # Errors
    /// [`ConfigError`] names the key.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigError> {
        let parse = |source| ConfigError::Parse { origin: origin.to_owned(), source: Box::new(source) };
        // The file alone first, so that an unknown key is reported with its line in the file.
        let alone: Self = toml::from_str(text).map_err(parse)?;
        let over: TomlTable = toml::from_str(text).map_err(parse)?;
        let mut base = alone.preset.config();
        // Without a section of its own, no judge is asked.
        base.score.judge = alone.score.judge.map(|_| alone.preset.judge());
        let mut values = TomlTable::try_from(base)?;
        overlay(&mut values, over);
        let config: Self = values.try_into().map_err(parse)?;
        config.check()?;
        Ok(config)
    }

    /// The effective configuration as TOML, every value stated.
    ///
    /// # Errors
    /// [`ConfigError::Write`] if a value has no TOML form.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        Ok(toml::to_string_pretty(self)?)
    }

    /// Checks ranges and combinations.
    ///
    /// # Errors
    /// [`ConfigError::Value`] names the key.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.tasks.check()?;
        self.rollout.check()?;
        self.score.check()?;
        advantage::check(&self.advantage)?;
        self.update.check()?;
        self.sft.check()?;
        self.lora.as_ref().map_or(Ok(()), LoraConfig::check)?;
        require(
            self.rollout.group_size > 1 || self.advantage.baseline == Baseline::Zero,
            "rollout.group_size",
            "must be at least 2: a group of one has no baseline to learn from, unless `advantage.baseline` is \"zero\"",
        )?;
        self.evaluate.check()?;
        self.execution.check()?;
        Ok(())
    }
}

/// Refuses `value` unless `is_valid`.
fn require(is_valid: bool, key: &'static str, reason: &str) -> Result<(), ConfigError> {
    if is_valid { Ok(()) } else { Err(ConfigError::Value { key, reason: reason.to_owned() }) }
}

/// Puts the values of `over` in place of those of `base`, table by table.
fn overlay(base: &mut TomlTable, over: TomlTable) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(toml::Value::Table(inner)), toml::Value::Table(over)) => overlay(inner, over),
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(Config::parse("", "empty").unwrap(), Config::default());
    }

    #[test]
    fn effective_configuration_round_trips() {
        for preset in [Preset::Default, Preset::Paper] {
            let config = preset.config();
            assert_eq!(Config::parse(&config.to_toml().unwrap(), "again").unwrap(), config);
        }
    }

    #[test]
    fn a_file_stands_over_its_preset() {
        let config = Config::parse("preset = \"paper\"\n[rollout]\ngroup_size = 6\n", "file").unwrap();
        assert_eq!(config.rollout.group_size, 6);
        assert_eq!(config.update.learning_rate, 1e-6, "the rest is the preset's");
    }

    #[test]
    fn an_unknown_key_is_named() {
        let error = Config::parse("[rollout]\ngroup_sise = 6\n", "run.toml").unwrap_err().to_string();
        assert!(error.contains("run.toml") && error.contains("group_sise"), "{error}");
    }

    #[test]
    fn settings_of_the_objective_that_contradict_each_other_are_refused() {
        for (text, key) in [
            ("aggregation = \"constant\"", "update.aggregation_tokens"),
            ("aggregation_tokens = 5", "update.aggregation_tokens"),
            ("loss = \"gspo\"\ndual_clip = 3.0", "update.dual_clip"),
            ("correction = { high = 0.5 }", "update.correction"),
            ("[advantage]\nscale = true\nwhiten = true", "advantage.whiten"),
            ("[advantage]\nrehearsal_weight = -1.0", "advantage.rehearsal_weight"),
            ("correction = { limit = \"mask\", low = 2.0 }", "update.correction"),
            ("correction = { low = 0.9 }", "update.correction"),
            ("[advantage]\nbaseline = \"zero\"\nzero_variance = \"exclude\"", "advantage.zero_variance"),
        ] {
            let error = Config::parse(&format!("[update]\n{text}\n"), "run.toml").unwrap_err().to_string();
            assert!(error.contains(key), "{text}: {error}");
        }
        for text in [
            "aggregation = \"constant\"\naggregation_tokens = 512",
            "loss = \"cispo\"\nclip_low = 1.0",
            "correction = {}",
        ] {
            Config::parse(&format!("[update]\n{text}\n"), "run.toml").unwrap();
        }
    }

    #[test]
    fn a_group_of_one_is_refused_where_it_can_have_no_baseline() {
        let error = Config::parse("[rollout]\ngroup_size = 1\n", "run.toml").unwrap_err().to_string();
        assert!(error.contains("rollout.group_size"), "{error}");
        Config::parse("[rollout]\ngroup_size = 1\n[advantage]\nbaseline = \"zero\"\n", "run.toml").unwrap();
    }
}
