//! The policy-gradient objectives, and its gradient for each policy logprob.

mod correction;
mod objective;
mod parts;
mod policy;
mod token;

pub use correction::{Correction, Level, Limit};
pub use objective::{LossError, Span, Tokens, sequence_loss};
pub use parts::LossParts;
pub use policy::PolicyLoss;
pub use token::{Clip, KlEstimator};

/// What has one vote in the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aggregation {
    /// Every trained token: long generations weigh more.
    Token,
    /// Every sequence, with the mean of its trained tokens.
    Sequence,
    /// Every generation, with the mean of its tokens: the reference implementation in effect, which means over
    /// single rows whatever it is configured to do.
    Generation,
    /// Every generation, with the sum over its tokens divided by this constant: long generations weigh more, as in what is
    /// to be maximized. At least 1.
    ///
    /// Source: Dr. GRPO, <https://arxiv.org/abs/2503.20783>.
    Constant(u32),
}

/// What is minimized.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Objective {
    /// What makes good tokens likelier.
    pub policy: PolicyLoss,
    /// Correction for another sampler; unused where no old logprobs are given.
    pub correction: Option<Correction>,
    /// What has one vote.
    pub aggregation: Aggregation,
    /// Which estimate of the divergence from the frozen reference is added, and how much of it; unused where
    /// no reference logprobs are given.
    pub kl: KlEstimator,
    /// Factor of that divergence.
    pub kl_coefficient: f64,
}

/// How much of everything one optimizer application trains on: what its loss is divided by.
///
/// Counted over all micro-batches before the first of them, so that the split has no influence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Trained tokens.
    pub n_tokens: u64,
    /// Sequences with at least one trained token.
    pub n_sequences: u64,
    /// Trained generations, none of them empty.
    pub n_generations: u64,
}

impl Totals {
    /// Counts one sequence with generations at `spans`; empty ones do not count.
    pub fn add_sequence(&mut self, spans: &[Span]) {
        let n_tokens: usize = spans.iter().map(|span| span.len).sum();
        self.n_tokens += n_tokens as u64;
        self.n_sequences += u64::from(n_tokens > 0);
        self.n_generations += spans.iter().filter(|span| span.len > 0).count() as u64;
    }
}
