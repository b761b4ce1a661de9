use envace_schemas::Decimal;
use envace_sql::{OnOverlong, OnRehearsalFailed, OnUngraded, RewardParams};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ConfigError, JudgeConfig, require};
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
    /// What a trajectory is worth that was cut off at a limit of its length, turns or outputs. Default: `score`, what it
    /// earned until then.
    pub on_overlong: OnOverlong,
    /// How verdicts are reached where the trajectory leaves a choice.
    pub grade: GradeOptions,
    /// How much of the rehearsal role's reward is its own checklist's, which `score.judge.rehearsal` turns on; the rest
    /// is the trajectory's. Default: "0", as in the paper.
    #[schemars(with = "String")]
    pub rehearsal_checklist_weight: Decimal,
    /// Programs that the items of grader `program` name: `name`, `command` with its arguments, and `timeout_s`, 60 seconds
    /// if it is left out. A program gets one line of JSON and writes one; see `docs/scoring.md`.
    pub programs: Vec<ProgramConfig>,
    /// Files with queries that make further rows of `verdicts`; see `docs/scoring.md`. What counts is their text.
    pub queries: Vec<String>,
    /// Largest share of trajectories that may be ungraded before the stage stops. Default: 0.5.
    pub max_ungraded_share: f64,
    /// The judge model that reads checklists. Left out: checklists are not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judge: Option<JudgeConfig>,
}

impl Default for ScoreConfig {
    fn default() -> Self {
        Self {
            on_ungraded: OnUngraded::default(),
            on_rehearsal_failed: OnRehearsalFailed::default(),
            on_overlong: OnOverlong::default(),
            grade: GradeOptions::default(),
            rehearsal_checklist_weight: Decimal::ZERO,
            programs: Vec::new(),
            queries: Vec::new(),
            max_ungraded_share: 0.5,
            judge: None,
        }
    }
}

/// A grader that is a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProgramConfig {
    /// What items call it.
    pub name: String,
    /// The program and its arguments. It is not run in a shell.
    pub command: Vec<String>,
    /// Seconds that one run may take before it is killed, with all that it has started.
    #[serde(default = "default_timeout_s")]
    pub timeout_s: f64,
}

fn default_timeout_s() -> f64 {
    60.0
}

impl ScoreConfig {
    /// The reference's values: a user turn that was cut short has failed.
    pub fn paper() -> Self {
        let grade = GradeOptions { partial_user_turn: PartialUserTurn::Failed, ..GradeOptions::default() };
        Self { grade, ..Self::default() }
    }

    /// The parameters of the query that makes `rewards`.
    pub fn params(&self) -> RewardParams {
        RewardParams {
            on_ungraded: self.on_ungraded,
            on_rehearsal_failed: self.on_rehearsal_failed,
            on_overlong: self.on_overlong,
            rehearsal_checklist_weight: self.rehearsal_checklist_weight,
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let share = self.max_ungraded_share;
        require((0.0..=1.0).contains(&share), "score.max_ungraded_share", "must be in [0, 1]")?;
        for (index, program) in self.programs.iter().enumerate() {
            let key = "score.programs";
            let is_new = self.programs.iter().take(index).all(|other| other.name != program.name);
            require(is_new && !program.name.is_empty(), key, "must have different names")?;
            require(!program.command.is_empty(), key, "must each have a `command`")?;
            let is_time = program.timeout_s > 0.0 && program.timeout_s <= 1e6;
            require(is_time, key, "must each have a `timeout_s` above 0 and at most 1000000")?;
        }
        let (weight, key) = (self.rehearsal_checklist_weight, "score.rehearsal_checklist_weight");
        require((Decimal::ZERO..=Decimal::ONE).contains(&weight), key, "must be in [0, 1]")?;
        let is_judged = self.judge.as_ref().is_some_and(|judge| judge.rehearsal);
        require(weight == Decimal::ZERO || is_judged, key, "needs `score.judge.rehearsal = true`")?;
        self.judge.as_ref().map_or(Ok(()), JudgeConfig::check)
    }
}
