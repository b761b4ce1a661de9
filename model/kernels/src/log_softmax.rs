//! Log probabilities of one row of logits.

use super::exp::exp;
use super::{sum, vectorized};

/// What turns the logits of one row into log probabilities: the one place where this is computed, so that the
/// logprob of sampling and that of training have the same bits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogSoftmax {
    max: f32,
    inverse_temperature: f32,
    log_sum: f32,
}

impl LogSoftmax {
    /// Prepares a row of at least one logit at a temperature; 0, which is greedy decoding, counts as 1.
    pub fn new(logits: &[f32], temperature: f32) -> Self {
        let inverse_temperature = if temperature > 0.0 { 1.0 / temperature } else { 1.0 };
        let (max, sum) = vectorized(
            #[inline(always)]
            |args| max_and_sum(args),
            (logits, inverse_temperature),
        );
        Self { max, inverse_temperature, log_sum: f64::from(sum).ln() as f32 }
    }

    /// Log probability, in nats, of a token with this logit.
    #[inline(always)]
    pub fn logprob(&self, logit: f32) -> f32 {
        (logit - self.max) * self.inverse_temperature - self.log_sum
    }

    /// Writes the probability of every token of the row; they add up to 1 within rounding.
    pub fn write_probabilities(&self, logits: &[f32], out: &mut Vec<f32>) {
        out.clear();
        out.resize(logits.len(), 0.0);
        vectorized(
            #[inline(always)]
            |args| probabilities(args),
            (*self, logits, out.as_mut_slice()),
        );
    }

    /// Entropy of the row's distribution in nats.
    pub fn entropy(&self, logits: &[f32]) -> f32 {
        vectorized(
            #[inline(always)]
            |args| entropy(args),
            (*self, logits),
        )
    }

    /// Turns the logits, in place, into the gradient of `logprob_weight * logprob(target) + entropy_weight *
    /// entropy` with respect to them.
    pub fn backward(&self, logits: &mut [f32], target: usize, logprob_weight: f32, entropy_weight: f32) {
        let entropy = if entropy_weight == 0.0 { 0.0 } else { self.entropy(logits) };
        let scale = self.inverse_temperature;
        vectorized(
            #[inline(always)]
            |args| backward(args),
            (*self, &mut *logits, logprob_weight * scale, entropy_weight * scale, entropy),
        );
        if let Some(gradient) = logits.get_mut(target) {
            *gradient += logprob_weight * scale;
        }
    }
}

#[inline(always)]
fn max_and_sum((logits, inverse_temperature): (&[f32], f32)) -> (f32, f32) {
    let max = sum::max(logits);
    (
        max,
        sum::sum_terms(
            logits.len(),
            #[inline(always)]
            |i| exp((logits[i] - max) * inverse_temperature),
        ),
    )
}

#[inline(always)]
fn probabilities((row, logits, out): (LogSoftmax, &[f32], &mut [f32])) {
    for (out, &logit) in out.iter_mut().zip(logits) {
        *out = exp(row.logprob(logit));
    }
}

#[inline(always)]
fn entropy((row, logits): (LogSoftmax, &[f32])) -> f32 {
    -sum::sum_terms(
        logits.len(),
        #[inline(always)]
        |i| {
            let logprob = row.logprob(logits[i]);
            // A token of probability zero may have an infinite logprob; its share is zero.
            let probability = exp(logprob);
            if probability > 0.0 { probability * logprob } else { 0.0 }
        },
    )
}

#[inline(always)]
fn backward((row, logits, logprob_weight, entropy_weight, entropy): (LogSoftmax, &mut [f32], f32, f32, f32)) {
    for logit in logits {
        let logprob = row.logprob(*logit);
        let probability = exp(logprob);
        let pull = if probability > 0.0 { entropy_weight * (logprob + entropy) } else { 0.0 };
        *logit = -probability * (logprob_weight + pull);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_worked_row() {
        // Logits ln 1, ln 2, ln 5 at temperature 1: probabilities 1/8, 2/8, 5/8.
        let logits = [0.0, 2.0_f32.ln(), 5.0_f32.ln()];
        let row = LogSoftmax::new(&logits, 1.0);
        let expected = [0.125_f64, 0.25, 0.625];
        let mut probabilities = Vec::new();
        row.write_probabilities(&logits, &mut probabilities);
        for i in 0..3 {
            assert!((f64::from(probabilities[i]) - expected[i]).abs() < 1e-7);
            assert!((f64::from(row.logprob(logits[i])) - expected[i].ln()).abs() < 1e-6);
        }
        let entropy: f64 = expected.iter().map(|p| -p * p.ln()).sum();
        assert!((f64::from(row.entropy(&logits)) - entropy).abs() < 1e-6);
        // At temperature 1/2 the probabilities are as the squares: 1/30, 4/30, 25/30.
        let row = LogSoftmax::new(&logits, 0.5);
        assert!((f64::from(row.logprob(logits[1])) - (4.0_f64 / 30.0).ln()).abs() < 1e-6);
    }

    #[test]
    fn a_nan_logit_is_not_hidden() {
        assert!(LogSoftmax::new(&[0.0, f32::NAN], 1.0).logprob(0.0).is_nan());
    }
}
