use envace_sql::{OnRehearsalFailed, OnUngraded, RewardParams};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ConfigError, require};
use crate::score::{GradeOptions, PartialUserTurn};

/// How verdicts become rewards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ScoreConfig {
    /// What a reward does when an item could not be graded. Default: `null`, the trajectory is ungraded.
    pub on_ungraded: OnUngraded,
    /// What a trajectory is worth that was cut off because the rehearsal role failed. Default: `null`, for it is
    /// not the actor's fault.
    pub on_rehearsal_failed: OnRehearsalFailed,
    /// How verdicts are reached where the trajectory leaves a choice.
    pub grade: GradeOptions,
    /// Largest share of trajectories that may be ungraded before the stage stops. Default: 0.5.
    pub max_ungraded_share: f64,
}

impl Default for ScoreConfig {
    fn default() -> Self {
        Self {
            on_ungraded: OnUngraded::default(),
            on_rehearsal_failed: OnRehearsalFailed::default(),
            grade: GradeOptions::default(),
            max_ungraded_share: 0.5,
        }
    }
}

impl ScoreConfig {
    /// The reference's values: a user turn that was cut short has failed.
    pub fn paper() -> Self {
        let grade = GradeOptions { partial_user_turn: PartialUserTurn::Failed, ..GradeOptions::default() };
        Self { grade, ..Self::default() }
    }

    /// The parameters of the query that makes `rewards`.
    pub fn params(&self) -> RewardParams {
        RewardParams { on_ungraded: self.on_ungraded, on_rehearsal_failed: self.on_rehearsal_failed }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let share = self.max_ungraded_share;
        require((0.0..=1.0).contains(&share), "score.max_ungraded_share", "must be in [0, 1]")
    }
}
