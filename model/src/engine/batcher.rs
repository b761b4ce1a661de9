//! Continuous batching: every round computes one token of each generation and a piece of each waiting prompt.

use std::collections::VecDeque;

use rayon::prelude::*;

use super::backend::Backend;
use super::prefix_tree::{Path, PrefixTree, common_prefix};
use super::request::{FinishReason, Generated, GenerationRequest};
use super::sampler::{Scratch, sample, uniform};
use crate::{ModelError, Piece};

/// Sizes of the work; on the CPU none of them changes a result.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub max_batch: usize,
    pub prefill_tokens: usize,
    pub reuses_prefixes: bool,
    /// Memory that was given for keys and values, for messages: the backend has as many whole blocks as fit it.
    pub kv_bytes: u64,
    /// Whether the cache is enlarged for a sequence that it cannot hold, instead of refusing it.
    pub is_enlarged: bool,
}

/// A request and what it has come to.
#[derive(Debug)]
struct Sequence {
    request: GenerationRequest,
    token_ids: Vec<u32>,
    logprobs: Vec<f32>,
    /// Tokens that were in the cache when it was first begun; unknown before.
    n_reused: Option<usize>,
    /// Tokens computed in pieces, not one by one as they were sampled.
    n_computed: usize,
}

impl Sequence {
    fn new(request: GenerationRequest) -> Self {
        Self { request, token_ids: Vec::new(), logprobs: Vec::new(), n_reused: None, n_computed: 0 }
    }

    /// Length of prompt and generation.
    fn len(&self) -> usize {
        self.request.prompt.len() + self.token_ids.len()
    }

    /// Prompt and generation from a position on.
    fn tokens(&self, from: usize) -> impl Iterator<Item = u32> {
        self.request.prompt.iter().chain(&self.token_ids).skip(from).copied()
    }

    /// Most tokens that it will have.
    fn max_len(&self, context_length: usize) -> usize {
        self.request.prompt.len().saturating_add(self.request.max_new_tokens).min(context_length)
    }
}

/// A sequence being worked on.
#[derive(Debug)]
struct Active {
    sequence: Sequence,
    path: Path,
}

impl Active {
    fn n_missing(&self) -> usize {
        self.sequence.len() - self.path.n_tokens
    }

    /// Whether more is missing than the token sampled last.
    fn is_prefilling(&self) -> bool {
        self.sequence.token_ids.is_empty() || self.n_missing() > 1
    }
}

/// What a round computes of a sequence: its place in `active`, and how many tokens.
type Share = (usize, usize);

/// The schedule of a backend's work.
#[derive(Debug)]
pub(super) struct Batcher<B> {
    backend: B,
    limits: Limits,
    tree: PrefixTree,
    waiting: VecDeque<Sequence>,
    active: Vec<Active>,
    scratch: Vec<Scratch>,
}

/// Rows times vocabulary from which sampling is spread over threads.
const PARALLEL_FROM: usize = 1 << 16;

impl<B: Backend> Batcher<B> {
    pub(super) fn new(backend: B, limits: Limits) -> Self {
        let tree = PrefixTree::new(backend.n_blocks(), backend.block_len());
        Self { backend, limits, tree, waiting: VecDeque::new(), active: Vec::new(), scratch: Vec::new() }
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    pub(super) fn backend(&self) -> &B {
        &self.backend
    }

    pub(super) fn n_waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn n_active(&self) -> usize {
        self.active.len()
    }

    pub(super) fn submit(&mut self, request: GenerationRequest) -> Result<(), ModelError> {
        request.sampling.check()?;
        let id = request.id;
        if request.prompt.is_empty() || request.max_new_tokens == 0 {
            return Err(ModelError::invalid(format!(
                "a request needs at least one token of prompt and one to generate, request: {id}"
            )));
        }
        let vocab_size = self.backend.vocab_size();
        if let Some(&token_id) = request.prompt.iter().find(|&&token| token as usize >= vocab_size) {
            return Err(ModelError::TokenRange { token_id, vocab_size });
        }
        let (needed, limit) = (request.prompt.len() + 1, self.backend.context_length());
        if needed > limit {
            return Err(ModelError::ContextOverflow { needed, limit });
        }
        let in_use = self.waiting.iter().chain(self.active.iter().map(|active| &active.sequence));
        if in_use.map(|sequence| sequence.request.id).any(|other| other == id) {
            return Err(ModelError::invalid(format!("a request of this id is not finished: {id}")));
        }
        let sequence = Sequence::new(request);
        // The last token is sampled and never computed.
        let n_tokens = sequence.max_len(limit) - 1;
        if n_tokens > self.tree.capacity() && self.limits.is_enlarged {
            let n_blocks = self.tree.n_blocks_for(n_tokens);
            self.backend.grow(n_blocks);
            self.tree.grow(n_blocks);
        }
        if n_tokens > self.tree.capacity() {
            let block_bytes = self.backend.block_bytes() as u64;
            let bytes = |n_tokens| (self.tree.n_blocks_for(n_tokens) as u64).saturating_mul(block_bytes);
            return Err(ModelError::KvMemory {
                n_tokens,
                needed: bytes(n_tokens),
                given: self.limits.kv_bytes,
                context_length: limit,
                needed_by_longest: bytes(limit - 1),
            });
        }
        self.waiting.push_back(sequence);
        Ok(())
    }

    /// One round: admit, compute, sample, finish.
    pub(super) fn poll(&mut self) -> Result<Vec<Generated>, ModelError> {
        let result = self.round();
        if result.is_err() {
            self.waiting.clear();
            self.active.clear();
            self.tree.clear();
        }
        result
    }

    fn round(&mut self) -> Result<Vec<Generated>, ModelError> {
        self.admit()?;
        if self.active.is_empty() {
            return Ok(Vec::new());
        }
        let shares = self.shares()?;
        let (logits, samplers) = self.compute(&shares)?;
        self.sample(&logits, &samplers)?;
        Ok(self.finish())
    }

    /// Begins waiting sequences, in order, while there is room. One whose prompt is just being computed for another
    /// waits for it, so that what they share is computed once.
    fn admit(&mut self) -> Result<(), ModelError> {
        if self.active.len() >= self.limits.max_batch {
            return Ok(());
        }
        let mut queue = std::mem::take(&mut self.waiting);
        let mut deferred = VecDeque::new();
        while self.active.len() < self.limits.max_batch
            && let Some(mut sequence) = queue.pop_front()
        {
            let tokens: Vec<u32> = sequence.tokens(0).collect();
            let limit = if self.limits.reuses_prefixes { tokens.len() - 1 } else { 0 };
            let prefix = self.tree.longest_prefix(&tokens, limit);
            if self.is_worth_waiting(&tokens[..limit], prefix.n_tokens) {
                deferred.push_back(sequence);
                continue;
            }
            // Beside its own tokens, room for each sequence to go on a little. One that was paused comes back when it can
            // go on to its end, or it would soon be paused again and its tokens computed for nothing.
            let n_tokens = match sequence.n_reused {
                None => tokens.len(),
                Some(_) => sequence.max_len(self.backend.context_length()) - 1,
            };
            let n_needed = self.tree.n_missing(&prefix, n_tokens) + self.active.len();
            if n_needed > self.tree.n_available() && !self.active.is_empty() {
                deferred.push_back(sequence);
                break;
            }
            let (path, copy) = self.tree.begin(prefix);
            if let Some((from, to)) = copy {
                self.backend.copy(from, to)?;
            }
            sequence.n_reused.get_or_insert(path.n_tokens);
            self.active.push(Active { sequence, path });
        }
        deferred.append(&mut queue);
        self.waiting = deferred;
        Ok(())
    }

    /// Whether a sequence under way, not yet computed so far, has a longer beginning in common than what is there.
    fn is_worth_waiting(&self, tokens: &[u32], n_available: usize) -> bool {
        let prefilling = self.active.iter().filter(|active| active.is_prefilling());
        prefilling
            .map(|active| common_prefix(&active.sequence.request.prompt, tokens))
            .any(|n| n > n_available)
    }

    /// Shares of this round, with blocks for all of them: the last token of each generation, then pieces of prompts in
    /// order of admission.
    ///
    /// If the cache has no room, the least advanced sequence is paused: it waits again, with what was sampled, and what
    /// was computed of it stays as long as there is room.
    fn shares(&mut self) -> Result<Vec<Share>, ModelError> {
        loop {
            let shares = self.wished_shares();
            let mut has_room = true;
            for &(index, n) in &shares {
                let active = &mut self.active[index];
                has_room = has_room && self.tree.extend(&mut active.path, n);
            }
            if has_room {
                return Ok(shares);
            }
            // Of equals the one that came last.
            let least = self.active.iter().enumerate().rev();
            let least = least.min_by_key(|(_, active)| active.sequence.token_ids.len());
            let Some((least, _)) = least.filter(|_| self.active.len() > 1) else {
                return Err(ModelError::invalid("the cache has no room for a sequence alone"));
            };
            let Active { sequence, path } = self.active.remove(least);
            self.tree.release(path, self.limits.reuses_prefixes);
            self.waiting.push_front(sequence);
        }
    }

    fn wished_shares(&self) -> Vec<Share> {
        let mut shares = Vec::new();
        let mut budget = self.limits.prefill_tokens.max(1);
        for is_prefill in [false, true] {
            for (index, active) in self.active.iter().enumerate() {
                if active.is_prefilling() != is_prefill {
                    continue;
                }
                let mut n = active.n_missing();
                if is_prefill {
                    n = n.min(budget);
                    budget -= n;
                }
                if n > 0 {
                    shares.push((index, n));
                }
            }
        }
        shares
    }

    /// Computes the shares; returns logits, and the places in `active` of the sequences they belong to.
    fn compute(&mut self, shares: &[Share]) -> Result<(Vec<f32>, Vec<usize>), ModelError> {
        let share_tokens = |&(index, n): &Share| {
            let active = &self.active[index];
            active.sequence.tokens(active.path.n_tokens).take(n).collect::<Vec<u32>>()
        };
        let tokens: Vec<Vec<u32>> = shares.iter().map(share_tokens).collect();
        let (mut pieces, mut wanted, mut samplers) = (Vec::new(), Vec::new(), Vec::new());
        let mut n_rows = 0;
        for (&(index, n), token_ids) in shares.iter().zip(&tokens) {
            let active = &self.active[index];
            pieces.push(Piece { token_ids, position: active.path.n_tokens, blocks: &active.path.blocks });
            n_rows += n;
            if n == active.n_missing() {
                wanted.push(n_rows - 1);
                samplers.push(index);
            }
        }
        let logits = self.backend.forward(&pieces, &wanted)?;
        for (&(index, n), token_ids) in shares.iter().zip(tokens) {
            let active = &mut self.active[index];
            if active.is_prefilling() {
                active.sequence.n_computed += n;
            }
            self.tree.push(&mut active.path, token_ids.into_iter());
        }
        Ok((logits, samplers))
    }

    fn sample(&mut self, logits: &[f32], samplers: &[usize]) -> Result<(), ModelError> {
        let vocab_size = self.backend.vocab_size();
        self.scratch.resize_with(samplers.len(), Scratch::default);
        let active = &self.active;
        let draw = |((row, &index), scratch): ((&[f32], &usize), &mut Scratch)| {
            let active = active.get(index)?;
            let number = uniform(active.sequence.request.seed, active.sequence.token_ids.len());
            sample(row, &active.sequence.request.sampling, number, scratch)
        };
        let rows = logits.par_chunks_exact(vocab_size).zip(samplers).zip(&mut self.scratch);
        let drawn: Vec<Option<(u32, f32)>> = if logits.len() < PARALLEL_FROM {
            logits.chunks_exact(vocab_size).zip(samplers).zip(&mut self.scratch).map(draw).collect()
        } else {
            rows.map(draw).collect()
        };
        for (&index, drawn) in samplers.iter().zip(drawn) {
            let Some(active) = self.active.get_mut(index) else { continue };
            let Some((token, logprob)) = drawn else {
                let what = format!(
                    "the model's logits are no distribution at token {} of request: {}",
                    active.sequence.token_ids.len(),
                    active.sequence.request.id
                );
                return Err(ModelError::invalid(what));
            };
            active.sequence.token_ids.push(token);
            active.sequence.logprobs.push(logprob);
        }
        Ok(())
    }

    /// Takes out what is finished; the cached part of it stays.
    fn finish(&mut self) -> Vec<Generated> {
        let mut finished = Vec::new();
        for active in std::mem::take(&mut self.active) {
            let Sequence { request, token_ids, .. } = &active.sequence;
            let is_stop = token_ids.last().is_some_and(|last| request.stop_ids.contains(last));
            let max_len = active.sequence.max_len(self.backend.context_length());
            if token_ids.is_empty() || (!is_stop && active.sequence.len() < max_len) {
                self.active.push(active);
                continue;
            }
            self.tree.release(active.path, self.limits.reuses_prefixes);
            let Sequence { request, token_ids, logprobs, n_reused, n_computed } = active.sequence;
            let n_reused = n_reused.unwrap_or_default();
            let n_prefilled = request.prompt.len() - n_reused;
            finished.push(Generated {
                id: request.id,
                finish_reason: if is_stop { FinishReason::Stop } else { FinishReason::Length },
                n_prefilled,
                n_reused,
                n_recomputed: n_computed.saturating_sub(n_prefilled),
                token_ids,
                logprobs,
            });
        }
        finished
    }
}

#[cfg(test)]
#[path = "batcher_tests.rs"]
mod tests;
