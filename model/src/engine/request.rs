use std::sync::Arc;

use crate::ModelError;

/// How tokens are drawn from a distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the likeliest token (the first one of equals).
    pub temperature: f32,
    /// Keeps the fewest likeliest tokens whose probabilities (after `top_k`) add up to at least this; 1 keeps all.
    pub top_p: f32,
    /// Keeps this many likeliest tokens; 0 keeps all.
    pub top_k: u32,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 1.0, top_p: 1.0, top_k: 0 }
    }
}

impl Sampling {
    pub(super) fn check(&self) -> Result<(), ModelError> {
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return Err(ModelError::invalid(format!(
                "temperature must be 0 or more, not: {}",
                self.temperature
            )));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(ModelError::invalid(format!("top_p must be in (0, 1], not: {}", self.top_p)));
        }
        Ok(())
    }
}

/// A prompt to go on from.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationRequest {
    /// The caller's name for it, unique among the requests that are not finished.
    pub id: u64,
    /// Token ids, at least one.
    pub prompt: Vec<u32>,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Position `p` of the generation draws its number from this seed and `p` alone; see [`super::uniform`].
    pub seed: [u8; 32],
    /// Most tokens to generate, at least one.
    pub max_new_tokens: usize,
    /// Any of these ends the generation, and is part of it.
    pub stop_ids: Arc<[u32]>,
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// The last token is a stop token.
    Stop,
    /// There was no room for another token: `max_new_tokens`, or the context.
    Length,
}

/// A finished generation.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// The request's id.
    pub id: u64,
    /// Sampled ids, a stop token included.
    pub token_ids: Vec<u32>,
    /// For each of them its log probability in nats at the request's temperature (at 1 for temperature 0), over the
    /// whole vocabulary: before `top_k` and `top_p`.
    pub logprobs: Vec<f32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Prompt tokens that were computed for this request. Depends on what was cached.
    pub n_prefilled: usize,
    /// Prompt tokens that had been computed before.
    pub n_reused: usize,
    /// Tokens that were computed again, because the sequence was paused and its room was needed.
    pub n_recomputed: usize,
}
