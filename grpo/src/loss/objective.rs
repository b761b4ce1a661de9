//! The loss of one sequence.

use std::ops::Range;

use super::token::divergence;
use super::{Aggregation, LossParts, Objective, Totals};

/// One generation to be trained, within the tokens of its sequence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// Index of its first token.
    pub start: usize,
    /// How many tokens it has, the stop token included.
    pub len: usize,
    /// Its advantage, the same for each of its tokens.
    pub advantage: f64,
}

/// What is known of the tokens of one sequence. All slices are aligned and of one length `T`; only what lies
/// in a span is read, so the caller decides by its spans which roles and user turns are trained.
#[derive(Debug, Clone, Copy)]
pub struct Tokens<'a> {
    /// Natural log of the token's probability under the policy being updated, shape `(T,)`.
    pub policy_logprobs: &'a [f32],
    /// The same from the engine that sampled the token, at the same temperature, shape `(T,)`.
    pub sampling_logprobs: &'a [f32],
    /// The same of the trainer before the first application of the update, shape `(T,)`: what ratios are taken against.
    /// `None`: the sampler's, which are the same where it computes as the trainer does.
    pub old_logprobs: Option<&'a [f32]>,
    /// The same under the frozen reference, shape `(T,)`. `None`: no divergence is counted.
    pub ref_logprobs: Option<&'a [f32]>,
    /// Entropy of the policy at the token, nats, shape `(T,)`; only summed up. `None`: not measured.
    pub entropies: Option<&'a [f32]>,
    /// The trained generations, in order and without overlap.
    pub spans: &'a [Span],
}

/// Tokens that do not fit together.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LossError {
    /// A slice is not aligned with the others.
    #[error("`{name}` has another length than `policy_logprobs`: {found}, expected {expected}")]
    Length {
        /// The slice.
        name: &'static str,
        /// Its length.
        found: usize,
        /// Length of `policy_logprobs`.
        expected: usize,
    },
    /// A span ends past the tokens, or begins before the one before it ends.
    #[error("generation span {index} covers tokens {start}..{end}, expected within {from}..{to}")]
    Span {
        /// Which span.
        index: usize,
        /// Its first token.
        start: usize,
        /// The token after its last.
        end: usize,
        /// Where it may begin.
        from: usize,
        /// Where it must end.
        to: usize,
    },
    /// Stored data that must be finite is not; the policy's own logprobs may be, see [`sequence_loss`].
    #[error("`{name}` of token {token} is not finite: {value}")]
    NotFinite {
        /// The column.
        name: &'static str,
        /// Index of the token.
        token: usize,
        /// What it is.
        value: f64,
    },
    /// The totals count less than is there.
    #[error("the totals count {counted} {what}, this sequence alone has {found}")]
    Totals {
        /// What is counted.
        what: &'static str,
        /// In the totals.
        counted: u64,
        /// Here.
        found: u64,
    },
}

/// Returns the part that one sequence has in the loss, and its derivative for each policy logprob.
///
/// A token costs what [`PolicyLoss`](super::PolicyLoss) says of its ratio and of the advantage of its generation, times the weight of a
/// [`Correction`](super::Correction), plus the coefficient times its estimated divergence. The loss is the weighted sum of
/// that, the weight of a token being `1 / n_tokens`, or `1 / (n_sequences * trained tokens of its sequence)`, or
/// `1 / (n_generations * tokens of its generation)`, or `1 / (n_generations * a constant)`, by [`Aggregation`].
///
/// The results of all sequences of an optimizer application [add](LossParts::add) up to its loss, however they
/// are cut into micro-batches. Only a generation of an advantage of 0 and no reference has no gradient; it
/// counts in the totals nonetheless.
///
/// # Shapes and units
/// Logprobs are natural logs (nats) of the sampled token; the gradient has shape `(T,)`, 0 outside the spans.
/// Sums are taken in `f64`, in token order.
///
/// # Errors
/// [`LossError`] if slices, spans and totals do not fit together, or if a stored number is not finite. A policy
/// logprob that is NaN gives a NaN loss and gradient, which the optimizer has to see and skip.
///
/// # Source
/// Of objectives and corrections, where they are declared. Divergence: <http://joschu.net/blog/kl-approx.html>. Checked
/// against `tests/golden/loss.json` and `objectives.json`, written by the scripts of those names.
pub fn sequence_loss(
    tokens: &Tokens<'_>,
    objective: &Objective,
    totals: &Totals,
) -> Result<(LossParts, Vec<f32>), LossError> {
    check_lengths(tokens)?;
    check_totals(tokens.spans, totals)?;
    let n_trained: usize = tokens.spans.iter().map(|span| span.len).sum();
    let mut parts = LossParts::default();
    let mut gradient = vec![0.0_f32; tokens.policy_logprobs.len()];
    let mut from = 0;
    for (index, span) in tokens.spans.iter().enumerate() {
        let to = tokens.policy_logprobs.len();
        let end = span.start.checked_add(span.len).filter(|end| span.start >= from && *end <= to).ok_or(
            LossError::Span { index, start: span.start, end: span.start.saturating_add(span.len), from, to },
        )?;
        from = end;
        if span.len == 0 {
            continue;
        }
        if !span.advantage.is_finite() {
            return Err(LossError::NotFinite { name: "advantage", token: span.start, value: span.advantage });
        }
        let weight = 1.0
            / match objective.aggregation {
                Aggregation::Token => totals.n_tokens as f64,
                Aggregation::Sequence => totals.n_sequences as f64 * n_trained as f64,
                Aggregation::Generation => totals.n_generations as f64 * span.len as f64,
                Aggregation::Constant(n_tokens) => totals.n_generations as f64 * f64::from(n_tokens),
            };
        parts.n_generations += 1;
        parts.advantage_sum += span.advantage;
        let figures = figures(tokens, span.start..end, objective)?;
        for (token, figures) in (span.start..end).zip(&figures) {
            let slope = token_loss(tokens, (token, figures), span.advantage, objective, weight, &mut parts)?;
            if let Some(slot) = gradient.get_mut(token) {
                *slot = slope as f32;
            }
        }
    }
    Ok((parts, gradient))
}

/// What a token's loss is made of, apart from its divergence.
struct Figures {
    policy: f64,
    /// Of the ratio, which may be that of the whole generation.
    log_ratio: f64,
    mismatch: f64,
    /// Weight of the token's loss.
    correction: f64,
    /// Weight of its derivative: of a shared ratio, which moves every token of the generation, the mean of theirs.
    slope_correction: f64,
}

/// Those of the tokens of one generation.
fn figures(
    tokens: &Tokens<'_>,
    span: Range<usize>,
    objective: &Objective,
) -> Result<Vec<Figures>, LossError> {
    let mut all = Vec::with_capacity(span.len());
    let mut differences = Vec::with_capacity(span.len());
    for token in span {
        let policy = tokens.policy_logprobs.get(token).copied().map_or(f64::NAN, f64::from);
        let sampling = finite("sampling_logprob", tokens.sampling_logprobs, token)?;
        let old = match tokens.old_logprobs {
            Some(old_logprobs) => Some(finite("old_logprob", old_logprobs, token)?),
            None => None,
        };
        let mismatch = old.unwrap_or(policy) - sampling;
        differences.push(old.map_or(0.0, |old| old - sampling));
        let log_ratio = policy - old.unwrap_or(sampling);
        all.push(Figures { policy, log_ratio, mismatch, correction: 1.0, slope_correction: 1.0 });
    }
    if let Some(correction) = &objective.correction {
        for (figures, weight) in all.iter_mut().zip(correction.weights(&differences)) {
            (figures.correction, figures.slope_correction) = (weight, weight);
        }
    }
    if objective.policy.shares_ratio() {
        let mean = |of: fn(&Figures) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
        let (log_ratio, correction) = (mean(|figures| figures.log_ratio), mean(|figures| figures.correction));
        for figures in &mut all {
            (figures.log_ratio, figures.slope_correction) = (log_ratio, correction);
        }
    }
    Ok(all)
}

/// Adds the token to `parts` and returns its derivative.
fn token_loss(
    tokens: &Tokens<'_>,
    (token, figures): (usize, &Figures),
    advantage: f64,
    objective: &Objective,
    weight: f64,
    parts: &mut LossParts,
) -> Result<f64, LossError> {
    let Figures { policy, log_ratio, mismatch, correction, slope_correction } = *figures;
    let surrogate = objective.policy.token(policy, log_ratio, advantage);
    parts.count_token(mismatch, correction, &surrogate);
    // What is left out is left out, also where it is not finite.
    let part =
        |correction: f64, value: f64| if correction == 0.0 { 0.0 } else { weight * correction * value };
    parts.policy += part(correction, surrogate.term.value);
    let mut slope = part(slope_correction, surrogate.term.slope);
    if let Some(ref_logprobs) = tokens.ref_logprobs {
        let reference = finite("ref_logprob", ref_logprobs, token)?;
        let term = divergence(policy - reference, objective.kl);
        parts.kl += weight * objective.kl_coefficient * term.value;
        *parts.kl_sum.get_or_insert(0.0) += term.value;
        parts.n_kl_tokens += 1;
        slope += weight * objective.kl_coefficient * term.slope;
    }
    if let Some(entropy) = tokens.entropies.and_then(|entropies| entropies.get(token)) {
        *parts.entropy_sum.get_or_insert(0.0) += f64::from(*entropy);
    }
    Ok(slope)
}

fn finite(name: &'static str, values: &[f32], token: usize) -> Result<f64, LossError> {
    let value = values.get(token).copied().map_or(f64::NAN, f64::from);
    if value.is_finite() { Ok(value) } else { Err(LossError::NotFinite { name, token, value }) }
}

fn check_lengths(tokens: &Tokens<'_>) -> Result<(), LossError> {
    let expected = tokens.policy_logprobs.len();
    let slices = [
        ("sampling_logprobs", Some(tokens.sampling_logprobs)),
        ("old_logprobs", tokens.old_logprobs),
        ("ref_logprobs", tokens.ref_logprobs),
        ("entropies", tokens.entropies),
    ];
    for (name, slice) in slices {
        let found = slice.map_or(expected, <[f32]>::len);
        if found != expected {
            return Err(LossError::Length { name, found, expected });
        }
    }
    Ok(())
}

fn check_totals(spans: &[Span], totals: &Totals) -> Result<(), LossError> {
    let mut here = Totals::default();
    here.add_sequence(spans);
    for (what, counted, found) in [
        ("tokens", totals.n_tokens, here.n_tokens),
        ("sequences", totals.n_sequences, here.n_sequences),
        ("generations", totals.n_generations, here.n_generations),
    ] {
        if counted < found {
            return Err(LossError::Totals { what, counted, found });
        }
    }
    Ok(())
}
