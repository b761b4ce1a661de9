//! What is minimized, from the configuration.

use envace_grpo::loss::{Aggregation, Clip, Correction, KlEstimator, Level, Limit, Objective, PolicyLoss};

use crate::config::{self, CorrectionConfig, CorrectionLevel, CorrectionLimit, UpdateConfig};

pub(super) fn objective(config: &UpdateConfig) -> Objective {
    let dual = (config.dual_clip > 0.0).then_some(config.dual_clip);
    let clip = Clip { low: config.clip_low, high: config.clip_high, dual };
    Objective {
        policy: match config.loss {
            config::PolicyLoss::Ppo => PolicyLoss::Ppo(clip),
            config::PolicyLoss::Gspo => PolicyLoss::Gspo(clip),
            config::PolicyLoss::Cispo => PolicyLoss::Cispo(clip),
            config::PolicyLoss::Reinforce => PolicyLoss::Reinforce,
        },
        correction: config.correction.as_ref().map(correction),
        aggregation: match config.aggregation {
            config::Aggregation::Token => Aggregation::Token,
            config::Aggregation::Sequence => Aggregation::Sequence,
            config::Aggregation::Generation => Aggregation::Generation,
            config::Aggregation::Constant => Aggregation::Constant(config.aggregation_tokens),
        },
        kl: match config.kl.estimator {
            config::KlEstimator::K1 => KlEstimator::K1,
            config::KlEstimator::K2 => KlEstimator::K2,
            config::KlEstimator::K3 => KlEstimator::K3,
        },
        kl_coefficient: config.kl.coefficient,
    }
}

fn correction(config: &CorrectionConfig) -> Correction {
    Correction {
        level: match config.level {
            CorrectionLevel::Token => Level::Token,
            CorrectionLevel::Generation => Level::Generation,
            CorrectionLevel::GeometricMean => Level::GeometricMean,
        },
        limit: match config.limit {
            CorrectionLimit::Truncate => Limit::Truncate(config.high),
            CorrectionLimit::Mask => Limit::Mask { low: config.low, high: config.high },
        },
    }
}
