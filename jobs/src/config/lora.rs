use envace_model::TARGET_MODULES;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ConfigError, require};

/// Training of a low-rank adapter in place of the weights. Without this section all weights are trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LoraConfig {
    /// Rank of what is added to a matrix. Default: 16.
    pub rank: usize,
    /// Its weight, before it is divided by the rank, or by its root. Default: 32.
    pub alpha: f64,
    /// Whether the weight is divided by the root of the rank. Default: false.
    pub rank_stabilized: bool,
    /// Matrices that are adapted. Default: the seven projections of every layer.
    pub target_modules: Vec<String>,
}

impl Default for LoraConfig {
    fn default() -> Self {
        let target_modules = TARGET_MODULES.map(str::to_owned).to_vec();
        Self { rank: 16, alpha: 32.0, rank_stabilized: false, target_modules }
    }
}

impl LoraConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require((1..=65_536).contains(&self.rank), "lora.rank", "must be between 1 and 65536")?;
        // It is computed with in 32 bits.
        let alpha = self.alpha as f32;
        require(alpha.is_finite() && alpha > 0.0, "lora.alpha", "must be above 0, and a 32-bit number")?;
        require(!self.target_modules.is_empty(), "lora.target_modules", "must name a module")
    }
}
