//! What a loss is made of, as sums that add up over sequences.

use super::token::{Bound, Surrogate, k3};

/// Sums over some trained tokens. Those of two sets of tokens [`add`](Self::add) up to those of both.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LossParts {
    /// The policy's part of the loss: already divided by the totals.
    pub policy: f64,
    /// The divergence's part of the loss: already divided, and times its coefficient.
    pub kl: f64,
    /// Trained tokens.
    pub n_tokens: u64,
    /// Trained generations.
    pub n_generations: u64,
    /// Tokens whose ratio was held at its lower bound.
    pub n_clipped_low: u64,
    /// Tokens whose ratio was held at its upper bound.
    pub n_clipped_high: u64,
    /// Tokens whose loss was held by the dual clip.
    pub n_clipped_dual: u64,
    /// Tokens that a correction left out of the policy's part.
    pub n_masked: u64,
    /// Sum of the weights of a correction; 1 for a token without one.
    pub correction_sum: f64,
    /// Sum of ratios, each of the token or of its generation.
    pub ratio_sum: f64,
    /// Sum of `old_logprob - sampling_logprob`, nats; of `policy_logprob - sampling_logprob` without old logprobs.
    pub mismatch_sum: f64,
    /// Largest absolute value of the same, nats.
    pub mismatch_max: f64,
    /// Sum of the k3 estimate of the same divergence from the sampler, nats.
    pub mismatch_k3_sum: f64,
    /// Sum of the estimated divergence from the frozen reference, nats, without its coefficient. `None`: no
    /// reference logprobs were given.
    pub kl_sum: Option<f64>,
    /// Trained tokens whose reference logprob was given.
    pub n_kl_tokens: u64,
    /// Sum of the policy's entropies, nats. `None`: none were given.
    pub entropy_sum: Option<f64>,
    /// Sum of advantages over generations.
    pub advantage_sum: f64,
}

impl LossParts {
    /// What is minimized.
    pub fn loss(&self) -> f64 {
        self.policy + self.kl
    }

    /// Share of tokens with any bound held. `None`: no tokens.
    pub fn clip_share(&self) -> Option<f64> {
        let n_clipped = self.n_clipped_low + self.n_clipped_high + self.n_clipped_dual;
        self.per_token(n_clipped as f64)
    }

    /// Mean ratio. `None`: no tokens.
    pub fn ratio_mean(&self) -> Option<f64> {
        self.per_token(self.ratio_sum)
    }

    /// Share of tokens that a correction left out. `None`: no tokens.
    pub fn masked_share(&self) -> Option<f64> {
        self.per_token(self.n_masked as f64)
    }

    /// Mean weight of a correction. `None`: no tokens.
    pub fn correction_mean(&self) -> Option<f64> {
        self.per_token(self.correction_sum)
    }

    /// Mean difference from the sampler, nats: see [`LossParts::mismatch_sum`]. `None`: no tokens.
    pub fn mismatch_mean(&self) -> Option<f64> {
        self.per_token(self.mismatch_sum)
    }

    /// Mean estimated divergence from the sampler, nats. `None`: no tokens.
    pub fn mismatch_k3_mean(&self) -> Option<f64> {
        self.per_token(self.mismatch_k3_sum)
    }

    /// Mean estimated divergence from the frozen reference over the tokens it is known of, nats. `None`: of none.
    pub fn kl_mean(&self) -> Option<f64> {
        (self.n_kl_tokens > 0).then_some(self.kl_sum? / self.n_kl_tokens as f64)
    }

    /// Mean entropy of the policy, nats. `None`: no tokens or no entropies.
    pub fn entropy_mean(&self) -> Option<f64> {
        self.per_token(self.entropy_sum?)
    }

    /// Mean advantage over generations. `None`: no generations.
    pub fn advantage_mean(&self) -> Option<f64> {
        (self.n_generations > 0).then(|| self.advantage_sum / self.n_generations as f64)
    }

    /// Adds the sums of other tokens.
    pub fn add(&mut self, other: &Self) {
        self.policy += other.policy;
        self.kl += other.kl;
        self.n_tokens += other.n_tokens;
        self.n_generations += other.n_generations;
        self.n_clipped_low += other.n_clipped_low;
        self.n_clipped_high += other.n_clipped_high;
        self.n_clipped_dual += other.n_clipped_dual;
        self.n_masked += other.n_masked;
        self.correction_sum += other.correction_sum;
        self.ratio_sum += other.ratio_sum;
        self.mismatch_sum += other.mismatch_sum;
        self.mismatch_max = max_or_nan(self.mismatch_max, other.mismatch_max);
        self.mismatch_k3_sum += other.mismatch_k3_sum;
        self.kl_sum = add_known(self.kl_sum, other.kl_sum);
        self.n_kl_tokens += other.n_kl_tokens;
        self.entropy_sum = add_known(self.entropy_sum, other.entropy_sum);
        self.advantage_sum += other.advantage_sum;
    }

    pub(super) fn count_token(&mut self, mismatch: f64, correction: f64, surrogate: &Surrogate) {
        self.n_tokens += 1;
        self.n_masked += u64::from(correction == 0.0);
        self.correction_sum += correction;
        match surrogate.bound {
            Bound::Free => {}
            Bound::Low => self.n_clipped_low += 1,
            Bound::High => self.n_clipped_high += 1,
            Bound::Dual => self.n_clipped_dual += 1,
        }
        self.ratio_sum += surrogate.ratio;
        self.mismatch_sum += mismatch;
        self.mismatch_max = max_or_nan(self.mismatch_max, mismatch.abs());
        self.mismatch_k3_sum += k3(mismatch).value;
    }

    fn per_token(&self, sum: f64) -> Option<f64> {
        (self.n_tokens > 0).then(|| sum / self.n_tokens as f64)
    }
}

/// The larger one; NaN if either is.
fn max_or_nan(one: f64, two: f64) -> f64 {
    if one.is_nan() || one > two { one } else { two }
}

/// The sum of what is known; unknown if both are.
fn add_known(one: Option<f64>, two: Option<f64>) -> Option<f64> {
    match (one, two) {
        (Some(one), Some(two)) => Some(one + two),
        (one, two) => one.or(two),
    }
}
