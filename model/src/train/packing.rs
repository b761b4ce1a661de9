//! Sequences to train on, and how they lie one after the other in the rows of one forward pass.

use std::collections::BTreeMap;

use envace_kernels::Forest;

use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::ops::{RopeAngles, Targets};
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

/// Cuts sequences into micro-batches that each compute at most `budget` tokens, a shared prefix counted once; a sequence
/// beyond the budget goes alone.
///
/// Sequences are taken in the order of their tokens, so that those which share the most are together; where equal
/// prefixes fall into different micro-batches, each computes them. The order of the input has no influence but for
/// equal sequences.
pub fn micro_batches(sequences: &[TrainSequence], budget: usize) -> Vec<Vec<Member>> {
    let mut batches: Vec<Vec<Member>> = Vec::new();
    let mut n_tokens = 0;
    let mut last: &[u32] = &[];
    for index in in_order(sequences) {
        let computed = sequences[index].computed();
        let n_new = computed.len() - common_prefix(last, computed);
        match batches.last_mut() {
            Some(batch) if n_new == 0 || n_tokens + n_new <= budget => {
                batch.push(Member { index, n_computed: n_new });
                n_tokens += n_new;
            }
            _ => {
                batches.push(vec![Member { index, n_computed: computed.len() }]);
                n_tokens = computed.len();
            }
        }
        last = computed;
    }
    batches
}

/// A sequence of a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Which one it is.
    pub index: usize,
    /// Tokens that are computed for it and for none of the members before it.
    pub n_computed: usize,
}

/// Indices of the sequences in the order of the tokens they compute.
fn in_order(sequences: &[TrainSequence]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..sequences.len()).collect();
    order.sort_by_key(|index| sequences[*index].computed());
    order
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl TrainSequence {
    /// The tokens that a trained one is predicted from.
    fn computed(&self) -> &[u32] {
        let n = self.trained.last().map_or(0, |last| *last as usize);
        self.token_ids.get(..n).unwrap_or(&self.token_ids)
    }
}

/// The rows of one forward pass: each distinct prefix of the sequences is one.
pub(super) struct Packed {
    pub(super) tokens: Vec<u32>,
    pub(super) forest: Forest,
    pub(super) angles: RopeAngles,
    /// The row whose hidden state predicts each target.
    pub(super) predicting: Vec<u32>,
    pub(super) targets: Targets,
    /// The target of each trained position, by sequence.
    places: Vec<Vec<usize>>,
}

impl Packed {
    /// Checks the sequences and lays them out; only the part of a sequence that a trained token sees is computed.
    pub(super) fn new(
        sequences: &[TrainSequence],
        config: &ModelConfig,
        rope: &RopeTable,
        chunk_rows: usize,
    ) -> Result<Self, ModelError> {
        for (index, sequence) in sequences.iter().enumerate() {
            check(index, sequence, config)?;
        }
        let order = in_order(sequences);
        let computed: Vec<&[u32]> = order.iter().map(|index| sequences[*index].computed()).collect();
        let forest = Forest::new(&computed);
        let mut tokens = Vec::with_capacity(forest.n_rows());
        let (mut predicting, mut token_ids, mut temperatures) = (Vec::new(), Vec::new(), Vec::new());
        let mut known = BTreeMap::new();
        let mut places = vec![Vec::new(); sequences.len()];
        for ((&index, computed), run) in order.iter().zip(computed).zip(forest.runs()) {
            let TrainSequence { token_ids: own, trained, temperature } = &sequences[index];
            tokens.extend_from_slice(&computed[run.own.position..]);
            for &position in trained {
                let (row, token) = (run.row(position as usize - 1) as u32, own[position as usize]);
                // Sequences that share both the row and the token predict the same.
                let place = *known.entry((row, token, temperature.to_bits())).or_insert_with(|| {
                    predicting.push(row);
                    token_ids.push(token);
                    temperatures.push(*temperature);
                    predicting.len() - 1
                });
                places[index].push(place);
            }
        }
        let targets = Targets {
            token_ids: token_ids.into(),
            temperatures: temperatures.into(),
            chunk_rows: chunk_rows.max(1),
        };
        let angles = rope.angles(forest.positions());
        Ok(Self { angles, forest, tokens, predicting, targets, places })
    }

    /// Takes the logprob and entropy of each sequence's trained positions from those of the targets.
    pub(super) fn split(&self, rows: &[f32]) -> Vec<PolicyLogprobs> {
        let column =
            |places: &[usize], column: usize| places.iter().map(|place| rows[2 * place + column]).collect();
        let of_sequence = |places: &Vec<usize>| PolicyLogprobs {
            logprobs: column(places, 0),
            entropies: column(places, 1),
        };
        self.places.iter().map(of_sequence).collect()
    }

    /// Adds up the coefficients of each target, checking that there is one for each trained position.
    pub(super) fn join(&self, coefficients: &[Vec<f32>]) -> Result<Vec<f32>, ModelError> {
        if coefficients.len() != self.places.len() {
            let (n, found) = (self.places.len(), coefficients.len());
            return Err(ModelError::invalid(format!(
                "{n} sequences need as many coefficient lists, got: {found}"
            )));
        }
        let mut sums = vec![0.0; self.predicting.len()];
        for (index, (own, places)) in coefficients.iter().zip(&self.places).enumerate() {
            if own.len() != places.len() {
                let (count, found) = (places.len(), own.len());
                return Err(ModelError::invalid(format!(
                    "sequence {index} has {count} trained positions, coefficients given: {found}"
                )));
            }
            own.iter().zip(places).for_each(|(value, place)| sums[*place] += value);
        }
        Ok(sums)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Trains the last token only, so that all before it is computed.
    fn sequence(token_ids: &[u32]) -> TrainSequence {
        let trained = vec![token_ids.len() as u32 - 1];
        TrainSequence { token_ids: token_ids.to_vec(), trained, temperature: 1.0 }
    }

    fn cut(sequences: &[TrainSequence], budget: usize) -> Vec<Vec<(usize, usize)>> {
        let pairs =
            |batch: Vec<Member>| batch.iter().map(|member| (member.index, member.n_computed)).collect();
        micro_batches(sequences, budget).into_iter().map(pairs).collect()
    }

    #[test]
    fn micro_batches_count_a_shared_prefix_once() {
        // Computed are 1 2 3 | 5 | 1 2 4 | 1 2 3 (again): in order 0, 3, 2, 1, with 3, 0, 1 and 1 new tokens.
        let sequences = [&[1, 2, 3, 9][..], &[5, 9], &[1, 2, 4, 9], &[1, 2, 3, 7]].map(sequence);
        assert_eq!(cut(&sequences, 5), [[(0, 3), (3, 0), (2, 1), (1, 1)]]);
        // A new micro-batch computes the prefix again.
        assert_eq!(cut(&sequences, 3), [vec![(0, 3), (3, 0)], vec![(2, 3)], vec![(1, 1)]]);
        assert_eq!(cut(&sequences, 1), [vec![(0, 3), (3, 0)], vec![(2, 3)], vec![(1, 1)]]);
        assert!(cut(&[], 4).is_empty());
    }
}
