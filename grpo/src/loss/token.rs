//! One token: its surrogate and its divergence, each with its derivative.

/// Largest absolute log ratio that is exponentiated, nats: e^20 is 4.9e8. Beyond it a term is constant.
const LOG_RATIO_LIMIT: f64 = 20.0;
/// Largest value of the k3 estimate of one token, nats, as in the reference implementation.
const K3_LIMIT: f64 = 10.0;

/// Bounds of the ratio between the policy's probability of a token and the one it was sampled with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clip {
    /// The ratio counts down to `1 - low`.
    pub low: f64,
    /// The ratio counts up to `1 + high`.
    pub high: f64,
    /// For a negative advantage `A` the loss of a token is at most `-dual * A`; more than 1. `None`: no limit.
    pub dual: Option<f64>,
}

/// How the divergence `d = policy_logprob - ref_logprob` of a sampled token is estimated.
///
/// Source: <http://joschu.net/blog/kl-approx.html>.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KlEstimator {
    /// `d`: unbiased as a value; its gradient has mean zero.
    K1,
    /// `d^2 / 2`.
    K2,
    /// `exp(-d) - 1 + d`, at most 10.
    K3,
}

/// Which bound held, if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    Free,
    Low,
    High,
    Dual,
}

/// The loss of one token and what it came from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Surrogate {
    pub term: Term,
    pub bound: Bound,
    pub ratio: f64,
}

/// A value and its derivative with respect to the policy logprob.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Term {
    pub value: f64,
    pub slope: f64,
}

/// The loss of one token: `-min(ratio A, clamp(ratio, 1 - low, 1 + high) A)`, and for a negative `A` at most
/// `-dual A`. NaN in gives NaN out.
///
/// Source: PPO, <https://arxiv.org/abs/1707.06347>, eq. 7; two bounds, <https://arxiv.org/abs/2503.14476>;
/// dual clip, <https://arxiv.org/abs/1912.09729>.
pub(super) fn surrogate(log_ratio: f64, advantage: f64, clip: &Clip) -> Surrogate {
    let (ratio, ratio_slope) = exp_within_limit(log_ratio);
    let (edge, bound) =
        if advantage >= 0.0 { (1.0 + clip.high, Bound::High) } else { (1.0 - clip.low, Bound::Low) };
    // The pessimistic one of the two counts: the bounded one where the ratio has moved past its bound in the
    // direction that the advantage asks for.
    let is_past = if advantage >= 0.0 { ratio > edge } else { ratio < edge };
    let held_at = match clip.dual {
        _ if is_past => Some((edge, bound)),
        Some(dual) if advantage < 0.0 && ratio > dual => Some((dual, Bound::Dual)),
        _ => None,
    };
    match held_at {
        Some((edge, bound)) => {
            Surrogate { term: Term { value: -edge * advantage, slope: 0.0 }, bound, ratio }
        }
        None => {
            let term = Term { value: -ratio * advantage, slope: -ratio_slope * advantage };
            Surrogate { term, bound: Bound::Free, ratio }
        }
    }
}

/// The estimated divergence of one token, nats.
pub(super) fn divergence(difference: f64, estimator: KlEstimator) -> Term {
    match estimator {
        KlEstimator::K1 => Term { value: difference, slope: 1.0 },
        KlEstimator::K2 => Term { value: difference * difference / 2.0, slope: difference },
        KlEstimator::K3 => {
            let term = k3(difference);
            if term.value > K3_LIMIT { Term { value: K3_LIMIT, slope: 0.0 } } else { term }
        }
    }
}

/// `exp(-d) - 1 + d` without its limit: the mean of it over sampled tokens is the divergence.
pub(super) fn k3(difference: f64) -> Term {
    let (inverse, inverse_slope) = exp_within_limit(-difference);
    Term { value: inverse - 1.0 + difference, slope: 1.0 - inverse_slope }
}

/// `exp(x)` with `x` held within the limit, and its derivative.
pub(super) fn exp_within_limit(x: f64) -> (f64, f64) {
    // `clamp` keeps NaN.
    let value = x.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp();
    let is_outside = x.abs() > LOG_RATIO_LIMIT;
    (value, if is_outside { 0.0 } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIP: Clip = Clip { low: 0.2, high: 0.3, dual: Some(3.0) };

    /// Every branch by hand: (ratio, advantage) -> (value, slope, bound).
    #[test]
    fn surrogate_by_hand() {
        for (ratio, advantage, value, slope, bound) in [
            (1.0, 2.0, -2.0, -2.0, Bound::Free),
            (0.5, 2.0, -1.0, -1.0, Bound::Free), // min(0.5, 0.8) 2
            (1.5, 2.0, -2.6, 0.0, Bound::High),  // min(1.5, 1.3) 2
            (0.5, -2.0, 1.6, 0.0, Bound::Low),   // -min(-1.0, -1.6)
            (1.5, -2.0, 3.0, 3.0, Bound::Free),  // -min(-3.0, -2.6)
            (4.0, -2.0, 6.0, 0.0, Bound::Dual),  // min(8, 3 * 2)
            (4.0, 0.0, 0.0, 0.0, Bound::High),
        ] {
            let Surrogate { term, bound: found, .. } = surrogate(f64::ln(ratio), advantage, &CLIP);
            assert!((term.value - value).abs() < 1e-12, "{ratio} {advantage}: {term:?}");
            assert!((term.slope - slope).abs() < 1e-12, "{ratio} {advantage}: {term:?}");
            assert_eq!(found, bound, "{ratio} {advantage}");
        }
        let Surrogate { term, bound, .. } = surrogate(f64::ln(4.0), -2.0, &Clip { dual: None, ..CLIP });
        assert!((term.value - 8.0).abs() < 1e-12);
        assert_eq!(bound, Bound::Free);
    }

    #[test]
    fn far_ratios_stay_finite_and_nan_stays_nan() {
        let open = Clip { low: 0.2, high: 0.2, dual: None };
        let term = surrogate(1e4, -1.0, &open).term;
        assert_eq!(term, Term { value: 20.0_f64.exp(), slope: 0.0 });
        for advantage in [1.0, -1.0] {
            let term = surrogate(f64::NAN, advantage, &CLIP).term;
            assert!(term.value.is_nan() && term.slope.is_nan());
        }
        for estimator in [KlEstimator::K1, KlEstimator::K2, KlEstimator::K3] {
            assert!(divergence(f64::NAN, estimator).value.is_nan());
            assert!(divergence(f64::NAN, estimator).slope.is_nan() || estimator == KlEstimator::K1);
        }
        assert_eq!(divergence(-30.0, KlEstimator::K3), Term { value: 10.0, slope: 0.0 });
    }

    #[test]
    fn divergence_by_hand() {
        let half = f64::ln(0.5);
        assert_eq!(divergence(half, KlEstimator::K1), Term { value: half, slope: 1.0 });
        assert_eq!(divergence(half, KlEstimator::K2), Term { value: half * half / 2.0, slope: half });
        // exp(-ln 0.5) = 2, so the value is 2 - 1 + ln 0.5 and the slope 1 - 2.
        let term = divergence(half, KlEstimator::K3);
        assert!((term.value - (1.0 + half)).abs() < 1e-12 && (term.slope + 1.0).abs() < 1e-12, "{term:?}");
    }
}
