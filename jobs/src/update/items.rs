//! What an update trains on: sequences with the generations in them that have an advantage.

use std::collections::BTreeMap;

use envace_grpo::loss::Span;
use envace_grpo::seeds::Draw;
use envace_model::TrainSequence;
use envace_schemas::tables::{AdvantageRow, GenerationRow, SequenceRow};

use crate::config::TrainRole;
use crate::error::JobError;

/// One sequence to train on.
#[derive(Debug, Clone)]
pub struct Item {
    /// Its task: a minibatch holds whole tasks.
    pub task_id: String,
    /// Whose it is.
    pub role: TrainRole,
    /// Its tokens up to the last trained one; nothing after that has an influence.
    pub sequence: TrainSequence,
    /// Sampling logprob of each trained position.
    pub sampling_logprobs: Vec<f32>,
    /// Trained generations, as ranges of trained positions.
    pub spans: Vec<Span>,
    /// The trainer's logprob of each trained position before the update, if the loss is corrected for another sampler.
    pub old_logprobs: Option<Vec<f32>>,
    /// The reference's logprob of each trained position, if the role is held to one.
    pub ref_logprobs: Option<Vec<f32>>,
}

/// Sequences of the roles to be trained that hold an included generation, in the order of their keys.
///
/// # Errors
/// [`JobError::Refused`] if the tables contradict each other.
pub fn items_of(
    roles: &[TrainRole],
    advantages: &[AdvantageRow],
    generations: &[GenerationRow],
    sequences: &[SequenceRow],
) -> Result<Vec<Item>, JobError> {
    let mut included = BTreeMap::new();
    for row in advantages.iter().filter(|row| row.is_included) {
        let advantage =
            row.advantage.ok_or_else(|| contradiction(row, "is included and has no advantage"))?;
        included.insert((row.task_id.as_str(), row.sample, row.generation_index), (row, advantage));
    }
    let mut of_sequence: BTreeMap<_, Vec<(&GenerationRow, f64)>> = BTreeMap::new();
    for generation in generations {
        let key = (generation.task_id.as_str(), generation.sample, generation.generation_index);
        let Some((_, advantage)) = included.remove(&key) else { continue };
        if roles.iter().any(|role| role.name() == generation.role) {
            let key = (generation.task_id.as_str(), generation.sample, generation.sequence_index);
            of_sequence.entry(key).or_default().push((generation, advantage));
        }
    }
    if let Some((row, _)) = included.values().next() {
        return Err(contradiction(row, "has an advantage and is no generation"));
    }
    let mut items = Vec::new();
    for row in sequences {
        let generations = of_sequence.remove(&(row.task_id.as_str(), row.sample, row.sequence_index));
        let Some(mut generations) = generations else { continue };
        generations.sort_by_key(|(generation, _)| generation.span_start);
        items.push(item(row, &generations)?);
    }
    match of_sequence.into_keys().next() {
        None => Ok(items),
        Some((task_id, sample, sequence)) => Err(JobError::refused(
            format!("sequence {sequence} of task `{task_id}`, sample {sample}, is missing"),
            "`generations` and `sequences` are not of one rollout; run the rollout again",
        )),
    }
}

fn item(row: &SequenceRow, generations: &[(&GenerationRow, f64)]) -> Result<Item, JobError> {
    let refused = |what: &str| {
        let SequenceRow { task_id, sample, sequence_index, .. } = row;
        JobError::refused(
            format!("sequence {sequence_index} of task `{task_id}`, sample {sample}: {what}"),
            "the rollout's tables are not whole; run it again",
        )
    };
    let role = [TrainRole::Actor, TrainRole::Rehearsal].into_iter().find(|role| role.name() == row.role);
    let role = role.ok_or_else(|| refused("its role is neither `actor` nor `rehearsal`"))?;
    let (mut trained, mut sampling_logprobs, mut spans) = (Vec::new(), Vec::new(), Vec::new());
    let mut temperature = None;
    for (generation, advantage) in generations {
        let start = usize::try_from(generation.span_start).map_err(|_| refused("a span begins before it"))?;
        let len =
            usize::try_from(generation.n_tokens).map_err(|_| refused("a span has a negative length"))?;
        spans.push(Span { start: trained.len(), len, advantage: *advantage });
        for position in start..start + len {
            let logprob = row.sampling_logprobs.get(position).copied().flatten();
            let is_sampled = row.loss_mask.get(position) == Some(&true);
            match logprob.filter(|_| is_sampled && position > 0) {
                Some(logprob) => sampling_logprobs.push(logprob),
                None => return Err(refused("a span holds a token that was not sampled")),
            }
            trained.push(position as u32);
        }
        if *temperature.get_or_insert(generation.temperature) != generation.temperature {
            return Err(refused("its generations were sampled at different temperatures"));
        }
    }
    let n_tokens = trained.last().map_or(0, |last| *last as usize + 1);
    let token_ids = row.token_ids.get(..n_tokens).unwrap_or_default().to_vec();
    // What was sampled greedily has the logprobs of temperature 1.
    let temperature = temperature.filter(|temperature| *temperature > 0.0).unwrap_or(1.0);
    Ok(Item {
        task_id: row.task_id.clone(),
        role,
        sequence: TrainSequence { token_ids, trained, temperature },
        sampling_logprobs,
        spans,
        old_logprobs: None,
        ref_logprobs: None,
    })
}

/// The minibatches of one epoch: tasks in an order drawn for it, dealt out in turn. One minibatch keeps the order
/// of the keys.
pub fn minibatches(
    items: &[Item],
    n_minibatches: usize,
    seed: u64,
    step: u64,
    epoch: u64,
) -> Vec<Vec<&Item>> {
    if n_minibatches <= 1 {
        return vec![items.iter().collect()];
    }
    let mut tasks: Vec<&str> = items.iter().map(|item| item.task_id.as_str()).collect();
    tasks.dedup();
    Draw::new(seed, "minibatches").step(step).position(epoch).shuffle(&mut tasks);
    let batch_of: BTreeMap<&str, usize> =
        tasks.iter().enumerate().map(|(place, task)| (*task, place % n_minibatches)).collect();
    let mut batches = vec![Vec::new(); n_minibatches.min(tasks.len())];
    for item in items {
        if let Some(batch) = batch_of.get(item.task_id.as_str()).and_then(|batch| batches.get_mut(*batch)) {
            batch.push(item);
        }
    }
    batches.retain(|batch| !batch.is_empty());
    batches
}

fn contradiction(row: &AdvantageRow, what: &str) -> JobError {
    JobError::refused(
        format!(
            "generation {} of task `{}`, sample {}, {what}",
            row.generation_index, row.task_id, row.sample
        ),
        "`advantages` were not made from this rollout; run `advantage` again",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(role: &str, n_tokens: usize, sampled: std::ops::Range<usize>) -> SequenceRow {
        SequenceRow {
            task_id: "t".to_owned(),
            sample: 0,
            sequence_index: 0,
            role: role.to_owned(),
            token_ids: (0..n_tokens as u32).collect(),
            loss_mask: (0..n_tokens).map(|position| sampled.contains(&position)).collect(),
            sampling_logprobs: (0..n_tokens)
                .map(|position| sampled.contains(&position).then_some(-(position as f32)))
                .collect(),
        }
    }

    fn generation(index: i32, start: i32, n_tokens: i32) -> GenerationRow {
        GenerationRow {
            task_id: "t".to_owned(),
            sample: 0,
            generation_index: index,
            role: "actor".to_owned(),
            checkpoint: String::new(),
            user_turn: 0,
            turn: index,
            call_index: None,
            try_index: 0,
            sequence_index: 0,
            span_start: start,
            n_tokens,
            n_prompt_tokens: start,
            text: String::new(),
            finish_reason: "stop".to_owned(),
            error_code: None,
            is_blank: false,
            temperature: 0.5,
            top_p: 1.0,
            top_k: 0,
        }
    }

    fn advantage(index: i32, advantage: Option<f64>) -> AdvantageRow {
        AdvantageRow {
            task_id: "t".to_owned(),
            sample: 0,
            generation_index: index,
            role: "actor".to_owned(),
            reward: None,
            baseline: None,
            deviation: None,
            group_size: 2,
            advantage,
            is_included: advantage.is_some(),
            exclusion_reason: None,
        }
    }

    #[test]
    fn a_sequence_ends_with_its_last_included_generation() {
        // Tokens 2..4 and 6..9 were sampled; only the first of the two generations is included.
        let mut row = sequence("actor", 10, 2..4);
        for position in 6..9 {
            row.loss_mask[position] = true;
            row.sampling_logprobs[position] = Some(-1.0);
        }
        let generations = [generation(0, 2, 2), generation(1, 6, 3)];
        let advantages = [advantage(0, Some(0.25)), advantage(1, None)];
        let roles = [TrainRole::Actor];
        let items = items_of(&roles, &advantages, &generations, std::slice::from_ref(&row)).unwrap();
        assert_eq!(items.len(), 1);
        assert_eq!(items[0].sequence.token_ids, [0, 1, 2, 3]);
        assert_eq!(items[0].sequence.trained, [2, 3]);
        assert_eq!(items[0].sequence.temperature, 0.5);
        assert_eq!(items[0].sampling_logprobs, [-2.0, -3.0]);
        assert_eq!(items[0].spans, [Span { start: 0, len: 2, advantage: 0.25 }]);
        let other =
            items_of(&[TrainRole::Rehearsal], &advantages, &generations, std::slice::from_ref(&row)).unwrap();
        assert!(other.is_empty(), "a role that is not trained has no item");
    }

    #[test]
    fn tables_that_contradict_each_other_are_refused() {
        let roles = [TrainRole::Actor];
        let generations = [generation(0, 2, 3)];
        let advantages = [advantage(0, Some(1.0))];
        let cut = sequence("actor", 10, 2..4);
        let error = items_of(&roles, &advantages, &generations, &[cut]).unwrap_err().to_string();
        assert!(error.contains("not sampled"), "{error}");
        let error = items_of(&roles, &advantages, &generations, &[]).unwrap_err().to_string();
        assert!(error.contains("is missing"), "{error}");
        let error = items_of(&roles, &advantages, &[], &[]).unwrap_err().to_string();
        assert!(error.contains("is no generation"), "{error}");
    }
}
