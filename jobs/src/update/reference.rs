//! What other weights than those under training say about the sequences of an update: those of before it, and a frozen
//! reference's.

use envace_model::{Device, PolicyLogprobs, TrainSequence, Trainer, TrainerOptions, micro_batches};

use super::items::Item;
use super::trainer_options;
use crate::config::UpdateConfig;
use crate::context::PolicySource;
use crate::error::JobError;

/// Computes the reference's logprobs of the items of roles that are held to it, once for all epochs.
///
/// Where the reference is the base of the adapter that is trained, the trainer computes them itself before it goes on
/// with the adapter; else the reference is loaded, and freed again before training begins. A logprob does not depend on
/// how sequences are packed, so both are what computing them beside each micro-batch would give.
pub(super) fn add_reference(
    items: &mut [Item],
    config: &UpdateConfig,
    device: Device,
    trainer: &mut Trainer,
    (source, reference): (&PolicySource, &PolicySource),
) -> Result<(), JobError> {
    let mut held: Vec<&mut Item> =
        items.iter_mut().filter(|item| config.kl.roles.contains(&item.role)).collect();
    if held.is_empty() {
        return Ok(());
    }
    let sequences: Vec<TrainSequence> = held.iter().map(|item| item.sequence.clone()).collect();
    let budget = config.micro_batch_tokens;
    let is_base = trainer.adapter().is_some() && *source.model_digest() == reference.digest;
    let logprobs = if is_base {
        trainer.with_base(|base| logprobs(base, &sequences, budget))??
    } else {
        let options = TrainerOptions { device, ..trainer_options(&config.adamw, false) };
        logprobs(&Trainer::load(&reference.dir, None, options)?, &sequences, budget)?
    };
    for (item, logprobs) in held.iter_mut().zip(logprobs) {
        item.ref_logprobs = Some(logprobs);
    }
    Ok(())
}

/// Computes what the trainer says of the items before its first application, with which ratios and importance weights are
/// taken: those of another sampler may differ.
pub(super) fn add_old(items: &mut [Item], config: &UpdateConfig, trainer: &Trainer) -> Result<(), JobError> {
    let sequences: Vec<TrainSequence> = items.iter().map(|item| item.sequence.clone()).collect();
    let all = logprobs(trainer, &sequences, config.micro_batch_tokens)?;
    for (item, logprobs) in items.iter_mut().zip(all) {
        item.old_logprobs = Some(logprobs);
    }
    Ok(())
}

fn logprobs(
    trainer: &Trainer,
    sequences: &[TrainSequence],
    budget: usize,
) -> Result<Vec<Vec<f32>>, JobError> {
    let mut all = vec![Vec::new(); sequences.len()];
    for members in micro_batches(sequences, budget) {
        let batch: Vec<TrainSequence> =
            members.iter().filter_map(|member| sequences.get(member.index).cloned()).collect();
        for (member, PolicyLogprobs { logprobs, .. }) in members.iter().zip(trainer.logprobs(&batch)?) {
            if let Some(place) = all.get_mut(member.index) {
                *place = logprobs;
            }
        }
    }
    Ok(all)
}
