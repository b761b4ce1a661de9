//! Continuous batching: every round computes one token of each generation and a piece of each waiting prompt.

use std::collections::VecDeque;

use rayon::prelude::*;

use super::backend::Backend;
use super::request::{FinishReason, Generated, GenerationRequest};
use super::sampler::{Scratch, sample, uniform};
use super::slots::{Slots, common_prefix};
use crate::{CacheRow, ModelError};

/// Sizes of the work; none of them changes a result.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub max_batch: usize,
    pub kv_tokens: usize,
    pub prefill_tokens: usize,
    pub reuses_prefixes: bool,
}

/// A request being worked on.
#[derive(Debug)]
struct Active {
    request: GenerationRequest,
    slot: usize,
    n_reused: usize,
    /// Most tokens its slot will hold.
    max_len: usize,
    token_ids: Vec<u32>,
    logprobs: Vec<f32>,
}

impl Active {
    /// Length of prompt and generation.
    fn len(&self) -> usize {
        self.request.prompt.len() + self.token_ids.len()
    }

    fn token(&self, position: usize) -> Option<u32> {
        let n_prompt = self.request.prompt.len();
        match position.checked_sub(n_prompt) {
            None => self.request.prompt.get(position).copied(),
            Some(generated) => self.token_ids.get(generated).copied(),
        }
    }

    fn is_prefilling(&self) -> bool {
        self.token_ids.is_empty()
    }
}

/// Room for another sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    /// As much as it needs.
    Enough,
    /// Only if it takes the place of the idle sequence it goes on from.
    WithoutCopy,
}

/// The schedule of a backend's work.
#[derive(Debug)]
pub(super) struct Batcher<B> {
    backend: B,
    limits: Limits,
    slots: Slots,
    waiting: VecDeque<GenerationRequest>,
    active: Vec<Active>,
    scratch: Vec<Scratch>,
}

/// Rows times vocabulary from which sampling is spread over threads.
const PARALLEL_FROM: usize = 1 << 16;

impl<B: Backend> Batcher<B> {
    pub(super) fn new(backend: B, limits: Limits) -> Self {
        let slots = Slots::new(backend.n_slots());
        Self { backend, limits, slots, waiting: VecDeque::new(), active: Vec::new(), scratch: Vec::new() }
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
        let in_use = self.waiting.iter().chain(self.active.iter().map(|active| &active.request));
        if in_use.map(|request| request.id).any(|other| other == id) {
            return Err(ModelError::invalid(format!("a request of this id is not finished: {id}")));
        }
        self.waiting.push_back(request);
        Ok(())
    }

    /// One round: admit, compute, sample, finish.
    pub(super) fn poll(&mut self) -> Result<Vec<Generated>, ModelError> {
        let result = self.round();
        if result.is_err() {
            self.waiting.clear();
            for active in std::mem::take(&mut self.active) {
                self.slots.clear(active.slot);
                self.backend.truncate(active.slot, 0);
            }
        }
        result
    }

    fn round(&mut self) -> Result<Vec<Generated>, ModelError> {
        self.admit()?;
        if self.active.is_empty() {
            return Ok(Vec::new());
        }
        let (tokens, rows, wanted, samplers) = self.collect_rows();
        let logits = self.backend.forward(&tokens, &rows, &wanted)?;
        for (row, &token) in rows.iter().zip(&tokens) {
            self.slots.push(row.slot, token);
        }
        self.sample(&logits, &samplers)?;
        Ok(self.finish())
    }

    /// Begins waiting requests, in order, while there is room. One whose prompt is just being computed for another
    /// waits for it, so that what they share is computed once.
    fn admit(&mut self) -> Result<(), ModelError> {
        if self.active.len() >= self.limits.max_batch {
            return Ok(());
        }
        let mut queue = std::mem::take(&mut self.waiting);
        let mut deferred = VecDeque::new();
        while self.active.len() < self.limits.max_batch
            && let Some(request) = queue.pop_front()
        {
            let source =
                if self.limits.reuses_prefixes { self.slots.longest_prefix(&request.prompt) } else { None };
            if self.limits.reuses_prefixes && self.is_worth_waiting(&request, source.map_or(0, |(_, n)| n)) {
                deferred.push_back(request);
                continue;
            }
            let max_len = (request.prompt.len() + request.max_new_tokens).min(self.backend.context_length());
            let room = self.make_room(max_len, source);
            let placement =
                room.and_then(|room| self.slots.place(&request.prompt, source, room == Room::WithoutCopy));
            let Some(placement) = placement else {
                deferred.push_back(request);
                break;
            };
            match placement.copy_from {
                Some(from) => self.backend.copy_prefix(from, placement.slot, placement.n_reused)?,
                None => self.backend.truncate(placement.slot, placement.n_reused),
            }
            self.active.push(Active {
                slot: placement.slot,
                n_reused: placement.n_reused,
                max_len,
                token_ids: Vec::new(),
                logprobs: Vec::new(),
                request,
            });
        }
        deferred.append(&mut queue);
        self.waiting = deferred;
        Ok(())
    }

    /// Whether a prompt under way has a longer prefix in common than what is computed.
    fn is_worth_waiting(&self, request: &GenerationRequest, n_available: usize) -> bool {
        let limit = request.prompt.len() - 1;
        let prefilling = self.active.iter().filter(|active| active.is_prefilling());
        prefilling
            .map(|active| common_prefix(&active.request.prompt, &request.prompt).min(limit))
            .any(|n| n > n_available)
    }

    /// Forgets idle sequences, oldest first, until the budget has room for a sequence of that length. A sequence that
    /// finds no room waits, except when it is alone.
    fn make_room(&mut self, max_len: usize, source: Option<(usize, usize)>) -> Option<Room> {
        let reserved: usize = self.active.iter().map(|active| active.max_len).sum();
        let needed = reserved + max_len;
        if needed > self.limits.kv_tokens && !self.active.is_empty() {
            return None;
        }
        while needed + self.slots.n_idle_tokens() > self.limits.kv_tokens {
            let Some(oldest) = self.slots.oldest_idle(source.map(|(slot, _)| slot)) else {
                return Some(Room::WithoutCopy);
            };
            self.slots.clear(oldest);
            self.backend.release(oldest);
        }
        Some(Room::Enough)
    }

    /// Rows of this round: the last token of each generation, then pieces of prompts in order of admission.
    fn collect_rows(&self) -> (Vec<u32>, Vec<CacheRow>, Vec<usize>, Vec<usize>) {
        let (mut tokens, mut rows, mut wanted, mut samplers) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut budget = self.limits.prefill_tokens.max(1);
        for is_prefill in [false, true] {
            for (index, active) in self.active.iter().enumerate() {
                if active.is_prefilling() != is_prefill {
                    continue;
                }
                let first = self.slots.len(active.slot);
                let mut n = active.len() - first;
                if is_prefill {
                    n = n.min(budget);
                    budget -= n;
                }
                for position in first..first + n {
                    tokens.extend(active.token(position));
                    rows.push(CacheRow { slot: active.slot, position });
                }
                if n > 0 && first + n == active.len() {
                    wanted.push(rows.len() - 1);
                    samplers.push(index);
                }
            }
        }
        (tokens, rows, wanted, samplers)
    }

    fn sample(&mut self, logits: &[f32], samplers: &[usize]) -> Result<(), ModelError> {
        let vocab_size = self.backend.vocab_size();
        self.scratch.resize_with(samplers.len(), Scratch::default);
        let active = &self.active;
        let draw = |((row, &index), scratch): ((&[f32], &usize), &mut Scratch)| {
            let active = active.get(index)?;
            let number = uniform(active.request.seed, active.token_ids.len());
            sample(row, &active.request.sampling, number, scratch)
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
                    active.token_ids.len(),
                    active.request.id
                );
                return Err(ModelError::invalid(what));
            };
            active.token_ids.push(token);
            active.logprobs.push(logprob);
        }
        Ok(())
    }

    /// Takes out what is finished; the cached part of it stays.
    fn finish(&mut self) -> Vec<Generated> {
        let mut finished = Vec::new();
        for active in std::mem::take(&mut self.active) {
            let is_stop = active.token_ids.last().is_some_and(|last| active.request.stop_ids.contains(last));
            if !is_stop && active.len() < active.max_len {
                self.active.push(active);
                continue;
            }
            if self.limits.reuses_prefixes {
                self.slots.release(active.slot);
            } else {
                self.slots.clear(active.slot);
                self.backend.truncate(active.slot, 0);
            }
            finished.push(Generated {
                id: active.request.id,
                finish_reason: if is_stop { FinishReason::Stop } else { FinishReason::Length },
                n_prefilled: active.request.prompt.len() - active.n_reused,
                n_reused: active.n_reused,
                token_ids: active.token_ids,
                logprobs: active.logprobs,
            });
        }
        finished
    }
}

#[cfg(test)]
#[path = "batcher_tests.rs"]
mod tests;
