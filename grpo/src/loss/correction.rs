//! Weights for what the sampler's probabilities differ from the trainer's.

use super::token::exp_within_limit;

/// What one importance weight is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// One token.
    Token,
    /// One generation: the product over its tokens.
    Generation,
    /// One generation: the geometric mean over its tokens.
    GeometricMean,
}

/// What becomes of a weight that is far from 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// It is no more than this; a smaller one counts as it is.
    ///
    /// Source: truncated importance sampling, Yao et al. 2025, <https://fengyao.notion.site/off-policy-rl>.
    Truncate(f64),
    /// Within the bounds it counts as it is; outside them the tokens that it is of have no part in the policy's loss. They
    /// count in the totals all the same.
    ///
    /// Source: IcePop in Ring-1T, <https://arxiv.org/abs/2510.18855>, eq. 3 and 4.
    Mask {
        /// The least that counts.
        low: f64,
        /// The most.
        high: f64,
    },
}

/// How a loss is corrected for samples of an engine that computes other probabilities than the trainer: by the weight
/// `exp(old_logprob - sampling_logprob)`, taken as a constant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Correction {
    /// What one weight is of.
    pub level: Level,
    /// What becomes of weights far from 1.
    pub limit: Limit,
}

impl Correction {
    /// The weights of the tokens of one generation, `differences` being `old_logprob - sampling_logprob` of each.
    pub(super) fn weights(&self, differences: &[f64]) -> Vec<f64> {
        let n = differences.len();
        match self.level {
            Level::Token => differences.iter().map(|difference| self.limited(*difference)).collect(),
            Level::Generation => vec![self.limited(differences.iter().sum()); n],
            Level::GeometricMean => vec![self.limited(differences.iter().sum::<f64>() / n.max(1) as f64); n],
        }
    }

    fn limited(&self, difference: f64) -> f64 {
        let (weight, _) = exp_within_limit(difference);
        match self.limit {
            Limit::Truncate(most) if weight > most => most,
            Limit::Mask { low, high } if weight < low || weight > high => 0.0,
            // NaN stays what it is.
            _ => weight,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weights of 1/2, 2 and 4: product 4, geometric mean 4^(1/3) = 1.587.
    #[test]
    fn weights_by_hand() {
        let differences = [f64::ln(0.5), f64::ln(2.0), f64::ln(4.0)];
        let mean = 4.0_f64.powf(1.0 / 3.0);
        let truncated = Limit::Truncate(2.0);
        let masked = Limit::Mask { low: 0.75, high: 3.0 };
        for (level, limit, expected) in [
            (Level::Token, truncated, [0.5, 2.0, 2.0]),
            (Level::Token, masked, [0.0, 2.0, 0.0]),
            (Level::Generation, truncated, [2.0; 3]),
            (Level::Generation, masked, [0.0; 3]),
            (Level::GeometricMean, truncated, [mean; 3]),
            (Level::GeometricMean, masked, [mean; 3]),
        ] {
            let found = Correction { level, limit }.weights(&differences);
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() < 1e-12, "{level:?} {limit:?}: {found}, {expected}");
            }
        }
        for limit in [truncated, masked] {
            assert!(Correction { level: Level::Token, limit }.weights(&[f64::NAN])[0].is_nan());
            assert!(Correction { level: Level::GeometricMean, limit }.weights(&[]).is_empty());
        }
    }
}
