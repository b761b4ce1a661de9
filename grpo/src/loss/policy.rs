//! What makes a good token likelier: one token's part, by the objective.

use super::token::{Bound, Clip, Surrogate, Term, exp_within_limit, surrogate};

/// What makes a generation likelier as far as its advantage is positive. Let `ratio = exp(policy_logprob - old_logprob)`
/// of a token and `A` be the advantage of its generation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PolicyLoss {
    /// A token costs `-min(ratio A, clamp(ratio, 1 - low, 1 + high) A)`, at most `-dual A` where `A` is negative.
    ///
    /// Source: PPO, <https://arxiv.org/abs/1707.06347>, eq. 7; two bounds: DAPO, <https://arxiv.org/abs/2503.14476>;
    /// dual clip: <https://arxiv.org/abs/1912.09729>.
    Ppo(Clip),
    /// The same with one ratio for all tokens of a generation, the geometric mean of theirs.
    ///
    /// Source: GSPO, <https://arxiv.org/abs/2507.18071>, eq. 5 to 7.
    Gspo(Clip),
    /// A token costs `-clamp(ratio, 1 - low, 1 + high) A policy_logprob`, the clamped ratio taken as a constant: no token
    /// is without a gradient. A `low` of 1 is no lower bound; there is no dual clip.
    ///
    /// Source: CISPO, MiniMax-M1, <https://arxiv.org/abs/2506.13585>, eq. 4 and 5.
    Cispo(Clip),
    /// A token costs `-A policy_logprob`, whatever it was sampled with.
    ///
    /// Source: REINFORCE, Williams 1992, <https://doi.org/10.1007/BF00992696>.
    Reinforce,
}

impl PolicyLoss {
    /// Whether the tokens of a generation share one ratio.
    pub(super) fn shares_ratio(&self) -> bool {
        matches!(self, Self::Gspo(_))
    }

    /// The part of a token of advantage `advantage`, `log_ratio` being its own, or that of its generation where it is
    /// [shared](Self::shares_ratio). NaN in gives NaN out.
    ///
    /// The derivative is that of the sum over the generation: a shared ratio depends on each of its `n` logprobs by `1 / n`,
    /// and `n` tokens depend on it.
    pub(super) fn token(&self, policy_logprob: f64, log_ratio: f64, advantage: f64) -> Surrogate {
        match self {
            Self::Ppo(clip) | Self::Gspo(clip) => surrogate(log_ratio, advantage, clip),
            Self::Cispo(clip) => {
                let (ratio, _) = exp_within_limit(log_ratio);
                let bound = match ratio {
                    _ if ratio > 1.0 + clip.high => Bound::High,
                    _ if ratio < 1.0 - clip.low => Bound::Low,
                    _ => Bound::Free,
                };
                // `clamp` would panic at bounds that are out of order, and keeps NaN, as this does.
                let weight = if bound == Bound::High {
                    1.0 + clip.high
                } else if bound == Bound::Low {
                    1.0 - clip.low
                } else {
                    ratio
                };
                let slope = -weight * advantage;
                Surrogate { term: Term { value: slope * policy_logprob, slope }, bound, ratio }
            }
            Self::Reinforce => {
                let (ratio, _) = exp_within_limit(log_ratio);
                let term = Term { value: -advantage * policy_logprob, slope: -advantage };
                Surrogate { term, bound: Bound::Free, ratio }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIP: Clip = Clip { low: 0.25, high: 0.5, dual: None };

    /// A logprob of -2; ratio and advantage as given: value, slope, bound.
    #[test]
    fn every_branch_by_hand() {
        for (loss, ratio, advantage, value, slope, bound) in [
            (PolicyLoss::Cispo(CLIP), 1.25, 2.0, 5.0, -2.5, Bound::Free),
            (PolicyLoss::Cispo(CLIP), 4.0, 2.0, 6.0, -3.0, Bound::High),
            (PolicyLoss::Cispo(CLIP), 4.0, -2.0, -6.0, 3.0, Bound::High),
            (PolicyLoss::Cispo(CLIP), 0.5, 2.0, 3.0, -1.5, Bound::Low),
            (PolicyLoss::Cispo(Clip { low: 1.0, ..CLIP }), 0.5, 2.0, 2.0, -1.0, Bound::Free),
            (PolicyLoss::Reinforce, 4.0, 2.0, 4.0, -2.0, Bound::Free),
            (PolicyLoss::Reinforce, 0.25, -3.0, -6.0, 3.0, Bound::Free),
            (PolicyLoss::Gspo(CLIP), 1.25, 2.0, -2.5, -2.5, Bound::Free),
            (PolicyLoss::Gspo(CLIP), 4.0, 2.0, -3.0, 0.0, Bound::High),
        ] {
            let found = loss.token(-2.0, f64::ln(ratio), advantage);
            assert!((found.term.value - value).abs() < 1e-12, "{loss:?} {ratio}: {found:?}");
            assert!((found.term.slope - slope).abs() < 1e-12, "{loss:?} {ratio}: {found:?}");
            assert_eq!(found.bound, bound, "{loss:?} {ratio}");
            assert!((found.ratio - ratio).abs() < 1e-12, "{loss:?} {ratio}: {found:?}");
        }
        for loss in [PolicyLoss::Cispo(CLIP), PolicyLoss::Reinforce, PolicyLoss::Gspo(CLIP)] {
            assert!(loss.token(f64::NAN, f64::NAN, 1.0).term.value.is_nan(), "{loss:?}");
        }
    }
}
