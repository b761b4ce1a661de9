use serde::{Deserialize, Serialize};

use super::{ConfigError, require};

/// What must not change a result: in no stage key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExecutionConfig {
    /// Generations the engine decodes together. Default: 64.
    pub max_batch: usize,
    /// Tokens of keys and values the engine may hold. Default: 131072.
    pub kv_tokens: usize,
}

impl Default for ExecutionConfig {
    fn default() -> Self {
        Self { max_batch: 64, kv_tokens: 131_072 }
    }
}

impl ExecutionConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let is_sound = (1..=65_536).contains(&self.max_batch);
        require(is_sound, "execution.max_batch", "must be between 1 and 65536")?;
        require(self.kv_tokens > 0, "execution.kv_tokens", "must be at least 1")
    }
}
