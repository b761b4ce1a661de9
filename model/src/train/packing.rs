//! Sequences to train on, and how they lie one after the other in the rows of one forward pass.

use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::ops::{RopeAngles, Segments, Targets};
use crate::transformer::RopeTable;

/// A sequence and the positions whose tokens it is trained to predict.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainSequence {
    /// All tokens from the first on.
    pub token_ids: Vec<u32>,
    /// Ascending positions, at least 1: token `p` is predicted from the tokens before it.
    pub trained: Vec<u32>,
    /// Temperature the tokens were sampled at; logits are divided by it. 0, which is greedy decoding, counts as 1.
    pub temperature: f32,
}

/// What the model says about the trained positions of one sequence, in their order.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyLogprobs {
    /// Natural log of the probability of each trained token.
    pub logprobs: Vec<f32>,
    /// Entropy of the distribution each was drawn from, in nats.
    pub entropies: Vec<f32>,
}

/// The rows of one forward pass: the sequences that have a trained position, without padding.
pub(super) struct Packed {
    pub(super) tokens: Vec<u32>,
    pub(super) segments: Segments,
    pub(super) angles: RopeAngles,
    /// Rows whose hidden state predicts a trained token, ascending.
    pub(super) predicting: Vec<u32>,
    pub(super) targets: Targets,
    /// Trained positions of each sequence, those without any included.
    counts: Vec<usize>,
}

impl Packed {
    /// Checks the sequences and lays them out; only the part of a sequence that a trained token sees is computed.
    pub(super) fn new(
        sequences: &[TrainSequence],
        config: &ModelConfig,
        rope: &RopeTable,
        chunk_rows: usize,
    ) -> Result<Self, ModelError> {
        let (mut tokens, mut lengths, mut predicting) = (Vec::new(), Vec::new(), Vec::new());
        let (mut token_ids, mut temperatures) = (Vec::new(), Vec::new());
        for (index, sequence) in sequences.iter().enumerate() {
            check(index, sequence, config)?;
            let Some(&last) = sequence.trained.last() else { continue };
            let start = tokens.len() as u32;
            let length = last as usize;
            tokens.extend_from_slice(&sequence.token_ids[..length]);
            lengths.push(length);
            for &position in &sequence.trained {
                predicting.push(start + position - 1);
                token_ids.push(sequence.token_ids[position as usize]);
                temperatures.push(sequence.temperature);
            }
        }
        let targets = Targets {
            token_ids: token_ids.into(),
            temperatures: temperatures.into(),
            chunk_rows: chunk_rows.max(1),
        };
        Ok(Self {
            angles: rope.angles(lengths.iter().flat_map(|length| 0..*length)),
            segments: Segments::from_lengths(lengths),
            tokens,
            predicting,
            targets,
            counts: sequences.iter().map(|sequence| sequence.trained.len()).collect(),
        })
    }

    /// Cuts rows of `[logprob, entropy]` into those of each sequence.
    pub(super) fn split(&self, rows: &[f32]) -> Vec<PolicyLogprobs> {
        let mut rest = rows;
        self.counts
            .iter()
            .map(|count| {
                let (own, after) = rest.split_at(2 * count);
                rest = after;
                PolicyLogprobs {
                    logprobs: own.iter().step_by(2).copied().collect(),
                    entropies: own.iter().skip(1).step_by(2).copied().collect(),
                }
            })
            .collect()
    }

    /// Joins the coefficients of all sequences, checking that there is one for each trained position.
    pub(super) fn join(&self, coefficients: &[Vec<f32>]) -> Result<Vec<f32>, ModelError> {
        if coefficients.len() != self.counts.len() {
            let (n, found) = (self.counts.len(), coefficients.len());
            return Err(ModelError::invalid(format!(
                "{n} sequences need as many coefficient lists, got: {found}"
            )));
        }
        for (index, (own, count)) in coefficients.iter().zip(&self.counts).enumerate() {
            if own.len() != *count {
                let found = own.len();
                return Err(ModelError::invalid(format!(
                    "sequence {index} has {count} trained positions, coefficients given: {found}"
                )));
            }
        }
        Ok(coefficients.concat())
    }
}

fn check(index: usize, sequence: &TrainSequence, config: &ModelConfig) -> Result<(), ModelError> {
    let TrainSequence { token_ids, trained, temperature } = sequence;
    if let Some(&token_id) = token_ids.iter().find(|&&token| token as usize >= config.vocab_size) {
        return Err(ModelError::TokenRange { token_id, vocab_size: config.vocab_size });
    }
    let is_ascending = trained.windows(2).all(|pair| pair[0] < pair[1]);
    let is_inside = trained.first().is_none_or(|first| *first >= 1)
        && trained.last().is_none_or(|last| (*last as usize) < token_ids.len());
    if !is_ascending || !is_inside {
        return Err(ModelError::invalid(format!(
            "trained positions must ascend between 1 and the last token, in sequence: {index}"
        )));
    }
    if !temperature.is_finite() || *temperature < 0.0 {
        return Err(ModelError::invalid(format!(
            "sequence {index} has an impossible temperature: {temperature}"
        )));
    }
    let needed = trained.last().map_or(0, |last| *last as usize);
    if needed > config.context_length {
        return Err(ModelError::ContextOverflow { needed, limit: config.context_length });
    }
    Ok(())
}
