//! The `[advantage]` section: the parameters of the query that makes `advantages`.

use envace_schemas::Decimal;
use envace_sql::{AdvantageParams, Baseline, MalfunctionRule, SingletonRule, ZeroVarianceRule};

use super::{ConfigError, require};

/// The reference's values: raw reward for a group of one, 0.1 off blank outputs, and malformed rehearsal outputs
/// with the reward of their trajectory.
pub(super) fn paper() -> AdvantageParams {
    AdvantageParams {
        singleton: SingletonRule::Raw,
        malfunction: MalfunctionRule::Trajectory,
        blank_penalty: Decimal::from_scaled(100_000_000).unwrap_or(Decimal::ZERO),
        ..AdvantageParams::default()
    }
}

pub(super) fn check(params: &AdvantageParams) -> Result<(), ConfigError> {
    require(params.epsilon.is_finite() && params.epsilon >= 0.0, "advantage.epsilon", "must be 0 or more")?;
    let is_divided_twice = params.scale && params.whiten;
    require(!is_divided_twice, "advantage.whiten", "and `advantage.scale` cannot both be true")?;
    // What is always right or always wrong is all that such a rule would leave out, and it has something to teach.
    let is_biased = params.baseline == Baseline::Zero && params.zero_variance == ZeroVarianceRule::Exclude;
    require(
        !is_biased,
        "advantage.zero_variance",
        "must be \"keep\" where `advantage.baseline` is \"zero\"",
    )?;
    let weight = params.rehearsal_weight;
    require(weight.is_finite() && weight >= 0.0, "advantage.rehearsal_weight", "must be 0 or more")?;
    require(params.blank_penalty >= Decimal::ZERO, "advantage.blank_penalty", "must be 0 or more")
}
