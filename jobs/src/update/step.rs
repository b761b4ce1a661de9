//! One optimizer application.

use std::collections::BTreeMap;

use envace_grpo::loss::{LossParts, Objective, Tokens, Totals, sequence_loss};
use envace_model::{PolicyLogprobs, TrainSequence, Trainer, micro_batches};
use envace_schemas::tables::UpdateRow;

use super::items::Item;
use crate::config::UpdateConfig;
use crate::error::JobError;
use crate::progress::Progress;

/// Which application it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub epoch: i32,
    pub minibatch: i32,
    pub learning_rate: f64,
}

/// What all applications of an update share.
pub(super) struct Context<'a> {
    pub config: &'a UpdateConfig,
    pub objective: Objective,
    pub progress: &'a Progress,
}

/// What one role had in it.
#[derive(Debug, Clone, Copy, Default)]
struct RoleSums {
    parts: LossParts,
    n_sequences: i64,
    n_forward_tokens: i64,
}

/// What an application did.
#[derive(Debug)]
pub(super) struct Applied {
    place: Place,
    optimizer_step: i64,
    roles: BTreeMap<&'static str, RoleSums>,
    gradient_norm: f64,
    is_skipped: bool,
}

impl RoleSums {
    fn add(&mut self, parts: &LossParts, n_sequences: i64, n_forward_tokens: i64) {
        self.parts.add(parts);
        self.n_sequences += n_sequences;
        self.n_forward_tokens += n_forward_tokens;
    }
}

/// Trains on one minibatch. The gradient does not depend on the cut into micro-batches but for rounding.
pub(super) fn apply(
    trainer: &mut Trainer,
    batch: &[&Item],
    place: &Place,
    context: &Context<'_>,
) -> Result<Applied, JobError> {
    let mut totals = Totals::default();
    for item in batch {
        totals.add_sequence(&item.spans);
    }
    let sequences: Vec<TrainSequence> = batch.iter().map(|item| item.sequence.clone()).collect();
    let mut sums: BTreeMap<&'static str, RoleSums> = BTreeMap::new();
    for members in micro_batches(&sequences, context.config.micro_batch_tokens) {
        let items: Vec<&Item> =
            members.iter().filter_map(|member| batch.get(member.index).copied()).collect();
        let sequences: Vec<TrainSequence> = items.iter().map(|item| item.sequence.clone()).collect();
        let mut failed = None;
        trainer.accumulate(&sequences, &mut |policy: &[PolicyLogprobs]| {
            let pairs = items.iter().zip(&members).zip(policy);
            let coefficients = pairs.map(|((item, member), policy)| {
                let tokens = Tokens {
                    policy_logprobs: &policy.logprobs,
                    sampling_logprobs: &item.sampling_logprobs,
                    old_logprobs: item.old_logprobs.as_deref(),
                    ref_logprobs: item.ref_logprobs.as_deref(),
                    entropies: Some(&policy.entropies),
                    spans: &item.spans,
                };
                match sequence_loss(&tokens, &context.objective, &totals) {
                    Ok((parts, gradient)) => {
                        let n_computed = member.n_computed as i64;
                        sums.entry(item.role.name()).or_default().add(&parts, 1, n_computed);
                        gradient
                    }
                    Err(error) => {
                        failed.get_or_insert(error);
                        vec![0.0; policy.logprobs.len()]
                    }
                }
            });
            coefficients.collect()
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        let n_tokens: usize = sequences.iter().map(|sequence| sequence.token_ids.len()).sum();
        let n_computed: usize = members.iter().map(|member| member.n_computed).sum();
        context.progress.advance(n_tokens as u64, n_computed as u64);
    }
    let optimizer_step = trainer.step() as i64;
    let max_norm = Some(context.config.max_gradient_norm).filter(|norm| *norm > 0.0);
    let report = trainer.apply(place.learning_rate, max_norm)?;
    Ok(Applied {
        place: *place,
        optimizer_step,
        roles: sums,
        gradient_norm: report.gradient_norm,
        is_skipped: report.is_skipped,
    })
}

/// The rows of all applications, in the order of the table. Where the roles have weights of their own, a place in the order
/// has two, and its row of all is of both: the sum of the losses, and the norm of the two gradients as one.
pub(super) fn rows(applied: &[Applied], is_corrected: bool) -> Vec<UpdateRow> {
    let mut by_place: BTreeMap<(i32, i32), Vec<&Applied>> = BTreeMap::new();
    for one in applied {
        by_place.entry((one.place.epoch, one.place.minibatch)).or_default().push(one);
    }
    let rows = by_place.into_values().flat_map(|together| {
        ["actor", "all", "rehearsal"].into_iter().filter_map(move |role| {
            let of_role: Vec<&Applied> = match (role, together.as_slice()) {
                ("all", _) | (_, [_]) => together.clone(),
                _ => together.iter().copied().filter(|one| one.roles.contains_key(role)).collect(),
            };
            row(role, &of_role, is_corrected)
        })
    });
    rows.collect()
}

fn row(role: &str, applied: &[&Applied], is_corrected: bool) -> Option<UpdateRow> {
    let first = applied.first()?;
    let mut sums = RoleSums::default();
    for (_, of_role) in
        applied.iter().flat_map(|one| &one.roles).filter(|(of, _)| role == "all" || **of == role)
    {
        sums.add(&of_role.parts, of_role.n_sequences, of_role.n_forward_tokens);
    }
    let gradient_norm = match applied {
        [one] => one.gradient_norm,
        several => several.iter().map(|one| one.gradient_norm.powi(2)).sum::<f64>().sqrt(),
    };
    let parts = &sums.parts;
    let has_tokens = parts.n_tokens > 0;
    Some(UpdateRow {
        epoch: first.place.epoch,
        minibatch: first.place.minibatch,
        role: role.to_owned(),
        optimizer_step: first.optimizer_step,
        n_tokens: parts.n_tokens as i64,
        n_generations: parts.n_generations as i64,
        n_sequences: sums.n_sequences,
        n_forward_tokens: sums.n_forward_tokens,
        loss: has_tokens.then(|| parts.loss()),
        kl_nats: parts.kl_mean(),
        entropy_nats: parts.entropy_mean(),
        clip_share: parts.clip_share(),
        correction_mean: parts.correction_mean().filter(|_| is_corrected),
        masked_share: parts.masked_share().filter(|_| is_corrected),
        mismatch_mean_nats: parts.mismatch_mean(),
        mismatch_max_nats: has_tokens.then_some(parts.mismatch_max),
        mismatch_k3_nats: parts.mismatch_k3_mean(),
        advantage_mean: parts.advantage_mean(),
        gradient_norm: Some(gradient_norm).filter(|norm| norm.is_finite()),
        learning_rate: first.place.learning_rate,
        is_skipped: applied.iter().any(|one| one.is_skipped),
    })
}
